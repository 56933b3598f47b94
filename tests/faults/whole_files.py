"""Files that are whole but in the wrong place: swapped between seeds, copied over others, deleted; packed lines gone.

A table leaves such a run out and counts it, ``gcr verify`` names it, the report shows no pictures of another run, a
pack has no metrics of another run; all other numbers are those of the files as they were.
"""

from __future__ import annotations

import gzip
import itertools
import json
import re
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from children import Ended, Tally, in_child
from damage import Page, copied, is_hung, page, printed
from made_runs import add_epoch, experiment_of, link_files, put_run, square
from victims import command

SEEDS = 3
GROUP = "runs/seq-digits-gcr-k20"
MEMORY, METRICS = "memory.safetensors", "metrics.jsonl"
COMMANDS = {
    "table csv": "table runs --format csv",
    "table": "table runs",
    "verify": "verify runs",
    "report": "report runs --page page.html",
    "pack": "results pack runs all.jsonl.gz --metrics",
}


def seed(number: int) -> str:
    return f"{GROUP}/seed-{number}"


def make_seeds() -> None:
    """Runs that differ in every number, picture and metric."""
    import torch

    from gcr.files import tensor_bytes

    for number in range(SEEDS):
        run = put_run(Path("runs"), experiment_of("gcr", seed=number), square(50.0 + 7 * number))
        for epoch in range(2):
            add_epoch(run, 10 * number + epoch)
        images = torch.arange(20 * 64).reshape(20, 1, 8, 8).remainder(200).add(number).to(torch.uint8)
        columns = {"image": images, "label": torch.arange(20) % 10, "weight": torch.linspace(0.5, 3 + number, 20)}
        (run.path / MEMORY).write_bytes(tensor_bytes(columns))
        link_files(run)


@dataclass(frozen=True)
class Change:
    """What was done to files, and of which runs a file is not theirs any more."""

    name: str
    do: Callable[[], None]
    left_out: Collection[int] = ()  # seeds that no table may show
    memory: Collection[int] = ()  # seeds without a memory of their own
    metrics: Collection[int] = ()

    @property
    def wrong(self) -> set[int]:
        return {*self.left_out, *self.memory, *self.metrics}


def swap_files(name: str, one: int, other: int) -> None:
    first, second = Path(seed(one), name), Path(seed(other), name)
    contents = first.read_bytes(), second.read_bytes()
    second.write_bytes(contents[0])
    first.write_bytes(contents[1])


def copy_files(one: int, other: int, names: str = "*") -> None:
    Path(seed(other)).mkdir(exist_ok=True)
    for file in Path(seed(one)).glob(names):
        shutil.copy(file, seed(other))


def delete(name: str, one: int) -> None:
    Path(seed(one), name).unlink()


def changes() -> list[Change]:
    found = []
    for one, other in itertools.permutations(range(SEEDS), 2):
        found += [
            Change(f"seed-{one} copied over seed-{other}", partial(copy_files, one, other), [other]),
            Change(f"JSON of seed-{one} copied over seed-{other}", partial(copy_files, one, other, "*.json"), [other]),
        ]
    for one, other in itertools.combinations(range(SEEDS), 2):
        both = [one, other]

        def swapped(name: str, **wrong: Any) -> Change:
            return Change(f"{name} of seeds {both} swapped", partial(swap_files, name, *both), **wrong)  # noqa: B023

        found += [swapped("result.json", left_out=both), swapped("experiment.json", left_out=both),
                  swapped(MEMORY, memory=both), swapped(METRICS, metrics=both)]  # fmt: skip
    for one in range(SEEDS):
        found += [
            Change(f"seed-{one} copied as seed-{SEEDS}", partial(copy_files, one, SEEDS), [SEEDS]),
            Change(f"experiment.json of seed-{one} deleted", partial(delete, "experiment.json", one), [one]),
            Change(f"result.json of seed-{one} deleted", partial(delete, "result.json", one), [one]),
            Change(f"{MEMORY} of seed-{one} deleted", partial(delete, MEMORY, one), memory=[one]),
            Change(f"{METRICS} of seed-{one} deleted", partial(delete, METRICS, one), metrics=[one]),
        ]
    return found


