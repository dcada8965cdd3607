"""Queue descriptors, queue registers and interrupt handling against recorded ones.

Free choices of ours: an HDP flush before the queue registers as well, CP_HQD_ACTIVE read back after it was set. There is one copy
queue and no way to ask for a second, which gfx1100.sdma_1_refused lets us choose.
"""

from __future__ import annotations

import hashlib
import struct
from typing import Any

import pytest

from drivers.amd import gfx, sdma
from drivers.amd.layouts import ih as ih_layout
from drivers.amd.layouts import mqd as mqd_layout
from hw.errors import GpuFault
from tests.drivers.amd.recorder import device, vectors

MQD = vectors("amd_mqd")
IH = vectors("amd_ih")


@pytest.mark.parametrize("name", ["pm4_16m", "aql_16m", "pm4_8k"])
def test_compute_queue_descriptor_and_registers(name: str) -> None:
    vector = MQD[f"gfx1100.{name}"]
    inputs = vector["inputs"]
    gpu, pci = device()
    number = {key: int(inputs[key], 16) for key in ("ring_va", "ring_bytes", "rptr_va", "wptr_va", "eop_va", "eop_bytes")}
    active = gpu.gc.CP_HQD_ACTIVE.index
    assert gpu.setup_compute_ring(**number, aql=inputs["aql"]) == vector["expected"]["doorbell_index_64bit"]
    expected = vector["expected"]["mqd"][0]
    place = int(expected["mqd_vram_offset"], 16)
    data = pci.memory.read(place, mqd_layout.SIZE)
    words = struct.unpack(f"<{mqd_layout.DWORDS}I", data)
    assert {str(index): hex(word) for index, word in enumerate(words) if word} == expected["nonzero_dwords"]
    assert hashlib.sha256(data).hexdigest() == expected["sha256"]
    writes = [(hex(index), hex(value)) for kind, index, value in (entry for entry in pci.log if entry[0] == "w") if index != 0x1FC00]
    wanted = [(write["dword"], write["value"]) for write in vector["expected"]["register_writes"] if write["kind"] == "w" and write["dword"] != "0x1fc00"]
    assert writes == wanted
    assert pci.registers.values[active] == 1


def test_copy_queue_registers() -> None:
    vector = MQD["gfx1100.sdma_0"]
    gpu, pci = device()
    inputs = vector["inputs"]
    doorbell = gpu.setup_sdma_ring(*(int(inputs[key], 16) for key in ("ring_va", "ring_bytes", "rptr_va", "wptr_va")))
    assert doorbell == vector["expected"]["doorbell_index_64bit"] == sdma.DOORBELL
    writes = [(hex(index), hex(value)) for kind, index, value in (entry for entry in pci.log if entry[0] == "w")]
    assert writes == [(write["dword"], write["value"]) for write in vector["expected"]["register_writes"]]


def test_stopping_the_queues() -> None:
    vector = MQD["gfx1100.stop"]
    gpu, pci = device()
    values = pci.registers.values
    active, request = gpu.gc.CP_HQD_ACTIVE.index, gpu.gc.CP_HQD_DEQUEUE_REQUEST.index
    select = gpu.gc.GRBM_GFX_CNTL.index

    def dequeue(value: int) -> None:
        values[active] = 0

    def selected(value: int) -> None:
        values[active] = 1

    pci.registers.reactions |= {request: dequeue, select: selected}
    for name, value in (("RB_CNTL", 0x84182D), ("IB_CNTL", 1), ("DOORBELL", 0x10000000), ("DOORBELL_OFFSET", 0x800)):
        values[gpu.gc[f"SDMA0_QUEUE0_{name}"].index] = value
    gpu.gfx.dequeue()
    gpu.sdma.stop()
    accesses = [(kind, hex(index), hex(value)) for kind, index, value in (entry for entry in pci.log if entry[0] in "rw")]
    ours = [entry for entry in accesses if not (entry[1] == hex(select) and entry[2] == "0x0")]
    wanted = [(a["kind"], a["dword"], a["value"]) for a in vector["expected"]["accesses"] if not (a["reg"] == "GRBM_GFX_CNTL" and a["value"] == "0x0")]
    assert ours == wanted
    assert values[select] == 0, "the selection is left at 0"


ENTRIES = [name for name, vector in IH.items() if "entry" in vector["inputs"]]


@pytest.mark.parametrize("name", ENTRIES)
def test_interrupt_entries_decode_and_move_the_read_pointer(name: str) -> None:
    vector = IH[name]
    inputs, expected = vector["inputs"], vector["expected"]
    gpu, pci = device()
    start = int(inputs["read_pointer_dword"], 16) * 4
    gpu.ih.rptr = start
    pci.memory.write(gpu.boot_memory.ih_ring0 + start, bytes.fromhex(inputs["entry"]))
    pci.registers.values[gpu.osssys.IH_RB_WPTR.index] = int(inputs["write_pointer_register"], 16)
    for access in expected["meaning"].get("accesses", []):
        if access["kind"] == "r":
            pci.registers.values[gpu.gc[access["reg"]].index] = int(access["value"], 16)
    (interrupt,) = gpu.ih.drain()
    decoded, entry = expected["decoded"], interrupt.entry
    assert (entry.client_id, entry.source_id, entry.ring_id, entry.vmid, entry.vmid_type) == tuple(decoded[key] for key in ("client", "source", "ring", "vmid", "vmid_type"))
    assert (entry.pasid, entry.node_id) == (decoded["pasid"], decoded["node"])
    assert [hex(word) for word in entry.data] == decoded["context"]
    assert hex(entry.timestamp) == decoded["timestamp"]
    assert interrupt.is_error == expected["meaning"]["error_state"]
    assert hex(pci.registers.values[gpu.osssys.IH_RB_RPTR.index]) == expected["read_pointer_register_after"]
    meaning = expected["meaning"]
    if "fault_va" in meaning:
        assert interrupt.fault is not None
        assert hex(interrupt.fault.address) == meaning["fault_va"]
        assert hex(interrupt.fault.status) == meaning["status"]
        assert interrupt.fault.write and interrupt.fault.more and interrupt.fault.reasons == ("entry not valid",)
        assert pci.registers.values[gpu.gc.GCVM_L2_PROTECTION_FAULT_CNTL.index] == 1
    if "shader" in meaning:
        error = {"ILLEGAL_INST": "illegal instruction", "MEMVIOL": "memory violation", None: "message"}[meaning["shader"]["error"]]
        assert error in interrupt.text


