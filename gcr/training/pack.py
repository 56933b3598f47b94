"""Several runs on one GPU, side by side: each on a stream of its own, launched in turn by one thread.

A run's kernels are small, so a GPU has room for more than one at a time. Runs share nothing but the data set, and each
has its own draws: what a run computes does not depend on its pack.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import torch

AHEAD = 12  # steps of a run that may be launched and not yet done: enough to bridge what the host does in between
AUTO = 0  # pack size: as many as pay
WARM_STEPS, WINDOW_SECONDS, GAIN = 40, 2.0, 1.08  # doubling the pack must raise throughput by so much


@dataclass
class Member:
    steps: Iterator[None]
    stream: torch.cuda.Stream
    launched: deque[torch.cuda.Event] = field(default_factory=deque)
    done: int = 0

    def busy(self) -> bool:
        """Whether enough of its steps wait on the device."""
        while self.launched and self.launched[0].query():
            self.launched.popleft()
            self.done += 1
        return len(self.launched) >= AHEAD

    def advance(self) -> bool:
        """Launch its next step; False at the end."""
        torch.cuda.set_stream(self.stream)
        try:
            next(self.steps)
        except StopIteration:
            return False
        event = torch.cuda.Event()
        event.record()
        self.launched.append(event)
        return True


def run_pack(jobs: Iterable[Iterator[None]], size: int, device: torch.device) -> None:
    """Run every job to its end, ``size`` at a time (``AUTO``: as many as pay). A job yields after every step.

    A job must deal with its own errors; one that ends makes room for the next.
    """
    waiting = iter(jobs)
    growth = Growth(device) if size == AUTO else None
    members: list[Member] = []
    outside = torch.cuda.current_stream(device)
    try:
        more = True
        while True:
            limit = growth.limit(members) if growth else size
            while more and len(members) < limit:
                job = next(waiting, None)
                more = job is not None
                if job is not None:
                    stream = torch.cuda.Stream(device)
                    stream.wait_stream(outside)
                    members.append(Member(job, stream))
            if not members:
                return
            ready = [member for member in members if not member.busy()]
            for member in ready:
                if not member.advance():
                    members.remove(member)
            if not ready:
                time.sleep(0.0002)
    finally:
        torch.cuda.set_stream(outside)
        for member in members:
            outside.wait_stream(member.stream)


class Growth:
    """How many runs at a time: doubled while that raises the number of steps a second, and while memory allows."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.free_at_first = torch.cuda.mem_get_info(device)[0]
        self.size, self.best_rate, self.settled = 1, 0.0, False
        self.since: tuple[float, int] | None = None  # time and steps at the window's beginning

    def limit(self, members: list[Member]) -> int:
        if self.settled or len(members) < self.size:
            return self.size
        if self.since is None:
            if all(member.done >= WARM_STEPS for member in members):
                self.since = time.perf_counter(), _steps(members)
            return self.size
        seconds = time.perf_counter() - self.since[0]
        if seconds < WINDOW_SECONDS:
            return self.size
        rate = (_steps(members) - self.since[1]) / seconds
        if rate < GAIN * self.best_rate:
            self.size, self.settled = self.size // 2, True
        elif self._has_room():
            self.size, self.best_rate, self.since = 2 * self.size, rate, None
        else:
            self.settled = True
        return self.size

    def _has_room(self) -> bool:
        free = torch.cuda.mem_get_info(self.device)[0]
        return self.free_at_first - free < 0.8 * free


def _steps(members: list[Member]) -> int:
    return sum(member.done for member in members)
