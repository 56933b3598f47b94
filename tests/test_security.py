"""What SECURITY.md promises of all of gcr: no file brings code in, none makes a reader crash, and no result carries a
name out."""

import ast
import gzip
import io
import os
import pickle
import platform
import re
import socket
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import ROOT
from fuzz_readers import READERS, attack
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr import files
from gcr.cli.main import run_cli
from gcr.data import archive, parquet_check, pictures
from gcr.experiments.experiment import compose
from gcr.report import live
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.settings import BadInput

SOURCES = sorted((ROOT / "gcr").rglob("*.py"))
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml", "runpy", "code"}
BUILTINS = {"eval", "exec", "compile", "__import__", "breakpoint"}
METHODS = {("torch", "load"), ("hub", "load"), ("jit", "load"), ("os", "system"), ("os", "popen")}
# Ray itself sends pickles between the nodes of a cluster, to those who have its token.
ADMITTED = {("runs/ray/engine.py", "pickle"), ("runs/ray/node.py", "pickle")}


def suspicious(tree):
    """Names of what could run code from a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ({alias.name.partition(".")[0] for alias in node.names} & LOADERS)
        elif isinstance(node, ast.ImportFrom):
            yield from ({(node.module or "").partition(".")[0]} & LOADERS)
        elif isinstance(node, ast.Call):
            function, options = node.func, {option.arg: option.value for option in node.keywords}
            if isinstance(function, ast.Name) and function.id in BUILTINS:
                yield function.id
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name | ast.Attribute):
                owner = getattr(function.value, "id", getattr(function.value, "attr", ""))
                if (owner, function.attr) in METHODS:
                    yield f"{owner}.{function.attr}"
            yield from {"shell", "allow_pickle"} & options.keys()


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_the_source_loads_no_code_from_files(file):
    found = set(suspicious(ast.parse(file.read_text(encoding="utf-8"))))
    name = file.relative_to(ROOT / "gcr").as_posix()
    assert {(name, what) for what in found} <= ADMITTED


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from yaml import load",
        "eval(x)",
        "torch.load(f)",
        "np.load(f, allow_pickle=True)",
        "run(shell=1)",
    ],
)
def test_what_loads_code_would_be_found(line):
    assert list(suspicious(ast.parse(line)))


class Touch:
    """Unpickled, it leaves a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def hostile(path):
    """The pickle alone, in old and new form, as an array of NumPy and as torch saves it."""
    array, saved = io.BytesIO(), io.BytesIO()
    np.save(array, np.array([Touch(path)], dtype=object), allow_pickle=True)
    torch.save({"weight": Touch(path)}, saved)
    return [pickle.dumps(Touch(path), 0), pickle.dumps(Touch(path), 4), array.getvalue(), saved.getvalue()]


def test_the_pickles_work(tmp_path):
    for number in (0, 1):
        pickle.loads(hostile(tmp_path / f"{number}")[number])
        assert (tmp_path / f"{number}").is_dir()


@pytest.mark.parametrize("name", READERS)
def test_no_reader_unpickles(name, tmp_path):
    """In the place of each file, by the ending of its name."""
    reader, sound, touched = READERS[name], sound_files(name), tmp_path / "touched"
    places = {os.path.basename(file).rpartition(".")[2]: file for file in sound}
    for place, file in places.items():
        for number, content in enumerate(hostile(touched)[: 1 if name in SLOW else None]):
            folder = tmp_path / f"{place}-{number}"
            for other, good in (sound | {file: content}).items():
                (folder / other).parent.mkdir(parents=True, exist_ok=True)
                (folder / other).write_bytes(reader.pack(other, good))
            with suppress(BadInput):
                reader.read(folder)
    assert not touched.exists()


def test_results_hold_no_names_of_the_machine_the_user_or_its_folders(tmp_path, monkeypatch):
    host, user = "host-of-secrets", "user-of-secrets"
    monkeypatch.setattr(socket, "gethostname", lambda: host)
    monkeypatch.setattr(platform, "node", lambda: host)
    for variable in ("USER", "LOGNAME", "USERNAME"):
        monkeypatch.setenv(variable, user)
    monkeypatch.setenv("HOSTNAME", host)
    home = tmp_path / "home-of-secrets"
    monkeypatch.setenv("HOME", str(home))
    out = home / "runs"
    experiment = compose("seq-digits", "er", overrides={"model": "mlp", "epochs": 1, "buffer": 20})
    job = Job(experiment, RunFolder.of(out, experiment))
    assert run_all([job], lambda event: None, Execution("cpu", processes=1)).failed == 0
    assert run_cli(["results", "pack", str(out), str(home / "packed.jsonl.gz")]) == 0
    assert run_cli(["report", str(out)]) == 0
    files = [file for file in home.rglob("*") if file.is_file()]
    assert {"result.json", "experiment.json", "memory.safetensors", "model.safetensors", "metrics.jsonl"} <= {
        file.name for file in files
    }
    for file in files:
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        for secret in (host, user, home.name, str(tmp_path), os.getcwd()):
            assert secret.encode() not in content, (file, secret)


def test_the_lock_has_the_versions_of_the_constraints():
    """And a hash and a licence for each; torch alone is left out."""
    pinned = {line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line}
    entries = re.findall(
        r"^(\S+==\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)  # (\S.*)$",
        (ROOT / "requirements.lock").read_text(),
        re.MULTILINE,
    )
    assert len(entries) == len(pinned) - 1
    assert {name for name, _, _ in entries} == {line for line in pinned if not line.startswith("torch==")}


def test_the_limits_are_those_that_security_md_names():
    text = (ROOT / "SECURITY.md").read_text()
    for limit in (
        f"at most {files.MAX_JSON_BYTES >> 20} MiB and {files.MAX_JSON_DEPTH} levels",
        f"{archive.MAX_MEMBERS:,} members, {archive.MAX_MEMBER_BYTES >> 30} GiB a member",
        f"{archive.MAX_TAR_BYTES >> 30} GiB a tar",
        f"Above {archive.RATIO_FROM >> 20} MiB, at most {archive.MAX_RATIO} times",
        f"{pictures.MAX_PIXELS // 10**6} million pixels; {pictures.MAX_DECODED // 10**6} million",
        f"{parquet_check.SECONDS} s of processor time and {parquet_check.MEMORY >> 20} MiB",
        f"{live.MAX_CONNECTIONS} connections, with {live.CONNECTION_SECONDS:g} s",
    ):
        assert limit in text


# --- Every reader of files, a few damaged files each; `make fuzz` tries them for minutes

SLOW = ("parquet", "table", "pictures", "runs", "packed", "packed-gz", *(name for name in READERS if READERS[name].odd))


@cache
def sound_files(name):
    return READERS[name].files()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused(name):
    """Any error but BadInput fails."""

    @settings(max_examples=3 if name in SLOW else 15, derandomize=True, database=None)
    @given(st.randoms(use_true_random=False))
    def try_one(rng):
        with tempfile.TemporaryDirectory() as folder:
            assert attack(READERS[name], sound_files(name), Path(folder), rng) in ("read", "refused")

    try_one()


@pytest.mark.parametrize("name", READERS)
def test_sound_files_are_read(name, tmp_path):
    """What is refused above is refused for its damage."""
    for file, content in sound_files(name).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(READERS[name].pack(file, content))
    READERS[name].read(tmp_path)
