"""Odd contents under a right digest, as of a program that writes these files itself: refused in a line, or harmless."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import random
import re
import statistics
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from children import Child, Ended, Tally
from damage import (
    HUNG_SECONDS,
    TABLE,
    Kind,
    Page,
    Right,
    copied,
    cost,
    is_hung,
    lines,
    packed,
    page,
    prepared,
    printed,
    right_facts,
)  # fmt: skip
from victims import check_mapped, command, link_state, sealed, unmeasured

DEEP: Any = 1
for _ in range(55):
    DEEP = [DEEP]
ODD: tuple[Any, ...] = (
    None, True, 0, -1, 2**70, 10**400, 1e308, 0.5, float("nan"), float("inf"), "", "x", "\0", "\ud800", "\x1b[2J",
    "[red]", "../../../etc/passwd", "<script>", "9" * 10_000, [], {}, [[]], [None], {"": None}, [1, [2]], DEEP,
)  # fmt: skip
DTYPES = (torch.uint8, torch.int64, torch.float16, torch.float64, torch.bool)


Place = tuple[Any, ...]  # keys from the outermost inwards; of tensors the name


def changed(values: Any, draw: random.Random) -> Place:
    """One value anywhere in ``values`` is another, or gone, or there is one more. Where."""
    places: list[tuple[Any, Any, Place]] = []

    def walk(value: Any, outer: Place) -> None:
        for key, inside in value.items() if isinstance(value, dict) else enumerate(value):
            if key != "digest":
                places.append((value, key, (*outer, key)))
            if isinstance(inside, dict | list):
                walk(inside, (*outer, key))

    walk(values, ())
    container, key, place = draw.choice(places)
    match draw.randrange(6):
        case 0:
            del container[key]
        case 1 if isinstance(container, list):
            container.append(draw.choice(ODD))
        case _:
            container[key] = draw.choice(ODD)
    return place


def odd_json(content: bytes, draw: random.Random, indent: int | None = 2) -> tuple[bytes, Place]:
    values = json.loads(content)
    place = changed(values, draw)
    return (json.dumps(values, indent=indent, separators=(",", ": " if indent else ":")) + "\n").encode(), place


def odd_tensors(content: bytes, draw: random.Random) -> tuple[bytes, Place]:
    from safetensors.torch import load, save

    end = 8 + int.from_bytes(content[:8], "little")
    about = json.loads(json.loads(content[8:end]).get("__metadata__", {}).get("gcr", "{}"))
    tensors = load(content)
    name = draw.choice(sorted(tensors))
    tensor = tensors[name]
    place: Place = (name,)
    match draw.randrange(8):
        case 0:
            del tensors[name]
        case 1:
            tensors[name] = tensor[None]
        case 2:
            tensors[name] = tensor.flatten()[: draw.randrange(3)].clone()
        case 3:
            tensors[name] = tensor.to(draw.choice(DTYPES))
        case 4:
            tensors[name] = torch.full_like(tensor, draw.choice((float("nan"), -1, 1e30)) if tensor.is_floating_point()
                                            else draw.choice((0, 1, 100)))  # fmt: skip
        case 5:
            place = (draw.choice(("", "x", "../x", name + "x")),)
            tensors[place[0]] = tensor.clone()
        case _ if about.keys() - {"digest"}:
            place = changed(about, draw)
        case _:
            tensors[name] = tensor.new_zeros(())
    return save(tensors, {"gcr": json.dumps(about)} if about else None), place


def odd(name: str, content: bytes, draw: random.Random) -> tuple[bytes, Place]:
    """Other contents, with their digest, and where they are others; of lines the number comes first."""
    if name.endswith(".jsonl.gz"):
        content, place = odd(name.removesuffix(".gz"), gzip.decompress(content), draw)
        return gzip.compress(content, mtime=0), place
    if name.endswith(".safetensors"):
        content, place = odd_tensors(content, draw)
        return sealed(name, content), place
    if name.endswith(".jsonl"):
        parts = content.splitlines(keepends=True)
        number = draw.randrange(len(parts))
        parts[number], place = odd_json(parts[number], draw, indent=None)
        content = sealed(name, b"".join(parts))
        first, _, rest = content.partition(b"\n")
        all_lines = rb'(?<="sha256":")[0-9a-f]{64}'  # in the first line of packed results
        first = re.sub(all_lines, hashlib.sha256(rest).hexdigest().encode(), first)
        return sealed(name, first + b"\n" + rest), (number, *place)
    content, place = odd_json(content, draw)
    return sealed(name, content), place


def reseal_kind(kind: Kind, folder: Path, number: int, seed: int, base: Path | None = None) -> Tally:
    """``number`` files, one at a time, each with every command that reads results where it is one."""
    base, work = base or prepared(kind.prepare, folder), folder / "work"
    tally = Tally()
    more = READERS.get(kind.name, {}).items()
    uses = {"": kind} | {name: replace(kind, use=use, facts=facts) for name, (use, facts) in more}
    rights = {name: _right(each, base, work) for name, each in uses.items()}
    for i in range(number):
        draw = random.Random(f"{seed} resealed {kind.name} {i}")
        copied(base, work)
        files = [path for path in work.glob(kind.files) if path.is_file() and path.suffix != ".npy"]
        file = sorted(files)[-1] if kind.newest else draw.choice(sorted(files))
        content, place = odd(file.name, file.read_bytes(), draw)
        file.write_bytes(content)
        if (file.parent / "learner.json").exists():
            link_state(file.parent)
        else:
            check_mapped(file.name, content)
        refused = False
        for name, each in uses.items():
            ended = Child(each.use, work).wait(HUNG_SECONDS)
            found, outcome = judged(name, each, work, ended, rights[name], file, place)
            if name == "verify" and refused and outcome != "refused" and not found:
                found = ["wrong"]  # a table leaves it out, so something is wrong with it
            refused = refused or outcome == "refused"
            what = f"{kind.name}{name and f' in gcr {name}'}, {file.name}, number {i}, {place} is odd"
            tally.count(f"{what}: {(ended.err + ended.out)[:300]!r}" if found else what, *found)
            tally.add(cost(ended))
            tally.add(Tally(measured={outcome: 1} if outcome else {}))
    return tally


def _right(kind: Kind, base: Path, work: Path) -> Right:
    """Of packed runs a line may be left out: the runs in it are those of the folder."""
    right = right_facts(kind, base, work)
    if kind.name != "packed results" or kind.facts is not printed:
        return right
    return Right(right.whole, right_facts(replace(kind, use=TABLE), base, work).without)


READERS: dict[str, dict[str, tuple[Callable[[], int | None], Callable[[Path, Ended], Any]]]] = {
    name: {
        "report": (partial(command, f"report {path} --page page.html"), page),
        "pack": (partial(command, f"results pack {path} all.jsonl.gz --metrics --force"), packed),
        "verify": (partial(command, f"verify {path}"), lines),
    }
    for name, path in (("results", "runs"), ("experiments", "runs"), ("packed results", "packed.jsonl.gz"))
}


def judged(
    name: str, kind: Kind, folder: Path, ended: Ended, right: Right, file: Path, place: Place
) -> tuple[list[str], str]:
    """What is wrong, and what came of it: refused in a line that names the field; harmless, with the numbers of the
    files as they were; or shown, if what is odd is itself among the numbers."""
    if is_hung(ended):
        return ["hangs"], ""
    if ended.traceback or ended.code not in (0, 1, 2):
        return ["tracebacks"], ""
    facts = kind.facts(folder, ended) if ended.code == 0 else None
    words = ended.err + ended.out
    if isinstance(facts, Page) and "cannot be shown" not in words:
        words += "\n".join(re.findall("memory cannot be shown: [^<]*", facts.text))
    said = [line for line in words.splitlines() if REFUSAL.search(line)]
    if said or ended.code:
        named = any(names_field(line, kind, file, place) for line in said) and (len(said) == 1 or name == "verify")
        rows = facts if kind.facts is printed and ended.code == 0 else right.whole
        other = isinstance(facts, Page) and facts.pictures and "memory cannot be shown" in words
        if other or rows not in (right.whole, *right.without.values()):
            return ["wrong"], ""
        return ([], "refused") if named else (["silent"], "")
    if isinstance(facts, Page):
        same = facts.cells == right.whole.cells and facts.pictures == right.whole.pictures
    else:
        same = facts == right.whole or name == "verify"
    if same:
        return [], "harmless"
    return ([], "shown") if is_shown(name, kind, folder, facts, place) else (["wrong"], "")


REFUSAL = re.compile(
    r"error: |failed: |left out: |damaged \(|cannot be read|cannot be shown|not a complete|is missing; |is of another"
)
LINKS = re.compile(r"another|twice|that result\.json names|result\.json does not name|failure\.json cannot be read")


def names_field(line: str, kind: Kind, file: Path, place: Place) -> bool:
    """Or that the file is not the one that belongs to the others. Of what is no result the file is enough."""
    words = [str(key).encode("unicode_escape").decode() for key in place if isinstance(key, str) and key]
    parts = [word.partition(".")[2] or word for word in words]  # of tensors: "net.bias" is the bias of net
    if not words or any(word in line for word in (*words, *parts)) or LINKS.search(line):
        return True
    files = (file.name, f"{file.parent.parent.name} cannot be read", "held-out")
    return kind.name not in READERS and any(name in line for name in files)


ON_PAGE = {"class_il", "task_il", "seconds", "selections", "memory_bytes", "peak_bytes", "device", "versions"}


def is_shown(name: str, kind: Kind, folder: Path, facts: Any, place: Place) -> bool:
    """Whether numbers that are others are those in the file now. Checkpoints, states and cached data are what a run is
    made of: they change it. What a result names must be as it names it."""
    if kind.name in ("memory", "memory in the report", "models", "metrics"):
        return False
    if isinstance(facts, Page):
        return bool(ON_PAGE & set(place))
    if kind.facts is printed:
        return {_key(row): float(row["mean"]) for row in facts} == means_of(stored(kind, folder))
    if name == "pack":
        there = [unmeasured({key: each for key, each in result.items() if key != "files"})
                 for _, result in stored(kind, folder)]  # fmt: skip
        return _texts(one["result"] for one in facts[1:]) == _texts(there)
    return True


def stored(kind: Kind, folder: Path) -> list[tuple[Any, Any]]:
    """Experiments and results as the files have them."""
    if kind.name == "packed results":
        content = gzip.decompress((folder / "packed.jsonl.gz").read_bytes())
        return [(one["experiment"], one["result"]) for one in map(json.loads, content.splitlines()[1:])]
    files = sorted(folder.glob("runs/*/*/result.json"))
    return [
        (json.loads(file.with_name("experiment.json").read_bytes()), json.loads(file.read_bytes())) for file in files
    ]


def means_of(runs: list[tuple[Any, Any]]) -> dict[tuple[str, ...], float]:
    """By method, protocol and metric; none where a run lacks it."""
    values: dict[tuple[str, ...], list[Any]] = {}
    for experiment, result in runs:
        for protocol, metric in itertools.product(("class_il", "task_il"), ("accuracy", "forgetting")):
            key = (experiment["method"]["name"], protocol, metric)
            values.setdefault(key, []).append(result[protocol][metric])
    return {key: statistics.fmean(each) for key, each in values.items() if None not in each}


def _key(row: dict[str, str]) -> tuple[str, ...]:
    return row["method"], row["protocol"].replace("-", "_"), row["metric"]


def _texts(values: Iterable[Any]) -> list[str]:
    """To compare what may be NaN."""
    return sorted(json.dumps(value, sort_keys=True) for value in values)
