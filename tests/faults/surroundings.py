"""What a command may meet around it: signals, a clock that is set back, a closed pipe, a narrow terminal, no HOME, the
C locale. Commands are processes of their own, as a shell starts them."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from children import Ended, in_child
from conftest import HANG_SECONDS, ROOT
from tally import Tally
from victims import TRAIN, make_cache, make_runs, make_state, names, run_facts

# Signals to itself after its n-th checkpoint; the second while it is stopping.
SIGNAL_SELF = """
import os, sys
from gcr.runs import job
from gcr.training.checkpoint import Checkpoints
numbers, save = [int(word) for word in sys.argv[1].split(",")], Checkpoints.save
def save_and_signal(self, state):
    save(self, state)
    if numbers:
        os.kill(os.getpid(), numbers.pop(0))
Checkpoints.save = save_and_signal
from gcr.__main__ import main
sys.argv[1:] = sys.argv[2:]
main()
"""
# Time goes backwards by an hour at every look.
CLOCK_BACK = """
import sys, time
plain, looks = time.time, 0
def back():
    global looks
    looks += 1
    return plain() - 3600 * looks
time.time = back
from gcr.__main__ import main
main()
"""


def gcr(words: str, folder: Path, script: str = "", first: tuple[str, ...] = (), **environment: str | None) -> Ended:
    start = ["-c", script, *first] if script else ["-m", "gcr"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "GCR_DATA": str(folder / "cache"), "OMP_NUM_THREADS": "1"}
    for name, value in environment.items():
        env.pop(name, None)
        if value is not None:
            env[name] = value
    done = subprocess.run(
        [sys.executable, *start, *words.split()],
        cwd=folder,
        env=env,
        capture_output=True,
        timeout=HANG_SECONDS,
        preexec_fn=_hears_signals,
    )
    return Ended(done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace"))


def _hears_signals() -> None:
    """A shell's background job does not."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def signals(folder: Path) -> Tally:
    """The run is saved, says how to go on, and ends as it would have; a second signal ends the command at once."""
    tally = Tally()
    base, clean = folder / "base", folder / "clean"
    base.mkdir(parents=True)
    assert in_child(make_cache, base).code == 0
    shutil.copytree(base, clean)
    assert gcr(TRAIN, clean).code == 0
    for numbers, codes in (
        ([signal.SIGINT], (130,)),
        ([signal.SIGTERM], (143,)),
        ([signal.SIGHUP], (129,)),
        ([signal.SIGINT, signal.SIGINT], (130, -signal.SIGINT)),
        ([signal.SIGTERM, signal.SIGTERM], (143, -signal.SIGTERM)),
    ):
        work = folder / "work"
        shutil.rmtree(work, ignore_errors=True)
        shutil.copytree(base, work)
        ended = gcr(TRAIN, work, SIGNAL_SELF, (",".join(str(int(n)) for n in numbers),))
        found = ["tracebacks"] * ended.traceback
        if ended.code not in codes or (len(numbers) == 1 and "continue with:" not in ended.err):
            found.append("wrong")
        again = gcr(TRAIN, work)
        if again.code or run_facts(work) != run_facts(clean):
            found.append("wrong")
        if names(work) != names(clean):
            found.append("left")
        tally.count(f"{' and '.join(n.name for n in numbers)}, exit code {ended.code}", *dict.fromkeys(found))
    return tally


def clock_set_back(folder: Path) -> Tally:
    tally = Tally()
    folder.mkdir(parents=True)
    assert in_child(make_cache, folder).code == 0
    assert in_child(make_state, folder).code == 0
    assert gcr(f"{TRAIN} --name clean", folder).code == 0
    for words in (TRAIN, "table runs", "report runs", "update state second.csv --epochs 1 --limit 100", "data check"):
        ended = gcr(words, folder, CLOCK_BACK)
        tally.count(f"clock set back, gcr {words}", *(["tracebacks"] * ended.traceback), *["wrong"] * (ended.code != 0))
    facts = run_facts(folder)
    tally.count("clock set back, results", *["wrong"] * (len(facts) != 4))
    return tally


PIPED = ("table runs", "table runs --format csv", "results list runs", "methods", "predict state second.csv")


def closed_pipe(folder: Path, commands: Sequence[str] = PIPED) -> Tally:
    """``gcr table runs | head -1``: no complaint, and no line of Python's."""
    tally = Tally()
    folder.mkdir(parents=True)
    assert in_child(make_runs, folder).code == 0
    assert in_child(make_state, folder).code == 0
    for words in commands:
        env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", "gcr", *words.split()]
        with subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
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
    no_home: dict[str, str | None] = {"HOME": None, "GCR_DATA": None, "XDG_CACHE_HOME": None}
    c_locale: dict[str, str | None] = {"LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for name, environment, commands in (
        ("no HOME", no_home, ("table runs", "report runs", "data list")),
        ("HOME that is not there", no_home | {"HOME": "/nonexistent"}, ("data list",)),
        ("C locale", c_locale, ("table runs", "report runs", "methods")),
        ("no terminal type", {"TERM": "dumb"}, ("table runs",)),
    ):
        for words in commands:
            ended = gcr(words, folder, **environment)
            tally.count(
                f"{name}, gcr {words}: {ended.err[-200:]!r}",
                *(["tracebacks"] * ended.traceback),
                *["wrong"] * (ended.code != 0),
            )
    for words in ("table runs", "methods", "--help"):
        shown = _on_terminal(words, folder, 40)
        wide = [line for line in shown.splitlines() if len(line) > 40]
        whole = words != "table runs" or all(method in shown for method in ("er", "gcr"))
        tally.count(f"40 columns, gcr {words}: {wide[:1]}", *["wrong"] * (bool(wide) or not whole or not shown.strip()))
    return tally


def _on_terminal(words: str, folder: Path, columns: int) -> str:
    """What a terminal of that width shows, without colours."""
    import fcntl
    import re
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    env = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    env.pop("COLUMNS", None)
    command = [sys.executable, "-m", "gcr", *words.split()]
    process = subprocess.Popen(command, cwd=folder, env=env, stdin=theirs, stdout=theirs, stderr=theirs)
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
