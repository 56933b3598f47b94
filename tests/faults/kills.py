"""``kill -9`` at moments drawn by seed: after each what is there is whole; the same command again ends in the same
bits, and leaves nothing behind."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from children import in_child
from file_layer import KILL, Layer
from tally import Tally
from victims import Prepared, go_on, look

CHAIN = 3  # kills of one command before it is let to its end


def count_events(prepared: Prepared, folder: Path, steps: bool = True) -> Counter[str]:
    """In an undisturbed run, by phase."""
    log = folder.with_name("events")
    log.unlink(missing_ok=True)

    def work() -> int | None:
        Layer(folder, log=log, phase_of=prepared.victim.phase_of).install(steps)
        return prepared.victim.work()

    assert in_child(work, prepared.copy(folder)).code == 0
    return Counter(log.read_text().splitlines())


def kill_victim(prepared: Prepared, folder: Path, kills: Mapping[str, int], seed: int) -> Tally:
    """So many kills in each phase, in chains. Counted are processes that died in the phase, by their own last word."""
    victim, tally = prepared.victim, Tally()
    draw = random.Random(f"{seed} {victim.name}")
    events = count_events(prepared, folder)
    missing = [phase for phase, number in kills.items() for _ in range(number)]
    draw.shuffle(missing)
    while missing:
        prepared.copy(folder)
        chain: list[tuple[str, str, list[str]]] = []
        while missing and len(chain) < CHAIN:
            phase = missing[-1]
            moment = draw.randrange(events[phase])
            if not _killed(prepared, folder, phase, moment):
                break  # it came to its end before: there was less left to do
            missing.pop()
            what = f"{victim.name}, killed at event {moment} of {events[phase]} in {phase}, kill {len(chain) + 1}"
            chain.append((phase, what, look(prepared, folder)))
            if victim.appends:
                break  # the next run adds another version
        assert chain, f"{victim.name} was not killed in {phase} at event {moment} of {events[phase]}"
        end = go_on(prepared, folder)
        for phase, what, found in chain:
            tally.count(what, *dict.fromkeys(found + end))
            tally.add(Tally(measured={phase: 1}))
    return tally


def _killed(prepared: Prepared, folder: Path, phase: str, moment: int) -> bool:
    log = folder.with_name("killed")
    log.unlink(missing_ok=True)

    def work() -> int | None:
        Layer(folder, KILL, moment, log, prepared.victim.phase_of, phase).install(steps=True)
        return prepared.victim.work()

    ended = in_child(work, folder)
    hit = log.read_text().splitlines() if log.exists() else []
    assert ended.killed == (hit == [phase]), f"{prepared.victim.name}: {ended} in {hit}, not in {phase}"
    assert ended.killed or ended.code == 0, ended
    return ended.killed
