"""Graphics block (GC 11): waiting for its firmware, starting the compute front end (MEC), compute queues, clock gating.

Registers of queues, pipes and VMIDs are banked by GRBM_GFX_CNTL, which is always left at 0. Sources: public amdgpu code and headers
(gfx_v11_0, v11_structs).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from drivers.amd import soc
from drivers.amd.layouts import mqd as layout
from hw.errors import QueueStuck, RlcError, WaitTimeout
from hw.mmio import ALL_ONES_32

if TYPE_CHECKING:
    from drivers.amd.device import AmdDevice

Encode = Callable[..., int]
"""encode(register name, field=value...) -> register value"""

AUTOLOAD_WITHIN = 10.0
TYPICAL_AUTOLOAD = 15e-3
SAFE_MODE_WITHIN = 1.0
DEQUEUE_WITHIN = 10.0
MEC_START_SECONDS = 50e-3
SOFT_RESET_SECONDS = 50e-3

MEC = 1
"""ME number of the first compute front end"""
PIPE = 0
VMIDS = 16
ADDRESS_64BIT = 0
ALIGNMENT_UNALIGNED = 3
INST_PREFETCH = 3
SHARED_BASE = 1
PRIVATE_BASE = 2
"""bits 63:48 of the LDS and scratch apertures"""
TCP_CNTL_SET = 0x20000000
"""published golden setting"""
SPM_VMID = 0xF
READ_TIMEOUT = 0xFF
DOORBELL = 3
"""64-bit doorbell slot of the compute queue"""
DOORBELL_RANGE = (0x00, 0xF8)
"""bytes of the doorbell BAR that the MEC listens to, last slot inclusive"""
AWID = 0x3
AWID_SECOND = 0x6
ROUTER_ADDRESS = 0x3

PRELOAD_SIZE = 0x55
PIPE_PRIORITY = 2
QUEUE_PRIORITY = 0xF
QUANTUM = 0x111
RPTR_BLOCK_SIZE = 5
MIN_IB_AVAIL = 3
HQ_STATUS0 = 0x20004000
STATIC_THREAD_ALL = 0xFFFFFFFF
SLOT_BASED_WPTR_AQL = 2
DEQUEUE_RESET_WAVES = 2
PM4_QUEUE = 0
AQL_QUEUE = 1
QUEUES = (PM4_QUEUE, AQL_QUEUE)

IDLE_THRESHOLD = 0x36
COMPENSATION_DELAY = 0xF
POLL_FREQUENCY = 0x100
IDLE_POLL_COUNT = 0x90
SAFE_MODE_ENTER = 1


def build_mqd(*, mqd_mc: int, ring_va: int, ring_bytes: int, rptr_va: int, wptr_va: int, eop_va: int, eop_bytes: int, aql: bool, encode: Encode) -> bytes:
    """The descriptor of a compute queue. Addresses are GPU virtual but for mqd_mc; sizes are powers of two in bytes."""
    values: dict[str, int] = {"header": layout.HEADER}
    values |= {f"compute_static_thread_mgmt_se{engine}": STATIC_THREAD_ALL for engine in range(8)}
    for name, address in (
        ("cp_mqd_base_addr", mqd_mc),
        ("cp_hqd_pq_base", ring_va >> 8),
        ("cp_hqd_pq_rptr_report_addr", rptr_va),
        ("cp_hqd_pq_wptr_poll_addr", wptr_va),
        ("cp_hqd_eop_base_addr", eop_va >> 8),
    ):
        values[f"{name}_lo"], values[f"{name}_hi"] = address & ALL_ONES_32, address >> 32
    control = {"queue_size": (ring_bytes // 4).bit_length() - 2, "rptr_block_size": RPTR_BLOCK_SIZE, "unord_dispatch": 0}
    if aql:
        control |= {"queue_full_en": 1, "slot_based_wptr": SLOT_BASED_WPTR_AQL, "no_update_rptr": 1}
    values |= {
        "cp_hqd_persistent_state": encode("CP_HQD_PERSISTENT_STATE", preload_req=1, preload_size=PRELOAD_SIZE),
        "cp_hqd_pipe_priority": PIPE_PRIORITY,
        "cp_hqd_queue_priority": QUEUE_PRIORITY,
        "cp_hqd_quantum": QUANTUM,
        "cp_hqd_pq_doorbell_control": encode("CP_HQD_PQ_DOORBELL_CONTROL", doorbell_offset=DOORBELL * layout.DOORBELL_DWORDS_PER_SLOT, doorbell_en=1),
        "cp_hqd_pq_control": encode("CP_HQD_PQ_CONTROL", **control),
        "cp_hqd_ib_control": encode("CP_HQD_IB_CONTROL", min_ib_avail_size=MIN_IB_AVAIL),
        "cp_hqd_hq_status0": HQ_STATUS0,
        "cp_mqd_control": encode("CP_MQD_CONTROL", priv_state=1),
        "cp_hqd_eop_control": encode("CP_HQD_EOP_CONTROL", eop_size=(eop_bytes // 4).bit_length() - 2),
        "cp_hqd_aql_control": int(aql),
    }
    words = [0] * layout.DWORDS
    places = layout.fields()
    for name, value in values.items():
        words[places[name]] = value
    return struct.pack(f"<{layout.DWORDS}I", *words)


class Gfx:
    """The graphics block of one GPU."""

    def __init__(self, dev: AmdDevice) -> None:
        self.dev = dev

    @contextmanager
    def selected(self, *, me: int = 0, pipe: int = 0, queue: int = 0, vmid: int = 0) -> Iterator[None]:
        """Reach the banked registers of one queue, pipe or VMID."""
        register = self.dev.gc.GRBM_GFX_CNTL
        register.write(meid=me, pipeid=pipe, queueid=queue, vmid=vmid)
        try:
            yield
        finally:
            register.write(0)

    # --- start ---

    def wait_autoload(self) -> None:
        """Wait until the firmware of the graphics block runs. Raises RlcError with the decoded state."""
        status, bootload = self.dev.gc.CP_STAT, self.dev.gc.RLC_RLCS_BOOTLOAD_STATUS
        complete = bootload.encode(bootload_complete=1)
        try:
            self.dev.wait(bootload, lambda value: bool(value & complete), what="RLC autoload", within=AUTOLOAD_WITHIN, typical=TYPICAL_AUTOLOAD)
            self.dev.wait(status, lambda value: value == 0, what="idle command processor after RLC autoload", within=AUTOLOAD_WITHIN)
        except WaitTimeout as error:
            raise RlcError(
                f"RLC autoload timeout: {error.what}",
                read=f"{status.describe(status.read())}; {bootload.describe(bootload.read())}",
                means="a firmware part is missing or damaged (most often IMU, RLC_G or its IRAM), or belongs to another chip",
            ) from error

    def init(self, mec_start: int) -> None:
        """Everything that a fresh graphics block needs after its firmware runs."""
        gc = self.dev.gc
        self.dev.gmc.hubs["gfx"].init()
        self.configure_mec(mec_start)
        with self.dev.space.batch():
            gc.TCP_CNTL.write(gc.TCP_CNTL.read() | TCP_CNTL_SET)
            gc.RLC_CNTL.write(rlc_enable_f32=1)
            gc.RLC_SRM_CNTL.update(srm_enable=1, auto_incr_addr=1)
            gc.RLC_SPM_MC_CNTL.write(rlc_spm_vmid=SPM_VMID)
            self.dev.soc.route_doorbells(soc.ROUTE_GFX, awid=AWID, address_31_28=ROUTER_ADDRESS)
            self.dev.soc.route_doorbells(soc.ROUTE_GFX_SECOND, awid=AWID_SECOND, address_31_28=ROUTER_ADDRESS)
            gc.GRBM_CNTL.update(read_timeout=READ_TIMEOUT)
            self._set_apertures()
            gc.CP_MEC_DOORBELL_RANGE_LOWER.write(DOORBELL_RANGE[0])
            gc.CP_MEC_DOORBELL_RANGE_UPPER.write(DOORBELL_RANGE[1])
        self.enable_mec()

    def _set_apertures(self) -> None:
        """Memory configuration of every VMID: 64-bit, unaligned accesses allowed, LDS and scratch apertures."""
        gc = self.dev.gc
        for vmid in range(VMIDS):
            gc.GRBM_GFX_CNTL.write(vmid=vmid)
            gc.SH_MEM_CONFIG.write(address_mode=ADDRESS_64BIT, alignment_mode=ALIGNMENT_UNALIGNED, initial_inst_prefetch=INST_PREFETCH)
            gc.SH_MEM_BASES.write(shared_base=SHARED_BASE, private_base=PRIVATE_BASE)
        gc.GRBM_GFX_CNTL.write(0)

    def resume(self, mec_start: int) -> None:
        """Take over a block that an earlier run left initialised."""
        self.dev.gmc.hubs["gfx"].init()
        self.reset_mec(mec_start, wait=True)

    def configure_mec(self, mec_start: int) -> None:
        """Set where the MEC begins and pulse its reset."""
        gc = self.dev.gc
        with self.selected(me=MEC, pipe=PIPE):
            gc.write_pair("CP_MEC_RS64_PRGRM_CNTR_START", "CP_MEC_RS64_PRGRM_CNTR_START_HI", mec_start >> 2)
        gc.CP_MEC_RS64_CNTL.update(mec_pipe0_reset=1)
        gc.CP_MEC_RS64_CNTL.update(mec_pipe0_reset=0)

    def enable_mec(self) -> None:
        """Let the MEC run."""
        self.dev.gc.CP_MEC_RS64_CNTL.update(mec_pipe0_reset=0, mec_pipe0_active=1, mec_halt=0)
        self.dev.clock.sleep(MEC_START_SECONDS)

    def halt_mec(self) -> None:
        """Stop the MEC."""
        self.dev.gc.CP_MEC_RS64_CNTL.update(mec_pipe0_active=0, mec_halt=1)

    def reset_mec(self, mec_start: int, *, wait: bool) -> None:
        """Drop every queue and start the MEC anew. wait: wait for queues to end first, which a hung one does not."""
        self.dequeue(wait=wait)
        self.dev.gc.GRBM_SOFT_RESET.write(soft_reset_cp=1, soft_reset_cpc=1)
        self.dev.clock.sleep(SOFT_RESET_SECONDS)
        self.dev.gc.GRBM_SOFT_RESET.write(0)
        self.configure_mec(mec_start)
        self.enable_mec()

    # --- queues ---

    def setup_ring(self, *, ring_va: int, ring_bytes: int, rptr_va: int, wptr_va: int, eop_va: int, eop_bytes: int, aql: bool = False) -> int:
        """Start a compute queue; returns its 64-bit doorbell slot. Raises QueueStuck when the MEC does not take it."""
        gc = self.dev.gc
        queue = AQL_QUEUE if aql else PM4_QUEUE
        place = self.dev.boot_memory.mqds[queue]
        data = build_mqd(
            mqd_mc=self.dev.mc_base + place,
            ring_va=ring_va,
            ring_bytes=ring_bytes,
            rptr_va=rptr_va,
            wptr_va=wptr_va,
            eop_va=eop_va,
            eop_bytes=eop_bytes,
            aql=aql,
            encode=lambda name, **fields: gc[name].encode(**fields),
        )
        words = struct.unpack(f"<{layout.DWORDS}I", data)
        with self.dev.space.batch(), self.selected(me=MEC, pipe=PIPE, queue=queue):
            self.dev.vram_write(place, data)
            self.dev.flush_hdp()
            self.dev.space.write_block(gc[layout.FIRST_REGISTER_NAME].index, words[layout.FIRST_REGISTER : layout.LAST_REGISTER + 1])
            gc.CP_HQD_ACTIVE.write(active=1)
            self.dev.flush_hdp()
            active = gc.CP_HQD_ACTIVE.read()
        if active == ALL_ONES_32:
            raise self.dev.lost("starting the compute queue", gc.CP_HQD_ACTIVE.name)
        if not active & 1:
            pointer = gc.CP_MEC_RS64_INSTR_PNTR.read()
            raise QueueStuck(
                "the compute queue did not become active",
                read=f"CP_HQD_ACTIVE = {active:#x}, CP_MEC_RS64_CNTL = {gc.CP_MEC_RS64_CNTL.read():#010x}, CP_MEC_RS64_INSTR_PNTR = {pointer:#x}",
                means="the compute front end is halted, or its firmware is not loaded",
            )
        return DOORBELL

    def dequeue(self, *, wait: bool = True) -> None:
        """Stop both compute queues and reset their waves. Raises QueueStuck when one does not end."""
        gc = self.dev.gc
        for queue in QUEUES:
            with self.selected(me=MEC, pipe=PIPE, queue=queue):
                active = gc.CP_HQD_ACTIVE.read()
                if active == ALL_ONES_32:
                    raise self.dev.lost("stopping the compute queues", gc.CP_HQD_ACTIVE.name)
                if not active & 1:
                    continue
                gc.CP_HQD_DEQUEUE_REQUEST.write(dequeue_req=DEQUEUE_RESET_WAVES)
                gc.SPI_COMPUTE_QUEUE_RESET.write(reset=1)
                if wait:
                    self._await_inactive(queue)

    def _await_inactive(self, queue: int) -> None:
        register = self.dev.gc.CP_HQD_ACTIVE
        try:
            self.dev.wait(register, lambda value: not value & 1, what="end of the compute queue", within=DEQUEUE_WITHIN)
        except WaitTimeout as error:
            raise QueueStuck(f"compute queue {queue} of pipe {PIPE}, ME {MEC} does not stop", read=error.read) from error

    def queue_state(self, queue: int = PM4_QUEUE) -> dict[str, int]:
        """Registers of a compute queue that tell where it stands, for reports of a hang."""
        gc = self.dev.gc
        names = ("CP_HQD_ACTIVE", "CP_HQD_PQ_RPTR", "CP_HQD_PQ_WPTR_LO", "CP_HQD_PQ_DOORBELL_CONTROL", "CP_HQD_DEQUEUE_REQUEST", "CP_HQD_ERROR")
        with self.selected(me=MEC, pipe=PIPE, queue=queue):
            state = {name: gc[name].read() for name in names}
        return state | {name: gc[name].read() for name in ("CP_STAT", "GRBM_STATUS", "CP_MEC_RS64_INSTR_PNTR")}

    # --- clock gating ---

    def gate_clocks(self) -> None:
        """Let idle parts of the block stop their clocks; the RLC must hold still meanwhile."""
        gc = self.dev.gc
        self._enter_safe_mode()
        gc.RLC_CGCG_CGLS_CTRL.update(cgcg_gfx_idle_threshold=IDLE_THRESHOLD, cgcg_en=1, cgls_rep_compansat_delay=COMPENSATION_DELAY, cgls_en=1)
        gc.CP_RB_WPTR_POLL_CNTL.update(poll_frequency=POLL_FREQUENCY, idle_poll_count=IDLE_POLL_COUNT)
        gc.CP_INT_CNTL.update(cntx_busy_int_enable=1, cntx_empty_int_enable=1, cmp_busy_int_enable=1)
        gc.SDMA0_RLC_CGCG_CTRL.update(cgcg_int_enable=1)
        gc.SDMA1_RLC_CGCG_CTRL.update(cgcg_int_enable=1)
        gc.RLC_CGTT_MGCG_OVERRIDE.update(
            gfxip_fgcg_override=0,
            grbm_cgtt_sclk_override=0,
            rlc_cgtt_sclk_override=0,
            gfxip_mgcg_override=0,
            gfxip_cgls_override=0,
            gfxip_cgcg_override=0,
            gfxip_repeater_fgcg_override=0,
            perfmon_clock_state=1,
        )
        gc.RLC_SAFE_MODE.write(cmd=1)

    def _enter_safe_mode(self) -> None:
        register = self.dev.gc.RLC_SAFE_MODE
        register.write(cmd=1, message=SAFE_MODE_ENTER)
        try:
            self.dev.wait(register, lambda value: not value & 1, what="RLC safe mode", within=SAFE_MODE_WITHIN, typical=50e-6)
        except WaitTimeout as error:
            raise RlcError("the RLC does not enter safe mode", read=error.read, means="its firmware does not run") from error
