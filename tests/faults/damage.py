"""Damaged files of every kind that a later command believes: it says so, or its numbers are those of the whole file."""

from __future__ import annotations

import csv
import gzip
import json
import operator
import os
import random
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from children import KILL, Child, Ended, Layer, Tally, in_child
from made_runs import experiment_of
from victims import TRAIN, VICTIMS, command, make_cache, make_runs, make_state, run_facts, unmeasured

from gcr.runs.folder import RunFolder

HUNG_SECONDS = 300  # a guard against one that waits for ever
READ_SECONDS = 10.0  # of a processor: the most that a reader may take, however busy the machine is
REASON = "the loss is NaN or inf in step 3"


@dataclass(frozen=True)
class Kind:
    name: str
    prepare: Callable[[], None]  # in a folder
    files: str  # what is damaged: a pattern below the folder; one of them each time
    use: Callable[[], int | None]  # the later command
    facts: Callable[[Path, Ended], Any]  # what it believed
    newest: bool = False  # only the newest of the files is read: it is damaged, or all of them
    read: bool = True  # every byte, so that any damage is named


# --- damage


def flip(content: bytearray, draw: random.Random) -> None:
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)


def zero(content: bytearray, draw: random.Random) -> None:
    start = draw.randrange(len(content))
    length = min(draw.choice((1, 8, 64, 512)), len(content) - start)
    content[start : start + length] = bytes(length)


def cut(content: bytearray, draw: random.Random) -> None:
    del content[draw.randrange(len(content)) :]


