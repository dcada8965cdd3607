"""Simulated devices as real ones: servers through which an emulator or a kernel sees them."""
