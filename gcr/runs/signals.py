"""Stopping in good order: SIGINT, SIGTERM and a terminal that is closed (SIGHUP) let a run finish its step and save."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (
    signal.SIGINT,
    signal.SIGTERM,
    *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []),
)  # no SIGHUP on Windows


def _heeded() -> list[signal.Signals]:
    """Under nohup the closing of the terminal is ignored, and stays so."""
    return [n for n in SIGNALS if n in SIGNALS[:2] or signal.getsignal(n) is not signal.SIG_IGN]


class Stop:
    """Becomes true at the first signal. ``number`` is that signal's, for the exit code (128 + number)."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> bool:
        return self.number != 0

    def set(self, number: int, _: FrameType | None = None) -> None:
        self.number = number

    def set_by_signals(self) -> None:
        """For as long as the process lives, whatever was held back so far."""
        for number in _heeded():
            signal.signal(number, self.set)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


@contextmanager
def signals_held_back() -> Iterator[None]:
    """Signals wait until the end. Processes begun inside are born with them held back, until they let them in."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def stop_by_signal(then: Callable[[], None] = lambda: None) -> Iterator[Stop]:
    """Inside, a first signal only sets the ``Stop`` and calls ``then``; a second one does what it always does. Signals
    reach the main thread only; elsewhere nothing is changed."""
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in _heeded()}
    terminals = [output for output in (1, 2) if os.isatty(output)]

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, _: FrameType | None) -> None:
        stop.set(number)
        restore()
        if number == getattr(signal, "SIGHUP", None):
            _write_nowhere(terminals)
        then()

    for number in before:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        restore()


def _write_nowhere(outputs: list[int]) -> None:
    """A terminal that is gone fails every write; what remains to be said must not keep runs from being saved."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for output in outputs:
        os.dup2(nowhere, output)
    os.close(nowhere)