def exchange(folder: Path, every: int = 1, only: Collection[str] = tuple(COMMANDS)) -> Tally:
    """Every ``every``-th change, each with every command."""
    base, work = folder / "base", folder / "work"
    base.mkdir(parents=True)
    made = in_child(make_seeds, base)
    assert made.code == 0, made
    tally = Tally()
    known: dict[frozenset[int], dict[str, Any]] = {}

    def right(without: Collection[int]) -> dict[str, Any]:
        """What whole files give without some of the runs."""
        key = frozenset(without)
        if key not in known:
            copied(base, work)
            for number in key & set(range(SEEDS)):
                shutil.rmtree(work / seed(number))
            known[key] = {name: _seen(name, work) for name in COMMANDS if set(range(SEEDS)) - key}
            assert all(ended.code == 0 for ended, _ in known[key].values()), known[key]
        return known[key]

    for change in changes()[::every]:
        expected, pictured = right(change.left_out), right({*change.left_out, *change.memory})
        copied(base, work)
        assert in_child(change.do, work).code == 0
        for name in only:
            (work / "all.jsonl.gz").unlink(missing_ok=True)
            ended, facts = _seen(name, work)
            what = f"{change.name}, gcr {name}"
            if is_hung(ended) or ended.traceback or facts is None:
                tally.count(f"{what}: {ended.err[-200:]}", "hangs" if is_hung(ended) else "tracebacks")
                continue
            others = pictured["report"][1] if name == "report" else None
            found = JUDGES[name](change, ended, facts, expected[name][1], others)
            tally.count(f"{what}: {found}", *["wrong"] * bool(found))
    return tally


def _seen(name: str, folder: Path) -> tuple[Ended, Any]:
    """How the command ended, and what it shows or writes; None if there is nothing."""
    ended = in_child(partial(command, COMMANDS[name]), folder)
    try:
        return ended, FACTS[name](folder, ended)
    except (OSError, ValueError):
        return ended, None


# --- what is shown


def page_of(folder: Path, ended: Ended) -> Page:
    found = page(folder, ended)
    (folder / "page.html").unlink()
    return found


def packed_by_path(folder: Path, ended: Ended) -> dict[str, Any]:
    _, *lines = gzip.decompress((folder / "all.jsonl.gz").read_bytes()).splitlines()
    values = [json.loads(line) for line in lines]
    return {one["path"]: {key: value for key, value in one.items() if key != "digest"} for one in values}


FACTS: dict[str, Callable[[Path, Ended], Any]] = {
    "table csv": printed,
    "table": lambda folder, ended: ended.out,
    "verify": lambda folder, ended: ended.out,
    "report": page_of,
    "pack": packed_by_path,
}


# --- what is wrong with it, in words; empty: nothing


def named(text: str) -> set[int]:
    """The seeds of which a text speaks."""
    return {int(number) for number in re.findall(r"\bseed-(\d+)", text)}


def judge_table(change: Change, ended: Ended, facts: Any, expected: Any, others: Any) -> str:
    said = {*change.left_out}
    if ended.code or facts != expected:
        return f"exit code {ended.code}, {facts}, not {expected}"
    left = [line for line in ended.err.splitlines() if line.startswith("left out: ")]
    first = {number for line in left for number in named(line.partition(" cannot be read")[0])}
    return "" if len(left) == len(said) and first == said else f"left out are {first}, not {said}"


def judge_foot(change: Change, ended: Ended, facts: str, expected: str, others: Any) -> str:
    """The line below the table counts and names what is left out."""
    said = {*change.left_out}
    foot = re.findall(r"^- (\d+) results? that cannot be read (?:is|are) left out: (.*)$", facts, re.MULTILINE)
    if not said:
        return f"left out: {foot}" if foot else ""
    right = len(foot) == 1 and int(foot[0][0]) == len(said) and named(foot[0][1]) == said
    return "" if right else f"the foot says {foot}, not {said}"


