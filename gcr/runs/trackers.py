"""Trackers: TensorBoard event files, an MLflow store, Weights & Biases.

A tracker opens a record for each run, which takes numbers by the step and ends.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from pathlib import Path
from typing import Any, ClassVar, Protocol

from gcr.files import read_json, write_json, write_whole
from gcr.runs.folder import TRIALS
from gcr.runs.job import Job
from gcr.settings import BadInput

FLUSH_SECONDS = 10  # of event files

MLFLOW_FILE = "mlflow-run.txt"
MLFLOW_TRIAL = "gcr.trial"  # the tag of a run that only served to choose values
MLFLOW_STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# A server that is gone is given up soon, and nothing is reported to anybody else.
MLFLOW_ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}

WANDB_FILE = "wandb-run.json"
WANDB_TRIAL = "trial"  # the tag of a run that only served to choose values
# The axis: a training step may come again when a run is continued, which wandb's own step may not.
WANDB_STEPS = "steps"
WANDB_INIT_SECONDS = 30.0  # for a server to answer
WANDB_QUIET = {
    "console": "off",  # the progress display stays ours
    "disable_code": True,
    "disable_git": True,
    "save_code": False,
    "silent": True,
    "x_disable_meta": True,
    "x_disable_stats": True,
    "x_save_requirements": False,
}

Numbers = dict[str, float]


class Record(Protocol):
    def add(self, step: int, numbers: Numbers) -> None:
        """Steps rise, but for the final numbers, which come at the last one. When a run is continued, all that is known
        of it comes again."""

    def end(self, how: str) -> None:
        """As "finished", "failed" or "stopped"; the last two may go on another time."""


class Tracker(Protocol):
    @property
    def name(self) -> str: ...

    def open(self, job: Job) -> Record: ...


def is_trial(job: Job) -> bool:
    return job.folder.out.name == TRIALS


def place(job: Job) -> Path:
    """The ``--out`` folder: trials have a folder of their own below it, but no store of their own."""
    out = job.folder.out.absolute()
    return out.parent if is_trial(job) else out


class EventFiles:
    """TensorBoard event files, in the folder ``tensorboard`` of each run: ``tensorboard --logdir runs``."""

    name: ClassVar[str] = "tensorboard"
    needs: ClassVar[tuple[str, ...]] = ("tensorboard",)

    def __init__(self, fresh: bool) -> None:
        pass  # a file is always written from the beginning, for a run that is continued from its metrics

    def open(self, job: Job) -> EventFile:
        from torch.utils.tensorboard import SummaryWriter

        folder = job.folder.path / "tensorboard"
        for old in folder.glob("events.out.tfevents.*"):
            old.unlink()
        return EventFile(SummaryWriter(str(folder), flush_secs=FLUSH_SECONDS))


class EventFile:
    def __init__(self, writer: Any) -> None:
        self.writer = writer

    def add(self, step: int, numbers: Numbers) -> None:
        for name, value in numbers.items():
            self.writer.add_scalar(name, value, step)

    def end(self, how: str) -> None:
        self.writer.close()


class MlflowStore:
    """Runs in an MLflow store: settings as parameters, numbers as metrics, one MLflow experiment for each scenario.

    The store is the one that ``MLFLOW_TRACKING_URI`` names, or ``mlflow.db`` (SQLite) next to the run folders. Trials
    are in it too, with a tag. A run folder remembers its run's id in ``mlflow-run.txt``, so that a run that is
    continued is the same one there.
    """

    name: ClassVar[str] = "mlflow"
    needs: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.clients: dict[str, Any] = {}

    def open(self, job: Job) -> MlflowRun:
        client = self._client(job)
        file = job.folder.path / MLFLOW_FILE
        if not self.fresh and (run := _find_run(client, file.read_text().strip() if file.exists() else "")):
            client.update_run(run.info.run_id, status="RUNNING")
            return MlflowRun(client, run.info.run_id)
        experiment = job.experiment
        created = client.create_run(
            self._experiment(client, job),
            run_name=f"{job.folder.path.parent.name}/{job.folder.path.name}",
            tags={MLFLOW_TRIAL: "true"} if is_trial(job) else {},
        )
        run_id: str = created.info.run_id
        write_whole(file, f"{run_id}\n".encode())
        from mlflow.entities import Param

        settings = experiment.settings
        client.log_batch(run_id, params=[Param(name, str(value)) for name, value in settings.items()])
        return MlflowRun(client, run_id)

    def _client(self, job: Job) -> Any:
        store = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{place(job) / 'mlflow.db'}"
        if store not in self.clients:
            for name, value in MLFLOW_ENVIRONMENT.items():
                os.environ.setdefault(name, value)
            from mlflow.tracking import MlflowClient

            for logger in ("mlflow", "alembic"):
                logging.getLogger(logger).setLevel(logging.WARNING)
            self.clients[store] = MlflowClient(store)
        return self.clients[store]

    def _experiment(self, client: Any, job: Job) -> str:
        """By the scenario's name. There are no artifacts; their folder would be next to the runs."""
        known = client.get_experiment_by_name(job.experiment.scenario)
        if known is not None:
            return str(known.experiment_id)
        artifacts = None
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            artifacts = (place(job) / "mlflow-artifacts").as_uri()
        return str(client.create_experiment(job.experiment.scenario, artifact_location=artifacts))


