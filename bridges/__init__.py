"""PCIe through something else, and the one door to all devices (`bridges.open`)."""
