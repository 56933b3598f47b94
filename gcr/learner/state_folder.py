"""A saved learner: a folder of numbered versions, each a readable ``learner.json`` and a ``tensors.safetensors``.

A version is written under a temporary name, synced and renamed into place, so the highest number is always whole. The
one before it is kept for ``rollback``.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

from torch import Tensor

import gcr
from gcr import files
from gcr.files import sync_folder, write_whole
from gcr.settings import BadInput

FORMAT = 1  # raised when an older gcr could not read a newer state
ABOUT, TENSORS = "learner.json", "tensors.safetensors"
KEPT = 2  # versions
LOCK = ".lock"


class Busy(BadInput):
    """Another process is changing the state."""


class Damaged(BadInput):
    """A version that is not as it was written."""


class Newer(BadInput):
    """A version that a later gcr wrote."""


class StateFolder:
    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._locked = False

    def __repr__(self) -> str:
        return f"StateFolder({str(self.path)!r})"

    def versions(self) -> list[int]:
        """Newest first; empty where there is no state."""
        try:
            names = [entry.name for entry in os.scandir(self.path)]
        except FileNotFoundError:
            return []
        except NotADirectoryError:
            raise BadInput(f"a state must be a folder, got the file {self.path}; choose another name") from None
        except OSError as error:
            raise BadInput(f"{self.path} cannot be read ({error.strerror}); check its permissions") from None
        matches = (re.fullmatch(r"version-(\d{4,})", name) for name in names)
        return sorted((int(match[1]) for match in matches if match), reverse=True)

    def write(self, about: Mapping[str, Any], tensors: Mapping[str, Tensor], alone: bool = False) -> int:
        """Add a version and return its number. Where that fails, the versions before it are untouched. ``alone``: once
        it is there, no version before it is kept."""
        with nullcontext() if self._locked else self.lock():
            self.check_writable()
            there = self.versions()
            number = there[0] + 1 if there else 1
            part = self.path / f".version-{number:04d}.{os.getpid()}.part"
            try:
                self.sweep()
                part.mkdir()
                _write_version(part, number, about, tensors)
                part.rename(self._folder(number))
                sync_folder(self.path)
            except OSError as error:
                raise self._unwritable(error) from None
            finally:
                shutil.rmtree(part, ignore_errors=True)
            for old in there[0 if alone else KEPT - 1 :]:
                try:
                    self._drop(old)
                except OSError as error:  # the new version is there; the next write tries again
                    if alone:
                        raise self._unwritable(error) from None
            return number

    def check_writable(self) -> None:
        """Refuse a folder that is used for something else."""
        if self.versions() or not self.path.exists():
            return
        if foreign := sorted(entry.name for entry in self.path.iterdir() if not entry.name.startswith(".")):
            raise BadInput(
                f'{self.path} must be a new folder or a state, got a folder with "{foreign[0]}"; choose another name'
            )

    def read(self, version: int | None = None) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What ``write`` was given, of the newest version or of one by its number."""
        there = self.versions()
        if not there:
            missing = "is not a state" if self.path.exists() else "does not exist"
            raise BadInput(f"{self.path} {missing}; make one with: gcr update {self.path} NEW, or learner.save(…)")
        number = there[0] if version is None else version
        if number not in there:
            raise BadInput(f"version must be one of {', '.join(map(str, there))} in {self.path}, got {number}")
        try:
            return _read_version(self._folder(number), number)
        except Damaged as error:
            if version is None and self.versions()[:1] != there[:1]:
                return self.read()  # replaced while it was read
            none = "; there is no version before it: restore the folder from a backup or make it again"
            raise Damaged(f"{error}{self._earlier(number, '; ') or none}") from None
        except Newer as error:
            raise Newer(f"{error}{self._earlier(number, ', or ')}") from None

    def _earlier(self, number: int, joint: str) -> str:
        """How to get the version before this one; empty where there is none."""
        before = next((other for other in self.versions() if other < number), None)
        if before is None:
            return ""
        return (
            f"{joint}go back to version {before} with: gcr update {self.path} --rollback, or read it with "
            f"Learner.load(…, version={before})"
        )

    def rollback(self) -> int:
        """Drop the newest version; returns the one that is current then."""
        with nullcontext() if self._locked else self.lock():
            there = self.versions()
            if len(there) < 2:
                only = f"its only version is {there[0]}" if there else "it has no version"
                raise BadInput(f"{self.path} cannot be rolled back: {only}")
            try:
                _read_version(self._folder(there[1]), there[1])
            except Damaged as error:
                raise Damaged(f"{error}, so version {there[0]} stays; restore the folder from a backup") from None
            try:
                self._drop(there[0])
            except OSError as error:
                raise self._unwritable(error) from None
            return there[1]

    @contextmanager
    def lock(self, wait: bool = False, on_wait: Callable[[str], None] | None = None) -> Iterator[None]:
        """Nobody else changes the state meanwhile. The lock goes when its process does, however that ends.

        Where another process has it: ``Busy``; or with ``wait``, a call of ``on_wait`` with who has it, and waiting.
        """
        try:
            import fcntl  # not on Windows
        except ImportError:
            self._make()
            yield
            return
        file = self.path / LOCK
        while True:
            made = self._make()
            try:
                opened = open(file, "a+")  # noqa: SIM115
            except FileNotFoundError:
                continue  # the folder went with a process that made nothing
            except OSError as error:
                raise self._unwritable(error) from None
            with opened:
                try:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    opened.seek(0)
                    who = f"process {opened.read().strip() or 'unknown'}"
                    if not wait:
                        raise Busy(f"{self.path} is being changed by {who}; try again when it has ended") from None
                    if on_wait:
                        on_wait(who)
                    fcntl.flock(opened, fcntl.LOCK_EX)
                if not _is_same(file, opened.fileno()):
                    continue  # whoever had it has ended, and taken the file away
                with suppress(OSError):  # a full disk: the process number is missing in the error of others
                    os.ftruncate(opened.fileno(), 0)
                    os.write(opened.fileno(), str(os.getpid()).encode())
                self._locked = True
                try:
                    yield
                finally:
                    self._locked = False
                    with suppress(OSError):  # the lock is the process's, not the file's
                        file.unlink(missing_ok=True)
                    if made:
                        with suppress(OSError):  # there is something in it now
                            self.path.rmdir()
                return

    def _folder(self, number: int) -> Path:
        return self.path / f"version-{number:04d}"

    def _make(self) -> bool:
        """Whether the folder was made."""
        if self.path.is_dir():
            return False
        self.versions()  # says so if it is a file
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise self._unwritable(error) from None
        return True

    def _unwritable(self, error: OSError) -> BadInput:
        return BadInput(
            f"cannot write to {self.path} ({error.strerror or error}); what was saved there before is unchanged; make "
            "room or fix its permissions, and save again"
        )

    def _drop(self, number: int) -> None:
        """By a rename first: a version never lacks a part of itself."""
        aside = self.path / f".version-{number:04d}.{os.getpid()}.old.part"
        self._folder(number).rename(aside)
        sync_folder(self.path)
        shutil.rmtree(aside, ignore_errors=True)

    def sweep(self) -> None:
        """What processes left that were killed; only called with the lock, so none of them is alive."""
        for left in self.path.glob(".version-*.part"):
            shutil.rmtree(left, ignore_errors=True)


