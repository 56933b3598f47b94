"""The wheel, installed with its core dependencies alone.

Nothing is downloaded. The distributions that the wheel's core requirements name, and theirs in turn, are linked from
the environment of these tests into a new one. Extras are therefore missing there, as after ``pip install <wheel>``.
"""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from conftest import HANG_SECONDS, ROOT
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow


def call(*command, cwd):
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=env, capture_output=True, text=True, timeout=HANG_SECONDS
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def core_distributions(requirements):
    """All that the requirements need, extras aside."""
    found, waiting = {}, list(requirements)
    while waiting:
        needed = Requirement(waiting.pop())
        if needed.name in found or (needed.marker and not needed.marker.evaluate({"extra": ""})):
            continue
        found[needed.name] = metadata.distribution(needed.name)
        waiting += found[needed.name].requires or []
    return found.values()


def link(distribution, site_packages):
    for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
        target = site_packages / top
        if not target.exists():
            target.symlink_to(distribution.locate_file(top))


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel, made from a copy, so that no build files are left in the repository."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "gcr", source / "gcr", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = (sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation", "--no-index")
    call(*pip, "--wheel-dir", out, cwd=source)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """The ``bin`` of a new environment."""
    folder = tmp_path_factory.mktemp("clean")
    call(sys.executable, "-m", "venv", folder / "venv", cwd=folder)
    python = folder / "venv/bin/python"
    call(python, "-m", "pip", "install", "--no-index", "--no-deps", built, cwd=folder)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site_packages = Path(call(python, "-c", where, cwd=folder).strip())
    (about,) = metadata.distributions(name="gradient-coreset-replay", path=[str(site_packages)])
    for distribution in core_distributions(about.requires):
        link(distribution, site_packages)
    return python.parent


def test_the_wheel_has_the_version_and_all_files(built):
    import gcr

    assert built.name == f"gradient_coreset_replay-{gcr.__version__}-py3-none-any.whl"
    names = set(subprocess.check_output([sys.executable, "-m", "zipfile", "-l", built], text=True).split())
    for file in (ROOT / "gcr").rglob("*"):
        if file.is_file() and "__pycache__" not in file.parts:
            assert str(file.relative_to(ROOT)) in names


def test_extras_are_missing(installed, tmp_path):
    code = "import importlib.util as u; print([n for n in ('ray', 'mlflow', 'pyarrow', 'pytest') if u.find_spec(n)])"
    assert call(installed / "python", "-c", code, cwd=tmp_path) == "[]\n"


def test_help_and_lists(installed, tmp_path):
    assert "demo" in call(installed / "python", "-m", "gcr", "--help", cwd=tmp_path)
    assert re.search(r"^gcr ", call(installed / "gcr", "methods", cwd=tmp_path), re.M)


def test_demo(installed, tmp_path):
    out = call(installed / "gcr", "demo", "--out", "runs", cwd=tmp_path)
    for method in ("finetune", "er", "der++", "gcr", "joint"):
        assert f"│ {method} " in out
    assert (tmp_path / "runs/report.html").stat().st_size > 100_000