def test_entries_encode_back_to_their_bytes() -> None:
    for name in ENTRIES:
        raw = bytes.fromhex(IH[name]["inputs"]["entry"])
        entry = ih_layout.decode_entry(struct.unpack("<8I", raw))
        assert struct.pack("<8I", *ih_layout.encode_entry(entry)) == raw


def test_page_fault_is_raised_decoded() -> None:
    vector = IH["gfx1100.page_fault"]
    gpu, pci = device()
    pci.memory.write(gpu.boot_memory.ih_ring0, bytes.fromhex(vector["inputs"]["entry"]))
    pci.registers.values[gpu.osssys.IH_RB_WPTR.index] = 0x20
    for access in vector["expected"]["meaning"]["accesses"]:
        pci.registers.values[gpu.gc[access["reg"]].index] = int(access["value"], 16)
    with pytest.raises(GpuFault, match="VA 0x200012345000: write by CB/DB, VMID 0: entry not valid"):
        gpu.drain_interrupts()
    assert gpu.error_state


def test_overflow_is_cleared_as_recorded() -> None:
    vector = IH["gfx1100.overflow"]
    gpu, pci = device()
    values = pci.registers.values
    gpu.ih.rptr = 0x100
    values[gpu.osssys.IH_RB_WPTR.index] = 0x101
    values[gpu.osssys.IH_RB_CNTL.index] = 0xC0330021
    gpu.ih.drain()
    names = {gpu.osssys[name].index: name for name in ("IH_RB_WPTR", "IH_RB_RPTR", "IH_RB_CNTL")}
    accesses = [(kind, names[index], hex(value)) for kind, index, value in (entry for entry in pci.log if entry[0] in "rw") if index in names]
    expected = [(a["kind"], a["reg"], "0x100" if a["reg"] == "IH_RB_RPTR" else a["value"]) for a in vector["expected"]["accesses"]]
    assert accesses == expected, "the recorded read pointer is unscaled, which the vector itself calls wrong"


def test_entries_across_the_end_of_the_ring() -> None:
    gpu, pci = device()
    raw = bytes.fromhex(IH["gfx1100.sdma_trap"]["inputs"]["entry"])
    gpu.ih.rptr = (256 << 10) - 32
    pci.memory.write(gpu.boot_memory.ih_ring0 + gpu.ih.rptr, raw)
    pci.memory.write(gpu.boot_memory.ih_ring0, raw)
    pci.registers.values[gpu.osssys.IH_RB_WPTR.index] = 0x20
    assert [each.source for each in gpu.ih.drain()] == ["SDMA_TRAP", "SDMA_TRAP"]
    assert gpu.ih.rptr == 0x20


def test_every_vector_is_compared() -> None:
    assert set(MQD) == {f"gfx1100.{name}" for name in ("pm4_16m", "aql_16m", "pm4_8k", "sdma_0", "stop", "sdma_1_refused")}
    assert set(IH) - set(ENTRIES) == {"gfx1100.overflow", "gfx1100.ring_init"}
    assert len(ENTRIES) == 10


def test_interrupt_rings_set_up() -> None:
    vector = IH["gfx1100.ring_init"]
    gpu, pci = device()
    gpu.ih.init()
    writes = [(hex(index), hex(value)) for kind, index, value in (entry for entry in pci.log if entry[0] == "w")]
    assert writes == [(write["dword"], write["value"]) for write in vector["expected"]["register_writes"]]


def test_hardware_errors_beside_the_ring_are_reported_and_cleared() -> None:
    gpu, pci = device()
    register = gpu.nbio.BIF_BX0_BIF_DOORBELL_INT_CNTL
    pci.registers.values[register.index] = register.encode(ras_cntlr_interrupt_status=1)
    (interrupt,) = gpu.ih.drain()
    assert interrupt.is_error and "fatal hardware error" in interrupt.text
    assert pci.registers.values[register.index] & register.encode(ras_cntlr_interrupt_clear=1)


def describe_selection(value: int) -> dict[str, Any]:
    return {"me": value >> 2 & 3, "queue": value >> 8 & 7}


def test_aql_queue_uses_its_own_slot() -> None:
    gpu, pci = device()
    gpu.setup_compute_ring(0x200000000000, 0x10000, 0x200000010080, 0x200000010038, 0x200000011000, 0x1000, aql=True)
    first = next(value for kind, index, value in (entry for entry in pci.log if entry[0] == "w") if index == gpu.gc.GRBM_GFX_CNTL.index)
    assert describe_selection(first) == {"me": 1, "queue": gfx.AQL_QUEUE}
