"""The finished runs of a folder or a packed file, grouped by what their seeds have in common.

A result that cannot be read, or is not what a result must be, is left out and named; the others stand.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from gcr.analysis.statistics import Spread, spread
from gcr.experiments import plugins
from gcr.experiments.experiment import Experiment
from gcr.files import brief
from gcr.runs.folder import AGAIN, TRIALS, RunFolder, check_seed, check_together, ended_runs
from gcr.runs.packed import SUFFIX, BadFile, PackedRun, packed_files, read_ended, split_path
from gcr.settings import LARGEST, BadInput, brief_of, unknown
from gcr.training.metrics import anytime_accuracy, forgetting_with_last

StoredRun = RunFolder | PackedRun  # both have path, failure, experiment_values(), result(), metrics() and memory()

MOST = 100  # percent
CHOSE = "seeds-that-chose"  # how the name of such a folder ends
PROTOCOLS = {"class_il": "class-IL", "task_il": "task-IL"}
METRICS = {
    "accuracy": "accuracy",
    "forgetting": "forgetting",
    "forgetting_with_last": "forgetting, last stage counted",
    "anytime": "any-time accuracy",
    "learning": "learning accuracy",
    "backward_transfer": "backward transfer",
    "forward_transfer": "forward transfer",
}
FORGETTING = ("forgetting", "forgetting_with_last")  # two formulas of it


def metric_of(result: dict[str, Any], protocol: str, metric: str) -> float | None:
    """None where a result does not have it; any-time and learning accuracy where it is one evaluation of all tasks."""
    values: dict[str, Any] = result[protocol]
    matrix = values.get("matrix", [[]])
    if metric in ("anytime", "learning") and len(matrix) == 1 < len(matrix[0]):
        return None
    if metric == "forgetting_with_last":  # is in no result
        return forgetting_with_last(matrix, result.get("first_stages") or _first_stages(matrix, values.get("anytime")))
    return values.get(metric)


def _first_stages(matrix: list[list[float]], anytime: float | None) -> list[int]:
    """The stage in which each task begins, of a result of an earlier version. Where stages are not tasks it does not
    say: all evaluations count."""
    by_task = list(range(len(matrix[0])))
    as_many = len(matrix) == len(by_task)
    if as_many and (anytime is None or math.isclose(anytime, anytime_accuracy(matrix, by_task))):
        return by_task
    return [0] * len(by_task)


@dataclass(frozen=True)
class Group:
    """The runs of one experiment over its seeds, in the order of the seeds."""

    runs: list[StoredRun]
    experiments: list[Experiment]
    results: list[dict[str, Any]]
    diverged: int = 0  # runs next to these that are in no mean

    @property
    def experiment(self) -> Experiment:
        return self.experiments[0]

    @property
    def folder(self) -> Path:
        """That its seeds lie in; of packed runs FILE.jsonl.gz/NAME."""
        return self.runs[0].path.parent

    @property
    def name(self) -> str:
        return self.folder.absolute().name  # also of "."

    @property
    def seeds(self) -> list[int]:
        return [experiment.seed for experiment in self.experiments]

    @property
    def buffer(self) -> int | None:
        """K; None without memory."""
        return self.experiment.memory.buffer if self.experiment.memory else None

    def spread(self, protocol: str, metric: str) -> Spread | None:
        """``protocol`` is class_il or task_il, ``metric`` one of ``METRICS``. None where a run does not have it."""
        return spread([metric_of(result, protocol, metric) for result in self.results])

    def by_seed(self, protocol: str, metric: str) -> dict[int, float]:
        """The runs that have the metric."""
        pairs = zip(self.seeds, self.results, strict=True)
        values = {seed: metric_of(result, protocol, metric) for seed, result in pairs}
        return {seed: value for seed, value in values.items() if value is not None}

    @property
    def seconds(self) -> Spread | None:
        return spread([result["seconds"] for result in self.results])

    @property
    def chose(self) -> bool:
        """Whether a setting was chosen on these seeds, as the name of their folder says: they do not prove it."""
        return self.name.endswith(CHOSE)

    @property
    def memory_bytes(self) -> int | None:
        """The most that a seed held: buffer, candidates and the method's own tensors. None where no result says."""
        held = [result.get("memory_bytes") for result in self.results]
        return max((n for n in held if isinstance(n, int) and not isinstance(n, bool)), default=None)


