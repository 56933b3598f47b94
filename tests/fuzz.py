"""Every reader of files against damaged and hostile ones: ``make fuzz``, or tests/fuzz.py --reader zip --seconds 60.

A case is drawn from (seed, reader, number): sound files are written, some of their bytes are changed, and the reader is
asked for all that is in them. It may answer or raise BadInput; anything else is a finding, and so are more than 10
seconds of processor time, more than 1 GiB of memory and the end of the process. Findings are printed with the command
that repeats them; the exit code is 1 if there are any.
"""

import argparse
import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import measured
from fuzz_readers import READERS, attack, scratch

SECONDS, MEMORY = 10, 2**30


def most_memory() -> int:
    """The most bytes that this process or one that it started ever had."""
    return 1024 * max(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


class TooSlow(Exception):
    pass


Counts = dict[str, float]


def fuzz(name: str, seed: int, seconds: float, only: int | None, progress: Path) -> tuple[Counts, list[str]]:
    """Cases of one reader for some seconds: counts of answers, the longest case and the most memory; the findings."""
    reader, findings = READERS[name], []
    counts: Counts = {"refused": 0, "read": 0, "longest_seconds": 0.0, "most_mib": 0}
    files, end, number = reader.files(), time.monotonic() + seconds, only or 0

    def too_slow(*_: object) -> None:
        raise TooSlow(f"more than {SECONDS} s of processor time")

    signal.signal(signal.SIGPROF, too_slow)
    while time.monotonic() < end:
        progress.write_text(json.dumps([number, counts]))
        with scratch() as folder:
            began = time.process_time()
            try:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                counts[attack(reader, files, folder, random.Random(f"{seed} {name} {number}"))] += 1
                if most_memory() > MEMORY:
                    findings.append(f"{number}: more than {MEMORY >> 20} MiB of memory")
                    break
            except Exception as error:
                where = traceback.format_exc(limit=-3)
                findings.append(f"{number}: {type(error).__name__}: {str(error)[:200]}\n{where}")
                if only is not None:
                    raise
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
        counts["longest_seconds"] = max(counts["longest_seconds"], round(time.process_time() - began, 2))
        counts["most_mib"] = most_memory() >> 20
        number += 1
        if only is not None:
            break
    return counts, findings


def in_process(name: str, seed: int, seconds: float) -> tuple[Counts, list[str]]:
    """In a process of its own, whose end is a finding as well."""
    with scratch() as folder:
        progress, answer = folder / "progress", folder / "answer"
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            try:
                answer.write_text(json.dumps(fuzz(name, seed, seconds, None, progress)))
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        if answer.exists():
            counts, findings = json.loads(answer.read_text())
            return counts, findings
        number, counts = json.loads(progress.read_text()) if progress.exists() else (0, {})
        return counts, [f"{number}: it ended the process"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--reader", choices=READERS, action="append", help="all without it")
    parser.add_argument("--seconds", type=float, default=600, help="for each reader")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="one case alone, with its traceback")
    parser.add_argument("--write", action="store_true", help="put the counts into results/measured.json")
    given = parser.parse_args()
    found = 0
    for name in given.reader or READERS:
        if given.case is not None:
            with scratch() as folder:
                fuzz(name, given.seed, given.seconds, given.case, folder / "progress")
            continue
        counts, findings = in_process(name, given.seed, given.seconds)
        tried = int(counts.get("refused", 0) + counts.get("read", 0)) + len(findings)
        print(f"{name}: {tried} files, {counts}, {len(findings)} findings", flush=True)
        if given.write:
            rows = measured.read("fuzz", {})
            rows[name] = (
                {"seed": given.seed, "seconds": given.seconds, "tried": tried} | counts | {"findings": len(findings)}
            )
            measured.write("fuzz", {reader: rows[reader] for reader in READERS if reader in rows})
        for finding in findings[:20]:
            number, _, what = finding.encode(errors="backslashreplace").decode().partition(": ")
            print(f"  {what}\n  again: tests/fuzz.py --reader {name} --seed {given.seed} --case {number}", flush=True)
        found += len(findings)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
