"""Rows of results: the finished runs below a folder, grouped by what their seeds have in common."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcr.experiments.experiment import Experiment, flat
from gcr.experiments.run_folder import RunFolder, finished_runs
from gcr.experiments.statistics import Spread, spread
from gcr.settings import BadInput


@dataclass(frozen=True)
class Group:
    """The runs of one experiment over its seeds, in the order of the seeds."""

    folders: list[RunFolder]
    experiments: list[Experiment]
    results: list[dict[str, Any]]

    @property
    def experiment(self) -> Experiment:
        return self.experiments[0]

    @property
    def seeds(self) -> list[int]:
        return [experiment.seed for experiment in self.experiments]

    def spread(self, view: str, metric: str) -> Spread | None:
        """``view`` is class_il or task_il, ``metric`` one of ``METRICS``. None where a run does not have it."""
        return spread([result[view].get(metric) for result in self.results])

    @property
    def seconds(self) -> Spread | None:
        return spread([result["seconds"] for result in self.results])


def read_groups(folder: Path) -> list[Group]:
    """All finished runs below ``folder``, in groups."""
    if not folder.is_dir():
        raise BadInput(f"{folder} is not a folder; give the --out folder of earlier runs")
    groups = group_runs(finished_runs(folder))
    if not groups:
        raise BadInput(f"no finished runs below {folder}; train some with: gcr run SCENARIO --out {folder}")
    return groups


def group_runs(runs: Iterable[RunFolder]) -> list[Group]:
    """Groups in the order of scenario, method, selector and buffer. An unreadable result is an error that names it."""
    groups: dict[tuple[Path, str], list[tuple[RunFolder, Experiment, dict[str, Any]]]] = {}
    for run in runs:
        try:
            experiment, result = run.experiment(), run.result()
            _ = [
                result[view][metric]
                for view in ("class_il", "task_il")
                for metric in ("matrix", "accuracy", "forgetting")
            ]
            _ = [result[key] for key in ("seconds", "steps", "device", "versions")]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise BadInput(f"{run.path} cannot be read ({error!r}); move it away or train it again") from None
        groups.setdefault((run.path.parent, experiment.without_seed()), []).append((run, experiment, result))
    for rows in groups.values():
        rows.sort(key=lambda row: row[1].seed)
    found = [Group(*(list(column) for column in zip(*rows, strict=True))) for rows in groups.values()]
    return sorted(found, key=lambda group: group.experiment.place)


VIEWS = {"class_il": "class-IL", "task_il": "task-IL"}
METRICS = {
    "accuracy": "accuracy",
    "forgetting": "forgetting",
    "anytime": "any-time accuracy",
    "learning": "learning accuracy",
    "backward_transfer": "backward transfer",
    "forward_transfer": "forward transfer",
}


SHOWN = ("accuracy", "forgetting")  # unless asked for others


def columns(metrics: Sequence[str] = SHOWN) -> list[str]:
    return ["method", "K", "seeds", *(f"{view} {METRICS[m]}" for view in VIEWS.values() for m in metrics), "seconds"]


def table(groups: list[Group], metrics: Sequence[str] = SHOWN) -> list[list[str]]:
    """A row of text per group, under ``columns``: mean ± SEM over seeds."""
    rows = []
    for name, group in zip(row_names(groups), groups, strict=True):
        spreads = [group.spread(view, metric) for view in VIEWS for metric in metrics]
        seconds = f"{group.seconds.mean:.1f}" if group.seconds else "–"
        cells = [str(s) if s else "–" for s in spreads]
        rows.append([name, _buffer(group), str(len(group.seeds)), *cells, seconds])
    return rows


def by_scenario(groups: list[Group]) -> dict[str, list[Group]]:
    """Groups under the name of their scenario; online runs apart."""
    split: dict[str, list[Group]] = {}
    for group in groups:
        online = ", online" if group.experiment.stream.online else ""
        split.setdefault(group.experiment.scenario + online, []).append(group)
    return split


def row_names(groups: list[Group]) -> list[str]:
    """The label of each group, with the settings that tell it from others of the same label and buffer size."""
    names = []
    for group in groups:
        alike = [other for other in groups if _family(other) == _family(group)]
        described = [
            flat(other.experiment.to_dict() | {"folder": other.folders[0].path.parent.name}) for other in alike
        ]
        mine = described[alike.index(group)]
        varying = [key for key in mine if key != "seed" and len({str(d.get(key)) for d in described}) > 1]
        if len(varying) > 1 and "folder" in varying:
            varying.remove("folder")
        told = ", ".join(f"{key.rsplit('.', 1)[-1]}={mine[key]}" for key in varying)
        names.append(f"{group.experiment.label} ({told})" if told else group.experiment.label)
    return names


def _family(group: Group) -> tuple[str, str, str]:
    return group.experiment.scenario, group.experiment.label, _buffer(group)


def _buffer(group: Group) -> str:
    return str(group.experiment.memory.buffer) if group.experiment.memory else "–"
