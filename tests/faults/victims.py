"""Commands that write: what they start from, what they do, and what must be there afterwards, to the bit and digest.

Everything lies in one folder, in which the command runs. ``facts`` leaves out times of day and durations.
"""

from __future__ import annotations

import gc
import gzip
import hashlib
import json
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from children import in_child
from made_data import pictures
from made_learners import A, B, C, blobs, mlp
from made_runs import experiment_of, put_run, square

# Phases of a run by event or by part of a file's name; what is in none of them is "run folder": lock, metrics, folders.
PHASES = {
    "step": "training",
    "selection": "selection",
    "checkpoint-": "checkpoints",
    "result.json": "results",
    "memory.safetensors": "results",
    "model.safetensors": "results",
}
MEASURED = {"seconds", "finished", "peak_bytes", "written", "date", "source", "digest", "bytes"}
TRAIN = (
    "run letters --method gcr --model mlp --epochs 1 --buffer 10 --set tasks=3 --set batch=2 --processes 1 --out runs"
)


@dataclass(frozen=True)
class Victim:
    name: str
    prepare: Callable[[], None]  # in the folder, once
    work: Callable[[], int | None]  # the command; run again until it succeeds
    facts: Callable[[Path], Any]  # after it
    before: Callable[[Path], Any]  # what a reader has seen before it, or sees after it; raises if it is lost
    phases: tuple[str, ...] = ()  # in which it is killed; its own name where there is one only
    appends: bool = False  # each time it adds something, so that it is run once more to see what is left behind

    def phase_of(self, event: str, path: str) -> str:
        """Which phase of the work an event belongs to, by its name and path."""
        if event in PHASES:
            return PHASES[event] if PHASES[event] in self.phases else self.name
        found = next((phase for part, phase in PHASES.items() if part in os.path.basename(path)), "")
        return found if found in self.phases else self.phases[-1] if self.phases else self.name


def command(words: str) -> int:
    from gcr.cli.main import run_cli

    os.environ["GCR_DATA"] = str(Path.cwd() / "cache")
    return run_cli(words.split())


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def unmeasured(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: unmeasured(each) for key, each in value.items() if key not in MEASURED}
    return [unmeasured(each) for each in value] if isinstance(value, list) else value


# --- training


def run_facts(folder: Path) -> Any:
    from safetensors.torch import load

    found: dict[str, Any] = {}
    for run in sorted((folder / "runs").glob("*/seed-*")):
        found[run.name] = unmeasured(json.loads((run / "result.json").read_bytes()))
        found[f"{run.name} metrics"] = [
            unmeasured(json.loads(line)) for line in (run / "metrics.jsonl").read_bytes().splitlines()
        ]
        for file in ("memory.safetensors", "model.safetensors"):
            tensors = load((run / file).read_bytes())
            found[f"{run.name} {file}"] = {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}
    return found


def whole_runs(folder: Path) -> Any:
    """The facts of a finished run, None of another; an error if a file that is there is not whole."""
    files = [path for path in (folder / "runs").rglob("*") if path.is_file() and not path.name.startswith(".")]
    for file in files:
        check_mapped(file.name, file.read_bytes())
    return run_facts(folder) if any(file.name == "result.json" for file in files) else None


# --- packing, the page


def make_runs() -> None:
    for method, seed in (("er", 0), ("er", 1), ("gcr", 0), ("gcr", 1)):
        matrix = square(50.0 + 7 * seed + (method == "gcr"))
        put_run(Path("runs"), experiment_of(method, seed=seed), matrix, memory=method == "gcr" and seed == 0)


def make_pack() -> None:
    make_runs()
    assert command("results pack runs/seq-digits-er-k20 packed.jsonl.gz") == 0


def bytes_of(file: str, folder: Path) -> Any:
    return (folder / file).read_bytes(), names(folder)


def content_of(file: str, folder: Path) -> bytes:
    return (folder / file).read_bytes()


# --- a state


