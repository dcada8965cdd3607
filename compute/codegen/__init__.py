"""Kernel IR to something that runs: LLVM IR for x86 and amdgcn, and an interpreter on numpy."""