def _find_run(client: Any, run_id: str) -> Any:
    """The run that the folder remembers; None if there is none, or none in this store, or it was deleted there."""
    from mlflow.exceptions import MlflowException

    if not run_id:
        return None
    try:
        run = client.get_run(run_id)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        return None
    return run if run.info.lifecycle_stage == "active" else None


class MlflowRun:
    def __init__(self, client: Any, run_id: str) -> None:
        self.client, self.run_id = client, run_id
        self.logged: dict[str, set[int]] = {}  # steps of each metric that the store has

    def add(self, step: int, numbers: Numbers) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        new = [Metric(name, value, now, step) for name, value in numbers.items() if step not in self._steps(name)]
        if new:
            self.client.log_batch(self.run_id, metrics=new)
            for metric in new:
                self.logged[metric.key].add(step)

    def _steps(self, name: str) -> set[int]:
        if name not in self.logged:
            self.logged[name] = {metric.step for metric in self.client.get_metric_history(self.run_id, name)}
        return self.logged[name]

    def end(self, how: str) -> None:
        self.client.set_terminated(self.run_id, MLFLOW_STATUS[how])


class WandbRuns:
    """Runs in Weights & Biases: settings as the run's config, numbers by training step, one project for each scenario.

    ``WANDB_PROJECT`` and the other variables of Weights & Biases work as ever. ``WANDB_MODE=offline`` writes to the
    folder ``wandb`` next to the run folders, for ``wandb sync``. Trials are in the same project, with a tag. A run
    folder remembers its run's id, and the last step of each number, in ``wandb-run.json``: a run that is continued is
    the same one there, and reports nothing twice.
    """

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

        file = job.folder.path / WANDB_FILE
        known = {} if self.fresh else _remembered(file)
        run_id = known.get("id") or secrets.token_hex(6)
        place(job).mkdir(parents=True, exist_ok=True)
        run = wandb.init(
            project=os.environ.get("WANDB_PROJECT") or job.experiment.scenario,
            group=job.folder.path.parent.name,
            name=f"{job.folder.path.parent.name}/{job.folder.path.name}",
            tags=[WANDB_TRIAL] if is_trial(job) else None,
            config=dict(job.experiment.settings),
            dir=str(place(job)),
            id=run_id,
            resume="allow",
            reinit="create_new",  # several runs train at a time
            settings=wandb.Settings(init_timeout=WANDB_INIT_SECONDS, **WANDB_QUIET),
        )
        run.define_metric(WANDB_STEPS, hidden=True)
        run.define_metric("*", step_metric=WANDB_STEPS)
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
            self.run.log({**new, WANDB_STEPS: step})
            self.last |= dict.fromkeys(new, step)
            self._remember()

    def _remember(self) -> None:
        write_json(self.file, {"id": self.run_id, "last": self.last})

    def end(self, how: str) -> None:
        if how == "stopped":
            self.run.mark_preempting()  # it may go on another time
        self.run.finish(exit_code=0 if how == "finished" else 1)
