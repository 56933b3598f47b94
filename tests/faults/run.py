"""``make faults``: every attack in full, in about half an hour. Prints what was found; writes results/faults.json.

python tests/faults/run.py [--seed N] [--only NAME] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "runs"), str(HERE.parent / "report")]

import torch  # noqa: E402
from conftest import ROOT  # noqa: E402
from damage import KINDS, damage_kind  # noqa: E402
from kills import kill_victim  # noqa: E402
from many_runs import cost_of, make_many  # noqa: E402
from not_numbers import bad_data, diverge, out_of_memory  # noqa: E402
from surroundings import clock_set_back, closed_pipe, places, signals  # noqa: E402
from tally import Tally  # noqa: E402
from together import processes_on_one_folder, two_updates  # noqa: E402
from victims import VICTIMS, prepare, warm_up  # noqa: E402
from writes import fail_writes, fill_disk, forbid_writing  # noqa: E402

RESULTS = ROOT / "results" / "faults.json"
KILLS = {"gcr run": 110, "gcr results pack": 15, "gcr report": 10, "gcr update": 25, "Learner.save": 25,
         "gcr data import": 15}  # fmt: skip
DAMAGED = {"results": 500, "experiments": 300, "packed results": 250, "memory": 200, "memory in the report": 100,
           "models": 200, "checkpoints": 150, "states": 200, "cached data": 100}  # fmt: skip
RUNS = 10_000
LIMITS = {"table runs": (10.0, 500.0), "report runs --page page.html": (30.0, None)}  # processor seconds, MiB


def attacks(seed: int) -> dict[str, Callable[[Path], Tally]]:
    """By the name under which they are counted."""
    return {
        "kills": lambda at: kill_all(at, seed),
        "failing writes": lambda at: on_each_victim(at, fail_writes),
        "a full file system": lambda at: on_each_victim(at, fill_disk),
        "folders not to be written to": lambda at: on_each_victim(at, forbid_writing),
        "damaged files": lambda at: damage_all(at, seed),
        "8 processes on one folder": lambda at: processes_on_one_folder(at, 8, 40, seed),
        "two updates at once": lambda at: two_updates(at, 10),
        "Ray: worker, node, head": ray_kills,
        "NaN and inf in training": diverge,
        "NaN and inf in data": bad_data,
        "packs out of memory": out_of_memory,
        "signals": signals,
        "clock set back": clock_set_back,
        "closed pipe": closed_pipe,
        "terminals, HOME, locale": places,
        "10,000 runs": many_runs,
    }


def kill_all(at: Path, seed: int, kills: dict[str, int] = KILLS) -> Tally:
    tally = Tally()
    for victim in VICTIMS:
        folder = at / victim.name.replace(" ", "-")
        tally.add(kill_victim(prepare(victim, folder), folder / "work", kills[victim.name], seed))
    return tally


def on_each_victim(at: Path, attack: Callable[..., Tally]) -> Tally:
    tally = Tally()
    for victim in VICTIMS:
        folder = at / victim.name.replace(" ", "-")
        tally.add(attack(prepare(victim, folder), folder / "work"))
    return tally


def damage_all(at: Path, seed: int, numbers: dict[str, int] = DAMAGED) -> Tally:
    tally = Tally()
    for kind in KINDS:
        tally.add(damage_kind(kind, at / kind.name.replace(" ", "-"), numbers[kind.name], seed))
    return tally


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
    return tally


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="a part of an attack's name")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warm_up()
    found: dict[str, Tally] = {}
    with tempfile.TemporaryDirectory(prefix="gcr-faults-") as folder:
        Path(folder).chmod(0o755)  # for the child that is another user
        for number, (name, attack) in enumerate(attacks(given.seed).items()):
            if given.only in name:
                at = Path(folder) / str(number)
                at.mkdir()
                found[name] = attack(at)
                print(line(name, found[name]), flush=True)
    if not given.only:
        write(given.out, given.seed, found)
    return int(any(tally.survived < tally.tried for tally in found.values()))


def line(name: str, tally: Tally) -> str:
    if not tally.tried:
        return f"{name}: not tried here"
    bad = [f"{count} {what}" for what, count in tally.harm.items() if count]
    return "\n  ".join([f"{name}: {tally.survived} of {tally.tried} survived{': ' * bool(bad)}{', '.join(bad)}",
                        *tally.failures[:5]])  # fmt: skip


def write(file: Path, seed: int, found: dict[str, Tally]) -> None:
    values = {
        "command": "make faults",
        "seed": seed,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "attacks": {name: tally.to_dict() for name, tally in found.items()},
    }
    file.write_text(json.dumps(values, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main())
