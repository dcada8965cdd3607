"""PCI: the device contract, configuration space, and the transports of this machine."""