@dataclass(frozen=True)
class Unreadable:
    """A run, a packed file, or a line of one."""

    path: Path
    why: str
    remedy: str = "move it away or train it again"

    def __str__(self) -> str:
        return f"{self.path} cannot be read ({self.why}); {self.remedy}"


Stored = tuple[list[StoredRun], list[Unreadable], list[StoredRun]]  # finished, not to be read, diverged


@dataclass(frozen=True)
class Runs:
    groups: list[Group]
    unreadable: list[Unreadable]
    diverged: list[StoredRun] = field(default_factory=list)

    @property
    def notes(self) -> list[str]:
        """For the foot of a table."""
        return [*self._unreadable_notes(), *self.caveats]

    @property
    def caveats(self) -> list[str]:
        """For the head of a page, which names itself what cannot be read."""
        return [
            *self.diverged_notes(),
            *self._version_notes(),
            *self._group_notes(),
            *self._evaluation_notes(),
        ]

    def only(self, scenarios: Sequence[str], methods: Sequence[str], buffers: Sequence[int]) -> Runs:
        """Those of some scenarios, methods and buffer sizes; empty: of all."""
        for name, asked, known in (
            ("scenario", scenarios, [group.experiment.scenario for group in self.groups]),
            ("method", methods, [group.experiment.method.name for group in self.groups]),
            ("buffer", [str(size) for size in buffers], [str(group.buffer) for group in self.groups if group.buffer]),
        ):
            for value in asked:
                if value not in known:
                    raise unknown(f"{name} here", value, dict.fromkeys(known))
        groups = [
            group
            for group in self.groups
            if (not scenarios or group.experiment.scenario in scenarios)
            and (not methods or group.experiment.method.name in methods)
            and (not buffers or group.buffer in buffers)
        ]
        if not groups:
            raise BadInput("no runs match --scenario, --method and --buffer together; leave one out")
        return Runs(groups, self.unreadable, self.diverged)

    def together(self, other: Runs) -> Runs:
        """With those of another; what is in both counts once."""
        return Runs(
            self.groups + [group for group in other.groups if group not in self.groups],
            [*dict.fromkeys(self.unreadable + other.unreadable)],
            self.diverged + [run for run in other.diverged if run not in self.diverged],
        )

    def _version_notes(self) -> list[str]:
        versions = [result["versions"] for group in self.groups for result in group.results]
        notes = []
        for library in ("gcr", "torch"):
            notes += _mixed(f"versions of {library}", [of.get(library, "unknown") for of in versions])
        without = [group for group in self.groups if not all(of.get("source") for of in group.results)]
        if without and any(of.get("source") for group in self.groups for of in group.results):  # older ones do not
            names = _named_few([group.name for group in without])
            hold = "experiment holds runs that do" if len(without) == 1 else "experiments hold runs that do"
            notes.append(f"{len(without)} {hold} not name their source of gcr: {names}")
        return notes

    def _group_notes(self) -> list[str]:
        """What precision ``auto`` means depends on the device; gcr, plugins and data can change from seed to seed."""
        notes = []
        for group in self.groups:
            notes += _mixed(f"precisions in {group.folder}", [of.get("precision", "unknown") for of in group.results])
            for what, key in (("sources of gcr", "source"), ("plugins", "plugins"), ("data", "data")):
                named = [short_digest(of[key]) for of in group.results if of.get(key)]  # others do not say
                notes += _mixed(f"{what} in {group.folder}", named)
        return notes

    def _evaluation_notes(self) -> list[str]:
        """Methods that need task boundaries are evaluated there, others after every stream."""
        online = [group.experiment for group in self.groups if group.experiment.stream.online]
        notes = []
        for scenario in dict.fromkeys(experiment.scenario for experiment in online):
            made = [e for e in online if e.scenario == scenario and e.method.stages != "all at once"]
            by_task = dict.fromkeys(e.label for e in made if e.method.stages == "tasks")
            if by_task and not all(e.method.stages == "tasks" for e in made):
                notes.append(
                    f"{scenario}, online: {', '.join(by_task)} evaluated at the ends of tasks, others after every "
                    "stream; forgetting, transfer, any-time and learning accuracy cannot be compared between the two"
                )
        return notes

    def diverged_notes(self) -> list[str]:
        if not self.diverged:
            return []
        named = _named_few([f"{_short(run.path)} ({run.failure})" for run in self.diverged])
        runs = "1 run" if len(self.diverged) == 1 else f"{len(self.diverged)} runs"
        return [f"{runs} diverged, in no mean: {named}"]

    def _unreadable_notes(self) -> list[str]:
        if not self.unreadable:
            return []
        names = [_short(bad.path) for bad in self.unreadable]
        results = "result that cannot be read is" if len(names) == 1 else "results that cannot be read are"
        return [f"{len(names)} {results} left out: {_named_few(names)}"]


