"""Every file below a folder that a later command believes, checked against its digest: runs, packed results, cached
data sets, learner states. Changes nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gcr import files
from gcr.analysis.load import check_result, group_runs
from gcr.data.cache import ARRAYS, PARTS, described_at
from gcr.experiments import plugins
from gcr.experiments.experiment import Experiment
from gcr.learner.state_folder import StateFolder
from gcr.runs.folder import AGAIN, NAMED, check_seed, check_together, lost_result, wrong_file
from gcr.runs.packed import SUFFIX, read_packed
from gcr.settings import BadInput, brief_of

REMEDIES = {  # by the beginning of the file's name
    "checkpoint-": "the same command continues from the one before it",
    **dict.fromkeys(("memory.", "model.", "metrics.", "result.", "experiment.", "failure."), AGAIN),
}


@dataclass(frozen=True)
class Checked:
    path: Path  # of a file, a version of a state, or a cached data set
    damage: str = ""  # the file, what is wrong with it, and what to do
    partly: bool = False  # of an older gcr, which wrote fewer digests


def verify(path: Path) -> Iterator[Checked]:
    """What there is to check at or below ``path``, in order."""
    if not path.exists():
        raise BadInput(f"{path} does not exist; give a folder of runs, a cache of data sets or a state")
    if (whole := _whole_of(path)) is not None:
        yield whole
        return
    if path.is_file():
        yield from _file(path)
        return
    for here, folders, names in os.walk(path):
        folder = Path(here)
        folders[:] = [name for name in folders if not name.endswith(".part")]  # which are being made
        if "about.json" in names and "result.json" not in names:
            folders.clear()
            yield _checked(folder, partial(_check_data, folder))
            continue
        if versions := StateFolder(folder).versions():
            folders[:] = [name for name in folders if not name.startswith(("version-", ".version-"))]
            for number in versions:
                yield _checked(folder / f"version-{number:04d}", partial(StateFolder(folder).read, number))
        folders.sort()
        for name in sorted(names):
            yield from _file(folder / name)
        if missing := _missing_head(folder, names):
            yield Checked(folder / missing[0], f"{folder / missing[0]} is missing; {missing[1]}")


def _whole_of(path: Path) -> Checked | None:
    """The version of a state, or the data set, that ``path`` is a part of."""
    path = path.absolute()
    for folder in (path, path.parent):
        number = folder.name.removeprefix("version-")
        if number != folder.name and number.isdecimal() and int(number) in StateFolder(folder.parent).versions():
            return _checked(folder, partial(StateFolder(folder.parent).read, int(number)))
    if path.name in (*ARRAYS, "about.json") and path.with_name("about.json").exists():
        return _checked(path.parent, partial(_check_data, path.parent))
    return None


def _missing_head(folder: Path, names: list[str]) -> tuple[str, str] | None:
    """The file without which the others of a folder are not found, and the remedy."""
    if set(ARRAYS) & set(names) and "about.json" not in names:
        return "about.json", "get or import the data set again"
    return ("result.json", AGAIN) if lost_result(folder, names) else None


def _file(path: Path) -> Iterator[Checked]:
    if path.name.startswith("."):
        return
    remedy = next((remedy for start, remedy in REMEDIES.items() if path.name.startswith(start)), "")
    if path.name.endswith(SUFFIX):
        yield _checked(path, partial(_check_packed, path))
    elif remedy and path.suffix in (".json", ".jsonl", ".safetensors"):
        yield _checked(path, partial(_check_of_run, path), remedy)
    if path.name == "result.json":
        result = _result_of(path)
        for file in map(path.with_name, NAMED):
            if not file.exists() and wrong_file(file, result):
                yield Checked(file, f"{file} is missing; {AGAIN}")


def _checked(path: Path, check: Callable[[], object], remedy: str = "") -> Checked:
    before = len(files.unchecked), len(files.linked_to_none)
    damage = ""
    try:
        check()
    except FileNotFoundError:  # gone since: its run goes on
        pass
    except (BadInput, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        damage = str(error)
        if remedy or not isinstance(error, BadInput):
            why = error.why if isinstance(error, files.Damaged) else brief_of(error)
            damage = f"{path} is damaged ({why}); {remedy or AGAIN}"
    old = [*files.unchecked[before[0] :], *files.linked_to_none[before[1] :]]
    return Checked(path, damage, any(Path(file).is_relative_to(path) for file in old))


def _check_of_run(path: Path) -> None:
    """The digest; of a file without one at least its form."""
    if path.suffix == ".safetensors":
        files.read_tensors(path)
    elif path.suffix == ".jsonl":
        lines = files.read_file(path).splitlines(keepends=True)
        going_on = lines and not lines[-1].endswith(b"\n") and not path.with_name("result.json").exists()
        for line in lines[:-1] if going_on else lines:
            files.parse_json(line, path)
    elif path.name == "result.json":
        result, experiment = files.read_json(path), path.with_name("experiment.json")
        check_result(result)
        if not experiment.exists():
            raise files.Damaged(path, "experiment.json is missing next to it")
        with suppress(files.Damaged, OSError):  # which is named itself
            values = files.read_json(experiment)
            check_together(values, result)
        if "experiment" not in result or "files" not in result:
            files.linked_to_none.append(str(path))
    elif path.name == "experiment.json":
        values = files.read_json(path)
        of_plugin = plugins.lacking(_result_of(path.with_name("result.json")))
        check_seed(path.parent, values["seed"] if of_plugin else Experiment.from_dict(values).seed)
    elif not isinstance(files.read_json(path).get("error"), str):  # failure.json
        raise files.Damaged(path, "it does not say why the run ended")
    if path.name in NAMED and (why := wrong_file(path, _result_of(path.with_name("result.json")))):
        raise files.Damaged(path, why)


def _result_of(path: Path) -> dict[str, Any]:
    """For the names of files that belong to it; none where it is missing or damaged, which is said of itself."""
    try:
        result = files.read_json(path)
        check_together(files.read_json(path.with_name("experiment.json")), result)
    except (BadInput, OSError):
        return {}
    return result


def _check_packed(path: Path) -> None:
    runs, bad = read_packed(path)
    if unreadable := group_runs(runs).unreadable:
        raise BadInput(str(unreadable[0]))
    if bad:
        why = f"{len(bad)} {'line' if len(bad) == 1 else 'lines'}, first line {bad[0].number}: {bad[0].why}"
        raise BadInput(f"{path} is damaged ({why}); get or pack it again")
    if any(run.unchecked for run in runs):
        files.linked_to_none.append(str(path))


def _check_data(folder: Path) -> None:
    cached = described_at(folder)
    cached.check_files()
    for part in PARTS:
        cached.labels(part)
        cached.image_check(part).check_all()
