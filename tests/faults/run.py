"""``make faults``: every attack in full, in 10 to 30 minutes. Prints what was found; writes ``faults``
(``benchmarks/measured.py``).

python tests/faults/run.py [--seed N] [--only NAME]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "runs"), str(HERE.parent / "report")]
sys.path.append(str(HERE.parents[1] / "benchmarks"))

import measured  # noqa: E402
import torch  # noqa: E402
from children import Tally  # noqa: E402
from chromium import CHROMIUM  # noqa: E402
from damage import KINDS, Kind, damage_kind  # noqa: E402
from hostile import imported, mutated, pickles  # noqa: E402
from not_numbers import bad_data, diverge, out_of_memory  # noqa: E402
from resealed import reseal_kind  # noqa: E402
from surroundings import clock_set_back, closed_pipe, places, signals  # noqa: E402
from together import cost_of, make_many, processes_on_one_folder, two_updates, usable_page  # noqa: E402
from victims import VICTIMS, Victim, prepare, warm_up  # noqa: E402
from whole_files import change_lines, exchange  # noqa: E402
from writes import fail_writes, fill_disk, forbid_writing, kill_victim  # noqa: E402

KILLS = {
    "gcr run": {"training": 40, "selection": 25, "checkpoints": 35, "results": 30, "run folder": 20},
    "gcr results pack": {"gcr results pack": 20},
    "gcr report": {"gcr report": 10},
    "gcr update": {"gcr update": 25},
    "Learner.save": {"training": 5, "Learner.save": 25},
    "gcr data import": {"gcr data import": 15},
}
DAMAGED = {"results": 450, "experiments": 250, "failures": 50, "metrics": 100, "packed results": 200, "memory": 200,
           "memory in the report": 100, "models": 200, "checkpoints": 150, "states": 200,
           "cached data": 100}  # fmt: skip
RESEALED = {"results": 100, "experiments": 100, "failures": 40, "metrics": 60, "packed results": 100, "memory": 60,
            "memory in the report": 30, "models": 60, "checkpoints": 60, "states": 150, "cached data": 60}  # fmt: skip
MUTATED = 40  # of each reader
RUNS = 10_000
FIRST = "Ray: worker, node, head"  # the longest, so that nothing waits for it at the end
ALONE = "10,000 runs"  # what shares a processor with others takes more of its seconds
LIMITS = {"table runs": (10.0, 500.0), "report runs --page page.html": (30.0, None)}  # processor seconds, MiB
SUMMARY = {
    "kills survived": ["kills", "8 processes on one folder", "Ray: worker, node, head"],
    "writes failed, and the command said so and went on later": [
        "failing writes",
        "a full file system",
        "folders not to be written to",
    ],
    "damaged files named or harmless": ["damaged files", "files of other runs", "odd files with a right digest"],
    "hostile files kept out": ["hostile files"],
}
Part = Callable[[Path], Tally]


def attacks(seed: int) -> dict[str, list[Part]]:
    """By the name under which they are counted, in parts that may run at the same time."""
    return {
        "kills": [partial(kill, victim, KILLS[victim.name], seed) for victim in VICTIMS],
        "failing writes": [partial(on_victim, victim, fail_writes) for victim in VICTIMS],
        "a full file system": [partial(on_victim, victim, fill_disk) for victim in VICTIMS],
        "folders not to be written to": [partial(on_victim, victim, forbid_writing) for victim in VICTIMS],
        "damaged files": [partial(damage, kind, DAMAGED[kind.name], seed) for kind in KINDS],
        "files of other runs": [lambda at: exchange(at / "d"), lambda at: change_lines(at / "d")],
        "odd files with a right digest": [partial(reseal, kind, RESEALED[kind.name], seed) for kind in KINDS],
        "hostile files": hostile_parts(seed),
        "8 processes on one folder": [lambda at: processes_on_one_folder(at / "p", 8, 40, seed)],
        "two updates at once": [lambda at: two_updates(at / "u", 10)],
        "Ray: worker, node, head": [ray_kills],
        "NaN and inf in training": [lambda at: diverge(at / "d")],
        "NaN and inf in data": [lambda at: bad_data(at / "d")],
        "packs out of memory": [lambda at: out_of_memory(at / "d")],
        "signals": [lambda at: signals(at / "s")],
        "clock set back": [lambda at: clock_set_back(at / "s")],
        "closed pipe": [lambda at: closed_pipe(at / "s")],
        "terminals, HOME, locale": [lambda at: places(at / "s")],
        "10,000 runs": [many_runs],
    }


def kill(victim: Victim, number: int, seed: int, at: Path) -> Tally:
    return kill_victim(prepare(victim, at), at / "work", number, seed)


def on_victim(victim: Victim, attack: Callable[..., Tally], at: Path) -> Tally:
    return attack(prepare(victim, at), at / "work")


def damage(kind: Kind, number: int, seed: int, at: Path) -> Tally:
    return damage_kind(kind, at / "d", number, seed)


def reseal(kind: Kind, number: int, seed: int, at: Path) -> Tally:
    return reseal_kind(kind, at / "d", number, seed)


def hostile_parts(seed: int) -> list[Part]:
    """None in a checkout that is older than the readers of ``make fuzz``."""
    try:
        from fuzz_readers import READERS
    except ImportError:
        return []
    readers = [partial(mutated, reader=name, number=MUTATED, seed=seed) for name in READERS]
    return [imported, pickles, *readers]


def ray_kills(at: Path) -> Tally:
    """In a process of its own, since Ray's threads do not go with forks."""
    ended = subprocess.run([sys.executable, str(HERE / "ray_kills.py"), str(at)], capture_output=True, text=True)
    try:
        return Tally(**json.loads(ended.stdout.splitlines()[-1]))
    except (IndexError, ValueError, TypeError):
        tally = Tally()
        tally.count(f"Ray: {ended.stderr[-300:]}", "tracebacks")
        return tally


