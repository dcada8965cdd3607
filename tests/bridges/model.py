"""The bridge as the recordings in tests/data/asm24_transfers.json.zst assume it, as a pyusb backend: enough to answer, and it notes every transfer.

Its PCIe side is the file's: bridges on buses 0 to 3, a GPU on bus 4, memory in which an unwritten dword at A reads 0xa5000000 | (A & 0xffffff).
Completions can be scripted ("timeout" or a status). This is no simulated bridge (mocks/asm24 is): no windows, no link, no time.
"""

from __future__ import annotations

import errno
import hashlib
import json
import struct
from array import array
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import usb.backend
import usb.core
import zstandard

VECTORS: dict[str, Any] = json.loads(zstandard.decompress((Path(__file__).parents[1] / "data" / "asm24_transfers.json.zst").read_bytes()))
VENDOR_OUT, VENDOR_IN = 0x40, 0xC0
STRINGS = {1: "tiny", 3: "0badcafe"}


@dataclass
class Pcie:
    """What is behind the bridge, at the level of single requests."""

    memory: dict[int, int] = field(default_factory=dict)
    spaces: dict[int, bytearray] = field(default_factory=dict)
    """configuration space by bus, device 0 function 0"""
    sizes: dict[int, int] = field(default_factory=dict)
    """GPU BAR registers: offset -> bits that cannot be written"""
    completions: list[Any] = field(default_factory=list)
    """"timeout" or a status for each of the next requests that are not posted; then they succeed"""
    log: list[tuple[str, int, int, int]] = field(default_factory=list)
    """(what, address, byte enables, value) of every request that reached the other side"""

    def request(self, kind: int, address: int, enables: int, value: int) -> tuple[int, int, int, int, int]:
        """(result, status, data, byte count, carries data)."""
        write = bool(kind & 0x40)
        config = kind & 0xBE == 0x04
        self.log.append((("config" if config else "memory") + (" write" if write else " read"), address, enables, value if write else 0))
        posted = write and not config
        if not posted and self.completions:
            scripted = self.completions.pop(0)
            if scripted == "timeout":
                return 1, 0, 0, 0, 0
            if scripted:
                return 0, scripted, 0, 4, 0
        mask = sum(0xFF << 8 * lane for lane in range(4) if enables >> lane & 1)
        if not config:
            if write:
                self.memory[address] = self._dword(address) & ~mask | value & mask
                return 0, 0, 0, 0, 0
            return 0, 0, self._dword(address), enables.bit_count(), 1
        space = self.spaces.get(address >> 24)
        if space is None or address >> 16 & 0xFF:
            return 0, 1, 0, 4, 0
        offset = address & 0xFFC
        old = int.from_bytes(space[offset : offset + 4], "little")
        if not write:
            return 0, 0, old, 4, 1
        fixed = self.sizes.get(offset, 0) if address >> 24 == 4 else 0
        new = (old & ~mask | value & mask) & ~fixed | old & fixed
        space[offset : offset + 4] = new.to_bytes(4, "little")
        return 0, 0, 0, 4, 0

    def _dword(self, address: int) -> int:
        return self.memory.get(address, 0xA5000000 | address & 0xFFFFFF)

    @classmethod
    def usual(cls) -> Pcie:
        """The topology of the recordings; the GPU's BARs and resizable-BAR capability as in the vector of the bring-up."""
        pcie = cls()
        for bus, ids in enumerate((0x24611B21, 0x24611B21, 0x14781002, 0x14791002)):
            pcie.spaces[bus] = bytearray(4096)
            pcie.spaces[bus][0:4] = ids.to_bytes(4, "little")
            pcie.spaces[bus][0x0E] = 1
        gpu = pcie.spaces[4] = bytearray(4096)
        for offset, value in {
            0x00: 0x744C1002, 0x08: 0x030000C8, 0x10: 0xC, 0x18: 0xC, 0x20: 1,
            0x100: 0x2001000B, 0x200: 0x24010015, 0x204: 0x7F000, 0x208: 0x820, 0x240: 0x00020001,
        }.items():  # fmt: skip
            gpu[offset : offset + 4] = value.to_bytes(4, "little")
        pcie.sizes = {0x10: 0x0FFFFFFF, 0x18: 0x001FFFFF, 0x20: 0xFF, 0x24: 0x000FFFFF}
        for offset in (0x28, 0x30):
            pcie.sizes[offset] = 0xFFFFFFFF
        return pcie


