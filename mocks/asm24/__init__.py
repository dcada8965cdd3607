"""A simulated ASM2464PD: a USB device in front of a PCIe hierarchy.

    backend   the fake libusb that pyusb runs on: devices, handles, transfers, kernel drivers
    host      the host's USB ports: enumeration, transfers in flight, what a dead process leaves behind
    device    the chip's USB side: standard requests, endpoints that NAK, stall, halt
    custom, stock, rom, bootstub
              the firmwares that can run on it: vendor requests; SCSI by BOT and UAS (bot, uas, scsi); mask ROM; DFU
    chip      one chip: its XDATA space (xdata, xdata.tbl), SRAM (sram), bulk engine (bulk), TLP engine (tlp), PCIe link (link), SPI flash (flash)
    fabric    the PCIe hierarchy behind it: routing by programmed bus numbers and windows, completions

Written from the device's side of the bridge's specification. Standing of what is not plainly observable on hardware is noted where it is decided.
"""
