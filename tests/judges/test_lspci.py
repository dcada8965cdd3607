"""lspci (pciutils) as judge: of the configuration space of simulated devices, and of our own decoder.

Known quirk of `lspci -F`: it prints the upper half of a 64-bit BAR as one more region, and calls port regions disabled as the command
register says; both are looked past here.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hw.errors import CapabilityLoop
from hw.pci import caps, extcaps
from hw.pci.caps import Capability
from hw.pci.config import BytesConfig, ConfigInfo, Window, decode, hexdump
from hw.pci.device import show_size
from mocks.machine import Machine

pytestmark = pytest.mark.skipif(shutil.which("lspci") is None, reason="lspci is not installed (Debian: pciutils)")

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "pci_config.json").read_text())["images"]
GPU = "0000:03:00.0"
LIMIT = 20
"""seconds for one run"""


class Lspci:
    """What `lspci -nn -vvv` says about one image: the first line, the text of each block by its name, and each capability's text."""

    def __init__(self, image: bytes, address: str, folder: Path) -> None:
        dump = folder / "config.txt"
        dump.write_text(hexdump(image, address))
        done = subprocess.run(["lspci", "-F", str(dump), "-nn", "-vvv"], capture_output=True, text=True, timeout=LIMIT, check=True)
        lines = done.stdout.splitlines()
        assert lines, "lspci found no device in the dump"
        self.first = lines[0]
        self.text = done.stdout
        blocks: list[str] = []
        for line in lines[1:]:
            depth = len(line) - len(line.lstrip("\t"))
            if depth == 1:
                blocks.append(line.strip())
            elif blocks:
                blocks[-1] += ("\n" if depth == 2 else " ") + line.strip()
        self.blocks = [re.sub(r"[ \t]+", " ", block) for block in blocks]
        self.capabilities: dict[int, tuple[int, str]] = {}
        for block in self.blocks:
            if found := re.match(r"(?s)Capabilities: \[([0-9a-f]+)(?: v(\d+))?\] (.*)", block):
                self.capabilities.setdefault(int(found[1], 16), (int(found[2] or 0), found[3].strip()))

    def block(self, name: str) -> str:
        """Text after "Name:", "" when lspci does not print it."""
        return next((block.split(":", 1)[1].strip() for block in self.blocks if block.startswith(f"{name}:")), "")

    def flag(self, block: str, name: str) -> bool:
        found = re.search(rf"(?<![\w>]){re.escape(name)}([+-])", self.block(block))
        assert found, f"no {name} in {block}: {self.block(block)}"
        return found[1] == "+"


def part(text: str, name: str) -> str:
    """The line "Name: ..." of a capability, with its continuation."""
    found = re.search(rf"^{name}:\s*(.*)$", text, re.MULTILINE)
    assert found, f"no {name} in: {text}"
    return found[1]


def plus(text: str) -> set[str]:
    """The names that lspci shows with a plus."""
    return set(re.findall(r"([\w>]+)\+(?!\w)", text))


def judge_power(seen: caps.PowerManagement, text: str) -> None:
    assert part(text, "Status").startswith(seen.state)
    assert ("NoSoftRst" in plus(text)) == seen.no_soft_reset
    assert set(re.findall(r"(D\w+)\+", part(text, "Flags").split("PME(")[1])) == set(seen.pme_from)


def judge_msi(seen: caps.Msi, text: str) -> None:
    assert text.startswith(f"MSI: Enable{sign(seen.enabled)} Count={seen.vectors_enabled}/{seen.vectors} Maskable{sign(seen.maskable)} 64bit{sign(seen.is_64bit)}")
    assert f"Address: {seen.address:016x} Data: {seen.data:04x}" in text


def judge_msix(seen: caps.MsiX, text: str) -> None:
    assert text.startswith(f"MSI-X: Enable{sign(seen.enabled)} Count={seen.vectors} Masked{sign(seen.masked)}")
    places = re.findall(r"BAR=(\d) offset=([0-9a-f]+)", text)
    assert [f"BAR{bar}+{int(offset, 16):#x}" for bar, offset in places] == [seen.table, seen.pending]


