"""A file layer that a child process is given: it counts what is done below a folder, and at one moment does harm.

Events are calls: opening for writing, ``write``, ``fsync``, ``replace``, ``rename``, ``unlink``, ``mkdir``, ``rmdir``,
``truncate``; and, where the attack is a kill, also each training step and each selection. A moment is the number of an
event, so that the same seed meets the same moment on any machine, however busy.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

Harm = Callable[[str], None]  # called with the event's name at every event; kills, raises or does nothing
NO_ROOM, IO_ERROR, SHORT, KILL = "no room", "I/O error", "short write", "kill"
CODES = {NO_ROOM: errno.ENOSPC, IO_ERROR: errno.EIO}
NEEDS_ROOM = frozenset({"open", "write", "fsync", "mkdir", "replace", "rename"})  # a full disk lets files go


class Layer:
    """Harm of one kind at event number ``moment``; -1: only counts. A full disk stays full from then on."""

    def __init__(self, root: Path, kind: str = "", moment: int = -1, log: Path | None = None) -> None:
        self.root, self.kind, self.moment, self.log = str(root.resolve()), kind, moment, log
        self.count = 0

    def event(self, name: str) -> None:
        number, self.count = self.count, self.count + 1
        if self.log is not None:
            self.log.write_bytes(str(self.count).encode())
        if number == self.moment and self.kind == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        full = self.kind == NO_ROOM and number >= self.moment >= 0 and name in NEEDS_ROOM
        if full or (number == self.moment and self.kind == IO_ERROR):
            raise OSError(CODES[self.kind], os.strerror(CODES[self.kind]))

    @property
    def short_now(self) -> bool:
        return self.kind == SHORT and self.count - 1 == self.moment

    def below(self, path: Any) -> bool:
        if isinstance(path, int):
            try:
                path = os.readlink(f"/proc/self/fd/{path}")
            except OSError:
                return False
        try:
            text = os.path.abspath(os.fsdecode(path))
        except TypeError:
            return False
        return text == self.root or text.startswith(self.root + os.sep)

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
                self.event("unlink" if name == "remove" else name)
            return function(*args, **kwargs)

        return call

    def _os_write(self, function: Callable[..., int]) -> Callable[..., int]:
        def call(number: int, content: Any) -> int:
            if self.below(number):
                self.event("write")
                if self.short_now and len(content) > 1:
                    content = bytes(content)[: len(content) // 2]
            return function(number, content)

        return call

    def _opened(self, file: Any, mode: str, buffering: int = -1, *args: Any, **kwargs: Any) -> Any:
        """As ``open``, over a raw file whose writes are events."""
        self.event("open")
        layer = self

        class Raw(io.FileIO):
            def write(self, content: Any) -> int:
                layer.event("write")
                if layer.short_now and len(content) > 1:
                    content = bytes(content)[: len(content) // 2]
                return super().write(content)

            def truncate(self, size: int | None = None) -> int:
                layer.event("truncate")
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