def _short(path: Path) -> str:
    return "/".join(path.absolute().parts[-2:])


def _named_few(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def short_digest(value: object) -> str:
    """Of a digest, or of several by name, what tells them apart."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {str(digest)[:8]}" for name, digest in sorted(value.items()))
    return str(value)[:8]


def _mixed(what: str, values: Iterable[object]) -> list[str]:
    """A note where they are not all the same."""
    counts = Counter(map(str, values))
    names = ", ".join(f"{value} ({number})" for value, number in sorted(counts.items()))
    return [f"mixed {what}: {names} runs; what they computed may differ"] if len(counts) > 1 else []


def read_runs(*paths: Path) -> Runs:
    """All finished runs at some paths, in groups: below a folder, in a packed file, or in a part of one. A run that is
    at two of them counts once."""
    plugins.own()  # what is wrong with them is no run's fault
    stored = {path: _stored_at(path) for path in paths}
    for path, what in stored.items():
        if not any(what):
            begun = path.is_dir() and any(path.rglob("experiment.json"))
            train = f"train some with: gcr run SCENARIO --out {path}"
            how = "give the command of those begun again" if begun else train
            raise BadInput(f"no finished runs below {path}; {how}")
    runs = _grouped(stored.values())
    if runs.unreadable and not runs.groups:
        more = len(runs.unreadable) - 1
        others = f"; nor can {more} other{'s' * (more > 1)}" if more else ""
        raise BadInput(f"{runs.unreadable[0]}{others}")
    if not runs.groups:
        below = ", ".join(map(str, paths))
        raise BadInput(f"no finished runs below {below}: {runs.notes[0]}; try a smaller lr")
    return runs


def runs_at(path: Path) -> Runs:
    """As ``read_runs``, but there may be none."""
    plugins.own()
    return _grouped([_stored_at(path)])


def _stored_at(path: Path) -> Stored:
    found: list[StoredRun]
    diverged: list[StoredRun] = []
    if packed := split_path(path):
        file, inner = packed
        found, unreadable, diverged = _read_file(file)
        if inner:
            names = sorted({run.path.parent.relative_to(file).as_posix() for run in found})
            found, diverged = ([run for run in runs if run.path.is_relative_to(path)] for runs in (found, diverged))
            if names and not found and not diverged:
                raise unknown(f"run in {file}", inner, names)
    elif path.is_dir():
        finished, failed, without = ended_runs(path)
        found, diverged = [*finished], [*failed]
        unreadable = [Unreadable(run.path, "result.json is missing", AGAIN) for run in without]
        for file in packed_files(path):
            if TRIALS not in file.relative_to(path).parts:
                more, bad, failed_too = _read_file(file)
                found += more
                unreadable += bad
                diverged += failed_too
    else:
        raise BadInput(
            f"{path} is not a folder of runs or a packed file (*{SUFFIX}); give the --out folder of earlier runs"
        )
    return found, unreadable, diverged


def _grouped(stored: Iterable[Stored]) -> Runs:
    found, unreadable, diverged = (_once(lists) for lists in zip(*stored, strict=True))
    runs = group_runs(sorted(found, key=_place), sorted(diverged, key=_place))
    return Runs(runs.groups, [*unreadable, *runs.unreadable], runs.diverged)


def _once(lists: Iterable[list[Any]]) -> list[Any]:
    """What lies below two paths, or is linked to, as the first has it."""
    kept: dict[Path, Any] = {}
    for item in itertools.chain.from_iterable(lists):
        kept.setdefault(item.path.resolve(), item)
    return [*kept.values()]


def _place(run: StoredRun) -> tuple[list[str], bool, str]:
    """In the order of paths, a copy under another name behind what it was copied from."""
    *above, name = (part.removesuffix(SUFFIX) for part in run.path.absolute().parts)
    return above, not name.startswith("seed-"), name


def _read_file(file: Path) -> Stored:
    try:
        runs, bad, diverged = read_ended(file)
    except BadFile as error:
        return [], [Unreadable(file, error.why, error.remedy)], []
    left_out = [Unreadable(file / f"line-{line.number}", line.why, "get or pack it again") for line in bad]
    return [*runs], left_out, [*diverged]


def group_runs(stored: Iterable[StoredRun], diverged: Sequence[StoredRun] = ()) -> Runs:
    """Groups in the order of scenario, method, selector and buffer; ``diverged`` runs are counted, and in no mean."""
    groups: dict[tuple[Path, int], list[tuple[StoredRun, Experiment, dict[str, Any]]]] = {}
    unreadable = []
    known: dict[str, tuple[Experiment, int]] = {}
    numbers: dict[Experiment, int] = {}
    place = cache(Path.resolve)  # of a folder, however it was given
    for run in stored:
        try:
            values, result = run.experiment_values(), run.result()
            experiment, number = _read_experiment(values, known, numbers)
            check_result(result)
            check_together(values, result)
            _check_once(run, experiment, groups.get((place(run.path.parent), number), []))
        except FileNotFoundError as error:
            unreadable.append(Unreadable(run.path, f"{Path(error.filename or run.path).name} is missing"))
            continue
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            why = brief(error) if isinstance(error, BadInput) else brief_of(error)
            unreadable.append(Unreadable(run.path, why, *_remedy(run)))
            continue
        groups.setdefault((place(run.path.parent), number), []).append((run, experiment, result))
    for rows in groups.values():
        rows.sort(key=lambda row: row[1].seed)
    failed = Counter(place(run.path.parent) for run in diverged)
    found = []
    for (folder, _), rows in groups.items():
        runs, experiments, results = (list(column) for column in zip(*rows, strict=True))
        found.append(Group(runs, experiments, results, failed[folder]))
    return Runs(sorted(found, key=lambda group: group.experiment.place), unreadable, [*diverged])


def _remedy(run: StoredRun) -> list[str]:
    """Where a run's method or selector is of a file that is not given now."""
    with suppress(OSError, ValueError, TypeError, AttributeError, RecursionError):
        if remedy := plugins.lacking(run.result()):
            return [remedy]
    return []


def _check_once(run: StoredRun, experiment: Experiment, others: Sequence[tuple[StoredRun, Experiment, Any]]) -> None:
    """Refuse a run that was copied: no seed counts twice."""
    check_seed(run.path, experiment.seed)
    if other := next((other for other, of, _ in others if of.seed == experiment.seed), None):
        raise BadInput(f"seed {experiment.seed} is there already, in {other.path.name}")


def _read_experiment(
    values: Any, known: dict[str, tuple[Experiment, int]], numbers: dict[Experiment, int]
) -> tuple[Experiment, int]:
    """That of a run, and a number that those share which differ in their seed alone; they are checked once."""
    if not isinstance(values, dict) or "seed" not in values:
        made = Experiment.from_dict(values)  # which refuses it
        return made, numbers.setdefault(replace(made, seed=0), len(numbers))
    rest = repr(values | {"seed": 0})
    if rest not in known:
        made = Experiment.from_dict(values)
        known[rest] = made, numbers.setdefault(replace(made, seed=0), len(numbers))
    made, number = known[rest]
    return replace(made, seed=values["seed"]), number


def check_result(result: Any) -> None:
    """Refuse what is not a result: the two protocols with their matrices and metrics, and how the run was made."""
    kinds = {"class_il": dict, "task_il": dict, "seconds": float, "steps": int, "device": str, "versions": dict}
    _check_fields(result, kinds, "result")
    for name in ("seconds", "steps", "memory_bytes", "peak_bytes"):
        if not _is_number(value := result.get(name) or 0) or value < 0:
            raise BadInput(f"result.{name} must be a finite number >= 0, got {value!r:.40}")
    for protocol in PROTOCOLS:
        _check_fields(result[protocol], {"matrix": list, "accuracy": float, "forgetting": None}, protocol)
        for metric in METRICS:
            value, least = result[protocol].get(metric), 0 if metric == "accuracy" else -MOST
            if value is not None and not (_is_number(value) and least <= value <= MOST):
                raise BadInput(f"{protocol}.{metric} must be null or from {least} to {MOST}, got {value!r:.40}")
        matrix = result[protocol]["matrix"]
        if not matrix or not all(isinstance(row, list) and len(row) == len(matrix[0]) > 0 for row in matrix):
            raise BadInput(f"{protocol}.matrix must be rows of equal length")
        if not all(map(_is_row, matrix)):
            raise BadInput(f"{protocol}.matrix must be numbers from 0 to {MOST}")
    shapes = [(len(matrix), len(matrix[0])) for matrix in (result[protocol]["matrix"] for protocol in PROTOCOLS)]
    if shapes[0] != shapes[1]:
        raise BadInput(f"class_il.matrix and task_il.matrix must have the same shape, got {shapes[0]} and {shapes[1]}")
    first, (n_stages, n_tasks) = result.get("first_stages"), shapes[0]
    if first is not None and not (
        isinstance(first, list) and len(first) == n_tasks and all(type(n) is int and 0 <= n < n_stages for n in first)
    ):
        raise BadInput(f"result.first_stages must be a stage below {n_stages} for each task, got {first!r:.40}")


def _check_fields(values: Any, kinds: Mapping[str, type | None], name: str) -> None:
    if not isinstance(values, dict):
        raise BadInput(f"{name} must be a JSON object, got {type(values).__name__}")
    for key, kind in kinds.items():
        if key not in values:
            raise BadInput(f"{name} lacks {key}")
        value = values[key]
        if kind is not None and not (_is_number(value) if kind is float else isinstance(value, kind)):
            raise BadInput(f"{name}.{key} must be of kind {kind.__name__}, got {value!r:.40}")


def _is_row(row: list[Any]) -> bool:
    """Of numbers; quick, since a study has many."""
    if not {int, float}.issuperset(map(type, row)):
        return False
    if not (min(row) >= 0 and max(row) <= MOST):
        return False
    total = sum(row)  # NaN, which no comparison finds, is not equal to itself
    return bool(total == total)


def _is_number(value: Any) -> bool:
    """Finite, and with room for sums of squares."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST
