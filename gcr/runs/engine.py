"""Training a list of jobs: on this machine or on a Ray cluster."""

from __future__ import annotations

import os
from dataclasses import dataclass

from gcr.experiments import plugins
from gcr.runs.job import Event, Execution, Job, Listener
from gcr.runs.local import check_begun_again, pick_device, run_here
from gcr.runs.tracking import tracked, trackers
from gcr.settings import BadInput, unknown

ENGINES = ("local", "ray")


@dataclass
class Ending:
    """How a list of jobs ended. Jobs that were stopped, or not begun, continue with the same command."""

    failed: int = 0
    signal: int = 0  # that stopped them; 0: none


def run_all(jobs: list[Job], listen: Listener, how: Execution | None = None) -> Ending:
    """Train all jobs. One failure does not stop the others; SIGINT and SIGTERM stop all, with a checkpoint of each.

    A run on a CPU uses ``how.threads`` threads: the bits depend on that number, not on other runs.
    """
    how = how or Execution()
    check_begun_again()
    check_engine(how)
    ending = Ending()
    with tracked(jobs, listen, how) as listen:

        def count(event: Event) -> None:
            ending.failed += event.error is not None
            if event.kind == "diverged":
                jobs[event.job].folder.fail(event.error or "")
            listen(event)

        if how.fresh and how.world == 1:  # once: what the runs save from here on is for those that are interrupted
            for job in jobs:
                job.folder.drop_unfinished()
        if how.engine == "ray":
            from gcr.runs.ray.engine import run_on_ray

            ending.signal = run_on_ray(jobs, count, how).number
        elif how.world > 1:
            from gcr.runs.processes import run_shared

            ending.signal = run_shared(jobs[0], count, how).number
        else:
            ending.signal = run_here(jobs, count, how).number
    return ending


def check_engine(how: Execution) -> None:
    """Refuse an engine or tracker that does not exist or cannot be used here."""
    trackers(how)
    if how.engine not in ENGINES:
        raise unknown("engine", how.engine, ENGINES)
    if how.engine == "ray":
        if os.environ.get(plugins.VARIABLE):
            raise BadInput("plugins are for the local engine, since nodes of Ray lack them; leave out --engine ray")
        from gcr.runs.ray.cluster import check

        check(how)
    elif how.address is not None:
        raise BadInput(f"address is of a Ray cluster, got {how.address} with the local engine; add --engine ray")
    elif how.gpus != 1:
        ways = "add --engine ray, or start the run by torchrun --nproc-per-node N -m gcr run"
        raise BadInput(f"gpus are given by Ray, got {how.gpus:g} with the local engine; {ways}")
    else:
        pick_device(how.device)
