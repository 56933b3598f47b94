"""Training a list of jobs on a Ray cluster: one task for each pack, which trains as the local engine does.

The home folder of a run is the truth. A task takes with it what is there, and what it sends is written there whole. So
a task that is lost with its node begins again, anywhere, from the last checkpoint that came home; and a run begun on a
cluster can be continued on this machine, or the other way round.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import gcr
from gcr import scenarios
from gcr.runs.job import Event, Execution, Job, Listener, ended_by, in_words
from gcr.runs.local import longest_first
from gcr.runs.ray.cluster import Cluster, Request, joined, own_answer_to_sigterm
from gcr.runs.ray.node import JobFiles, Progress, Task
from gcr.runs.signals import Stop, stop_by_signal
from gcr.settings import BadInput
from gcr.training.checkpoint import KEPT

RETRIES = 3  # of a job whose worker or node died, before it got any further
SEND_SECONDS = 60.0  # between a run's checkpoints on their way home
AUTO_PACK = 16  # jobs of a task on a GPU at most, if --pack does not say; the node finds out how many at a time pay
LOOK_SECONDS = 1.0  # between looks at the cluster's nodes
WAIT_SECONDS = 0.5  # for something to arrive, before looking for a signal


def run_on_ray(jobs: list[Job], listen: Listener, how: Execution) -> Stop:
    """As the local engine: one failure does not stop the others, a signal stops all."""
    stop = Stop()
    try:
        with own_answer_to_sigterm(), joined(how) as cluster, stop_by_signal() as stop, ExitStack() as locks:
            if how.device == "auto":
                how = replace(how, device="cuda" if cluster.has_gpus() else "cpu")
            dispatch = Dispatch(cluster, jobs, listen, how, locks)
            try:
                dispatch.run(stop)
            finally:
                dispatch.cancel()
    except SystemExit:  # what Ray makes of SIGTERM while it starts or ends
        stop.set(stop.number or signal.SIGTERM)
    return stop


class Dispatch:
    """Packs of jobs on their way through the cluster."""

    def __init__(self, cluster: Cluster, jobs: list[Job], listen: Listener, how: Execution, locks: ExitStack) -> None:
        self.cluster, self.ray, self.jobs, self.listen, self.how = cluster, cluster.ray, jobs, listen, how
        self.request = Request(math.ceil(how.gpus), how.gpus) if how.device == "cuda" else Request(how.threads)
        self.places = cluster.places(self.request)
        if not self.places:
            raise BadInput(
                f"no node of the Ray cluster has {self.request.words}; "
                + ("start one with: ray start --num-gpus=N, or use --device cpu" if self.request.gpus else "")
                + ("use fewer --threads" if not self.request.gpus else "")
            )
        self.train = self.ray.remote(function_for_nodes())
        self.waiting = deque(packs(longest_first(jobs), self._pack_size()))
        self.running: dict[Any, list[int]] = {}  # the jobs of each task, by the messages it sends
        self.locks, self.begun, self.ended = locks, dict[int, ExitStack](), set[int]()
        self.losses: Counter[int] = Counter()
        self.reported_steps: Counter[int] = Counter()
        self.looked_at, self.waits_for_nodes = time.monotonic(), False

    def _pack_size(self) -> int:
        if self.how.device == "cpu" or self.how.gpus > 1:
            return 1
        return self.how.pack or min(AUTO_PACK, -(-len(self.jobs) // self.places))

    def run(self, stop: Stop) -> None:
        while (self.waiting or self.running) and not stop():
            self._look()
            while self.waiting and len(self.running) < self._at_a_time() and not stop():
                self._submit(self.waiting.popleft())
            if not self.running:
                continue
            ready, _ = self.ray.wait(list(self.running), num_returns=1, timeout=WAIT_SECONDS)
            for messages in ready:
                self._take(messages, stop)
        if stop():
            self.cancel()
            for number in self.begun.keys() - self.ended:
                self.listen(Event(number, stopped=True))

    def _at_a_time(self) -> int:
        """As many as the cluster takes: what waits there holds its folder's lock for nothing."""
        limit = self.how.processes if self.how.device == "cpu" and self.how.processes else self.places
        return max(1, min(limit, self.places))

    def _look(self) -> None:
        """Nodes come and go."""
        if time.monotonic() - self.looked_at < LOOK_SECONDS:
            return
        self.looked_at = time.monotonic()
        self.places = self.cluster.places(self.request)
        if self.places:
            self.waits_for_nodes = False
        elif not self.waits_for_nodes:
            self.waits_for_nodes = True
            number = next(iter([job for pack in self.running.values() for job in pack] or self.waiting[0]))
            text = f"no node of the Ray cluster has {self.request.words} any more; waiting for one"
            self.listen(Event(number, remark=text))

    def _submit(self, pack: list[int]) -> None:
        sent = [self._job_files(number) for number in pack if self._begin(number)]
        if sent:
            root = os.environ.get("GCR_DATA")
            task = Task(sent, self.how, SEND_SECONDS, str(Path(root).absolute()) if root else None)
            options = self.cluster.options(self.request)
            messages = self.train.options(**options).remote(versions(), pickle.dumps(task))
            self.running[messages] = [each.number for each in sent]

    def _begin(self, number: int) -> bool:
        """Lock the job's folder and make it ready, if that has not been done. False if there is nothing to train."""
        job = self.jobs[number]
        if number in self.begun:
            return True
        lock = ExitStack()
        try:
            lock.enter_context(job.folder.locked())
            if job.folder.finished:  # by another command, since this one looked
                lock.close()
                self._end(Event(number, accuracy=job.folder.result()["class_il"]["accuracy"]))
                return False
            job.folder.begin(job.experiment)
        except Exception as error:
            lock.close()
            self._end(ended_by(number, error))
            return False
        self.begun[number] = self.locks.enter_context(lock)
        return True

    def _job_files(self, number: int) -> JobFiles:
        job = self.jobs[number]
        data = scenarios.entry(job.experiment.scenario).fingerprint
        return JobFiles(number, job.experiment, data, str(job.folder.path), job.folder.contents(False, KEPT))

    def _take(self, messages: Any, stop: Stop) -> None:
        """The next thing that a task sends: a message, its end, or that it is lost."""
        from ray.exceptions import RayError, RayTaskError

        try:
            arrived = self.ray.get(next(messages))
        except StopIteration:
            self._lost(self.running.pop(messages), "its task ended early")  # no job of it is left if all went well
        except RayTaskError as error:
            text = " ".join(str(error.cause or error).split())
            for number in self._left(self.running.pop(messages)):
                self._end(Event(number, error=f"on a node of the Ray cluster: {type(error.cause).__name__}: {text}"))
        except RayError as error:
            if not stop():  # a signal may have ended Ray's own processes as well
                self._lost(self.running.pop(messages), f"{type(error).__name__}: {first_sentence(error)}")
        else:
            if isinstance(arrived, Progress):
                self.running[messages] = self.running.pop(messages)  # to the end: the others come first now
                self._unpack(arrived)
            else:
                self._leave_out(self.running.pop(messages), *arrived)

    def _unpack(self, message: Progress) -> None:
        """Files first: whoever hears that a job has ended finds its result."""
        unwritten: dict[int, str] = {}
        for number, files in message.files.items():
            try:
                self.jobs[number].folder.receive(files)
            except OSError as error:
                unwritten[number] = in_words(error)
        for event in message.events:
            if event.epoch is not None:
                if event.epoch.steps <= self.reported_steps[event.job]:
                    continue  # reported before its first node died
                self.reported_steps[event.job] = event.epoch.steps
                self.losses[event.job] = 0
            if event.ends_job:
                problem = unwritten.get(event.job)
                self._end(Event(event.job, error=problem) if problem else event)
            else:
                self.listen(event)

    def _leave_out(self, pack: list[int], node: str, name: str, why: str) -> None:
        """A node that cannot train: others do it. An error if there are none."""
        self.cluster.unfit[node] = text = f"node {name} is left out: {why}"
        self.places = self.cluster.places(self.request)
        if not self.places:
            raise BadInput(f"no node of the Ray cluster can train: {text}")
        self.listen(Event(pack[0], remark=text))
        self.waiting.appendleft(pack)

    def _lost(self, pack: list[int], why: str) -> None:
        for number in self._left(pack):
            self.losses[number] += 1
            if self.losses[number] > RETRIES:
                text = f"lost {self.losses[number]} times with the worker or node that trained it ({why})"
                self._end(Event(number, error=f"{text}; the same command continues it"))
            else:
                text = f"lost with the worker or node that trained it ({why}); trying again"
                self.listen(Event(number, remark=text))
        if left := self._left(pack):
            self.waiting.appendleft(left)

    def _left(self, pack: list[int]) -> list[int]:
        return [number for number in pack if number not in self.ended]

    def _end(self, event: Event) -> None:
        self.ended.add(event.job)
        if event.job in self.begun:
            self.begun[event.job].close()
        self.listen(event)

    def cancel(self) -> None:
        for messages in self.running:
            with suppress(Exception):  # it has ended, or Ray has
                self.ray.cancel(messages, force=True)
        self.running.clear()


