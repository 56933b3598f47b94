"""What a command may meet around it: signals, a clock that is set back, a closed pipe, a narrow terminal, no HOME, the
C locale."""

from __future__ import annotations

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

from children import Ended, in_child
from conftest import HANG_SECONDS, ROOT
from tally import Tally
from victims import TRAIN, command, make_cache, make_runs, make_state, names, run_facts

from gcr.runs.folder import RunFolder


def gcr(words: str, folder: Path, **environment: str) -> Ended:
    """A process of its own, as a shell starts it."""
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"} | environment
    started = [sys.executable, "-m", "gcr", *words.split()]
    done = subprocess.run(started, cwd=folder, env=env, capture_output=True, timeout=HANG_SECONDS)
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def signalled(numbers: list[int]) -> int:
    """A run that gets a signal after each of its first checkpoints: the second one comes while it stops."""
    from gcr.training.checkpoint import Checkpoints

    left, save = list(numbers), Checkpoints.save

    def save_and_signal(self: Any, state: Any) -> None:
        save(self, state)
        if left:
            os.kill(os.getpid(), left.pop(0))

    Checkpoints.save = save_and_signal  # type: ignore[method-assign]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        return command(TRAIN)
    except KeyboardInterrupt:  # as ``python -m gcr`` does
        return 130


def signals(folder: Path) -> Tally:
    """The run is saved, says how to go on, and ends as it would have; a second signal ends the command at once."""
    tally = Tally()
    base, clean, work = (folder / name for name in ("base", "clean", "work"))
    base.mkdir(parents=True)
    assert in_child(make_cache, base).code == 0
    shutil.copytree(base, clean)
    assert in_child(partial(command, TRAIN), clean).code == 0
    for numbers, codes in (
        ([signal.SIGINT], (130,)),
        ([signal.SIGTERM], (143,)),
        ([signal.SIGHUP], (129,)),
        ([signal.SIGINT, signal.SIGINT], (130,)),
        ([signal.SIGTERM, signal.SIGTERM], (143, -signal.SIGTERM)),
    ):
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        ended = in_child(partial(signalled, [int(number) for number in numbers]), work)
        found = ["tracebacks"] * ended.traceback
        if ended.code not in codes or (len(numbers) == 1 and "continue with:" not in ended.err):
            found.append("wrong")
        if in_child(partial(command, TRAIN), work).code or run_facts(work) != run_facts(clean):
            found.append("wrong")
        if names(work) != names(clean):
            found.append("left")
        tally.count(f"{' and '.join(n.name for n in numbers)}, exit code {ended.code}", *dict.fromkeys(found))
    return tally


def clock_set_back(folder: Path) -> Tally:
    """By an hour at every look: no command fails, and the numbers are the same."""
    tally = Tally()
    folder.mkdir(parents=True)
    assert in_child(make_cache, folder).code == 0
    assert in_child(make_state, folder).code == 0
    assert in_child(partial(command, f"{TRAIN} --name clean"), folder).code == 0

    def backwards(words: str) -> int:
        plain, looks = time.time, itertools.count(1)
        time.time = lambda: plain() - 3600 * next(looks)
        return command(words)

    update = "update state second.csv --epochs 1 --limit 100"
    for words in (f"{TRAIN} --name back", "table runs", "report runs", update, "data check"):
        ended = in_child(partial(backwards, words), folder)
        tally.count(f"clock set back, gcr {words}", *(["tracebacks"] * ended.traceback), *["wrong"] * (ended.code != 0))
    clean, back = (RunFolder(folder / "runs" / name / "seed-0").result()["class_il"] for name in ("clean", "back"))
    tally.count("clock set back, results", *["wrong"] * (clean != back))
    return tally


PIPED = ("table runs", "table runs --format csv", "predict state second.csv")


def closed_pipe(folder: Path, commands: Sequence[str] = PIPED) -> Tally:
    """``gcr table runs | head -1``: no complaint, and no line of Python's."""
    tally = Tally()
    folder.mkdir(parents=True, exist_ok=True)
    assert in_child(make_runs, folder).code == 0
    assert in_child(make_state, folder).code == 0
    for words in commands:
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        started = [sys.executable, "-m", "gcr", *words.split()]
        with subprocess.Popen(started, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.close()  # as head does when it has seen enough
            assert process.stderr is not None
            said = process.stderr.read().decode(errors="replace")
            process.wait(HANG_SECONDS)
        bad = "Traceback" in said or "Exception ignored" in said or "BrokenPipe" in said
        tally.count(f"closed pipe, gcr {words}: {said[-200:]!r}" if bad else "", *(["tracebacks"] * bad))
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
