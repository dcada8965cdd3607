"""How to reach a device: windows, registers, structs, PCI, DMA, waiting and errors. Knows no device."""