def judge_verify(change: Change, ended: Ended, facts: str, expected: str, others: Any) -> str:
    """Every run with a file that is not its own is named, and no other."""
    lines = [line for line in facts.splitlines() if line.startswith(GROUP)]
    found = named(" ".join(line.partition(" (")[0] for line in lines))
    right = ended.code == 1 and found == change.wrong and " 0 damaged" not in facts
    return "" if right else f"exit code {ended.code}, named are {found}, not {change.wrong}"


def judge_report(change: Change, ended: Ended, facts: Page, expected: Page, others: Page) -> str:
    if ended.code or facts.cells != expected.cells:
        return f"exit code {ended.code}, {facts.cells}, not {expected.cells}"
    if facts.pictures and facts.pictures != others.pictures:
        return "pictures of another run"
    if not facts.pictures and not re.search(r"memory cannot be shown: [^<]*not the file that result", facts.text):
        return "no pictures, and no reason"
    said = len({*change.left_out})
    note = re.search(r"(\d+) results? left out", facts.text)
    return "" if (int(note[1]) if note else 0) == said else f"left out: {note}, not {said}"


def judge_pack(change: Change, ended: Ended, facts: dict[str, Any], expected: dict[str, Any], others: Any) -> str:
    """Lines of the runs as they were; those with other metrics without any."""
    said = {*change.left_out, *change.metrics}
    bare = {f"{GROUP.removeprefix('runs/')}/seed-{number}" for number in change.metrics}
    right_lines = {
        path: {key: value for key, value in line.items() if key != "metrics" or path not in bare}
        for path, line in expected.items()
    }
    if facts != right_lines:
        return f"packed are {sorted(facts)}, not as they were"
    right = ended.code == int(bool(said)) and named(ended.err) >= said
    return "" if right else f"exit code {ended.code}, {ended.err[-200:]}"


JUDGES: dict[str, Callable[[Change, Ended, Any, Any, Any], str]] = {
    "table csv": judge_table,
    "table": judge_foot,
    "verify": judge_verify,
    "report": judge_report,
    "pack": judge_pack,
}


# --- packed files


def change_lines(folder: Path) -> Tally:
    """Whole lines removed from a packed file, doubled, in another order, or of another file: refused by name."""
    base, work = folder / "base", folder / "work"
    base.mkdir(parents=True)
    assert in_child(_make_packed, base).code == 0
    file = "packed.jsonl.gz"
    first, *lines = gzip.decompress((base / file).read_bytes()).splitlines(keepends=True)
    other = gzip.decompress((base / "other.jsonl.gz").read_bytes()).splitlines(keepends=True)
    tried = {
        **{f"line {n} removed": lines[:n] + lines[n + 1 :] for n in range(SEEDS)},
        **{f"line {n} doubled": [*lines, lines[n]] for n in range(SEEDS)},
        "lines in another order": lines[::-1],
        "a line of another file more": [*lines, other[1]],
        **{f"a line of another file for line {n}": [*lines[:n], other[1], *lines[n + 1 :]] for n in range(SEEDS)},
        "all lines removed": [],
    }
    tally = Tally()
    for what, changed in tried.items():
        for words in (f"table {file} --format csv", f"verify {file}", f"results pack {file} all.jsonl.gz"):
            copied(base, work)
            (work / file).write_bytes(gzip.compress(b"".join([first, *changed]), mtime=0))
            ended = in_child(partial(command, words), work)
            code, said = 1 if words.startswith("verify") else 2, f"{file} cannot be read" in ended.err + ended.out
            right = ended.code == code and said
            found = ["tracebacks"] if ended.traceback else ["wrong"] if not right or _shows(work, ended) else []
            tally.count(f"{what}, gcr {words}: exit code {ended.code}, {(ended.err + ended.out)[-200:]}", *found)
    return tally


def _make_packed() -> None:
    make_seeds()
    assert command("results pack runs packed.jsonl.gz") == 0
    put_run(Path("other"), experiment_of("er", seed=0), square(90.0))
    assert command("results pack other other.jsonl.gz") == 0


def _shows(folder: Path, ended: Ended) -> bool:
    """A number, or a file with numbers."""
    return "class-il" in ended.out or (folder / "all.jsonl.gz").exists()
