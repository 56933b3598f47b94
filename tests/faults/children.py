"""Work in a forked child: what it printed, how it ended; a file layer that does it harm; what an attack counts.

Torch is imported once, by the parent.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

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


# A file layer that a child process is given: it counts what is done below a folder, and at one moment does harm.
# Events are calls: opening for writing, `write`, `fsync`, `replace`, `rename`, `unlink`, `mkdir`, `rmdir`,
# `truncate`; and, where the attack is a kill, also each training step and each selection. A moment is the number of
# an event, of all or of those in one phase of the work, so that the same seed meets the same moment on any machine,
# however busy. A kill in a write leaves half of what was to be written.

Harm = Callable[[str], None]  # called with the event's name at every event; kills, raises or does nothing
NO_ROOM, IO_ERROR, SHORT, KILL = "no room", "I/O error", "short write", "kill"
CODES = {NO_ROOM: errno.ENOSPC, IO_ERROR: errno.EIO}
NEEDS_ROOM = frozenset({"open", "write", "fsync", "mkdir", "replace", "rename"})  # a full disk lets files go


class Layer:
    """Harm of one kind at event number ``moment``; -1: only counts. A full disk stays full from then on.

    ``phase_of`` says of an event's name and path which phase of the work it belongs to; with ``phase`` only its events
    are numbered. ``log``, outside the folder, gets the phase of each event where there is no harm to do, otherwise of
    those that are harmed.
    """

    def __init__(
        self,
        root: Path,
        kind: str = "",
        moment: int = -1,
        log: Path | None = None,
        phase_of: Callable[[str, str], str] = lambda name, path: name,
        phase: str = "",
    ) -> None:
        self.root, self.kind, self.moment, self.log = str(root.resolve()), kind, moment, log
        self.phase_of, self.phase = phase_of, phase
        self.count = 0

    def event(self, name: str, path: Any = "", begin: Callable[[], object] = lambda: None) -> None:
        """``begin`` does a part of it, for a kill in its middle."""
        phase = self.phase_of(name, self._text(path) or "")
        if not self.kind:
            self._note(phase)
        if self.phase not in ("", phase):
            return
        number, self.count = self.count, self.count + 1
        if number == self.moment and self.kind == KILL:
            begin()
            self._note(phase)
            os.kill(os.getpid(), signal.SIGKILL)
        full = self.kind == NO_ROOM and number > self.moment >= 0 and name in NEEDS_ROOM
        if full or (number == self.moment and self.kind in CODES):
            self._note(phase)
            raise OSError(CODES[self.kind], os.strerror(CODES[self.kind]))

    def _note(self, phase: str) -> None:
        if self.log is not None:
            with open(self.log, "a") as file:
                file.write(f"{phase}\n")

    def kept(self, content: Any) -> Any:
        """What is written of ``content``: half of it where the write is to be short."""
        if self.kind != SHORT or self.count - 1 != self.moment or len(content) < 2:
            return content
        self._note("write")
        return bytes(content)[: len(content) // 2]

    def below(self, path: Any) -> bool:
        text = self._text(path)
        return text is not None and (text == self.root or text.startswith(self.root + os.sep))

    def _text(self, path: Any) -> str | None:
        """Of a path or an open file's number."""
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return None
        try:
            return os.path.abspath(os.fsdecode(path))
        except TypeError:
            return None

    def install(self, steps: bool = False) -> None:
        """For the rest of this process."""
        for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir", "fsync", "ftruncate", "truncate"):
            setattr(os, name, self._watched(name, getattr(os, name)))
        os.write = self._os_write(os.write)
        plain = io.open

        def opened(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if isinstance(file, int) or not set(mode) & set("wax+") or not self.below(file):
                return plain(file, mode, *args, **kwargs)
            return self._opened(file, mode, *args, **kwargs)

        io.open = builtins.open = opened
        if steps:
            self._watch_steps()

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if args and self.below(args[0]):
                self.event("unlink" if name == "remove" else name, args[0])
            return function(*args, **kwargs)

        return call

    def _os_write(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(number: int, content: Any) -> int:
            if self.below(number):
                self.event("write", number, lambda: function(number, bytes(content)[: len(content) // 2]))
                content = self.kept(content)
            return function(number, content)

        return call

    def _opened(self, file: Any, mode: str, buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """As ``open``, over a raw file whose writes are events."""
        self.event("open", file)
        layer = self

        class Raw(io.FileIO):
            def write(self, content: Any) -> int:
                begin = super().write
                layer.event("write", file, lambda: begin(bytes(content)[: len(content) // 2]))
                return super().write(layer.kept(content))

            def truncate(self, size: int | None = None) -> int:
                layer.event("truncate", file)
                return super().truncate(size)

        raw = Raw(file, mode.replace("b", "").replace("t", ""))
        if buffering == 0:
            return raw
        buffered = io.BufferedRandom(raw) if "+" in mode else io.BufferedWriter(raw)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, *args, **kwargs)

    def _watch_steps(self) -> None:
        from gcr.training import loop
        from gcr.training.step_runner import StepRunner

        StepRunner.__call__ = self._each("step", StepRunner.__call__)  # type: ignore[method-assign]
        loop.reselect = self._each("selection", loop.reselect)  # type: ignore[attr-defined]

    def _each(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.event(name)
            return function(*args, **kwargs)

        return call


# --- What an attack counts

HARM = ("lost", "wrong", "left", "silent", "tracebacks", "hangs")


@dataclass
class Tally:
    """``tried`` attacks; ``survived``: nothing of what follows. One attack may count under several."""

    tried: int = 0
    survived: int = 0
    lost: int = 0  # what was there before is gone or cannot be read
    wrong: int = 0  # another number, and nobody said so
    left: int = 0  # files of dead processes after the next command
    silent: int = 0  # a failure without a word
    tracebacks: int = 0
    hangs: int = 0
    failures: list[str] = field(default_factory=list)  # in words
    measured: dict[str, float] = field(default_factory=dict)  # counts, and of what begins with "most" the most

    def count(self, what: str, *found: str) -> None:
        """One attack; ``found`` are names of the counts above."""
        self.tried += 1
        self.survived += not found
        for name in found:
            setattr(self, name, getattr(self, name) + 1)
        if found:
            self.failures.append(f"{what}: {', '.join(found)}")

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            if name == "measured":
                for what, number in value.items():
                    most = max if what.startswith("most ") else sum
                    self.measured[what] = most((self.measured.get(what, 0), number))
            else:
                setattr(self, name, getattr(self, name) + value)

    @property
    def harm(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in HARM}

    def to_dict(self) -> dict[str, Any]:
        counts = asdict(self)
        return counts | {"failures": sorted(set(self.failures))[:20]}
