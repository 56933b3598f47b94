"""Work in a forked child: what it printed, how it ended. Torch is imported once, by the parent."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from conftest import HANG_SECONDS, wait_until

BROKEN = 70  # exit code of a child that an exception ended


@dataclass(frozen=True)
class Ended:
    code: int  # negative: the signal that ended it
    out: str
    err: str
    seconds: float = 0.0  # of a processor
    mebibytes: float = 0.0

    @property
    def traceback(self) -> bool:
        return self.code == BROKEN or "Traceback (most recent call last)" in self.out + self.err

    @property
    def killed(self) -> bool:
        return self.code == -signal.SIGKILL


class Child:
    """``work()`` in a process of its own; what it returns is the exit code."""

    def __init__(self, work: Callable[[], int | None], folder: Path | None = None) -> None:
        self.outputs = [tempfile.TemporaryFile() for _ in range(2)]  # noqa: SIM115
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            self._work(work, folder)
        self.code: int | None = None

    def _work(self, work: Callable[[], int | None], folder: Path | None) -> None:
        code = BROKEN
        try:
            for number, file in enumerate(self.outputs, 1):
                os.dup2(file.fileno(), number)
            outputs = (open(n, "w", errors="replace", closefd=False) for n in (1, 2))  # noqa: SIM115
            sys.stdout, sys.stderr = outputs  # as ``python -m gcr`` has them
            if folder is not None:
                os.chdir(folder)
            code = work() or 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else 1
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def ended(self) -> bool:
        if self.code is None:
            pid, status, self.used = os.wait4(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def wait(self, seconds: float = HANG_SECONDS) -> Ended:
        """``seconds`` is a guard against hangs: the child is killed then."""
        hung = False
        try:
            wait_until(self.ended, "the end of a child", seconds=seconds)
        except AssertionError:
            hung = True
            os.kill(self.pid, signal.SIGKILL)
            wait_until(self.ended, "the end of a killed child")
        texts = []
        for file in self.outputs:
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
            file.close()
        assert self.code is not None
        code, last = (BROKEN, "\nhung") if hung else (self.code, "")
        seconds, mebibytes = self.used.ru_utime + self.used.ru_stime, self.used.ru_maxrss / 1024
        return Ended(code, texts[0], texts[1] + last, seconds, mebibytes)


def in_child(work: Callable[[], int | None], folder: Path | None = None) -> Ended:
    return Child(work, folder).wait()