def make_state() -> None:
    rng = np.random.default_rng(0)
    corners = {"ant": (0, 0), "bee": (4, 0), "cow": (0, 4)}
    for file, labels in (("first.csv", ("ant", "bee")), ("second.csv", ("cow",))):
        points = [(name, *(corners[name] + 0.3 * rng.standard_normal(2))) for name in labels for _ in range(20)]
        Path(file).write_text("\n".join(["label,x,y", *(f"{name},{x},{y}" for name, x, y in points)]) + "\n")
    assert command("update state first.csv --memory 40 --epochs 2") == 0


def state_facts(folder: Path, version: int | None = None) -> Any:
    from gcr.learner.state_folder import StateFolder

    about, tensors = StateFolder(folder / "state").read(version)
    return unmeasured(about), {name: tensor.numpy().tobytes() for name, tensor in tensors.items()}


def make_learner() -> None:
    learner_work(first=True)


def learner_work(first: bool = False) -> None:
    import gcr

    learner = gcr.Learner(mlp(n_out=3), memory=12, seed=5)
    learner.fit(*blobs([A, B] if first else [A, B, C], n=8), epochs=1)
    learner.save("state")


# --- a cached data set


def make_cache() -> None:
    for name, n in (("first", 8), ("second", 9)):
        for file, content in pictures(n=n).items():
            path = Path(name) / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    assert command("data import letters first") == 0


def cache_facts(folder: Path) -> Any:
    from gcr.data.check import check_set

    os.environ["GCR_DATA"] = str(folder / "cache")
    found = check_set("letters")
    assert not found.problems, found.problems
    return found.facts


VICTIMS = (
    Victim(
        "gcr run",
        make_cache,
        partial(command, TRAIN),
        run_facts,
        whole_runs,
        phases=("training", "selection", "checkpoints", "results", "run folder"),
    ),
    Victim(
        "gcr results pack",
        make_pack,
        partial(command, "results pack runs packed.jsonl.gz --force"),
        partial(bytes_of, "packed.jsonl.gz"),
        partial(content_of, "packed.jsonl.gz"),
    ),
    Victim(
        "gcr report",
        lambda: (make_runs(), command("report runs/seq-digits-er-k20 --page page.html"))[0],
        partial(command, "report runs --page page.html"),
        partial(bytes_of, "page.html"),
        partial(content_of, "page.html"),
    ),
    Victim(
        "gcr update",
        make_state,
        partial(command, "update state second.csv --epochs 2 --limit 100"),
        partial(state_facts, version=2),
        state_facts,
        appends=True,
    ),
    Victim(
        "Learner.save",
        make_learner,
        learner_work,
        partial(state_facts, version=2),
        state_facts,
        phases=("training", "Learner.save"),
        appends=True,
    ),
    Victim("gcr data import", make_cache, partial(command, "data import letters second"), cache_facts, cache_facts),
)


@dataclass(frozen=True)
class Prepared:
    """A victim's folder before and after an undisturbed run, to copy and to compare with."""

    victim: Victim
    folder: Path
    facts: Any
    seen: tuple[Any, ...]  # what a reader may see: before, after
    left: list[str]  # file names after one more run where the victim appends

    def copy(self, to: Path) -> Path:
        shutil.rmtree(to, ignore_errors=True)
        shutil.copytree(self.folder, to, symlinks=True)
        return to


def prepare(victim: Victim, at: Path) -> Prepared:
    base, done = at / "base", at / "done"
    base.mkdir(parents=True)
    made = in_child(victim.prepare, base)
    assert made.code == 0, made
    before = victim.before(base)
    shutil.copytree(base, done)
    ended = in_child(victim.work, done)
    assert ended.code == 0, ended
    facts, after = victim.facts(done), victim.before(done)
    if victim.appends:
        assert in_child(victim.work, done).code == 0
    return Prepared(victim, base, facts, (before, after), names(done))


def look(prepared: Prepared, folder: Path) -> list[str]:
    """What an attack has lost, before the command is run again."""
    try:
        seen = prepared.victim.before(folder)
    except Exception:
        return ["lost"]
    return [] if seen in prepared.seen else ["lost"]


def go_on(prepared: Prepared, folder: Path) -> list[str]:
    """Run the command again: what is wrong or left behind then."""
    victim, found = prepared.victim, []
    done = victim.appends and is_equal(prepared, folder)  # the harm came after its last effect
    ended = in_child(victim.work, folder) if not done else None
    if ended is not None and (ended.code != 0 or ended.traceback):
        return ["tracebacks" if ended.traceback else "lost"]
    if not is_equal(prepared, folder):
        found.append("wrong")
    if victim.appends:
        in_child(victim.work, folder)
    if names(folder) != prepared.left:
        found.append("left")
    return found