def _write_version(folder: Path, number: int, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    from safetensors.torch import save

    plain = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    content = save(plain)
    values = {
        "format": FORMAT,
        "version": number,
        "gcr": gcr.__version__,
        "written": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "tensors": {"file": TENSORS, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()},
        "about": dict(about),
    }
    values = json.loads(json.dumps(values))  # as it will be read: keys are text, tuples are lists
    text = (json.dumps(values | {"sha256": _own_hash(values)}, indent=1) + "\n").encode()
    if len(text) > files.MAX_JSON_BYTES:
        raise BadInput(
            f"{ABOUT} must have at most {files.MAX_JSON_BYTES} bytes to be read again, got {len(text)}, most of them "
            f"in {_largest(about)}; shorten it, as the names of classes; what was saved there before is unchanged"
        )
    write_whole(folder / TENSORS, content)
    write_whole(folder / ABOUT, text)


def _largest(about: Any) -> str:
    """Where most of it is, as learner.classes."""
    places = []
    while isinstance(about, Mapping) and about:
        places.append(max(about, key=lambda name: len(json.dumps(about[name]))))
        about = about[places[-1]]
    return ".".join(places)


def _read_version(folder: Path, number: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    file = folder / ABOUT
    try:
        values = json.loads(_content(file, files.MAX_JSON_BYTES))
        form, sealed = values["format"], {key: value for key, value in values.items() if key != "sha256"}
        if isinstance(form, int) and form > FORMAT and values.get("sha256") in (None, _own_hash(sealed)):
            made, here = values.get("gcr"), gcr.__version__
            maker = f"gcr {made}" if made not in (None, here) else "a later gcr"
            raise Newer(
                f"{file} is of format {form}, made by {maker}; this gcr ({here}) reads up to format {FORMAT}: install "
                "the newer one"
            )
        claimed, about, of_tensors = values.pop("sha256"), values["about"], values["tensors"]["sha256"]
    except BadInput:
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise Damaged(f"{file} is damaged (not the JSON of a state)") from None
    if claimed != _own_hash(values):
        raise Damaged(f"{file} is damaged (its checksum is wrong)")
    if not isinstance(about, dict):
        raise Damaged(f"{file} is damaged (not the JSON of a state)")
    if values.get("version", number) != number:  # an older gcr did not write it
        raise Damaged(f"{folder} is a copy of version {values['version']!r:.20}")
    content = _content(folder / TENSORS)
    if hashlib.sha256(content).hexdigest() != of_tensors:
        raise Damaged(f"{folder / TENSORS} is damaged (its checksum is wrong)")
    try:
        return about, load(content)
    except (SafetensorError, ValueError) as error:
        raise Damaged(f"{folder / TENSORS} is damaged ({error})") from None


def _content(file: Path, most: int | None = None) -> bytes:
    try:
        return files.read_file(file, most)
    except files.Damaged as error:
        raise Damaged(f"{file} is damaged ({error.why})") from None
    except (FileNotFoundError, NotADirectoryError):
        raise Damaged(f"{file} is missing") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read ({error.strerror}); check its permissions and the disk") from None


def _own_hash(values: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _is_same(file: Path, number: int) -> bool:
    try:
        return os.stat(file).st_ino == os.fstat(number).st_ino
    except FileNotFoundError:
        return False
