"""Runs in an MLflow store: settings as parameters, numbers as metrics, one MLflow experiment for each scenario.

The store is the one that ``MLFLOW_TRACKING_URI`` names, or ``mlflow.db`` (SQLite) next to the run folders. Trials are
in it too, with a tag. A run folder remembers its run's id in ``mlflow-run.txt``, so that a run that is continued is
the same one there.
"""

from __future__ import annotations

import logging
import os
import time
from typing import Any, ClassVar

from gcr.files import write_whole
from gcr.runs.job import Job
from gcr.runs.tracking.record import Numbers, is_trial, place

REMEMBERED = "mlflow-run.txt"
TRIAL = "gcr.trial"  # the tag of a run that only served to choose values
STATUS = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED"}
# A server that is gone is given up soon, and nothing is reported to anybody else.
ENVIRONMENT = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}


class MlflowStore:
    name: ClassVar[str] = "mlflow"
    needs: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")

    def __init__(self, fresh: bool) -> None:
        self.fresh = fresh
        self.clients: dict[str, Any] = {}

    def open(self, job: Job) -> MlflowRun:
        client = self._client(job)
        file = job.folder.path / REMEMBERED
        if not self.fresh and (run := _find_run(client, file.read_text().strip() if file.exists() else "")):
            client.update_run(run.info.run_id, status="RUNNING")
            return MlflowRun(client, run.info.run_id)
        experiment = job.experiment
        created = client.create_run(
            self._experiment(client, job),
            run_name=f"{job.folder.path.parent.name}/{job.folder.path.name}",
            tags={TRIAL: "true"} if is_trial(job) else {},
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
            for name, value in ENVIRONMENT.items():
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
        self.client.set_terminated(self.run_id, STATUS[how])
