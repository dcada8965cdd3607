"""The run that the mutation report repeats: it works unbroken, and single broken writes of every kind are noticed."""

from __future__ import annotations

import logging

import pytest

from tests.mocks.saboteur import Write
from tests.mutation import REASONS, Result, Workout, broken_run, compile_kernel, reason_of


@pytest.fixture(scope="module")
def workout() -> Workout:
    return Workout(compile_kernel())


@pytest.fixture(scope="module")
def writes(workout: Workout) -> list[Write]:
    recorded, repeats = workout.run()
    assert len(recorded) > 500
    assert 40 < len(repeats) < 150
    return recorded


def test_the_workout_also_passes_when_the_first_run_crashes(workout: Workout) -> None:
    workout.run(crash_first=True)


@pytest.mark.parametrize(
    "register",
    [
        "MMMC_VM_SYSTEM_APERTURE_HIGH_ADDR",
        "GCMC_VM_AGP_BOT",
        "IH_RB_BASE",
        "RCC_DEV0_EPF0_RCC_DOORBELL_APER_EN",
        "S2A_DOORBELL_ENTRY_2_CTRL",
        "CP_HQD_PQ_BASE",
        "GCVM_CONTEXT0_CNTL",
        "SCRATCH_REG6",
        "SCRATCH_REG7",
    ],
)
def test_a_dropped_write_is_noticed(workout: Workout, writes: list[Write], register: str) -> None:
    logging.disable(logging.CRITICAL)
    try:
        write = next(each for each in writes if each.register == register and each.value)
        assert broken_run(workout, write, -1)
    finally:
        logging.disable(logging.NOTSET)


def test_reasons_name_what_they_excuse(writes: list[Write]) -> None:
    """Every pattern excuses some write of the present boot, so that the list does not outlive what it was made for."""
    for reason in REASONS:
        bits = [-1] if reason.bits is None else [reason.bits.start]
        assert any(reason.fits(Result(write, bit, "", False)) for write in writes for bit in bits), reason.text


def test_an_unknown_write_has_no_reason() -> None:
    assert reason_of(Result(Write(0, 5, 0, b"\1\0\0\0", "GCVM_CONTEXT0_CNTL"), -1, "", False)) is None
