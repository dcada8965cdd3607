"""Numbers and structures of the kernel's VFIO and iommufd interfaces, as facts: used by the transport and by what stands in for the kernel.

Source: Linux uapi headers linux/vfio.h and linux/iommufd.h. Structures of VFIO begin with argsz (bytes given) and flags.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from hw.structs import Layout

_TYPE = ord(";") << 8
"""both interfaces use ioctl numbers of type ';' without a size"""
API_VERSION = 0


class Vfio(IntEnum):
    """Requests to a container, a group or a device. The last numbers mean different things to a container and to a device."""

    GET_API_VERSION = _TYPE | 100
    CHECK_EXTENSION = _TYPE | 101
    SET_IOMMU = _TYPE | 102
    GROUP_GET_STATUS = _TYPE | 103
    GROUP_SET_CONTAINER = _TYPE | 104
    GROUP_UNSET_CONTAINER = _TYPE | 105
    GROUP_GET_DEVICE_FD = _TYPE | 106
    DEVICE_GET_INFO = _TYPE | 107
    DEVICE_GET_REGION_INFO = _TYPE | 108
    DEVICE_GET_IRQ_INFO = _TYPE | 109
    DEVICE_SET_IRQS = _TYPE | 110
    DEVICE_RESET = _TYPE | 111
    DEVICE_GET_PCI_HOT_RESET_INFO = _TYPE | 112
    DEVICE_PCI_HOT_RESET = _TYPE | 113
    DEVICE_BIND_IOMMUFD = _TYPE | 118
    DEVICE_ATTACH_IOMMUFD_PT = _TYPE | 119


class Container(IntEnum):
    """Requests to a container."""

    IOMMU_GET_INFO = _TYPE | 112
    IOMMU_MAP_DMA = _TYPE | 113
    IOMMU_UNMAP_DMA = _TYPE | 114


class Iommufd(IntEnum):
    """Requests to /dev/iommu."""

    DESTROY = _TYPE | 0x80
    IOAS_ALLOC = _TYPE | 0x81
    IOAS_IOVA_RANGES = _TYPE | 0x84
    IOAS_MAP = _TYPE | 0x85
    IOAS_UNMAP = _TYPE | 0x86


class IommuType(IntEnum):
    """Arguments of CHECK_EXTENSION and SET_IOMMU."""

    TYPE1 = 1
    TYPE1V2 = 3
    NOIOMMU = 8


class GroupFlag(IntFlag):
    VIABLE = 1
    CONTAINER_SET = 2


class DeviceFlag(IntFlag):
    RESET = 1
    PCI = 2


class RegionFlag(IntFlag):
    READ = 1
    WRITE = 2
    MMAP = 4
    CAPS = 8


class IrqFlag(IntFlag):
    EVENTFD = 1
    MASKABLE = 2
    AUTOMASKED = 4
    NORESIZE = 8


class SetIrq(IntFlag):
    """One of DATA_*, and one action."""

    DATA_NONE = 1
    DATA_BOOL = 2
    DATA_EVENTFD = 4
    MASK = 8
    UNMASK = 16
    TRIGGER = 32


class MapFlag(IntFlag):
    READ = 1
    WRITE = 2


class IoasMapFlag(IntFlag):
    FIXED_IOVA = 1
    WRITEABLE = 2
    READABLE = 4


class HotResetFlag(IntFlag):
    DEV_ID = 1
    """entries carry iommufd device ids instead of groups"""
    DEV_ID_OWNED = 2
    """every device that the reset touches belongs to this iommufd"""


ROM_REGION = 6
CONFIG_REGION = 7
INTX, MSI, MSIX = 0, 1, 2
IRQ_NAMES = {INTX: "INTx", MSI: "MSI", MSIX: "MSI-X"}

INFO_CAPS = 2
"""flag of IOMMU_GET_INFO: a list of capabilities follows"""
INFO_PAGE_SIZES = 1
CAP_IOVA_RANGES = 1
CAP_SPARSE_MMAP = 1
"""capability ids of IOMMU_GET_INFO and of DEVICE_GET_REGION_INFO"""

MSI_WINDOW = (0xFEE00000, 0xFEEFFFFF)
"""addresses to which x86 devices write interrupts; never translated"""

LAYOUT = Layout(
    """
    struct group_status { uint32_t argsz, flags; };
    struct device_info { uint32_t argsz, flags, num_regions, num_irqs, cap_offset; };
    struct region_info { uint32_t argsz, flags, index, cap_offset; uint64_t size, offset; };
    struct irq_info { uint32_t argsz, flags, index, count; };
    struct irq_set { uint32_t argsz, flags, index, start, count; };
    struct irq_set_fd { uint32_t argsz, flags, index, start, count; int32_t fd; };
    struct iommu_info { uint32_t argsz, flags; uint64_t page_sizes; uint32_t cap_offset, pad; };
    struct dma_map { uint32_t argsz, flags; uint64_t vaddr, iova, size; };
    struct dma_unmap { uint32_t argsz, flags; uint64_t iova, size; };
    struct hot_reset { uint32_t argsz, flags, count; };
    struct reset_entry { uint32_t group; uint16_t segment; uint8_t bus, devfn; };
    struct bind_iommufd { uint32_t argsz, flags; int32_t iommufd; uint32_t out_devid; };
    struct attach { uint32_t argsz, flags, pt_id; };
    struct cap_header { uint16_t id, version; uint32_t next; };
    struct cap_ranges { uint16_t id, version; uint32_t next, count, reserved; };
    struct range { uint64_t start, last; };
    struct area { uint64_t offset, size; };
    struct ioas_alloc { uint32_t size, flags, out_ioas; };
    struct ioas_ranges { uint32_t size, ioas, count, reserved; uint64_t pointer, alignment; };
    struct ioas_map { uint32_t size, flags, ioas, reserved; uint64_t vaddr, length, iova; };
    struct ioas_unmap { uint32_t size, ioas; uint64_t iova, length; };
    """
)
