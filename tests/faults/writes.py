"""Writing that fails: each call in turn, a full file system, folders that must not be written to; and ``kill -9``.

The command says so in a line and ends with 1 or 2; what was there before is whole; with room again it goes on to the
same bits.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from children import BROKEN, IO_ERROR, KILL, NO_ROOM, SHORT, Ended, Layer, Tally, in_child
from victims import Prepared, go_on, is_equal, look

NOBODY = 65534
SPARE = (0, 2_000, 8_000, 30_000)  # bytes free on a file system that is nearly full


def fail_writes(prepared: Prepared, folder: Path, every: int = 1, first: int = 0) -> Tally:
    """Every ``every``-th call from ``first`` on fails: with no room, with an I/O error and, if it writes, half done.

    Counted are commands in which a call was harmed, by the layer's own word.
    """
    tally, log = Tally(), folder.with_name("harmed")
    events = _events(prepared, folder)
    for moment in range(first % every, len(events), every):
        for kind in (NO_ROOM, IO_ERROR, *[SHORT] * (events[moment] == "write")):
            prepared.copy(folder)
            log.unlink(missing_ok=True)
            ended = in_child(_harmed(prepared, Layer(folder, kind, moment, log)), folder)
            if kind == SHORT and not log.exists():
                continue  # a single byte, which cannot be halved
            what = f"{prepared.victim.name}, {kind} at call {moment} of {len(events)}, {events[moment]}"
            assert log.exists(), f"{what}: nothing was harmed"
            tally.count(what, *_judged(prepared, folder, ended, "No space left on device|Input/output error"))
            tally.add(Tally(measured={kind: 1}))
    return tally


def _events(prepared: Prepared, folder: Path) -> list[str]:
    """The names of all calls of an undisturbed command, in their order."""
    log = folder.with_name("calls")
    log.unlink(missing_ok=True)
    assert in_child(_harmed(prepared, Layer(folder, log=log)), prepared.copy(folder)).code == 0
    return log.read_text().splitlines()


def _harmed(prepared: Prepared, layer: Layer) -> Callable[[], int | None]:
    def work() -> int | None:
        layer.install()
        return prepared.victim.work()

    return work


def _judged(prepared: Prepared, folder: Path, ended: Ended, injected: str) -> list[str]:
    """Exit code 1 or 2 and a line with what was ``injected``, or 0 and all is done; with room again the command goes on
    to the same bits."""
    found = []
    saves = prepared.victim.name == "Learner.save"  # in a program of one's own: an exception, not a line
    if saves and ended.code == BROKEN and "gcr.settings.BadInput: cannot write" in ended.err:
        pass
    elif ended.traceback or ended.code not in (0, 1, 2):
        found.append("tracebacks")
    elif ended.code and not re.search(injected, ended.err):
        found.append("silent")
    elif ended.code == 0 and not is_equal(prepared, folder):
        found.append("wrong")  # it said that all went well
    found += look(prepared, folder)
    found += go_on(prepared, folder)
    return list(dict.fromkeys(found))


def fill_disk(prepared: Prepared, folder: Path) -> Tally:
    """On a real file system that is nearly full. Nothing is tried where it cannot be mounted; where all fits, nothing
    is counted."""
    tally = Tally()
    for spare in SPARE:
        with mounted(folder) as there:
            if not there:
                return tally
            work = folder / "work"
            prepared.copy(work)
            ballast = folder / "ballast"
            with open(ballast, "wb") as file:
                free = os.statvfs(folder)
                file.write(bytes(max(0, free.f_bavail * free.f_frsize - spare)))
            ended = in_child(prepared.victim.work, work)
            ballast.unlink()
            found = _judged(prepared, work, ended, "No space left on device|disk has|MB free")
            if ended.code or found:
                tally.count(f"{prepared.victim.name}, {spare} bytes free", *found)
    assert tally.tried, f"all of {prepared.victim.name} fitted into {SPARE[0]} bytes"
    return tally


@contextmanager
def mounted(folder: Path) -> Iterator[bool]:
    """A file system of 8 MiB in memory; False where this process may not mount."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    try:
        there = subprocess.run(command, capture_output=True).returncode == 0
    except OSError:
        there = False
    try:
        yield there
    finally:
        if there:
            subprocess.run(["umount", str(folder)], check=True)


def forbid_writing(prepared: Prepared, folder: Path) -> Tally:
    """A folder that is read-only, and one of another user; needs root to become another user, and nothing otherwise."""
    tally = Tally()
    for name, mode, owner in (("a read-only folder", 0o555, NOBODY), ("a folder of another user", 0o755, 0)):
        if os.geteuid() != 0 and owner == 0:
            continue
        prepared.copy(folder)
        for path in [folder, *folder.rglob("*")]:
            if os.geteuid() == 0:
                os.chown(path, owner, owner)
            path.chmod(mode if path.is_dir() else 0o444)
        ended = in_child(_as_nobody(prepared.victim.work), folder)
        for path in [folder, *folder.rglob("*")]:
            path.chmod(0o755 if path.is_dir() else 0o644)
        tally.count(f"{prepared.victim.name}, {name}", *_judged(prepared, folder, ended, "Permission denied"))
    return tally


def _as_nobody(work: Callable[[], int | None]) -> Callable[[], int | None]:
    def as_nobody() -> int | None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        return work()

    return as_nobody


# `kill -9` at moments drawn by seed: after each what is there is whole; the same command again ends in the same bits,
# and leaves nothing behind.

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
