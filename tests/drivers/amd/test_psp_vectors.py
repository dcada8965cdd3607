"""What the PSP is sent, against recorded exchanges. Free choices: number of ready reads, padding behind a blob, frame size field."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from drivers.amd.layouts import psp as layout
from drivers.amd.layouts.psp import Command
from firmware.amd_files import FirmwareSet
from firmware.amd_ucode import Part, Ucode
from tests.drivers.amd.recorder import HDP_FLUSH, RecordedDevice, device, vectors

VECTORS = vectors("amd_psp_smu")
CHIPS = ("gfx1100", "gfx1102")
PART_NAMES = {1: "SOS", 2: "SYS_DRV", 3: "KDB", 4: "TOC", 5: "SPL", 6: "RL", 7: "SOC_DRV", 8: "INTF_DRV", 9: "DBG_DRV", 10: "RAS_DRV"}


def container(parts: dict[str, int]) -> Ucode:
    """A parsed sOS container with parts of the given sizes."""
    return Ucode("psp", "sos", (2, 0), (13, 0), 0, tuple(Part(PART_NAMES[int(number)], bytes([int(number)]) * size) for number, size in parts.items()), "whole")


def normalise(log: list[tuple[Any, ...]], registers: dict[int, str]) -> list[dict[str, str]]:
    """The log in the words of the vectors; repeated reads of one register count once."""
    steps: list[dict[str, str]] = []
    for entry in log:
        kind = entry[0]
        if kind == "sleep":
            continue
        if kind == "memory":
            steps.append({"do": "write message buffer", "bytes": entry[2]})
        elif kind == "w" and entry[1] == HDP_FLUSH:
            steps.append({"do": "HDP flush"})
        elif entry[1] in registers:
            step = {"do": "read" if kind == "r" else "write", "reg": registers[entry[1]], "dword": hex(entry[1]), "value": hex(entry[2])}
            steps.append(step)
    return steps


@pytest.mark.parametrize("chip", CHIPS)
def test_boot_loader_gets_the_parts_in_order(chip: str) -> None:
    vector = VECTORS[f"{chip}.boot_loader"]
    gpu, pci = device(chip)
    loader, alive = gpu.psp.reg(35), gpu.psp.reg(81)
    pci.registers.answers[loader.index] = lambda: 0x80000000
    pci.registers.answers[alive.index] = lambda: 1
    gpu.psp.start_sos(container(vector["inputs"]["container_parts"]))
    steps = normalise(pci.log, {gpu.psp.reg(number).index: f"MP0_SMN_C2PMSG_{number}" for number in (35, 36)})
    assert steps == vector["expected"]["sequence"]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("kind", ["ring_create", "ring_recreate"])
def test_ring_creation(chip: str, kind: str) -> None:
    vector = VECTORS[f"{chip}.{kind}"]
    gpu, pci = device(chip)
    pci.registers.values[gpu.psp.reg(71).index] = int(vector["inputs"].get("size_register", "0"), 16)
    pci.registers.answers[gpu.psp.reg(64).index] = lambda: 0x80000000
    gpu.psp.create_ring()
    expected = [(step["kind"], step.get("reg"), step.get("value")) for step in vector["expected"]["sequence"] if step["kind"] != "sleep"]
    names = {gpu.psp.reg(number).index: f"MP0_SMN_C2PMSG_{number}" for number in (64, 69, 70, 71)}
    assert [(kind, names[index], hex(value)) for kind, index, value in (entry for entry in pci.log if entry[0] != "sleep") if index in names] == expected
    assert ("sleep", 20.0) in pci.log


class Answering:
    """Answers every ring command at once, keeping frames and command buffers."""

    def __init__(self, gpu: Any, pci: RecordedDevice, tmr_size: int = 0x1200000) -> None:
        self.frames: list[bytes] = []
        self.buffers: list[bytes] = []
        self._gpu, self._pci = gpu, pci
        self._taken = 0
        self._tmr_size = tmr_size
        pci.registers.reactions[gpu.psp.reg(67).index] = self.take

    def take(self, wptr: int) -> None:
        memory, boot, mc = self._pci.memory, self._gpu.boot_memory, self._gpu.mc_base
        frame = memory.read(boot.psp_ring + 4 * self._taken, layout.FRAME_SIZE)
        self._taken = wptr
        parsed = layout.LAYOUT.parse("struct ring_frame", frame)
        buffer = memory.read((parsed.cmd_buf_addr_hi << 32 | parsed.cmd_buf_addr_lo) - mc, layout.COMMAND_RESPONSE)
        self.frames.append(frame)
        self.buffers.append(buffer)
        response = layout.LAYOUT.pack("struct response", status=0, tmr_size=self._tmr_size)
        memory.write(boot.psp_command + layout.COMMAND_RESPONSE, response)
        memory.write((parsed.fence_addr_hi << 32 | parsed.fence_addr_lo) - mc, parsed.fence_value.to_bytes(4, "little"))


COMMANDS = {
    "load_toc": lambda psp: psp.load_toc(b"t" * 0x900),
    "setup_tmr": lambda psp: psp.setup_tmr(0x1200000),
    "load_ip_fw_one": lambda psp: psp.load_part(Part("SMU", b"s" * 0x3FE00, (18,))),
    "load_ip_fw_four": lambda psp: psp.load_part(Part("SDMA", b"d" * 0x4001, (9, 10, 52, 53))),
    "autoload_rlc": lambda psp: psp.submit(Command.AUTOLOAD_RLC),
    "spatial_partition": lambda psp: psp.set_partitions(1),
}


@pytest.mark.parametrize("chip", CHIPS)
def test_commands_and_frames_are_those_recorded(chip: str) -> None:
    gpu, pci = device(chip)
    answering = Answering(gpu, pci)
    for name, run in COMMANDS.items():
        vector = VECTORS[f"{chip}.cmd.{name}"]
        expected = vector["expected"]
        assert pci.registers.values.get(gpu.psp.reg(67).index, 0) == vector["inputs"]["write_pointer_before"]
        answering.frames.clear()
        answering.buffers.clear()
        run(gpu.psp)
        assert [frame.hex() for frame in answering.frames] == [command["ring_frame"] for command in expected["commands"]]
        assert [buffer[:128].hex() for buffer in answering.buffers] == [command["command_buffer_first_128"] for command in expected["commands"]]
        assert [hashlib.sha256(buffer).hexdigest() for buffer in answering.buffers] == [command["command_buffer_sha256_of_first_864"] for command in expected["commands"]]
        assert pci.registers.values[gpu.psp.reg(67).index] == expected["write_pointer_after"]


@pytest.mark.parametrize("chip", CHIPS)
def test_command_order_of_a_cold_boot(chip: str) -> None:
    vector = VECTORS[f"{chip}.command_order"]
    gpu, pci = device(chip)
    answering = Answering(gpu, pci)
    wanted = [int(command.rsplit(" ", 1)[1]) for command in vector["expected"]["commands"] if " type " in command]
    engines = tuple(Part(f"T{number}", b"e" * 256, (number,)) for number in wanted if number != 18)
    sos = container({"4": 0x900, "1": 0x100})
    gpu.psp.boot_firmware(FirmwareSet(sos, Part("SMU", b"s" * 256, (18,)), engines, 0))
    sent = []
    for buffer in answering.buffers:
        header = layout.LAYOUT.parse("struct command_header", buffer)
        number = int.from_bytes(buffer[layout.COMMAND_PAYLOAD + 12 :][:4], "little")
        sent.append(f"LOAD_IP_FW type {number}" if header.cmd_id == Command.LOAD_IP_FW else Command(header.cmd_id).name)
    assert sent == vector["expected"]["commands"]


def test_every_recorded_exchange_is_compared() -> None:
    names = ("boot_loader", "ring_create", "ring_recreate", "command_order", *(f"cmd.{name}" for name in COMMANDS))
    assert {name for name in VECTORS if ".smu." not in name} == {f"{chip}.{name}" for chip in CHIPS for name in names}


def test_host_writes_are_flushed_before_every_doorbell_of_the_psp() -> None:
    gpu, pci = device()
    Answering(gpu, pci)
    pci.log.clear()
    gpu.psp.load_part(Part("SMU", b"s" * 64, (18,)))
    dirty = False
    for entry in pci.log:
        if entry[0] == "memory" and entry[1] < gpu.boot_memory.tmr and not (entry[1] == gpu.boot_memory.psp_fence or entry[1] == gpu.boot_memory.psp_command + 864):
            dirty = True
        elif entry[:2] == ("w", HDP_FLUSH):
            dirty = False
        elif entry[:2] == ("w", gpu.psp.reg(67).index):
            assert not dirty


def test_write_pointer_wraps_at_the_ring_end() -> None:
    gpu, pci = device()
    Answering(gpu, pci)
    last = layout.RING_SIZE // 4 - layout.FRAME_SIZE // 4
    gpu.psp._wptr = last
    answering = Answering(gpu, pci)
    answering._taken = last
    gpu.psp.submit(Command.AUTOLOAD_RLC)
    gpu.psp.submit(Command.AUTOLOAD_RLC)
    assert [int.from_bytes(frame[20:24], "little") for frame in answering.frames] == [last + 1, 1]
    assert pci.registers.values[gpu.psp.reg(67).index] == layout.FRAME_SIZE // 4