def many_runs(at: Path) -> Tally:
    tally = Tally()
    made = make_many(at / "runs", RUNS)
    for words, (seconds, mebibytes) in LIMITS.items():
        cost = cost_of(words, at)
        costly = cost.code != 0 or cost.seconds > seconds or (mebibytes is not None and cost.mebibytes > mebibytes)
        tally.count(
            f"gcr {words.split()[0]} of {made} runs: {cost.seconds} s, {cost.mebibytes} MiB, exit code {cost.code}",
            *["wrong"] * costly,
        )
        tally.measured |= {f"{words.split()[0]} seconds": cost.seconds, f"{words.split()[0]} MiB": cost.mebibytes}
    if CHROMIUM is not None:
        page = usable_page(at / "page.html", at / "profile")
        usable = page["first"] < page["rows"] == page["last"] and not page["problems"]
        tally.count(f"the page of {made} runs: {page}", *["wrong"] * (not usable))
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of an attack's name")
    given = parser.parse_args()
    found = {name: Tally() for name in attacks(given.seed) if given.only in name}
    if not found:
        parser.error(f'--only must be a part of one of: {", ".join(attacks(given.seed))}; got "{given.only}"')
    torch.set_num_threads(1)
    warm_up()
    with tempfile.TemporaryDirectory(prefix="gcr-faults-") as folder:
        Path(folder).chmod(0o755)  # for the child that is another user
        parts = [(name, i) for name in found for i in range(len(attacks(given.seed)[name]))]
        parts.sort(key=lambda part: part[0] != FIRST)
        missing = Counter(name for name, _ in parts)
        with ProcessPoolExecutor(os.cpu_count(), multiprocessing.get_context("fork")) as processes:
            for last in (False, True):
                now = [part for part in parts if (part[0] == ALONE) is last]
                running = {processes.submit(tried, given.seed, *part, folder): part[0] for part in now}
                for done in as_completed(running):
                    name = running[done]
                    found[name].add(done.result())
                    missing[name] -= 1
                    if not missing[name]:
                        print(line(name, found[name]), flush=True)
                        write(given.seed, name, found[name])
    print("\n".join(summary(found)))
    return int(any(not 0 < tally.tried == tally.survived for tally in found.values()))


def summary(found: dict[str, Tally]) -> list[str]:
    """What was tried, and what came of it."""
    lines = []
    for what, names in SUMMARY.items():
        tried = [found[name] for name in names if name in found]
        if tried:
            counts = found["kills"].measured if names[0] == "kills" and "kills" in found else {}
            more = "".join(f", {number:,} {phase}" for phase, number in counts.items())
            damaged = sum(one.measured.get("bytes", 0) for one in tried)
            more += f", {damaged:,} bytes" if damaged else ""
            lines.append(f"{what}: {sum(one.survived for one in tried):,} of {sum(one.tried for one in tried):,}{more}")
    untried = [name for name, tally in found.items() if not tally.tried]
    bad = [f"{name} ({tally.tried - tally.survived})" for name, tally in found.items() if tally.survived < tally.tried]
    if untried:
        lines.append(f"nothing was tried: {', '.join(untried)}; see {HERE.parent.name}/{HERE.name} for what it needs")
    if bad:
        lines.append(f"lost, wrong, let in or not said: {', '.join(bad)}")
    return lines if untried or bad else [*lines, "nothing lost, nothing wrong, nothing let in"]


def tried(seed: int, name: str, part: int, folder: str) -> Tally:
    """One part of an attack, in a folder of its own."""
    at = Path(tempfile.mkdtemp(dir=folder))
    at.chmod(0o755)
    try:
        return attacks(seed)[name][part](at)
    except Exception as error:
        tally = Tally()
        tally.count(f"{name}, part {part}: {type(error).__name__}: {error}"[:500], "tracebacks")
        return tally
    finally:
        shutil.rmtree(at, ignore_errors=True)


def line(name: str, tally: Tally) -> str:
    if not tally.tried:
        return f"{name}: nothing was tried"
    bad = [f"{count} {what}" for what, count in tally.harm.items() if count]
    return "\n  ".join([f"{name}: {tally.survived} of {tally.tried} survived{': ' * bool(bad)}{', '.join(bad)}",
                        *tally.failures[:5]])  # fmt: skip


def write(seed: int, name: str, tally: Tally) -> None:
    """Put an attack in its place; others stay as they were."""
    there = measured.read("faults", {"attacks": {}})["attacks"]
    there[name] = tally.to_dict()
    values = {
        "command": "make faults",
        "seed": seed,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "attacks": {known: there[known] for known in attacks(seed) if known in there},
    }
    measured.write("faults", values)


if __name__ == "__main__":
    sys.exit(main())
