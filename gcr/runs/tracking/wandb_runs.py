"""Runs in Weights & Biases: settings as the run's config, numbers by training step, one project for each scenario.

``WANDB_PROJECT`` and the other variables of Weights & Biases work as ever. ``WANDB_MODE=offline`` writes to the folder
``wandb`` next to the run folders, for ``wandb sync``. Trials are in the same project, with a tag. A run folder
remembers its run's id, and the last step of each number, in ``wandb-run.json``: a run that is continued is the same one
there, and reports nothing twice.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, ClassVar

from gcr.files import read_json, write_json
from gcr.runs.job import Job
from gcr.runs.tracking.record import Numbers, is_trial, place
from gcr.settings import BadInput

REMEMBERED = "wandb-run.json"
TRIAL = "trial"  # the tag of a run that only served to choose values
STEPS = "steps"  # the axis: a training step may come again when a run is continued, which wandb's own step may not
INIT_SECONDS = 30.0  # for a server to answer
QUIET = {
    "console": "off",  # the progress display stays ours
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}


class WandbRuns:
    name: ClassVar[str] = "wandb"
    needs: ClassVar[tuple[str, ...]] = ("wandb",)

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_SILENT", "true")
        if os.environ.get("WANDB_MODE", "online") in ("offline", "disabled", "dryrun"):
            return
        import wandb

        if not wandb.api.api_key:  # it would ask for one at the terminal, under the progress display
            raise BadInput("--track wandb needs an API key; run wandb login, or set WANDB_MODE=offline")

    def open(self, job: Job) -> WandbRun:
        import wandb

        file = job.folder.path / REMEMBERED
        known = {} if self.fresh else _remembered(file)
        run_id = known.get("id") or secrets.token_hex(6)
        place(job).mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or job.experiment.scenario,
            group=job.folder.path.parent.name,
            name=f"{job.folder.path.parent.name}/{job.folder.path.name}",
            tags=[TRIAL] if is_trial(job) else None,
            config=dict(job.experiment.settings),
            dir=str(place(job)),
            id=run_id,
            resume="allow",
            reinit="create_new",  # several runs train at a time
            settings=wandb.Settings(init_timeout=INIT_SECONDS, **QUIET),
        )
        run.define_metric(STEPS, hidden=True)
        run.define_metric("*", step_metric=STEPS)
        return WandbRun(run, file, run_id, known.get("last", {}))


def _remembered(file: Path) -> dict[str, Any]:
    """Nothing where it is missing or damaged: the run is then a new one."""
    try:
        return read_json(file)
    except (FileNotFoundError, ValueError):
        return {}


class WandbRun:
    def __init__(self, run: Any, file: Path, run_id: str, last: dict[str, int]) -> None:
        self.run, self.file, self.run_id = run, file, run_id
        self.last = dict(last)  # the last step at which each number was reported
        self._remember()

    def add(self, step: int, numbers: Numbers) -> None:
        new = {name: value for name, value in numbers.items() if step > self.last.get(name, -1)}
        if new:
            self.run.log({**new, STEPS: step})
            self.last |= dict.fromkeys(new, step)
            self._remember()

    def _remember(self) -> None:
        write_json(self.file, {"id": self.run_id, "last": self.last})

    def end(self, how: str) -> None:
        if how == "stopped":
            self.run.mark_preempting()  # it may go on another time
        self.run.finish(exit_code=0 if how == "finished" else 1)