def is_equal(prepared: Prepared, folder: Path) -> bool:
    try:
        return bool(prepared.victim.facts(folder) == prepared.facts)
    except Exception:
        return False


def warm_up() -> None:
    """Import what the commands import and build the parser, so that every child need not."""
    from gcr.runs import job

    here, quiet = Path.cwd(), open(os.devnull, "w")  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(quiet), redirect_stderr(quiet):
        for victim in VICTIMS:
            at = Path(folder) / victim.name
            at.mkdir()
            os.chdir(at)
            try:
                victim.prepare()
                victim.work()
            finally:
                os.chdir(here)
    os.environ.pop("GCR_DATA", None)
    job._scenario.cache_clear()  # what a child reads is on its disk
    gc.freeze()  # pages that no child copies


# --- Digests as gcr writes them, computed here once more: what is whole, and odd contents under a right digest

DIGEST = re.compile(rb'digest\\?": ?\\?"(sha256|crc32):([0-9a-f]+)')
DIGITS = {b"sha256": 64, b"crc32": 8}


def sealed(name: str, content: bytes) -> bytes:
    """``content`` of a file of that name with the digest that its bytes have; as it is where it has none."""
    if name.endswith(".jsonl.gz"):
        return gzip.compress(sealed(name.removesuffix(".gz"), gzip.decompress(content)), mtime=0)
    if name.endswith(".jsonl"):
        return b"".join(sealed("line.json", line) for line in content.splitlines(keepends=True))
    end = 8 + int.from_bytes(content[:8], "little") if name.endswith(".safetensors") else len(content)
    *_, match = (None, *DIGEST.finditer(content, 0, end))
    if match is None or len(match[2]) != DIGITS[match[1]]:
        return content
    empty = content[: match.start(2)] + b"0" * len(match[2]) + content[match.end(2) :]
    digest = f"{zlib.crc32(empty):08x}" if match[1] == b"crc32" else hashlib.sha256(empty).hexdigest()
    return content[: match.start(2)] + digest.encode() + content[match.end(2) :]


def link_state(folder: Path) -> None:
    """Let ``learner.json`` of a state in ``folder`` have the hashes that it and the tensors next to it have."""
    file, tensors = folder / "learner.json", folder / "tensors.safetensors"
    values = json.loads(file.read_bytes())
    content = tensors.read_bytes()
    if isinstance(values.get("tensors"), dict):
        values["tensors"] |= {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    values.pop("sha256", None)
    own = json.dumps(values, sort_keys=True, separators=(",", ":")).encode()
    file.write_text(json.dumps(values | {"sha256": hashlib.sha256(own).hexdigest()}, indent=1) + "\n")


def check_mapped(name: str, content: bytes) -> None:
    """A ValueError or safetensors' own error if a file that a run wrote is not all there, or has no digest."""
    if name.endswith(".safetensors"):
        from safetensors.torch import load

        load(content)
    elif name.endswith(".json"):
        json.loads(content)
    elif name.endswith(".jsonl"):  # a kill may cut its last line, which the next command removes
        content = content[: content.rfind(b"\n") + 1]
        for line in content.splitlines():
            json.loads(line)
    if not has_digest(name, content):
        raise ValueError(f"{name} has no digest")
    if sealed(name, content) != content:
        raise ValueError(f"the digest of {name} is wrong")


def has_digest(name: str, content: bytes) -> bool:
    """All that gcr writes for a later command has one; each line of lines has its own."""
    if name.endswith(".jsonl.gz"):
        return has_digest(name.removesuffix(".gz"), gzip.decompress(content))
    if name.endswith(".jsonl"):
        return all(has_digest("line.json", line) for line in content.splitlines())
    end = 8 + int.from_bytes(content[:8], "little") if name.endswith(".safetensors") else len(content)
    return any(len(match[2]) == DIGITS[match[1]] for match in DIGEST.finditer(content, 0, end))