class Failure(usb.core.USBError):
    """An error as libusb's backend raises it."""

    def __init__(self, code: int) -> None:
        number = {-4: errno.ENODEV, -6: errno.EBUSY, -7: errno.ETIMEDOUT, -9: errno.EPIPE, -3: errno.EACCES, -1: errno.EIO, -8: errno.EOVERFLOW}[code]
        super().__init__(f"libusb error {code}", code, number)


class ModelBackend(usb.backend.IBackend):
    """One attached bridge. `transfers` holds what was done to it, in the vocabulary of the recordings."""

    def __init__(
        self, product: str = "custom v0.1", ids: tuple[int, int] = (0xADD1, 0x0001), *, kernel_driver: bool = False, speed: int = 4, stock: bool = False
    ) -> None:
        self.product, self.ids, self.speed, self.stock = product, ids, speed, stock
        self.kernel_driver = kernel_driver
        self.pcie = Pcie.usual()
        self.xdata: dict[int, int] = {0xB450: 0x78}
        self.ltssm_after = 0x78
        """state of the link once F3 powered it"""
        self.sram = bytearray(512 << 10)
        self.transfers: list[dict[str, Any]] = []
        self.failures: dict[int, int] = {}
        """number of the transfer (control and bulk, from 0) -> libusb error that it ends with"""
        self.attached = True
        self._count = 0
        self._reply = bytes(8)
        self._stream: tuple[str, int, int] | None = None
        self._scsi: list[bytes] = []

    # --- descriptors ---

    def enumerate_devices(self) -> Any:
        return ["bridge"] if self.attached else []

    def get_device_descriptor(self, dev: Any) -> Any:
        return SimpleNamespace(
            bLength=18, bDescriptorType=1, bcdUSB=0x320, bDeviceClass=0, bDeviceSubClass=0, bDeviceProtocol=0, bMaxPacketSize0=9,
            idVendor=self.ids[0], idProduct=self.ids[1], bcdDevice=1, iManufacturer=1, iProduct=2, iSerialNumber=3, bNumConfigurations=1,
            address=5, bus=1, port_number=7, port_numbers=(7,), speed=self.speed,
        )  # fmt: skip

    def get_configuration_descriptor(self, dev: Any, config: int) -> Any:
        return SimpleNamespace(
            bLength=9,
            bDescriptorType=2,
            wTotalLength=121,
            bNumInterfaces=1,
            bConfigurationValue=1,
            iConfiguration=0,
            bmAttributes=0xC0,
            bMaxPower=0,
            extra_descriptors=[],
        )

    def get_interface_descriptor(self, dev: Any, intf: int, alt: int, config: int) -> Any:
        if intf or alt > 1:
            raise IndexError
        kind = (8, 6, 0x50 if not alt else 0x62) if self.stock else (0xFF, 0xFF, 0xFF)
        return SimpleNamespace(
            bLength=9, bDescriptorType=4, bInterfaceNumber=0, bAlternateSetting=alt, bNumEndpoints=4 if alt else 2,
            bInterfaceClass=kind[0], bInterfaceSubClass=kind[1], bInterfaceProtocol=kind[2], iInterface=0, extra_descriptors=[],
        )  # fmt: skip

    def get_endpoint_descriptor(self, dev: Any, ep: int, intf: int, alt: int, config: int) -> Any:
        address = ((0x81, 0x02), (0x81, 0x02, 0x83, 0x04))[alt][ep]
        return SimpleNamespace(
            bLength=7, bDescriptorType=5, bEndpointAddress=address, bmAttributes=2, wMaxPacketSize=1024, bInterval=0, bRefresh=0, bSynchAddress=0, extra_descriptors=[]
        )

    # --- opening ---

    def open_device(self, dev: Any) -> Any:
        self.transfers.append({"op": "open"})
        return self

    def close_device(self, handle: Any) -> None:
        pass

    def set_configuration(self, handle: Any, value: int) -> None:
        self.transfers.append({"op": "SET_CONFIGURATION", "value": value})

    def get_configuration(self, handle: Any) -> int:
        return 1

    def set_interface_altsetting(self, handle: Any, intf: int, alt: int) -> None:
        self._stream = None
        self.transfers.append({"op": "SET_INTERFACE", "interface": intf, "alternate": alt})

    def claim_interface(self, handle: Any, intf: int) -> None:
        self.transfers.append({"op": "claim interface", "interface": intf})

    def release_interface(self, handle: Any, intf: int) -> None:
        self.transfers.append({"op": "release interface", "interface": intf})

    def is_kernel_driver_active(self, handle: Any, intf: int) -> bool:
        self.transfers.append({"op": "kernel driver active?", "interface": intf, "answer": int(self.kernel_driver)})
        return self.kernel_driver

    def detach_kernel_driver(self, handle: Any, intf: int) -> None:
        self.kernel_driver = False
        self.transfers.append({"op": "detach kernel driver", "interface": intf})

    def attach_kernel_driver(self, handle: Any, intf: int) -> None:
        self.kernel_driver = True
        self.transfers.append({"op": "attach kernel driver", "interface": intf})

    def reset_device(self, handle: Any) -> None:
        self._stream = None
        self.transfers.append({"op": "port reset"})

    def clear_halt(self, handle: Any, ep: int) -> None:
        self._stream = None
        self.transfers.append({"op": "CLEAR_HALT", "endpoint": f"{ep:#04x}"})

    # --- transfers ---

    def _begin(self) -> None:
        number, self._count = self._count, self._count + 1
        if not self.attached:
            raise Failure(-4)
        if number in self.failures:
            raise Failure(self.failures[number])

    def ctrl_transfer(self, handle: Any, kind: int, request: int, value: int, index: int, data: Any, timeout: int) -> int:
        if kind == 0x80 and request == 6:
            return self._string(value, data)
        self._begin()
        entry: dict[str, Any] = {
            "op": "control",
            "bmRequestType": f"{kind:#04x}",
            "bRequest": f"{request:#04x}",
            "wValue": f"{value:#06x}",
            "wIndex": f"{index:#06x}",
            "wLength": len(data),
        }
        if kind == VENDOR_OUT:
            if len(data):
                entry["data"] = bytes(data).hex()
            self._vendor_out(request, value, index, bytes(data))
            done = len(data)
        else:
            answer = self._vendor_in(request, value, index, len(data))
            entry["answer"] = shorten(answer)
            data[: len(answer)] = array("B", answer)
            done = len(answer)
        self.transfers.append(entry | {"timeout_ms": timeout})
        return done

    def _string(self, value: int, data: Any) -> int:
        index = value & 0xFF
        if index:
            text = self.product if index == 2 else STRINGS[index]
            self.transfers.append({"op": "string descriptor", "index": index, "answer": text})
            body = text.encode("utf-16-le")
        else:
            body = b"\x09\x04"
        raw = (bytes([len(body) + 2, 3]) + body)[: len(data)]
        data[: len(raw)] = array("B", raw)
        return len(raw)

    def _vendor_out(self, request: int, value: int, index: int, data: bytes) -> None:
        if self.stock:
            raise Failure(-9)
        if request == 0xE5:
            self.xdata[value | (index >> 8) << 16] = index & 0xFF
        elif request == 0xF3:
            self.xdata[0xB450] = self.ltssm_after if value else 0
        elif request == 0xF2:
            self._stream = ("from sram" if value >> 15 else "to sram", (index & 0xFF) * 0x4000, (value & 0x7FFF) * 512)
        elif request == 0xF0:
            address, word = struct.unpack("<QI", data)
            if index & 3:
                self._stream = ("write" if index & 3 == 1 else "read", address, 4 * word)
                return
            self._stream = None
            result, status, answer, count, carries = self.pcie.request(value & 0xFF, address, value >> 8, word)
            self._reply = struct.pack("<I4B", answer, status << 5, count, carries, result) if not result else bytes(7) + bytes([result])
        else:
            raise Failure(-9)

    def _vendor_in(self, request: int, value: int, index: int, length: int) -> bytes:
        if self.stock:
            raise Failure(-9)
        if request == 0xE4:
            page = (index >> 8) << 16
            return bytes(self._xdata(page | value + offset) for offset in range(length))
        if request == 0xF0:
            return self._reply
        raise Failure(-9)

    def _xdata(self, address: int) -> int:
        return self.sram[address - 0xF000] if 0xF000 <= address <= 0xFFFF else self.xdata.get(address, 0)

    def bulk_write(self, handle: Any, ep: int, intf: int, data: Any, timeout: int) -> int:
        self._begin()
        raw = bytes(data)
        self.transfers.append({"op": "bulk", "endpoint": f"{ep:#04x}", "length": len(raw), "data": shorten(raw), "timeout_ms": timeout})
        if self.stock:
            self._command_or_data(raw)
            return len(raw)
        assert self._stream is not None and self._stream[2] == len(raw), f"{self._stream} is armed, {len(raw)} bytes come"
        what, start, size = self._stream
        self._stream = None
        if what == "to sram":
            self.sram[start : start + size] = raw
        else:
            assert what == "write"
            for offset in range(0, size, 4):
                self.pcie.request(0x60, start + offset, 0xF, int.from_bytes(raw[offset : offset + 4], "little"))
        return len(raw)

    def bulk_read(self, handle: Any, ep: int, intf: int, buff: Any, timeout: int) -> int:
        self._begin()
        if self.stock:
            answer = self._scsi.pop(0)
        else:
            if self._stream is None:
                raise Failure(-7)
            what, start, size = self._stream
            assert size == len(buff)
            self._stream = None
            if what == "from sram":
                answer = bytes(self.sram[start : start + size])
            else:
                answer = b"".join(self.pcie.request(0x20, start + offset, 0xF, 0)[2].to_bytes(4, "little") for offset in range(0, size, 4))
        buff[: len(answer)] = array("B", answer)
        self.transfers.append({"op": "bulk", "endpoint": f"{ep:#04x}", "length": len(buff), "answer": shorten(answer), "timeout_ms": timeout})
        return len(answer)

    # --- stock firmware ---

    def _command_or_data(self, raw: bytes) -> None:
        if len(raw) == 31 and raw[:4] == b"USBC":
            tag, size = struct.unpack("<II", raw[4:12])
            self._answer(raw[15:31], size if raw[12] & 0x80 else 0)
            status = struct.pack("<IIIB", 0x53425355, tag, 0, 0)
            if raw[15] == 0x8A:
                self._stream = ("to sram", 0, size)
            self._scsi.append(status)
            return
        assert self._stream is not None and len(raw) == self._stream[2]
        self.sram[: len(raw)] = raw
        self._stream = None

    def _answer(self, block: bytes, length: int) -> None:
        data = self.command(block, length)
        if data:
            self._scsi.append(data)

    def command(self, block: bytes, length: int) -> bytes:
        """A vendor command; what it reads."""
        place = int.from_bytes(block[2:5], "big") & 0x1FFFF
        if block[0] == 0xE5:
            self._store(place, block[1])
            return b""
        if block[0] == 0xE4:
            assert block[1] == length
            return bytes(self._xdata(place + offset) for offset in range(length))
        assert block[0] == 0x8A, f"command {block.hex()}"
        return b""

    def _store(self, place: int, value: int) -> None:
        if place == 0xB296 and value != 4:
            self.xdata[place] = self.xdata.get(place, 0) & ~value
            return
        if place == 0xB296:
            return
        self.xdata[place] = value
        if place == 0xB254:
            header = bytes(self.xdata.get(0xB210 + offset, 0) for offset in range(0x14))
            kind, enables = header[0], header[7]
            address = int.from_bytes(header[8:12], "big") | (int.from_bytes(header[12:16], "big") << 32)
            result, status, data, count, carries = self.pcie.request(kind, address, enables, int.from_bytes(header[16:20], "big"))
            self.xdata[0xB296] = 1 if result else 2
            self.xdata[0xB284] = carries
            self.xdata[0xB22A], self.xdata[0xB22B] = status << 5, count
            if carries:
                for offset, byte in enumerate(data.to_bytes(4, "big")):
                    self.xdata[0xB220 + offset] = byte


def shorten(data: bytes) -> Any:
    """Payloads as the recordings show them."""
    if len(data) <= 64:
        return data.hex()
    return {"bytes": len(data), "first16": data[:16].hex(), "last16": data[-16:].hex(), "sha256": hashlib.sha256(data).hexdigest()}


class TestClock:
    """A clock that only moves when someone sleeps; the naps are kept."""

    __test__ = False

    def __init__(self) -> None:
        self.time = 0.0
        self.naps: list[float] = []

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.time += seconds
