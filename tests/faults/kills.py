"""``kill -9`` at moments drawn by seed: the same command again ends in the same bits, and leaves nothing behind."""

from __future__ import annotations

import random
from pathlib import Path

from children import in_child
from file_layer import KILL, Layer
from tally import Tally
from victims import Prepared, go_on, look

CHAIN = 3  # kills of one command before it is let to its end


def count_events(prepared: Prepared, folder: Path, steps: bool = True) -> int:
    """In an undisturbed run."""
    log = folder.with_name("events")

    def work() -> int | None:
        Layer(folder, log=log).install(steps)
        return prepared.victim.work()

    assert in_child(work, prepared.copy(folder)).code == 0
    return int(log.read_bytes())


def kill_victim(prepared: Prepared, folder: Path, number: int, seed: int) -> Tally:
    """``number`` kills, in chains."""
    draw, tally = random.Random(f"{seed} {prepared.victim.name}"), Tally()
    total = count_events(prepared, folder)
    while number > 0:
        prepared.copy(folder)
        moments: list[int] = []
        found: list[str] = []
        for _ in range(min(number, CHAIN)):
            moment = draw.randrange(total)
            if not _killed(prepared, folder, moment):
                break  # it came to its end before: there was less left to do
            moments.append(moment)
            found += look(prepared, folder)
            if prepared.victim.appends:
                break  # the next run adds another version
        number -= len(moments)
        found += go_on(prepared, folder)
        for _ in moments[:-1]:
            tally.count("", *[])
        if moments:
            tally.count(f"{prepared.victim.name}, killed at events {moments} of {total}", *dict.fromkeys(found))
    return tally


def _killed(prepared: Prepared, folder: Path, moment: int) -> bool:
    def work() -> int | None:
        Layer(folder, KILL, moment).install(steps=True)
        return prepared.victim.work()

    return in_child(work, folder).killed
