"""Several runs on one GPU, side by side: each on its own CUDA stream, launched in turn by one thread.

A run's kernels are small, so a GPU has room for more than one at a time. Runs share nothing but the data set, and each
has its own draws: what a run computes does not depend on its pack.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain

import torch

from gcr.select.cuda_graph import give_back_memory

AHEAD = 32  # steps of a run that may be launched and not yet done: enough to bridge what the host does for another run
TURN = 4  # steps of a run launched in one go (docs/performance.md)
AUTO = 0  # pack size: as many as pay
WARM_STEPS, WINDOW_SECONDS, GAIN = 40, 2.0, 1.08  # doubling the pack must raise throughput by so much


class OutOfMemory(Exception):
    """A job finds no room next to the others. ``again`` begins it once more."""

    def __init__(self, again: Callable[[], Iterator[bool]]) -> None:
        super().__init__("out of GPU memory")
        self.again = again


@dataclass
class Member:
    steps: Iterator[bool]
    stream: torch.cuda.Stream
    launched: deque[torch.cuda.Event] = field(default_factory=deque)
    done: int = 0

    def busy(self) -> bool:
        """Whether enough of its steps wait on the device."""
        while self.launched and self.launched[0].query():
            self.launched.popleft()
            self.done += 1
        return len(self.launched) >= AHEAD

    def fill(self) -> tuple[int, bool]:
        """Launch steps until its turn is over, it is busy or it waits for the device itself: how many, and whether
        there is more to come.

        Several, since what comes next, here or in another run, may keep the host for long. Few, since a launch may
        have to wait for room in its CUDA stream's queue, and other runs would come to the end of theirs meanwhile.
        """
        torch.cuda.set_stream(self.stream)
        for number in range(TURN):
            if self.busy():
                return number, True
            try:
                stepped = next(self.steps)
            except StopIteration:
                return number, False
            if not stepped:
                return number, True
            event = torch.cuda.Event()
            event.record()
            self.launched.append(event)
        return TURN, True


def run_pack(jobs: Iterable[Iterator[bool]], size: int, device: torch.device) -> None:
    """Run every job to its end, ``size`` at a time (``AUTO``: as many as pay). A job yields True after every step that
    it launched, False while it waits for the device.

    A job must deal with its own errors; one that ends makes room for the next. After ``OutOfMemory`` the pack is
    smaller by one, and the job begins again when there is a place.
    """
    waiting, most = iter(jobs), math.inf
    growth = Growth(partial(_has_room, device, torch.cuda.mem_get_info(device)[0])) if size == AUTO else None
    members: list[Member] = []
    ended = 0  # steps of members that are gone
    outside = torch.cuda.current_stream(device)
    try:
        more = True
        while True:
            while more and len(members) < min(growth.size if growth else size, most):
                job = next(waiting, None)
                more = job is not None
                if job is not None:
                    _make_room(device)
                    stream = torch.cuda.Stream(device)
                    stream.wait_stream(outside)
                    members.append(Member(job, stream))
            if not members:
                return
            launched = 0
            for member in list(members):
                try:
                    number, more_to_come = member.fill()
                    failed = None
                except OutOfMemory as error:
                    most, number, more, more_to_come = max(len(members) - 1, 1), 0, True, False
                    failed = error.again
                launched += number
                if not more_to_come:
                    members.remove(member)
                    ended += member.done
                if failed is not None:  # the error is gone, and so is all that the run held
                    waiting = chain(waiting, [failed()])
                    give_back_memory()
            if growth:
                warm = bool(members) and all(member.done >= WARM_STEPS for member in members)
                growth.look(time.perf_counter(), len(members), warm, ended + sum(member.done for member in members))
            if not launched:
                time.sleep(0.0002)
    finally:
        torch.cuda.set_stream(outside)
        for member in members:
            outside.wait_stream(member.stream)


class Growth:
    """How many runs at a time: doubled while that raises the number of steps a second, and while memory allows.

    A window of time is measured only while all members are warm and none comes or goes. Members beyond a size that
    turned out not to pay train to their end.
    """

    def __init__(self, has_room: Callable[[], bool]) -> None:
        self.has_room = has_room
        self.size, self.best_rate, self.final = 1, 0.0, False
        self.window: tuple[float, int, int] | None = None  # when it began, members, steps done by then

    def look(self, now: float, members: int, warm: bool, steps: int) -> None:
        """``steps`` counts the steps of all runs so far."""
        if self.final or members < self.size or not warm:
            self.window = None
            return
        if self.window is None or self.window[1] != members:
            self.window = now, members, steps
            return
        seconds = now - self.window[0]
        if seconds < WINDOW_SECONDS:
            return
        rate = (steps - self.window[2]) / seconds
        self.window = None
        if rate < GAIN * self.best_rate:
            self.size, self.final = max(self.size // 2, 1), True
        elif self.has_room():
            self.size, self.best_rate = 2 * self.size, rate
        else:
            self.final = True


def _make_room(device: torch.device) -> None:
    """Where little memory is free, give back what runs that have ended left. torch keeps it for their CUDA streams and
    graphs, and a step that is being captured cannot take it. All runs wait meanwhile, so not after every run."""
    free, total = torch.cuda.mem_get_info(device)
    if free < total / 4:
        give_back_memory()


def _has_room(device: torch.device, free_at_first: int) -> bool:
    """Whether twice as many runs fit, judging by what those that are there have taken."""
    free = torch.cuda.mem_get_info(device)[0]
    return free_at_first - free < 0.8 * free
