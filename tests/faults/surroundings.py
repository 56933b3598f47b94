"""What a command may meet around it: signals, a clock that is set back, a closed pipe, a narrow terminal, no HOME, the
C locale."""

from __future__ import annotations

import datetime
import fcntl
import itertools
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from children import Ended, Layer, Tally, in_child
from conftest import HANG_SECONDS, ROOT
from victims import TRAIN, command, make_cache, make_runs, make_state, names, run_facts

from gcr.runs import job
from gcr.runs.folder import RunFolder


def gcr(words: str, folder: Path, **environment: str) -> Ended:
    """A process of its own, as a shell starts it."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    started = [sys.executable, "-m", "gcr", *words.split()]
    done = subprocess.run(started, cwd=folder, env=env, capture_output=True, timeout=HANG_SECONDS)
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def signalled(numbers: list[int], log: Path, words: str = TRAIN) -> int:
    """A run that gets a signal after each of its first checkpoints: the second one comes while it stops.

    A line of ``log`` for each signal when it is sent, and a last one if the process still lives when its work ends.
    """
    from gcr.training.checkpoint import Checkpoints

    left, save = list(numbers), Checkpoints.save

    def note(what: str) -> None:
        with open(log, "a") as file:
            file.write(f"{what}\n")

    def save_and_signal(self: Any, state: Any) -> None:
        save(self, state)
        if left:
            number = left.pop(0)
            note(signal.Signals(number).name)
            os.kill(os.getpid(), number)
            note("alive")

    Checkpoints.save = save_and_signal  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return command(words)
    except KeyboardInterrupt:  # as ``python -m gcr`` does
        return 130


SIGNALS = (
    ([signal.SIGINT], 130),
    ([signal.SIGTERM], 143),
    ([signal.SIGHUP], 129),
    ([signal.SIGINT, signal.SIGINT], 130),
    ([signal.SIGTERM, signal.SIGTERM], -signal.SIGTERM),
    ([signal.SIGHUP, signal.SIGHUP], -signal.SIGHUP),
    ([signal.SIGINT, signal.SIGTERM], -signal.SIGTERM),
)


def signals(folder: Path) -> Tally:
    """The run is saved, says how to go on, and ends as it would have; a second signal ends the command at once."""
    tally = Tally()
    base, clean, work = (folder / name for name in ("base", "clean", "work"))
    base.mkdir(parents=True)
    assert in_child(make_cache, base).code == 0
    shutil.copytree(base, clean)
    assert in_child(partial(command, TRAIN), clean).code == 0
    for numbers, code in SIGNALS:
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        log = folder / "signals"
        log.unlink(missing_ok=True)
        ended = in_child(partial(signalled, [int(number) for number in numbers], log), work)
        found = ["tracebacks"] * ended.traceback
        # After the first it goes on to save; the second is the last that it meets.
        met = [*(word for number in numbers[:-1] for word in (number.name, "alive")), numbers[-1].name]
        if log.read_text().splitlines() != [*met, *["alive"] * (len(numbers) == 1)]:
            found.append("wrong")
        if ended.code != code or ("continue with:" in ended.err) != (len(numbers) == 1):
            found.append("wrong")
        if in_child(partial(command, TRAIN), work).code or run_facts(work) != run_facts(clean):
            found.append("wrong")
        if names(work) != names(clean):
            found.append("left")
        what = f"{' and '.join(n.name for n in numbers)}, exit code {ended.code}, met {log.read_text().split()}"
        tally.count(what, *dict.fromkeys(found))
    return tally


def clock_set_back(folder: Path) -> Tally:
    """By an hour at every look, and files from the future and the far past: no command fails, a run that was stopped
    goes on from its checkpoint, and the numbers are the same. The monotonic clock cannot be set."""
    tally = Tally()
    folder.mkdir(parents=True)
    assert in_child(make_cache, folder).code == 0
    assert in_child(make_state, folder).code == 0
    assert in_child(partial(command, f"{TRAIN} --name clean"), folder).code == 0
    going_on, log = f"{TRAIN} --name stopped", folder.with_name("log")
    stopped = in_child(partial(signalled, [int(signal.SIGTERM)], log, going_on), folder)
    assert stopped.code == 143, stopped
    assert [*folder.glob("runs/stopped/*/checkpoint-*")]
    table, predict = "table runs --format csv", "predict state second.csv"
    right = {words: in_child(partial(command, words), folder).out for words in (table, predict)}
    update = "update state second.csv --epochs 1 --limit 100"
    for date in (None, 4102444800, 0):  # all files of 2100, of 1970
        name = {None: "back", 0: "past"}.get(date, "future")
        work = folder.with_name(name)
        shutil.copytree(folder, work)
        for path in [work, *work.rglob("*")] if date is not None else []:
            os.utime(path, (date, date))
        run = f"{TRAIN} --name {name}"
        steps = {}
        for words in (table, predict, run, going_on, "report runs", "data check", "verify runs", update):
            log.write_text("")
            ended = in_child(partial(_with_clock, words, date is None, Layer(work, log=log)), work)
            steps[words] = log.read_text().splitlines().count("step")
            found = [*["tracebacks"] * ended.traceback, *["wrong"] * (ended.code != 0)]
            if words in right and ended.out != right[words]:
                found.append("wrong")
            if words == run and _class_il(work, "clean") != _class_il(work, name):
                found.append("wrong")
            if words == going_on and _class_il(work, "clean") != _class_il(work, "stopped"):
                found.append("wrong")
            if words == going_on and not 0 < steps[going_on] < steps[run]:  # it began again, or had ended before
                found.append("lost")
            if words == update and not (work / "state" / "version-0002").exists():
                found.append("lost")
            tally.count(f"clock {name}, gcr {words}: {ended.err[-200:]!r}", *dict.fromkeys(found))
    return tally


def _with_clock(words: str, backwards: bool, layer: Layer) -> int:
    layer.install(steps=True)
    if backwards:
        looks = itertools.count(1)
        seconds, nanoseconds = time.time, time.time_ns
        time.time = lambda: seconds() - 3600 * next(looks)
        time.time_ns = lambda: nanoseconds() - 3600 * 10**9 * next(looks)

        class Backwards(datetime.datetime):
            @classmethod
            def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
                return datetime.datetime.fromtimestamp(time.time(), tz)

        job.datetime = Backwards  # type: ignore[misc]
    return command(words)


def _class_il(folder: Path, name: str) -> Any:
    run = RunFolder(folder / "runs" / name / "seed-0")
    return run.result()["class_il"] if run.finished else None


PIPED = ("table runs", "table runs --format csv", "predict state second.csv")


def closed_pipe(folder: Path, commands: Sequence[str] = PIPED) -> Tally:
    """``gcr table runs | head -1``, and a pipe that nobody reads: exit code 1, at most one line, none of Python's."""
    tally = Tally()
    folder.mkdir(parents=True, exist_ok=True)
    assert in_child(make_runs, folder).code == 0
    assert in_child(make_state, folder).code == 0
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    for words in commands:
        for lines in (0, 1):
            started = [sys.executable, "-m", "gcr", *words.split()]
            process = subprocess.Popen(started, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stderr is not None
            for _ in range(lines):
                process.stdout.readline()
            process.stdout.close()  # as head does when it has seen enough
            said = process.stderr.read().decode(errors="replace")
            process.stderr.close()
            code = process.wait(HANG_SECONDS)
            bad = any(word in said for word in ("Traceback", "Exception ignored", "BrokenPipeError"))
            found = ["tracebacks"] * bad
            # With one line read all may have been in the pipe before it was closed.
            if code not in ((1,) if lines == 0 else (0, 1)) or len(said.splitlines()) > 1:
                found.append("wrong")
            tally.count(f"closed pipe after {lines} lines, gcr {words}: exit code {code}, {said[-200:]!r}", *found)
    return tally


def places(folder: Path) -> Tally:
    """A terminal of 40 columns, no HOME, the C locale: all that there is to say is said."""
    tally = Tally()
    folder.mkdir(parents=True)
    assert in_child(make_runs, folder).code == 0
    c_locale = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    tried = [
        *((f"no HOME, gcr {words}", in_child(partial(homeless, words), folder)) for words in HOMELESS),
        *((f"C locale, gcr {words}", gcr(words, folder, **c_locale)) for words in ("table runs", "report runs")),
        ("no terminal type, gcr table runs", gcr("table runs", folder, TERM="dumb")),
    ]
    for what, ended in tried:
        found = [*["tracebacks"] * ended.traceback, *["wrong"] * (ended.code != 0)]
        tally.count(f"{what}: {ended.err[-200:]!r}", *found)
    for words in ("table runs", "methods", "--help"):
        shown = _on_terminal(words, folder, 40)
        whole = words != "table runs" or all(mean in shown for mean in ("53.50", "54.50"))
        cut = "…" in shown and words == "table runs"  # numbers are never cut, lines may be wider than the terminal
        tally.count(f"40 columns, gcr {words}", *["wrong"] * (cut or not whole or not shown.strip()))
    return tally


HOMELESS = ("table runs", "report runs", "data list", "methods")


def homeless(words: str) -> int:
    from gcr.cli.main import run_cli

    for name in ("HOME", "GCR_DATA", "XDG_CACHE_HOME"):
        os.environ.pop(name, None)
    return run_cli(words.split())


def _on_terminal(words: str, folder: Path, columns: int) -> str:
    """What a terminal of that width shows, without colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    env.pop("COLUMNS", None)
    started = [sys.executable, "-m", "gcr", *words.split()]
    process = subprocess.Popen(started, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    parts = []
    try:
        while part := os.read(ours, 65536):
            parts.append(part)
    except OSError:  # its end
        pass
    process.wait(HANG_SECONDS)
    os.close(ours)
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(parts).decode(errors="replace")).replace("\r", "")
