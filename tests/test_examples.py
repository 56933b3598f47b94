"""Every script in examples/ runs as it is and learns something."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"lightning_module": "lightning", "river_stream": "river"}  # not part of make setup


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_an_example_runs(script, tmp_path):
    if script.stem in NEEDS and importlib.util.find_spec(NEEDS[script.stem]) is None:
        pytest.skip(f"{NEEDS[script.stem]} is not installed")
    here = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, env=here)
    assert done.returncode == 0, done.stderr[-3000:]
    accuracy = re.search(r"accuracy (\d+\.\d)", done.stdout)
    assert accuracy is not None, done.stdout
    assert float(accuracy[1]) > 40  # chance is 10 to 25


def test_own_net_is_short():
    lines = (ROOT / "examples/own_net.py").read_text().splitlines()
    assert len(lines) <= 25


def test_a_new_method_is_short():
    text = (ROOT / "examples/new_method.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 45


@pytest.mark.parametrize("name", ["less_text", "patchcore"])
def test_examples_of_selection_are_short(name):
    text = (ROOT / f"examples/{name}.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) < 40
