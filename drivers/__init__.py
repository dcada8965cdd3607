"""One package a device family, one shared queue model."""