def swap(content: bytearray, draw: random.Random) -> None:
    """Two stretches, as blocks of a disk."""
    size = max(1, min(64, len(content) // 4))
    one, other = draw.randrange(len(content) - size + 1), draw.randrange(len(content) - size + 1)
    content[one : one + size], content[other : other + size] = (
        content[other : other + size],
        content[one : one + size],
    )


def digit(content: bytearray, draw: random.Random) -> None:
    """Another digit, where there is one: the hardest to see in JSON."""
    places = [match.start() for match in re.finditer(rb"[0-9]", content)]
    if places:
        place = draw.choice(places)
        content[place] = ord(draw.choice([d for d in "0123456789" if ord(d) != content[place]]))


def lengthen(content: bytearray, draw: random.Random) -> None:
    content += draw.randbytes(draw.choice((1, 16, 1000)))


DAMAGES = (flip, flip, flip, zero, cut, swap, digit, digit, lengthen)


# --- what is damaged


def make_runs_and_memory() -> None:
    """Finished runs: trained, so that they have all files."""
    make_cache()
    for seed in (0, 1):
        assert command(f"{TRAIN} --seeds {seed}") == 0


def make_packed() -> None:
    make_runs()
    assert command("results pack runs packed.jsonl.gz --metrics") == 0


def make_unfinished() -> None:
    """A run that was killed before its last step, with its checkpoints."""
    make_cache()
    folder = Path.cwd()
    log = folder.with_name(f"{folder.name}-events")
    phase_of = VICTIMS[0].phase_of

    def count() -> int:
        Layer(folder, log=log, phase_of=phase_of).install(steps=True)
        return command(TRAIN)

    assert in_child(count, folder).code == 0
    steps = log.read_text().splitlines().count("training")
    shutil.rmtree("runs")

    def work() -> int:
        Layer(folder, KILL, steps - 1, phase_of=phase_of, phase="training").install(steps=True)
        return command(TRAIN)

    assert in_child(work, folder).killed
    assert len(list(folder.glob("runs/*/*/checkpoint-*.safetensors"))) == 2


def make_diverged() -> None:
    make_runs()
    failed = RunFolder(Path("runs/diverged/seed-0"))
    failed.begin(experiment_of("er", seed=2))
    failed.fail(REASON)


def printed(folder: Path, ended: Ended) -> Any:
    """The table, without what is measured."""
    rows = list(csv.DictReader(ended.out.splitlines()))
    return [{name: value for name, value in row.items() if "seconds" not in str(name)} for row in rows]


def trained(folder: Path, ended: Ended) -> Any:
    return run_facts(folder)


def load_and_print() -> int:
    """What a program gets that loads runs: predictions and memory, to the bit."""
    import hashlib

    import torch

    from gcr.runs.load import load_run
    from gcr.settings import BadInput

    os.environ["GCR_DATA"] = str(Path.cwd() / "cache")
    for run in sorted(Path("runs").glob("*/seed-*")):
        try:
            loaded = load_run(run)
        except BadInput as error:
            print(f"error: {error}", file=sys.stderr)
            continue
        images = torch.arange(2 * 3 * 10 * 14).reshape(2, 3, 10, 14).remainder(256).to(torch.uint8)
        columns = loaded.memory.columns if loaded.memory is not None else {}
        values = [loaded.scores(images), *(columns[name] for name in sorted(columns))]
        digest = hashlib.sha256(b"".join(value.contiguous().numpy().tobytes() for value in values))
        print(run, digest.hexdigest(), loaded.result["class_il"], loaded.class_names)
    return 0


@dataclass(frozen=True)
class Page:
    cells: list[str]
    pictures: list[str]
    text: str


def page(folder: Path, ended: Ended) -> Page:
    text = (folder / "page.html").read_text()
    cells = re.findall(r"<td[^>]*>(.*?)</td>", text, re.DOTALL)
    return Page(cells, re.findall(r'src="(data:image[^"]*)"', text), text)


def lines(folder: Path, ended: Ended) -> Any:
    return ended.out


def packed(folder: Path, ended: Ended) -> Any:
    """All that is in the file, without what is measured."""
    content = gzip.decompress((folder / "all.jsonl.gz").read_bytes())
    return [unmeasured(json.loads(line)) for line in content.splitlines()]


def diverged(folder: Path, ended: Ended) -> Any:
    """The table without the reason."""
    return ended.out.replace("runs/diverged/seed-0/failure.json cannot be read", "").replace(REASON, "")


TABLE = partial(command, "table runs --format csv")
PACKED_TABLE = partial(command, "table packed.jsonl.gz --format csv")
KINDS = (
    Kind("results", make_runs_and_memory, "runs/*/*/result.json", TABLE, printed),
    Kind("experiments", make_runs_and_memory, "runs/*/*/experiment.json", TABLE, printed),
    Kind("failures", make_diverged, "runs/*/*/failure.json", partial(command, "table runs"), diverged),
    Kind("metrics", make_runs_and_memory, "runs/*/*/metrics.jsonl",
         partial(command, "results pack runs all.jsonl.gz --metrics"), packed),
    Kind("packed results", make_packed, "packed.jsonl.gz", PACKED_TABLE, printed),
    Kind("memory", make_runs_and_memory, "runs/*/*/memory.safetensors", load_and_print, lines),
    Kind("memory in the report", make_runs_and_memory, "runs/*/seed-0/memory.safetensors",  # whose pictures it shows
         partial(command, "report runs --page page.html"), page),
    Kind("models", make_runs_and_memory, "runs/*/*/model.safetensors", load_and_print, lines),
    Kind("checkpoints", make_unfinished, "runs/*/*/checkpoint-*.safetensors", partial(command, TRAIN), trained,
         newest=True),
    Kind("states", make_state, "state/version-*/*", partial(command, "predict state second.csv"), lines),
    Kind("cached data", make_cache, "cache/letters/*", partial(command, TRAIN), trained),
)  # fmt: skip


def prepared(prepare: Callable[[], None], folder: Path) -> Path:
    """The folder that is copied for each attack."""
    base = folder / "base"
    base.mkdir(parents=True)
    made = in_child(prepare, base)
    assert made.code == 0, made
    return base


def copied(base: Path, work: Path) -> None:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)


def damage_kind(kind: Kind, folder: Path, number: int, seed: int, base: Path | None = None) -> Tally:
    """``number`` times, one file at a time; of those of which the newest counts it or all."""
    base, work = base or prepared(kind.prepare, folder), folder / "work"
    right = right_facts(kind, base, work)
    tally = Tally()
    for i in range(number):
        draw = random.Random(f"{seed} {kind.name} {i}")
        copied(base, work)
        how = draw.choice(DAMAGES)
        files = chosen(kind, work, draw)
        changed = sum(_damage(file, how, draw) for file in files)
        ended = Child(kind.use, work).wait(HUNG_SECONDS)
        what = f"{kind.name}, {how.__name__} in {' and '.join(file.name for file in files)}, number {i}"
        found, outcome = _judged(kind, work, ended, right, files)
        tally.count(f"{what}: {outcome or ended.err[-200:]}", *found)
        tally.add(cost(ended))
        tally.add(Tally(measured={"bytes": changed} | ({outcome: 1} if outcome else {})))
    return tally


def chosen(kind: Kind, work: Path, draw: random.Random) -> list[Path]:
    files = sorted(path for path in work.glob(kind.files) if path.is_file())
    if kind.newest:
        return files if draw.randrange(3) == 0 else files[-1:]
    return [draw.choice(files)]


def _damage(file: Path, how: Callable[[bytearray, random.Random], None], draw: random.Random) -> int:
    """How many bytes are others then."""
    content, before = bytearray(file.read_bytes()), file.read_bytes()
    how(content, draw)
    if content == before:
        content[0] ^= 1
    file.write_bytes(content)
    return differing(before, content)


@dataclass(frozen=True)
class Right:
    whole: Any  # what the whole files give
    without: dict[str, Any]  # and without one of the runs, by its path


def right_facts(kind: Kind, base: Path, work: Path) -> Right:
    runs = [str(run.relative_to(base)) for run in base.glob("runs/*/seed-*")] if kind.facts is not trained else []
    return Right(_used(kind, base, work), {run: _used(kind, base, work, run) for run in runs})


def differing(one: bytes, other: bytes | bytearray) -> int:
    return sum(map(operator.ne, one, other)) + abs(len(one) - len(other))


def cost(ended: Ended) -> Tally:
    """Of one reader."""
    return Tally(measured={"most processor seconds": round(ended.seconds, 1), "most MiB": round(ended.mebibytes)})


def _used(kind: Kind, base: Path, work: Path, without: str = "") -> Any:
    """What the command believes of whole files, ``without`` one of the runs where it may leave one out."""
    copied(base, work)
    if without:
        shutil.rmtree(work / without)
    ended = in_child(kind.use, work)
    facts = kind.facts(work, ended)
    assert ended.code == 0, ended
    assert facts, ended  # where nothing is believed, no damage can do harm
    return facts


def is_hung(ended: Ended) -> bool:
    return ended.err.endswith("hung") or ended.seconds > READ_SECONDS


def _judged(kind: Kind, folder: Path, ended: Ended, right: Right, files: list[Path]) -> tuple[list[str], str]:
    """What is wrong, and what came of it: the damage was named, or did no harm."""
    if is_hung(ended):
        return ["hangs"], ""
    if ended.traceback or ended.code not in (0, 1, 2):
        return ["tracebacks"], ""
    words = " ".join((ended.err + ended.out).split())
    if ended.code == 0:
        try:
            facts = kind.facts(folder, ended)
        except Exception:
            return ["wrong"], ""
        if facts == right.whole and not kind.read:
            return [], "harmless"
        if isinstance(facts, Page):  # it names the damage where pictures would be
            words = " ".join(re.findall("memory cannot be shown: [^<]*", facts.text))
            if facts.pictures or facts.cells != right.whole.cells:
                return ["wrong"], ""
        elif facts not in (right.whole, right.without.get(str(files[0].parent.relative_to(folder)), right.whole)):
            return ["wrong"], ""
    said = all(names(words, file.relative_to(folder)) for file in files)
    return ([], "named") if said and REFUSED.search(words) else (["wrong"], "")


REFUSED = re.compile(r"damaged|cannot be read|cannot be shown|missing|not a complete checkpoint")


def names(words: str, file: Path) -> bool:
    """Whether a message has the path of the damaged file, or of the folder that it makes up with others."""
    return bool(re.search(rf"(?<![\w-]){re.escape(str(file))}(?![\w-])", words)) or bool(
        re.search(rf"(?<![\w-]){re.escape(str(file.parent))}(?![\w/-])", words)
    )
