"""Ending work at a good moment: Ctrl-C, SIGTERM and SIGHUP while something must not be left half done.

    with guarded_signals():
        for sector in sectors:
            with uninterrupted():
                erase(sector)
                program(sector)

Inside guarded_signals() the first of the three signals raises KeyboardInterrupt, so that everything is cleaned up and put back; further ones
do not disturb the cleaning up, until the outermost guard ends. Never inside uninterrupted(): there a signal waits until the block ends. Only
the main thread gets signals; in other threads both do nothing.
"""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (*((signal.SIGHUP,) if hasattr(signal, "SIGHUP") else ()), signal.SIGTERM, signal.SIGINT)


class _State:
    """One for the process: signals reach the main thread alone."""

    guards = 0
    held = 0
    """depth of uninterrupted()"""
    arrived = False
    """a signal waits for the end of uninterrupted()"""
    stopping = False
    """KeyboardInterrupt was raised, and its guard has not ended yet"""
    before: dict[int, Any] = {}  # noqa: RUF012


def _handle(number: int, frame: FrameType | None) -> None:
    if _State.held:
        _State.arrived = not _State.stopping
    elif not _State.stopping:
        _State.stopping = True
        raise KeyboardInterrupt


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def _restore() -> None:
    for number in reversed(list(_State.before)):
        handler = _State.before.pop(number)
        signal.signal(number, signal.SIG_DFL if handler is None else handler)


class guarded_signals:
    """Let SIGINT, SIGTERM and SIGHUP raise KeyboardInterrupt, outside uninterrupted() only. May be nested."""

    def __enter__(self) -> None:
        if not _in_main_thread():
            return
        if _State.guards == 0:
            try:
                for number in SIGNALS:
                    _State.before[number] = signal.signal(number, _handle)
            except BaseException:
                _restore()
                raise
        _State.guards += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not _in_main_thread():
            return
        _State.guards -= 1
        if _State.guards == 0:
            _restore()
            arrived = _State.arrived
            _State.arrived = _State.stopping = False
            if arrived and error is None:
                raise KeyboardInterrupt


class uninterrupted:
    """Hold the guarded signals back until the outermost block ends."""

    def __enter__(self) -> None:
        if _in_main_thread():
            _State.held += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if not _in_main_thread():
            return
        _State.held -= 1
        if _State.arrived and _State.held == 0 and error is None:
            _State.arrived = False
            _State.stopping = _State.guards > 0
            raise KeyboardInterrupt
