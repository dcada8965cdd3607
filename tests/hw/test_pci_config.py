"""Configuration space: the images of the shared vectors decode to what they were built from, and BARs are sized without a trace."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hw.errors import BusLost, CapabilityLoop, ConfigInvalid, ConfigTruncated, Refused, ResizeRefused, TghwError
from hw.pci import caps, config, extcaps
from hw.pci.config import BytesConfig, ConfigInfo, decode, set_bar_size, size_bars
from hw.pci.device import Bar, show_size

VECTORS = json.loads((Path(__file__).parents[1] / "data" / "pci_config.json").read_text())
IMAGES = {image["id"]: image for image in VECTORS["images"]}


def image_of(vector: dict[str, Any]) -> bytes:
    return bytes.fromhex(vector["image_hex_without_trailing_zeros"]).ljust(vector["bytes"], b"\0")


def decoded(identity: str) -> ConfigInfo:
    return decode(BytesConfig(image_of(IMAGES[identity])))


FAULTS: dict[str, list[type[ConfigInvalid]]] = {
    "images.14": [ConfigTruncated],
    "images.15": [ConfigTruncated],
    "images.17": [CapabilityLoop],
    "images.18": [ConfigInvalid],
    "images.19": [CapabilityLoop, CapabilityLoop],
    "images.20": [ConfigInvalid],
}


@pytest.mark.parametrize("vector", [image for image in VECTORS["images"] if "vendor" in image["built_from"]], ids=lambda vector: vector["name"])
def test_image_decodes_to_what_it_was_built_from(vector: dict[str, Any]) -> None:
    built = dict(vector["built_from"])
    seen = decode(BytesConfig(image_of(vector))).to_dict()
    json.dumps(seen)
    built.pop("fault", None)
    bars = built.pop("bars", None)
    if bars is not None:
        # An unassigned 32-bit BAR is all zero, like one that does not exist: the image does not say which.
        assert seen["bars"] == [bar for bar in bars if not (bar["kind"] == "memory 32-bit" and bar["address"] == "0x0")]
    expected_capabilities = built.pop("capabilities")
    bridge = built.pop("bridge", None)
    if bridge:
        assert seen["bridge"] == bridge
    for key, value in built.items():
        assert seen[key] == value, key
    assert len(seen["capabilities"]) == len(expected_capabilities)
    for found, expected in zip(seen["capabilities"], expected_capabilities, strict=True):
        for key, value in expected.items():
            if key == "bars":
                shown = [
                    {"bar": bar["bar"], "supported_sizes": [show_size(size) for size in bar["supported_sizes"]], "current": show_size(bar["current"])} for bar in found["bars"]
                ]
                assert shown == value
            else:
                assert found[key] == value, f"{expected['name']}: {key}"
    assert [fault["code"] for fault in seen.get("faults", [])] == [kind.code for kind in FAULTS.get(vector["id"], [])]


def test_a_loop_is_named_by_its_ends() -> None:
    assert [fault.what for fault in decoded("images.17").faults] == ["extended capability list loops from 0x150 back to 0x100"]
    assert [fault.what for fault in decoded("images.19").faults] == ["capability list loops from 0x50 back to 0x50", "extended capability list loops from 0x100 back to 0x100"]
    with pytest.raises(CapabilityLoop) as caught:
        caps.find_extended(BytesConfig(image_of(IMAGES["images.17"])), extcaps.RESIZABLE_BAR)
    assert caught.value.means and caught.value.remedy


def test_truncated_space_says_which_permission_is_missing() -> None:
    (fault,) = decoded("images.14").faults
    assert fault.what == "capability at 0x48 cannot be read"
    assert fault.read == "64 bytes of configuration space"
    assert "CAP_SYS_ADMIN" in fault.means
    (extended,) = decoded("images.15").faults
    assert "extended configuration space cannot be read" in extended.what
    with pytest.raises(ConfigTruncated):
        decode(BytesConfig(bytes(16)))


def test_all_ones_is_a_lost_device_not_a_value() -> None:
    with pytest.raises(BusLost) as caught:
        decoded("images.16")
    assert "0xffffffff" in caught.value.read
    with pytest.raises(BusLost):
        size_bars(BytesConfig(image_of(IMAGES["images.16"])))


def test_a_capability_that_does_not_fit_is_listed_and_reported() -> None:
    image = bytearray(256)
    image[0:4] = bytes.fromhex("02104c74")
    image[6] = 0x10
    image[0x34] = 0xF8
    image[0xF8] = caps.PCIE
    info = decode(BytesConfig(image))
    assert [capability.entry.id for capability in info.capabilities] == [caps.PCIE]
    assert info.pcie is None
    assert "at 0xf8 needs" in info.faults[0].what


def test_link_state_and_error_bits_are_words() -> None:
    degraded = decoded("images.3").pcie
    assert degraded and degraded.link_degraded
    assert (degraded.link_capability, degraded.link_status) == ("16GT/s x16", "2.5GT/s x8")
    assert degraded.link_speeds == ("2.5GT/s", "5GT/s", "8GT/s", "16GT/s")
    port = decoded("images.8")
    aer = next(capability for capability in port.capabilities if isinstance(capability, extcaps.Aer))
    assert aer.uncorrectable == ("unsupported request",)
    acs = next(capability for capability in decoded("images.7").capabilities if isinstance(capability, extcaps.Acs))
    assert "P2P request redirect" in acs.enabled
    gpu = decoded("images.0")
    assert gpu.memory_enabled
    pasid = next(capability for capability in gpu.capabilities if isinstance(capability, extcaps.Pasid))
    assert (pasid.execute_supported, pasid.privileged_supported, pasid.width) == (True, True, 16)


def test_a_bar_of_no_known_kind_is_a_fault_not_a_value() -> None:
    image = bytearray(64)
    image[0:4] = bytes.fromhex("02104c74")
    image[0x10] = 6
    info = decode(BytesConfig(image))
    assert info.bars == ()
    assert "BAR0 has type bits 0x3" in info.faults[0].what


@settings(max_examples=300, deadline=None)
@given(st.binary(min_size=0, max_size=64), st.binary(max_size=1024), st.sampled_from([64, 256, 4096]), st.integers(0, 0xFF), st.integers(0x100, 0x3FF))
def test_no_image_makes_the_decoder_fail_untyped(header: bytes, body: bytes, size: int, pointer: int, place: int) -> None:
    image = bytearray(header.ljust(64, b"\0") + body).ljust(size, b"\0")[:size]
    image[6] |= 0x10
    image[0x34] = pointer
    if size == 4096:
        image[0x100:0x104] = (0x10001 | place << 20).to_bytes(4, "little")
    with suppress(TghwError):
        json.dumps(decode(BytesConfig(image)).to_dict())


# --- a function whose BARs behave ---------------------------------------------------------------------------------------


class SizedConfig(BytesConfig):
    """A function with writable BAR bits by mask; keeps what was written, and remembers decode bits at each BAR write."""

    def __init__(self, image: bytes, masks: dict[int, int]) -> None:
        super().__init__(image)
        self.masks = masks
        self.command_during_bar_writes: set[int] = set()

    def write(self, offset: int, value: int, size: int) -> None:
        if 0x10 <= offset < 0x28:
            self.command_during_bar_writes.add(self.read16(0x04) & 3)
            fixed = self.read32(offset)
            mask = self.masks.get(offset, 0)
            value = value & mask | fixed & ~mask
        super().write(offset, value, size)


NAVI31_MASKS = {0x10: 0, 0x14: 0xFFFFFFFC, 0x18: 0xF0000000, 0x1C: 0xFFFFFFFF, 0x20: 0xFFFFFF00, 0x24: 0xFFF00000}
"""16 GiB, 256 MiB, 256 bytes of ports, 1 MiB"""


def navi31(identity: str = "images.0", command: int = 3) -> SizedConfig:
    image = bytearray(image_of(IMAGES[identity]))
    image[4] = command
    return SizedConfig(bytes(image), NAVI31_MASKS)


def test_sizing_uses_both_halves_and_restores_everything() -> None:
    function = navi31()
    before = function.dump()
    bars = size_bars(function)
    eight_up = tuple(1 << shift for shift in range(28, 35))
    assert bars == {
        0: Bar(0, 0x8_0000_0000, 16 << 30, is_64bit=True, prefetchable=True, resizable_to=eight_up),
        2: Bar(2, 0xA_0000_0000, 256 << 20, is_64bit=True, prefetchable=True, resizable_to=tuple(1 << shift for shift in range(21, 29))),
        4: Bar(4, 0xE000, 256, is_io=True),
        5: Bar(5, 0xFCB0_0000, 1 << 20),
    }
    assert function.dump() == before
    assert function.command_during_bar_writes == {0}


def test_unassigned_bars_have_a_size_and_no_address() -> None:
    bars = size_bars(navi31("images.2", command=0))
    assert (bars[5].address, bars[5].size) == (0, 1 << 20)
    assert (bars[0].address, bars[0].size) == (0, 16 << 30)


def test_16_bit_port_decoder_is_sized() -> None:
    function = navi31()
    function.masks[0x20] = 0xFF00
    assert size_bars(function)[4].size == 256


def test_sizing_a_device_in_use_is_refused_untouched() -> None:
    function = navi31(command=7)
    before = function.dump()
    with pytest.raises(Refused) as caught:
        size_bars(function)
    assert "bus mastering" in caught.value.remedy
    assert function.dump() == before
    assert not function.command_during_bar_writes


def test_registers_are_restored_when_the_device_answers_nonsense() -> None:
    function = navi31()
    function.masks[0x24] = 0xF0F00000
    before = function.dump()
    with pytest.raises(ConfigInvalid, match="BAR5"):
        size_bars(function)
    assert function.dump() == before


def test_bar_size_is_set_with_decode_off_and_read_back() -> None:
    function = navi31()
    set_bar_size(function, 0, 1 << 30)
    assert config.resizable_bars(function)[0].current == 1 << 30
    assert function.read32(0x208) >> 8 & 0x3F == 10
    assert function.read16(4) == 3


@pytest.mark.parametrize(("index", "size", "reason"), [(5, 1 << 30, "not resizable"), (0, 64 << 30, "offered: 256MB, 512MB"), (0, 12345, "offered")])
def test_bar_size_that_is_not_offered_is_refused_untouched(index: int, size: int, reason: str) -> None:
    function = navi31()
    before = function.dump()
    with pytest.raises(ResizeRefused) as caught:
        set_bar_size(function, index, size)
    assert reason in caught.value.what + caught.value.read
    assert function.dump() == before


def test_accesses_are_aligned_and_inside() -> None:
    space = BytesConfig(bytes(256))
    for offset, size in ((1, 2), (2, 4), (0, 3), (-4, 4), (0x1000, 4)):
        with pytest.raises(ConfigInvalid):
            space.read(offset, size)
    with pytest.raises(ConfigTruncated):
        space.read(0x100, 4)


def test_hexdump_is_what_lspci_reads() -> None:
    text = config.hexdump(bytes(range(32)), "03:00.0")
    assert text.splitlines()[1] == "00: 00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"
    assert text.splitlines()[2].startswith("10: 10 11")
    assert text.endswith("\n\n")
