"""Cells that a study announces: how many of their seeds ``results/`` has, and training those that it lacks."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from evidence_runs import read

from gcr.experiments.experiment import Experiment
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Event, Execution, Job


@dataclass(frozen=True)
class Cell:
    study: str  # as --train names it
    file: str  # under results/
    name: str  # of its runs
    seeds: range
    experiment: Callable[[int], Experiment]  # of a seed
    deterministic: bool = False
    again: bool = False  # also seeds whose result does not name the source that computed it

    @property
    def online(self) -> bool:
        return self.experiment(self.seeds[0]).stream.online

    def missing(self) -> list[int]:
        try:
            groups = read(self.file)
        except FileNotFoundError:
            groups = {}
        results = groups[self.name].results if self.name in groups else {}
        return [s for s in self.seeds if s not in results or (self.again and not results[s].get("source"))]


def main(cells: Iterable[Cell], about: str) -> None:
    cells = list(cells)
    studies = list(dict.fromkeys(cell.study for cell in cells))
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="STUDIES", help=f"of {', '.join(studies)}; with commas")
    parser.add_argument("--regime", choices=["online", "offline"], help="only that")
    parser.add_argument("--names", default="", metavar="TEXT", help="only runs whose names contain it")
    parser.add_argument("--share", default="1/1", help="of the runs, as 1/4")
    parser.add_argument("--pack", type=int, default=6, help="runs at a time on a GPU")
    parser.add_argument("--out", type=Path, default=Path("runs/announced"))
    given = parser.parse_args()
    cells = [cell for cell in cells if given.names in cell.name]
    cells = [cell for cell in cells if given.regime in (None, "online" if cell.online else "offline")]
    if given.train is None:
        for cell in cells:
            there = len(cell.seeds) - len(cell.missing())
            print(f"{cell.study:12} {cell.name:66} {there:2} of {len(cell.seeds)}")
        return
    wanted = given.train.split(",")
    if unknown := [study for study in wanted if study not in studies]:
        parser.error(f"no study {', '.join(unknown)}; there are {', '.join(studies)}")
    first, _, of = given.share.partition("/")
    if not (first.isdecimal() and of.isdecimal() and 1 <= int(first) <= int(of)):
        parser.error(f"--share must be as 1/4, of the first to the last part, got {given.share}")
    status = 0
    for kind in (False, True):
        mine = [cell for cell in cells if cell.study in wanted and cell.deterministic == kind]
        status = max(status, train(mine, given.out, int(first), int(of), given.pack, kind))
        if status >= 128:  # a signal
            break
    raise SystemExit(status)


def train(cells: list[Cell], out: Path, first: int, of: int, pack: int, deterministic: bool) -> int:
    """The exit status."""
    jobs = [
        Job(experiment, RunFolder.of(out / cell.file, experiment, cell.name))
        for cell in cells
        for experiment in map(cell.experiment, cell.missing())
    ]
    mine = [job for job in jobs[first - 1 :: of] if not job.folder.finished]

    def listen(event: Event) -> None:
        path = mine[event.job].folder.path.relative_to(out)
        if event.remark:
            print(f"{path}: {event.remark}", flush=True)
        if event.ends_job:
            print(f"{path}: {event.error or ('stopped' if event.stopped else f'{event.accuracy:.2f}')}", flush=True)

    for job in mine:
        job.folder.make()
    ending = run_all(mine, listen, Execution(pack=pack, model=False, deterministic=deterministic))
    return 128 + ending.signal if ending.signal else min(1, ending.failed)