def judge_pcie(seen: caps.Pcie, text: str) -> None:
    assert seen.kind in text.split(",")[0].lower()
    assert f"MaxPayload {seen.max_payload_supported} bytes" in part(text, "DevCap")
    assert f"MaxPayload {seen.max_payload} bytes, MaxReadReq {seen.max_read_request} bytes" in part(text, "DevCtl")
    assert ("FLReset" in plus(part(text, "DevCap"))) == seen.flr
    control = plus(part(text, "DevCtl"))
    assert ("RlxdOrd" in control, "ExtTag" in control, "NoSnoop" in control) == (seen.relaxed_ordering, seen.extended_tag, seen.no_snoop)
    for name, link in (("LnkCap", seen.link_capability), ("LnkSta", seen.link_status)):
        found = re.search(r"Speed ([\d.]+GT/s)(?: \(\w+\))?, Width (x\d+)", part(text, name))
        assert found and f"{found[1]} {found[2]}" == link
    assert f"Port #{seen.port_number}" in part(text, "LnkCap")
    assert f"ASPM {seen.aspm_supported}," in part(text, "LnkCap")
    assert ("DLActive" in plus(part(text, "LnkSta"))) == seen.link_active
    if seen.version >= 2:
        assert ("LTR" in plus(part(text, "DevCap2"))) == seen.ltr_supported
        assert ("LTR" in plus(part(text, "DevCtl2"))) == seen.ltr_enabled
        if seen.link_speeds and "LnkCap2" in text:  # lspci leaves it out for functions other than the first
            slowest, fastest = (speed.removesuffix("GT/s") for speed in (seen.link_speeds[0], seen.link_speeds[-1]))
            assert f"Supported Link Speeds: {slowest}-{fastest}GT/s" in text


AER_NAMES = {
    "data link protocol": "DLP",
    "surprise down": "SDES",
    "poisoned TLP": "TLP",
    "flow control protocol": "FCP",
    "completion timeout": "CmpltTO",
    "completer abort": "CmpltAbrt",
    "unexpected completion": "UnxCmplt",
    "receiver overflow": "RxOF",
    "malformed TLP": "MalfTLP",
    "ECRC": "ECRC",
    "unsupported request": "UnsupReq",
    "ACS violation": "ACSViol",
    "receiver": "RxErr",
    "bad TLP": "BadTLP",
    "bad DLLP": "BadDLLP",
    "replay rollover": "Rollover",
    "replay timeout": "Timeout",
    "advisory non-fatal": "AdvNonFatalErr",
}
ACS_NAMES = dict(zip(extcaps.ACS_BITS, ("SrcValid", "TransBlk", "ReqRedir", "CmpltRedir", "UpstreamFwd", "EgressCtrl", "DirectTrans"), strict=True))


def judge_aer(seen: extcaps.Aer, text: str) -> None:
    assert plus(part(text, "UESta")) == {AER_NAMES[name] for name in seen.uncorrectable}
    assert plus(part(text, "CESta")) == {AER_NAMES[name] for name in seen.correctable}
    assert part(text, "HeaderLog") == " ".join(f"{word:08x}" for word in seen.header_log)


def judge_acs(seen: extcaps.Acs, text: str) -> None:
    assert plus(part(text, "ACSCap")) == {ACS_NAMES[name] for name in seen.supported}
    assert plus(part(text, "ACSCtl")) == {ACS_NAMES[name] for name in seen.enabled}


def judge_resizable(seen: extcaps.ResizableBars, text: str) -> None:
    shown = re.findall(r"BAR (\d): current size: (\w+), supported: ((?:\d+\wB ?)+)", text)
    assert [(int(bar), current, sizes.split()) for bar, current, sizes in shown] == [
        (bar.bar, show_size(bar.current), [show_size(size) for size in bar.supported_sizes]) for bar in seen.bars
    ]


def judge_sriov(seen: extcaps.Sriov, text: str) -> None:
    assert f"Initial VFs: {seen.initial_vfs}, Total VFs: {seen.total_vfs}, Number of VFs: {seen.enabled_vfs}" in text
    assert f"VF offset: {seen.vf_offset}, stride: {seen.vf_stride}, Device ID: {seen.vf_device:04x}" in text
    assert f"IOVCtl: Enable{sign(seen.enabled)}" in text


