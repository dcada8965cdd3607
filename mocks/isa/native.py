"""From IR text to callable host code: one target machine for this host, one code library that lives as long as the process."""

from __future__ import annotations

import functools
import logging
import time

import llvmlite.binding as llvm

from hw.errors import NotSupported

log = logging.getLogger(__name__)

# Half-precision conversion and fused multiply-add in hardware: what every x86-64-v3 host has. Without them LLVM would call
# library functions that a Python process does not export.
NEEDED_X86 = ("f16c", "fma")


class CompileStatistics:
    """Counts and CPU seconds of translation since the process began."""

    def __init__(self) -> None:
        self.modules = 0
        self.seconds = 0.0


statistics = CompileStatistics()


@functools.cache
def _host() -> tuple[str, str]:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features()
    if llvm.get_default_triple().startswith("x86_64"):
        missing = [name for name in NEEDED_X86 if not features.get(name)]
        if missing:
            raise NotSupported(
                "executing GPU machine code on this host",
                read=f"host CPU {llvm.get_host_cpu_name()} without {', '.join(missing)}",
                means="the simulated GPU translates its code to host code that needs these instructions",
                remedy="use an x86-64-v3 host (any of the last ten years), or a real GPU",
            )
    return llvm.get_host_cpu_name(), features.flatten()


def target_machine(opt: int) -> llvm.TargetMachine:
    cpu, features = _host()
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=features, opt=opt)


_kept: list[llvm.ExecutionEngine] = []


def compile_function(text: str, name: str, opt: int) -> tuple[int, llvm.ExecutionEngine]:
    """Compiles a module: the address of one of its functions, and the owner of the code, which must outlive every use of it."""
    began = time.process_time()
    module = llvm.parse_assembly(text)
    module.verify()
    engine = llvm.create_mcjit_compiler(module, target_machine(opt))
    engine.finalize_object()
    address = engine.get_function_address(name)
    took = time.process_time() - began
    statistics.modules += 1
    statistics.seconds += took
    log.debug("compiled %s in %.1f ms", name, took * 1e3)
    return address, engine


def compile_helper(text: str, name: str) -> int:
    """A function that is kept as long as the process lives."""
    address, engine = compile_function(text, name, opt=2)
    _kept.append(engine)
    return address
