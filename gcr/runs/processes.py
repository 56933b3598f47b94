"""One run in several processes, as ``torchrun --nproc-per-node N -m gcr run …`` begins them.

The first process has the run folder, prints and saves; the others train along. Messages go by gloo between CPUs and by
NCCL between GPUs. Memory is in every process: its examples are few next to the data, and since draws and decisions
are the same everywhere, a copy costs bytes and no messages.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed as dist

from gcr.models.shares import PeerLost, Shares, lost
from gcr.runs.job import Event, Execution, Job, Listener, follow_job, identity, run_job
from gcr.runs.local import end_with_parent, pick_device, set_kernels
from gcr.runs.place import Place
from gcr.runs.signals import Stop
from gcr.settings import BadInput

PEER_SECONDS = 600.0  # to wait for another process: it may be reading data, or saving


def check_shared(jobs: list[Job], how: Execution, place: Place) -> None:
    """Refuse what several processes cannot train together."""
    n = place.world
    if len(jobs) != 1:
        raise BadInput(f"torchrun trains one run in {n} processes, got {len(jobs)} runs; give one seed and one method")
    if how.engine != "local":
        raise BadInput(f"engine must be local under torchrun, got {how.engine}; leave out --engine or torchrun")
    if how.pack > 1:
        raise BadInput(f"a pack is of several runs on one GPU, torchrun trains one on {n}; leave out --pack")
    if how.processes > 1:
        raise BadInput(f"--processes is of several runs, torchrun trains one in {n}; leave it out")
    if ":" in how.device:
        raise BadInput(f"device must be auto, cpu or cuda under torchrun, got {how.device}: each process has its own")
    training = jobs[0].experiment.training
    Shares(0, n, training.ghost_batches)
    if training.batch < 2 * n:
        raise BadInput(f"batch must be >= {2 * n}, two examples for each process, got {training.batch}; use fewer")


@contextmanager
def joined(job: Job, how: Execution, place: Place, meet: str = "env://") -> Iterator[Execution]:
    """Inside, this process is one of those that train the job; what it is to do there. All must agree about the run.

    ``meet``: where processes find each other, as torch writes it.
    """
    device = pick_device(how.device)
    if device.type == "cuda":
        if place.on_machine >= (there := torch.cuda.device_count()):
            raise BadInput(f"each process needs a GPU of its own, got {there}; use --nproc-per-node {there}")
        device = torch.device("cuda", place.on_machine)
        torch.cuda.set_device(device)
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    how = replace(how, device=str(device), rank=place.rank, world=place.world)
    wait = timedelta(seconds=PEER_SECONDS)
    try:
        dist.init_process_group(backend, meet, rank=place.rank, world_size=place.world, timeout=wait)
    except (RuntimeError, ValueError) as error:
        why = " ".join(str(error).split())[:200]
        raise BadInput(f"process {place.rank} cannot join the others ({why}); begin all by one torchrun") from None
    try:
        refuse_disagreement(identity(job.experiment, how) | {"mode": how.mode, "fresh": how.fresh}, place)
        yield how
    finally:
        with suppress(RuntimeError):
            dist.destroy_process_group()


def refuse_disagreement(mine: dict[str, Any], place: Place) -> None:
    """Refuse processes that are of different experiments, versions or data. Names what differs."""
    everyone: list[Any] = [None] * place.world
    try:
        dist.all_gather_object(everyone, mine)
    except RuntimeError as error:
        raise PeerLost(lost(error)) from None
    first = everyone[0]
    for rank, other in enumerate(everyone):
        unlike = [
            f"{key} is {first.get(key, 'absent')} in process 0, {other.get(key, 'absent')} in process {rank}"
            for key in dict.fromkeys([*first, *other])
            if first.get(key) != other.get(key)
        ]
        if unlike:
            shown = "; ".join(unlike[:3]) + (f"; and {len(unlike) - 3} more" if len(unlike) > 3 else "")
            raise BadInput(f"processes disagree: {shown}; give all the same command, versions and data")


def begins(how: Execution, anything: bool = False) -> bool:
    """Whether there is ``anything`` to train, which the first process says."""
    return bool(Shares(how.rank, how.world).from_first(anything))


def run_shared(job: Job, listen: Listener, how: Execution) -> Stop:
    """Train the job together with the other processes. A second signal does not end it either: torchrun sends one of
    its own after Ctrl-C."""
    stop, stopped = Stop(), False
    stop.set_by_signals()
    if how.device.startswith("cuda"):
        set_kernels(how.deterministic)

    def hear(event: Event) -> None:
        nonlocal stopped
        stopped |= event.stopped
        listen(event)

    if how.fresh and not how.rank and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
        job.folder.drop_unfinished()
    (follow_job if how.rank else run_job)(0, job, how, hear, stop)
    if stopped and not stop():
        stop.set(15)  # a signal that another process received
    return stop


def run_together(jobs: list[Job], listen: Listener, how: Execution, world: int) -> None:
    """Train each job in turn, in ``world`` new processes on this machine."""
    context = multiprocessing.get_context("spawn")
    for number, job in enumerate(jobs):
        try:
            check_shared([job], how, Place(0, world, 0))
        except BadInput as error:
            listen(Event(number, error=str(error)))
            continue
        with TemporaryDirectory(prefix=".gcr.") as folder:
            members = []
            for rank in range(world):
                inbox, door = context.Pipe(duplex=False)
                place = Place(rank, world, rank)
                member = context.Process(target=_member, args=(door, job, how, place, f"file://{folder}/meet"))
                member.start()
                door.close()
                members.append((member, inbox))
            errors, ended = dict[int, str](), False
            for rank, (member, inbox) in enumerate(members):  # all events are the first's, but for errors
                with suppress(EOFError):  # its end
                    while True:
                        event: Event = inbox.recv()
                        if rank == 0:
                            listen(replace(event, job=number))
                            ended |= event.ends_job
                        elif event.error is not None:
                            errors[rank] = event.error
                member.join()
            if not ended:
                why = "; ".join(f"process {rank}: {error}" for rank, error in errors.items())
                code = members[0][0].exitcode
                listen(Event(number, error=why or f"the first of {world} processes ended with exit code {code}"))


def _member(door: Connection, job: Job, how: Execution, place: Place, meet: str) -> None:
    """One of the processes of ``run_together``."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    try:
        with joined(job, how, place, meet) as how:
            run_shared(job, door.send, how)
    except (BadInput, PeerLost) as error:
        door.send(Event(0, error=str(error)))