def judge_latency(seen: extcaps.Ltr, text: str) -> None:
    assert (part(text, "Max snoop latency"), part(text, "Max no snoop latency")) == (f"{seen.max_snoop_ns}ns", f"{seen.max_no_snoop_ns}ns")


def judge_pasid(seen: extcaps.Pasid, text: str) -> None:
    assert f"Exec{sign(seen.execute_supported)} Priv{sign(seen.privileged_supported)}, Max PASID Width: {seen.width:02x}" in text
    assert f"PASIDCtl: Enable{sign(seen.enabled)}" in text


def judge_serial(seen: extcaps.SerialNumber, text: str) -> None:
    assert text.endswith("-".join(f"{byte:02x}" for byte in seen.serial.to_bytes(8, "big")))


def judge_vendor_specific(seen: extcaps.VendorSpecific, text: str) -> None:
    assert f"ID={seen.vsec_id:04x} Rev={seen.revision} Len={seen.length:03x}" in text


def sign(flag: bool) -> str:
    return "+" if flag else "-"


JUDGES: dict[type[Capability], Callable[[Any, str], None]] = {
    caps.PowerManagement: judge_power,
    caps.Msi: judge_msi,
    caps.MsiX: judge_msix,
    caps.Pcie: judge_pcie,
    extcaps.Aer: judge_aer,
    extcaps.Acs: judge_acs,
    extcaps.ResizableBars: judge_resizable,
    extcaps.Sriov: judge_sriov,
    extcaps.Ltr: judge_latency,
    extcaps.Pasid: judge_pasid,
    extcaps.SerialNumber: judge_serial,
    extcaps.VendorSpecific: judge_vendor_specific,
}


def judge(info: ConfigInfo, lspci: Lspci) -> int:
    """Compare everything that both decode. Returns how many capabilities were compared in detail."""
    assert f"[{info.id.vendor:04x}:{info.id.device:04x}]" in lspci.first
    assert f"[{info.id.class_code >> 8:04x}]" in lspci.first
    if info.id.revision:
        assert f"(rev {info.id.revision:02x})" in lspci.first
    for bit, name in enumerate(("I/O", "Mem", "BusMaster")):
        assert lspci.flag("Control", name) == bool(info.command >> bit & 1)
    for bar in info.bars:
        region = lspci.block(f"Region {bar.index}")
        if bar.is_io:
            assert region.startswith(f"I/O ports at {bar.address:04x}")
        else:
            kind = f"({64 if bar.is_64bit else 32}-bit, {'' if bar.prefetchable else 'non-'}prefetchable)"
            assert region.startswith(f"Memory at {f'{bar.address:08x}' if bar.address else '<unassigned>'} {kind}")
    if info.bridge:
        assert lspci.block("Bus").startswith(f"primary={info.bridge.primary:02x}, secondary={info.bridge.secondary:02x}, subordinate={info.bridge.subordinate:02x}")
        for name, window in (("I/O", info.bridge.io), ("Memory", info.bridge.memory), ("Prefetchable memory", info.bridge.prefetchable)):
            judge_window(window, lspci.block(f"{name} behind bridge"))
    elif info.id.subsystem_vendor:
        assert f"[{info.id.subsystem_vendor:04x}:{info.id.subsystem_device:04x}]" in lspci.block("Subsystem")
    compared = 0
    for capability in info.capabilities:
        if info.faults and capability.entry.offset not in lspci.capabilities:
            continue  # after a loop in the standard list lspci does not look at the extended one
        version, text = lspci.capabilities[capability.entry.offset]
        assert version == capability.entry.version
        check = JUDGES.get(type(capability))
        if check:
            check(capability, text)
            compared += 1
    return compared


def judge_window(window: Window, text: str) -> None:
    if window.disabled:
        assert "[disabled]" in text
    else:
        found = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", text)
        assert found and (int(found[1], 16), int(found[2], 16)) == (window.base, window.limit)


