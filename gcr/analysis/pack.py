"""Finished runs, from folders and packed files, into the bytes of one packed file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gcr import files
from gcr.analysis.load import Runs, StoredRun, Unreadable, read_runs
from gcr.files import brief
from gcr.runs.folder import RunFolder, wrong_file
from gcr.runs.packed import SUFFIX, PackedRun, packed_bytes, split_path
from gcr.settings import BadInput

NUMBERS = ("class_il", "task_il", "steps", "selections", "memory_bytes", "data", "plugins")  # of a result


@dataclass(frozen=True)
class Packed:
    content: bytes
    n_runs: int
    n_replaced: int
    sources: list[Runs]  # with what could not be read


def pack_runs(paths: Sequence[Path], metrics: bool = False, replace: bool = False) -> Packed:
    """Experiments and results of all runs at ``paths``, with ``metrics`` those of every epoch, and why others diverged.

    A run that is there twice with the same numbers counts once. With ``replace``, any that is there twice counts as the
    last of ``paths`` has it.
    """
    lines: dict[str, dict[str, Any]] = {}
    diverged: dict[str, str] = {}
    sources, n_replaced = [], 0
    for path in paths:
        n_unchecked = len(files.unchecked)
        sources.append(read_runs(path))
        diverged |= {name_below(run, path): str(run.failure) for run in sources[-1].diverged}
        unchecked = {Path(file).parent for file in files.unchecked[n_unchecked:]}
        for run in (run for group in sources[-1].groups for run in group.runs):
            name = name_below(run, path)
            result = {key: value for key, value in run.result().items() if key != "files"}  # which stay behind
            line: dict[str, Any] = {"experiment": run.experiment_values(), "result": result}
            if run.path in unchecked or (isinstance(run, PackedRun) and run.unchecked):
                line["unchecked"] = True
            if metrics:
                try:
                    line |= {"metrics": epochs} if (epochs := _metrics(run)) else {}
                except BadInput as error:
                    file = run.path / "metrics.jsonl"
                    sources[-1].unreadable.append(Unreadable(file, brief(error), "its run is packed without it"))
            before = lines.setdefault(name, line)
            if not replace and not _equal_numbers(before, line):
                remedy = "leave one out, or give --replace to take it from the last"
                raise BadInput(f"{name} is there twice with different contents, last in {path}; {remedy}")
            if replace or _says_more(line, before):
                lines[name] = line
                n_replaced += before != line and replace
    diverged = {name: why for name, why in diverged.items() if name not in lines}  # was trained again since
    return Packed(packed_bytes(lines.items(), diverged), len(lines), n_replaced, sources)


def _equal_numbers(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two lines are of one experiment with one outcome, whenever and wherever each was trained."""
    results = one["result"], other["result"]
    return bool(one["experiment"] == other["experiment"]) and all(
        results[0].get(key) == results[1].get(key) for key in NUMBERS
    )


def _says_more(line: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether only it was checked; or else, whether only it has metrics."""
    says = [("unchecked" not in one, "metrics" in one) for one in (line, before)]
    return says[0] > says[1]


def _metrics(run: StoredRun) -> list[Any]:
    if isinstance(run, RunFolder) and (why := wrong_file(run.path / "metrics.jsonl", run.result())):
        raise BadInput(why)
    return run.metrics()


def name_below(run: StoredRun, source: Path) -> str:
    """The path of a run inside the file: as below ``source``, where a packed file is a folder named like it."""
    if isinstance(run, PackedRun):
        if split_path(source):
            return run.name
        return f"{run.file.relative_to(source).as_posix().removesuffix(SUFFIX)}/{run.name}"
    below = run.path.resolve().relative_to(source.resolve()).parts
    return "/".join(below if len(below) > 1 else run.path.resolve().parts[-2:])
