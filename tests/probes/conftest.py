"""Runs command lines in this process, each against a simulated machine of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from bridges import open as door
from compute import runtime
from probes import main


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def tghw(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Callable[..., Result]:
    """Run `tghw ARGUMENTS...`; every call is a new process as far as simulated machines are concerned."""
    for variable in ("DEV", "TGHW_MOCK", "TGHW_FIRMWARE", "TGHW_STATE", "REMOTE"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)  # commands set some of them; this way they are gone again afterwards
    monkeypatch.setenv("TGHW_LOCK_DIR", str(tmp_path))

    def run(*arguments: str) -> Result:
        runtime.close_all()
        monkeypatch.setattr(door, "_machines", {})
        capsys.readouterr()
        status = main.run(list(arguments))
        out, err = capsys.readouterr()
        return Result(status, out, err)

    return run
