"""Runs that are not finished: how far each has come, or why it failed, read while a process may be writing there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from gcr.experiments.experiment import Experiment
from gcr.files import parse_json
from gcr.report.cells import (
    MISSING,
    Cell,
    Facets,
    Row,
    Table,
    buffer_cell,
    buffer_text,
    number_cell,
)
from gcr.runs.folder import TRIALS, RunFolder
from gcr.training import Epoch

TAIL_BYTES = 4096  # of metrics.jsonl: a line has about 200


@dataclass(frozen=True)
class Unfinished:
    folder: str  # below that of the report
    experiment: Experiment | None  # None where it cannot be read
    epoch: Epoch | None  # the last one, where one has ended
    changed: float  # when that was written, in seconds since 1970
    locked: bool  # whether a process trains it
    failure: str | None  # why it failed for good

    @property
    def failed(self) -> bool:
        return self.failure is not None and not self.locked

    @property
    def state(self) -> str:
        if self.experiment is None:
            return "experiment.json cannot be read"
        if self.failed:
            return f"failed: {self.failure}"
        return "running" if self.locked else "stopped"


def unfinished_runs(folder: Path) -> Iterator[Unfinished]:
    for file in sorted(folder.rglob("experiment.json")):
        run = file.parent
        if (run / "result.json").exists():
            continue
        try:
            experiment = RunFolder(run).experiment()
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            experiment = None
        metrics = run / "metrics.jsonl"
        try:
            changed = (metrics if metrics.exists() else file).stat().st_mtime
        except OSError:  # gone since
            continue
        there = RunFolder(run)
        where = run.relative_to(folder).as_posix()
        yield Unfinished(where, experiment, last_epoch(metrics), changed, there.busy, there.failure)


def count_finished_trials(folder: Path) -> int:
    """Of searches below ``folder``: what ``ended_runs`` leaves out."""
    return sum(TRIALS in file.relative_to(folder).parts for file in folder.rglob("result.json"))


def last_epoch(metrics: Path) -> Epoch | None:
    """The last whole line; a line that is being written does not count."""
    try:
        with open(metrics, "rb") as file:
            file.seek(max(0, metrics.stat().st_size - TAIL_BYTES))
            lines = file.read().split(b"\n")[:-1]
        values = parse_json(lines[-1] + b"\n", metrics)
        kinds = (int, float)
        if any(not isinstance(values[f.name], kinds) for f in fields(Epoch)):
            return None
        return Epoch(**{f.name: values[f.name] for f in fields(Epoch)})
    except (OSError, ValueError, KeyError, IndexError, TypeError, RecursionError):
        return None


def unfinished_table(runs: Sequence[Unfinished], facets: Facets) -> Table:
    columns = [
        "method",
        "folder",
        "scenario",
        "regime",
        "state",
        "last epoch ended",
        "K",
        "seed",
        "task or stream",
        "epoch",
    ]
    rows = [Row(_facet(run, facets), _cells(run)) for run in runs]
    columns += ["steps done, percent", "loss", "accuracy while training"]
    table = Table("unfinished runs", columns, rows, words=6).without_constant(("scenario", "regime", "K"))
    return table.with_bars([table.columns.index("steps done, percent")], full=100)


def _facet(run: Unfinished, facets: Facets) -> int:
    if run.experiment is None:
        return facets.number(MISSING, MISSING, MISSING, MISSING, run.folder)
    return facets.of(run.experiment, run.experiment.label)


def _cells(run: Unfinished) -> list[Cell]:
    made, epoch = run.experiment, run.epoch
    folder = Cell(run.folder)
    when = Cell(time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(run.changed)) if epoch else MISSING)
    if made is None:
        unknown = Cell(MISSING)
        return [unknown, folder, unknown, unknown, Cell(run.state), when, *[unknown] * 7]
    words = [Cell(made.label), folder, Cell(made.scenario), Cell(made.stream.regime), Cell(run.state), when]
    place = [buffer_cell(buffer_text(made)), number_cell(made.seed)]
    if epoch is None:
        return [*words, *place, *[Cell(MISSING)] * 5]
    return [
        *words,
        *place,
        number_cell(epoch.stage + 1),
        Cell(f"{epoch.epoch + 1} of {made.training.epochs}", epoch.epoch + 1),
        number_cell(100 * epoch.steps / max(epoch.total_steps, 1), "{:.0f}"),
        number_cell(epoch.loss, "{:.3g}"),
        number_cell(epoch.accuracy, "{:.1f}"),
    ]
