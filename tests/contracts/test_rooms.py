"""The house: a room imports only from the rooms below it; training needs torch, NumPy and safetensors alone."""

import ast
import subprocess
import sys
from functools import cache
from graphlib import TopologicalSorter

import pytest
from conftest import HANG_SECONDS, ROOT

ORDER = [
    "settings",
    "files",
    "select",
    "memory",
    "augment",
    "data",
    "models",
    "methods",
    "scenarios",
    "training",
    "learner",
    "integrations",
    "experiments",
    "runs",
    "analysis",
    "paper",
    "report",
    "classifier",
    "cli",
]
FILES = sorted((ROOT / "gcr").rglob("*.py"))


def room_of(file):
    first = file.relative_to(ROOT / "gcr").parts[0].removesuffix(".py")
    return first if first in ORDER else None  # __init__ and __main__ stand outside


@cache
def imports_of(file):
    return [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported_rooms(file):
    for node in imports_of(file):
        if isinstance(node, ast.ImportFrom) and node.module == "gcr":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("gcr."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            yield from (alias.name.split(".")[1] for alias in node.names if alias.name.startswith("gcr."))


@pytest.mark.parametrize("file", FILES, ids=[str(f.relative_to(ROOT)) for f in FILES])
def test_imports_point_downwards(file):
    room = room_of(file)
    if room is None:
        return
    for other in imported_rooms(file):
        assert other in ORDER, f"{file} imports gcr.{other}, which is no room"
        assert ORDER.index(other) <= ORDER.index(room), f"{room} must not import {other}"


@cache
def module_file(name):
    """The file of a dotted name; None where it is not a module of the package."""
    path = ROOT.joinpath(*name.split("."))
    return next((f for f in (path.with_suffix(".py"), path / "__init__.py") if f.exists()), None)


def imported_files(file):
    for node in imports_of(file):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gcr":
            for alias in node.names:
                yield module_file(f"{node.module}.{alias.name}") or module_file(node.module)
        elif isinstance(node, ast.Import):
            yield from (module_file(alias.name) for alias in node.names if alias.name.startswith("gcr."))


def test_no_file_imports_itself_by_a_circle():
    """Imports inside functions and for type checking count too. The root package only names what is elsewhere."""
    root = ROOT / "gcr/__init__.py"
    graph = {file: {f for f in imported_files(file) if f not in (None, root)} for file in FILES if file != root}
    TopologicalSorter(graph).prepare()  # raises CycleError


def test_select_depends_on_torch_alone():
    for file in (ROOT / "gcr/select").glob("*.py"):
        for node in imports_of(file):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                top = name.split(".")[0]
                assert top in ("torch", "gcr") or top in sys.stdlib_module_names, f"{file} imports {name}"


# One process for all four: each would import torch for seconds. Nothing that a part checks is imported before it.
PARTS = """
import sys, gcr
assert 'torch' not in sys.modules
gcr.Learner
assert not {'typer', 'rich', 'sklearn', 'jinja2', 'PIL'} & set(sys.modules), sys.modules.keys()

sys.modules |= dict.fromkeys(['sklearn', 'scipy', 'typer', 'rich', 'jinja2', 'PIL', 'pyarrow', 'matplotlib', 'pandas'])
assert gcr.methods.DerPlusPlus.name == 'der++'
for room in ('augment', 'memory', 'methods', 'models', 'scenarios', 'select', 'training'):
    assert room in dir(gcr)
    assert getattr(gcr, room).__name__ == f'gcr.{room}'

import torch
from gcr.augment import Views
from gcr.memory import Policy
from gcr.methods import Gcr
from gcr.scenarios import Images, Scenario, equal_tasks
from gcr.select import GradApprox
from gcr.models import build
from gcr.training import Sgd, Training, train
images = Images(torch.randint(256, (60, 1, 6, 6), dtype=torch.uint8), torch.arange(60) % 6)
made = Scenario('made', images, images, equal_tasks(6, 3), Views((0.5,), (0.25,)), tuple('abcdef'))
net = build('mlp', (1, 6, 6), 6, seed=0)
memory = Policy(buffer=12, selector=GradApprox())
assert train(made, net, Sgd(net.parameters(), lr=0.1), Gcr(), memory, 0, Training(epochs=1)).steps == 3

import gcr.runs.engine
assert not {'ray', 'mlflow', 'tensorboard', 'wandb'} & sys.modules.keys()
"""

NEWLY_IMPORTED = """
import sys
before = set(sys.modules)
import gcr
print(*sorted(set(sys.modules) - before))
"""


def python(code):
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=HANG_SECONDS)


def test_what_is_imported_when():
    """The learner needs no command line; rooms that the docs name need no import of their own; training runs without
    the other libraries; engines and trackers are imported when they are asked for."""
    done = python(PARTS)
    assert (done.returncode, done.stderr) == (0, "")


def test_importing_the_package_imports_nothing_else():
    done = python(NEWLY_IMPORTED)
    assert done.stderr == ""
    assert {name.split(".")[0] for name in done.stdout.split()} <= {"gcr", *sys.stdlib_module_names}
    assert "gcr" in done.stdout.split()
    assert not any(name.startswith("gcr.") for name in done.stdout.split())
