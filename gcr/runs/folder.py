"""The folder of one run: ``<out>/<name>/seed-<n>/``, with its experiment, metrics, result, memory and network.

Files are written to a temporary name and renamed, so that what is there is whole. ``result.json`` comes last: a
folder with it is a finished run. While the run goes on, its last two checkpoints are there too.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from gcr import scenarios
from gcr.experiments import plugins
from gcr.experiments.describe import differences
from gcr.experiments.experiment import Experiment
from gcr.files import (
    Damaged,
    append_line,
    brief,
    digest_of,
    json_bytes,
    parse_json,
    read_file,
    read_json,
    read_tensors,
    sha256,
    sync_folder,
    tensor_bytes,
    write_json,
    write_whole,
)
from gcr.runs.model_file import MODEL_FILE, SavedModel
from gcr.settings import BadInput
from gcr.training import Epoch
from gcr.training.checkpoint import KEPT

AGAIN = "put back a copy of it, or move its folder away and train the run again"
FAILURE = "failure.json"
MEMORY_FILE = "memory.safetensors"
MOST_METRICS = 2**28  # bytes, of some 200 for each epoch
NAMED = ("metrics.jsonl", MEMORY_FILE, MODEL_FILE)  # files whose digests a result has
TRIALS = "trials"  # the folder of runs that only serve to choose values


class Busy(BadInput):
    """Another process is training the run."""


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @classmethod
    def of(cls, out: Path, experiment: Experiment, name: str | None = None) -> RunFolder:
        return cls(out / (name or experiment.run_name) / f"seed-{experiment.seed}")

    @property
    def begun(self) -> bool:
        return (self.path / "experiment.json").exists()

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").exists()

    @property
    def failure(self) -> str | None:
        """Why the run diverged; None: it did not."""
        try:
            values = read_json(self.path / FAILURE)
            error = str(values["error"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError):
            return f"{self.path / FAILURE} cannot be read"
        with suppress(OSError, ValueError):  # of an experiment that cannot be read, which others say
            if values.get("experiment", "") not in ("", digest_of(self.experiment_values())):
                return f"{self.path / FAILURE} is of another run; remove it and train this one"
        return error

    @property
    def ended(self) -> bool:
        return self.finished or (self.path / FAILURE).exists()

    def fail(self, error: str) -> None:
        """A run that diverged would diverge again: write that down, for tables and searches."""
        about = {"error": error}
        with suppress(OSError, ValueError):
            about["experiment"] = digest_of(self.experiment_values())
        with suppress(FileNotFoundError):  # another process has begun it meanwhile, and will come to the same end
            write_json(self.path / FAILURE, about)

    @property
    def saved(self) -> bool:
        """Whether there is a checkpoint to go on from."""
        return bool(self.newest_checkpoint)

    @property
    def newest_checkpoint(self) -> str:
        """Its name, which says the number of steps; empty: none."""
        return max((file.name for file in self.path.glob("checkpoint-*.safetensors")), default="")

    def check(self, experiment: Experiment) -> None:
        """Refuse a folder that holds another experiment. Changes nothing."""
        there = self.path / "experiment.json"
        if not there.exists():
            return
        try:
            other = self.experiment()
        except (OSError, ValueError, KeyError, TypeError) as error:
            why, whose = brief(error), "its folder" if self.finished else "it"
            raise BadInput(
                f"{there} cannot be read ({why}); move {whose} away, or choose another --out or --name"
            ) from None
        self._refuse(other, experiment)
        if self.finished:
            self._refuse_another_origin(experiment)

    def check_siblings(self, experiment: Experiment, asked: Collection[Path]) -> None:
        """Refuse a folder whose other seeds, beyond those ``asked`` for, are of another experiment, of other code of
        one's own or of other data. One is read, as all are of one; and one result."""
        others = [RunFolder(path) for path in sorted(self.path.parent.glob("seed-*")) if path not in asked]
        for one in others:
            try:
                other = one.experiment()
            except (OSError, ValueError, KeyError, TypeError):
                continue  # not begun, or damaged
            one._refuse(replace(other, seed=experiment.seed), experiment)
            break
        if finished := next((one for one in others if one.finished), None):
            finished._refuse_another_origin(experiment)

    def _refuse_another_origin(self, experiment: Experiment) -> None:
        """Of a finished run: other files of one's own, or other data."""
        try:
            data = scenarios.entry(experiment.scenario).fingerprint
            own_code = plugins.digests(experiment.method, experiment.memory, experiment.model)
            result = self.result()
            before, code_before = result.get("data", data), result.get("plugins", {})
        except (BadInput, OSError, ValueError):
            return  # the data is not here, and not needed; or the result cannot be read, and tables will name it
        compared = code_before or own_code  # earlier versions did not find all files
        if another := [name for name in compared if code_before.get(name) != own_code.get(name)]:
            raise BadInput(
                f"{self.path} was trained with another {', '.join(another)}; choose another --name or --out, or "
                "remove it"
            )
        if before != data:
            raise BadInput(
                f"{self.path} was trained on other images of {experiment.scenario} (data is {before} there, {data} "
                "here); choose another --name or --out"
            )

    def _refuse(self, other: Experiment, experiment: Experiment) -> None:
        if different := differences(other, experiment):
            remedy = "choose" if self.finished or not self.ended else "it diverged, so remove it, or choose"
            raise BadInput(
                f"{self.path} holds another experiment ({'; '.join(different)}); {remedy} another --name or --out"
            )

    @property
    def out(self) -> Path:
        """The folder that all runs of a command lie in."""
        return self.path.parents[1]

    def make(self) -> None:
        """Refuse a folder that cannot be made or written to."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            (self.path / ".writable").touch()
            (self.path / ".writable").unlink(missing_ok=True)  # two commands may do this at once
        except OSError as error:
            raise BadInput(f"cannot write to {self.path} ({error.strerror}); choose another --out") from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains this run meanwhile. The lock goes when its process does, however that ends."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            import fcntl  # not on Windows
        except ImportError:
            yield
            return
        lock = self.path / ".lock"
        with open(lock, "a+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.stat(lock).st_ino != os.fstat(file.fileno()).st_ino:
                    raise OSError  # somebody has just finished, and somebody else has begun
            except OSError:
                file.seek(0)
                raise Busy(f"{self.path} is being trained by process {file.read().strip() or 'another'}") from None
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
            try:
                yield
            finally:
                lock.unlink(missing_ok=True)

    @property
    def busy(self) -> bool:
        """Whether a process is training it. Those that ask do not disturb each other."""
        try:
            import fcntl  # not on Windows
        except ImportError:
            return False
        try:
            with open(self.path / ".lock") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return False

    def begin(self, experiment: Experiment) -> None:
        """Make the folder ready."""
        self.path.mkdir(parents=True, exist_ok=True)
        for kind in (".*.part", ".*.json*.*", ".*.safetensors.*", ".writable"):  # of processes that were killed
            for left in self.path.glob(kind):
                left.unlink(missing_ok=True)
        (self.path / FAILURE).unlink(missing_ok=True)
        write_json(self.path / "experiment.json", experiment.to_dict())
        for above in (self.path.parent, self.out):
            sync_folder(above)

    def cut_metrics(self, epochs: int) -> str:
        """Drop what was written after the checkpoint that the run goes on from, and damaged lines. Says so if there is
        less than that."""
        file = self.path / "metrics.jsonl"
        lines = read_file(file, MOST_METRICS).splitlines(keepends=True) if file.exists() else []
        whole = [line for line in lines[:epochs] if _is_whole(line, file)]
        write_whole(file, b"".join(whole))
        return f"{file} lacks {epochs - len(whole)} epochs before the checkpoint" if len(whole) < epochs else ""

    def add_epoch(self, epoch: Epoch) -> None:
        append_line(self.path / "metrics.jsonl", json_bytes(asdict(epoch), indent=None))

    def finish(self, result: dict[str, Any], memory: dict[str, Tensor] | None, model: SavedModel | None = None) -> None:
        if memory is not None:
            write_whole(self.path / MEMORY_FILE, tensor_bytes(memory))
        if model is not None:
            write_whole(self.path / MODEL_FILE, model.to_bytes())
        else:
            (self.path / MODEL_FILE).unlink(missing_ok=True)  # of a process that was killed after it wrote it
        write_json(self.path / "result.json", {"files": self.named_files()} | result)
        self._drop_checkpoints()

    def named_files(self) -> dict[str, dict[str, Any]]:
        """What a result says of the files next to it."""
        there = {name: read_file(self.path / name) for name in NAMED if (self.path / name).exists()}
        return {name: {"bytes": len(content), "digest": sha256(content)} for name, content in there.items()}

    def tidy(self) -> None:
        """Remove what a process left that was killed between its result and its end."""
        kinds = ("checkpoint-*", ".*.part", ".*.json*.*", ".*.safetensors.*", ".lock")
        left = [file for kind in kinds for file in self.path.glob(kind)]
        if left and self.finished:
            with suppress(Busy, OSError), self.locked():
                for file in left:
                    file.unlink(missing_ok=True)

    def drop_unfinished(self) -> None:
        """Drop the checkpoints that an unfinished run left, unless it is being trained."""
        if self.saved:
            with suppress(Busy, OSError), self.locked():  # whoever trains it says why it cannot
                if not self.finished:
                    self._drop_checkpoints()

    def _drop_checkpoints(self) -> None:
        for file in self.path.glob("checkpoint-*.safetensors"):
            file.unlink(missing_ok=True)

    def contents(self, finished: bool, checkpoints: int = 1) -> dict[str, bytes]:
        """What another machine needs of the folder, in the order in which ``receive`` has to write it: the metrics,
        then the result of a finished run, or else the newest checkpoints."""
        last = [MEMORY_FILE, MODEL_FILE, "result.json"]
        if not finished:
            last = sorted(path.name for path in self.path.glob("checkpoint-*.safetensors"))[-checkpoints:]
        # Read backwards: metrics may be newer than the checkpoint, never older.
        read = {name: (self.path / name).read_bytes() for name in last[::-1] if (self.path / name).exists()}
        metrics = self.path / "metrics.jsonl"
        return ({"metrics.jsonl": metrics.read_bytes()} if metrics.exists() else {}) | dict(reversed(read.items()))

    def receive(self, files: dict[str, bytes]) -> None:
        """Write ``contents`` of the same run on another machine."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_whole(self.path / name, content)
        if self.finished:
            self._drop_checkpoints()
        for old in sorted(self.path.glob("checkpoint-*.safetensors"), reverse=True)[KEPT:]:
            old.unlink(missing_ok=True)

    def experiment_values(self) -> dict[str, Any]:
        """experiment.json as it was written."""
        return read_json(self.path / "experiment.json")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl; empty without it."""
        file = self.path / "metrics.jsonl"
        lines = read_file(file, MOST_METRICS).splitlines(keepends=True) if file.exists() else []
        return [parse_json(line, file) for line in lines]

    def experiment(self) -> Experiment:
        return Experiment.from_dict(self.experiment_values())

    def result(self) -> dict[str, Any]:
        return read_json(self.path / "result.json")

    def memory(self) -> dict[str, Tensor] | None:
        """The final kept buffer: image, label, logits, weight, task."""
        file = self.path / MEMORY_FILE
        if not file.exists():
            return None
        try:
            return read_tensors(file)[1]
        except (OSError, Damaged) as error:
            raise BadInput(f"{file} cannot be read ({brief(error)}); {AGAIN}") from None


def _is_whole(line: bytes, file: Path) -> bool:
    with suppress(BadInput):
        return bool(parse_json(line, file)) and line.endswith(b"\n")
    return False


def check_together(experiment: dict[str, Any], result: dict[str, Any]) -> None:
    """Refuse a result of another experiment. One of an older gcr does not say of which it is."""
    if result.get("experiment", "") not in ("", digest_of(experiment)):
        raise BadInput("result.json is of another run than experiment.json")


def check_seed(path: Path, seed: int) -> None:
    """Refuse a run folder that was copied as another seed."""
    if path.name.startswith("seed-") and path.name != f"seed-{seed}":
        raise BadInput(f"its experiment is of seed {seed}, so it is a copy of another run")


def wrong_file(file: Path, result: dict[str, Any]) -> str:
    """What is wrong with one of the ``NAMED`` files next to a result; empty: nothing, or the result is of an older
    gcr and does not say."""
    named = result.get("files", {})
    if not isinstance(named, dict) or not isinstance(about := named.get(file.name, {}), dict):
        return "result.json does not name it as it should"
    if not about:
        return "result.json does not name it: it is of another run" if named and file.exists() else ""
    if not file.exists():
        return "missing"
    if about.get("bytes", size := file.stat().st_size) != size:  # a very large one is not read
        return "not the file that result.json names"
    return "" if sha256(read_file(file)) == about.get("digest") else "not the file that result.json names"


def ended_runs(folder: Path) -> tuple[list[RunFolder], ...]:
    """All finished runs below ``folder``, all that diverged, and all that lost their result, in the order of their
    paths; trials only where it is theirs."""
    finished, diverged, without = [], [], []
    for path, folders, files in os.walk(folder, followlinks=False):
        if TRIALS in folders:
            folders.remove(TRIALS)
        if "result.json" in files or "result.json" in folders:
            finished.append(path)
        elif FAILURE in files:
            diverged.append(path)
        elif lost_result(Path(path), files):
            without.append(path)
    found = (sorted(paths, key=lambda path: path.split(os.sep)) for paths in (finished, diverged, without))
    return tuple([RunFolder(Path(path)) for path in paths] for paths in found)


def lost_result(folder: Path, files: list[str]) -> bool:
    """Network and memory are written before the result, but the last checkpoint goes after it."""
    if not {MEMORY_FILE, MODEL_FILE} & set(files) or "result.json" in files:
        return False
    return not any(name.startswith("checkpoint-") for name in files) and not RunFolder(folder).busy
