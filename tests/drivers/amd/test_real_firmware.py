"""The simulated cards boot with the firmware that distributions ship."""

from __future__ import annotations

import pytest

from drivers.amd.device import AmdDevice
from firmware.store import FirmwareStore
from hw.errors import FirmwareMissing
from tests.drivers.amd.support import GPU, bench
from tests.firmware.real import REAL_FOLDER, real_folder

pytestmark = pytest.mark.skipif(real_folder() is None, reason=f"no unpacked firmware package: name its folder in {REAL_FOLDER}")


@pytest.mark.parametrize("profile", ["navi31", "navi32", "navi33"])
def test_boot_with_distribution_firmware(profile: str) -> None:
    each = bench(profile)
    each.pci.close()
    each.pci = each.machine.open(GPU)
    each.dev = AmdDevice(each.pci, FirmwareStore(real_folder() or ""))
    try:
        each.dev.boot()
    except FirmwareMissing as error:
        pytest.skip(str(error))
    assert each.dev.state() == "running"
    assert each.gpu.psp.refusal == ""
    each.dev.finish()
    each.again().boot()
    assert each.gpu.resets == 0