@pytest.mark.parametrize("vector", [image for image in VECTORS if "vendor" in image["built_from"]], ids=lambda image: image["name"])
def test_our_decoder_agrees_with_lspci_on_the_vectors(vector: dict[str, Any], tmp_path: Path) -> None:
    image = bytes.fromhex(vector["image_hex_without_trailing_zeros"]).ljust(vector["bytes"], b"\0")
    info = decode(BytesConfig(image))
    lspci = Lspci(image, vector["bdf"], tmp_path)
    compared = judge(info, lspci)
    assert ("<chain looped>" in lspci.text) == any(isinstance(fault, CapabilityLoop) for fault in info.faults)
    if not info.faults:
        assert list(lspci.capabilities) == [capability.entry.offset for capability in info.capabilities]
        assert compared >= len(info.capabilities) // 2


def test_lspci_reads_every_function_of_the_simulated_machine(tmp_path: Path) -> None:
    machine = Machine.from_profile("navi31")
    addresses = [function.address for function in machine.functions()]
    assert GPU in addresses and len(addresses) >= 5
    for address in addresses:
        image = machine.export_config(address)
        assert len(image) == 4096
        info = decode(BytesConfig(image))
        assert info.faults == ()
        lspci = Lspci(image, address, tmp_path)
        judge(info, lspci)
        assert list(lspci.capabilities) == [capability.entry.offset for capability in info.capabilities]


def test_simulated_gpu_looks_like_a_radeon_rx_7900_xtx(tmp_path: Path) -> None:
    lspci = Lspci(Machine.from_profile("navi31").export_config(GPU), GPU, tmp_path)
    assert "VGA compatible controller [0300]" in lspci.first
    assert "[1002:744c] (rev c8)" in lspci.first
    assert "[1002:0e3b]" in lspci.block("Subsystem")
    # Offsets, ids and versions of a real board (published lspci output of owners).
    titles = {offset: text for offset, (_, text) in lspci.capabilities.items()}
    assert list(titles) == [0x48, 0x50, 0x64, 0xA0, 0x100, 0x150, 0x200, 0x240, 0x270, 0x2A0, 0x2D0, 0x320, 0x410, 0x450]
    assert titles[0x64].startswith(("Express (v2) Legacy Endpoint, MSI 00", "Express (v2) Legacy Endpoint, IntMsgNum 0"))  # before and since pciutils 3.11
    assert "FLReset-" in titles[0x64] and "Speed 16GT/s, Width x16" in part(titles[0x64], "LnkSta")
    assert titles[0xA0].startswith("MSI: Enable- Count=1/1 Maskable- 64bit+")
    assert "BAR 0: current size: 256MB, supported: 256MB 512MB 1GB 2GB 4GB 8GB 16GB 32GB" in titles[0x200]
    assert "BAR 2: current size: 2MB, supported: 2MB 4MB 8MB 16MB 32MB 64MB 128MB 256MB" in titles[0x200]
    assert "Max PASID Width: 0a" in titles[0x2D0]
    assert "MSI-X" not in lspci.text
    assert lspci.block("Region 0").startswith("Memory at 7800000000 (64-bit, prefetchable)")
    assert lspci.block("Region 5").startswith("Memory at fcb00000 (32-bit, non-prefetchable)")


def test_what_a_driver_does_is_seen_by_lspci(tmp_path: Path) -> None:
    """Opening, bus mastering and resizing change the space of the simulated function as they change a real one."""
    machine = Machine.from_profile("navi31")
    cold = Lspci(machine.export_config(GPU), GPU, tmp_path)
    assert not cold.flag("Control", "Mem")
    with machine.open(GPU) as device:
        device.set_bus_master(True)
        opened = Lspci(machine.export_config(GPU), GPU, tmp_path)
        assert opened.flag("Control", "Mem") and opened.flag("Control", "BusMaster")
        assert "[disabled]" not in opened.block("Region 0")
        device.resize_bar(0, 1 << 30)
        resized = Lspci(machine.export_config(GPU), GPU, tmp_path)
        assert "BAR 0: current size: 1GB" in resized.capabilities[0x200][1]
        assert resized.flag("Control", "Mem")
    closed = Lspci(machine.export_config(GPU), GPU, tmp_path)
    assert not closed.flag("Control", "BusMaster")
