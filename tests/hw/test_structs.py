"""Binary layouts, and the tree of errors."""

from __future__ import annotations

import pytest

from hw import errors
from hw.errors import TargetError, TghwError, all_errors
from hw.structs import Layout, ShortData
from probes.catalogue import load_everything

HEADER = Layout("struct header { uint8_t kind; uint32_t magic; uint16_t sizes[2]; };")
ALIGNED = Layout("struct header { uint8_t kind; uint32_t magic; };", packed=False)


def test_layouts_are_packed_unless_told_otherwise() -> None:
    assert HEADER.sizeof("struct header") == 9
    assert HEADER.offsetof("struct header", "sizes", 1) == 7
    assert ALIGNED.sizeof("struct header") == 8


def test_parse_and_pack_are_inverse_and_little_endian() -> None:
    raw = bytes.fromhex("07 78563412 0100 0200")
    header = HEADER.parse("struct header", b"\xff\xff" + raw, 2)
    assert (header.kind, header.magic, list(header.sizes)) == (7, 0x12345678, [1, 2])
    assert HEADER.pack("struct header", kind=7, magic=0x12345678, sizes=[1, 2]) == raw
    header.magic = 1
    assert HEADER.bytes(header) == bytes.fromhex("07 01000000 0100 0200")
    assert HEADER.bytes(HEADER.new("struct header")) == bytes(9)


@pytest.mark.parametrize(("data", "offset"), [(bytes(8), 0), (bytes(20), 12), (b"", 0), (bytes(20), -1)])
def test_data_that_ends_too_early_is_typed(data: bytes, offset: int) -> None:
    with pytest.raises(ShortData) as caught:
        HEADER.parse("struct header", data, offset, what="firmware header")
    assert "firmware header needs 9 bytes" in caught.value.what
    assert caught.value.read == f"{len(data)} bytes"


def test_a_value_that_does_not_fit_is_our_mistake() -> None:
    with pytest.raises(OverflowError):
        HEADER.pack("struct header", kind=256)


# --- errors -------------------------------------------------------------------------------------------------------------


def test_codes_are_unique_and_every_kind_says_what_it_means() -> None:
    load_everything()  # the tree has the classes of every package, whichever tests ran before
    kinds = [kind for kind in all_errors() if not kind.__module__.startswith("tests")]
    codes = [kind.code for kind in kinds]
    assert len(set(codes)) == len(codes), sorted(code for code in codes if codes.count(code) > 1)
    known = (errors.EXIT_FAILED, errors.EXIT_USAGE, errors.EXIT_NOTHING_FOUND, errors.EXIT_REFUSED, errors.EXIT_BUSY, errors.EXIT_INTERRUPTED)
    assert {kind.exit_status for kind in kinds} <= set(known)


def test_an_error_tells_its_story_in_lines_and_as_data() -> None:
    error = TargetError("interface in device string 'X+AMD'", read="found 'X'")
    assert str(error) == "bad-target: interface in device string 'X+AMD' (read: found 'X')"
    assert error.explain().splitlines() == [
        "bad-target: interface in device string 'X+AMD'",
        "  read:  found 'X'",
        f"  means: {TargetError.default_means}",
        f"  do:    {TargetError.default_remedy}",
    ]
    assert set(error.to_dict()) == {"code", "what", "read", "means", "remedy"}
    assert TghwError("plain", means="because").explain() == "failed: plain\n  means: because"