def function_for_nodes() -> Callable[..., Iterator[Any]]:
    """What a task calls. Made inside a function so that it travels whole, rather than by its name in a module: it has
    something to say where this package is missing or another version."""

    def train(wanted: dict[str, str], packed: bytes) -> Iterator[Any]:
        import ray

        def unfit(why: str) -> tuple[str, str, str]:
            return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), why

        try:
            import torch

            import gcr
            from gcr.runs.ray.node import train as train_here
        except ImportError as missing:
            yield unfit(f"{missing}; install gradient-coreset-replay {wanted['gcr']} on every node")
            return
        there = {"gcr": gcr.__version__, "torch": torch.__version__.split("+")[0]}
        if there != wanted:
            words = [f"{name} is {there[name]} there, {wanted[name]} here" for name in wanted]
            yield unfit(f"{'; '.join(words)}; install the same versions on every node")
            return
        for arrived in train_here(packed):
            yield unfit(arrived) if isinstance(arrived, str) else arrived

    return train


def versions() -> dict[str, str]:
    return {"gcr": gcr.__version__, "torch": torch.__version__.split("+")[0]}


def packs(numbers: list[int], size: int) -> list[list[int]]:
    """
    >>> packs([4, 2, 0, 1, 3], 2)
    [[4, 2], [0, 1], [3]]
    """
    return [numbers[start : start + size] for start in range(0, len(numbers), size)]


def first_sentence(error: Exception) -> str:
    """Ray's errors go on for paragraphs."""
    return " ".join(str(error).split()).partition(". ")[0].rstrip(".")
