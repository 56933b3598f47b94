"""Methods and selectors from files of one's own."""

import json
import os
import re
import sys
from textwrap import dedent

import pytest
import torch

from gcr import scenarios
from gcr.cli.main import run_cli
from gcr.experiments import plugins
from gcr.experiments.describe import setting_lines
from gcr.experiments.experiment import Experiment, compose
from gcr.files import read_json, write_json
from gcr.methods import METHODS
from gcr.runs.job import Execution, ended_by
from gcr.runs.load import load_run
from gcr.settings import BadInput
from gcr.training import train

HEAD = """
from dataclasses import dataclass
from typing import ClassVar

import torch

from gcr.methods import Er
from gcr.select.coreset import Coreset
from gcr.settings import Settings, setting

"""
METHOD = """
@dataclass(frozen=True)
class Louder(Er):
    name: ClassVar[str] = "{name}"
    summary: ClassVar[str] = "ER with a larger loss"

    factor: float = setting(2.0, "of the loss", low=0.0)

    def loss(self, net, new, replay, extras):
        loss = super().loss(net, new, replay, extras)
        return type(loss)(self.factor * loss.value, loss.logits, *loss[2:])
"""
SELECTOR = """
@dataclass(frozen=True)
class Newest(Settings):
    name: ClassVar[str] = "{name}"
    summary: ClassVar[str] = "the last rows of the pool"
    needs: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, pool, budget, draws):
        rows = torch.arange(max(0, len(pool) - budget), len(pool))
        return Coreset(rows, torch.ones(len(rows)))
"""
NETWORKS = """
def {name}(image_shape, n_classes):
    return torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(),
        torch.nn.Linear(32, n_classes),
    )


class Two(torch.nn.Module):
    def __init__(self, image_shape, n_classes):
        super().__init__()
        self.body, self.out = torch.nn.Linear(64, 16), torch.nn.Linear(16, n_classes)

    def forward(self, images):
        return self.out(torch.tanh(self.body(images.flatten(1))))


def helper(images):
    return images
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch, request):
    """Writes a file and names it; its module has a name that no other test's has."""
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(sys, "path", [*sys.path])
    made = []

    def write(*parts, name=None, names=("louder", "newest")):
        file = tmp_path / f"{name or f'{tmp_path.name}_{len(made)}'}.py"
        text = HEAD + "".join(part.replace("{name}", own) for part, own in zip(parts, names, strict=False))
        file.write_text(dedent(text))
        made.append(file)
        monkeypatch.setenv(plugins.VARIABLE, str(file))
        return file

    yield write
    for file in made:
        sys.modules.pop(file.stem, None)


def test_a_method_a_selector_and_a_network_train_in_worker_processes(plugin, tmp_path, monkeypatch, capsys):
    file = plugin(METHOD, SELECTOR, NETWORKS, names=("louder", "newest", "narrow"))
    monkeypatch.setenv(plugins.VARIABLE, "")
    out = tmp_path / "runs"
    command = ["run", "seq-digits", "--method", "louder", "--selector", "newest", "--set", "factor=3"]
    command += ["--model", "narrow"]
    words = ["--epochs", "1", "--seeds", "0-1", "--processes", "2", "--out", str(out)]
    assert run_cli(["--plugin", str(file), *command, *words]) == 0
    results = [json.loads(path.read_text()) for path in sorted(out.glob("*/*/result.json"))]
    assert [result["plugins"] for result in results] == [{file.name: plugins.sha256(file.read_bytes())}] * 2
    assert run_cli(["table", str(out)]) == 0
    assert "louder + newest" in capsys.readouterr().out
    for listed in ("methods", "selectors"):
        assert run_cli([listed]) == 0
    assert "ER with a larger loss" in capsys.readouterr().out
    file.write_text(file.read_text() + "\n")
    assert run_cli([*command, *words]) == 0  # this process has the code that trained
    plugins._read.cache_clear()
    assert run_cli([*command, *words]) == 2
    assert f"was trained with another {file.name}; choose another" in " ".join(capsys.readouterr().err.split())
    assert run_cli([*command, *words[:2], "--seeds", "7", *words[4:]]) == 2  # its code is not of its siblings
    assert f"was trained with another {file.name}; choose another" in " ".join(capsys.readouterr().err.split())
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert run_cli(["table", str(out)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert f"name the files of its method, selector or network: gcr --plugin {file.name}" in said


@pytest.mark.parametrize("network", ["narrow", "Two"])
def test_networks_of_ones_own_train_and_are_loaded(plugin, network, tmp_path, monkeypatch, capsys):
    file, out = plugin(NETWORKS, names=("narrow",)), tmp_path / "runs"
    command = ["run", "seq-digits", "--method", "gcr", "--model", network, "--epochs", "1", "--seeds", "0-1"]
    command += ["--processes", "1", "--out", str(out)]
    assert run_cli(command) == 0
    first, second = (load_run(folder) for folder in sorted(out.glob("*/seed-*")))
    digits = scenarios.load("seq-digits")
    right = (first.predict(digits.test.pixels) == digits.test.labels).double()
    by_task = [100 * right[digits.task_of_class[digits.test.labels] == task].mean() for task in range(5)]
    assert first.result["class_il"]["accuracy"] == pytest.approx(float(sum(by_task)) / 5)
    assert first.result["plugins"] == {file.name: plugins.sha256(file.read_bytes())}
    weights = [next(run.net.parameters()) for run in (first, second)]
    assert not torch.equal(*weights)  # by the seed
    capsys.readouterr()
    assert run_cli(["settings", "er"]) == 0
    assert "narrow, Two" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert run_cli(["table", str(out)]) == run_cli(["verify", str(out)]) == 0  # a table needs no network
    assert run_cli([*command, "--fresh"]) == 2
    assert f'unknown model "{network}"' in " ".join(capsys.readouterr().err.split())
    with pytest.raises(BadInput, match=f"gcr --plugin {file.name}"):
        load_run(out / "seq-digits-gcr-k100/seed-0")


def test_a_network_that_is_none_and_names_that_are_taken(plugin):
    plugin("def {name}(image_shape, n_classes):\n    return 3\n", names=("three",))
    experiment = compose("seq-digits", "er", overrides={"model": "three"})
    digits = scenarios.load("seq-digits")
    with pytest.raises(BadInput, match="net must be a Module, got int"):
        train(digits, experiment.make_net(digits), None, experiment.method, experiment.memory, 0)
    plugin("def {name}(image_shape, n_classes):\n    return None\n", names=("mlp",))
    with pytest.raises(BadInput, match=r"name of mlp in .* must be new"):
        compose("seq-digits", "er")


def both(monkeypatch, *files):
    monkeypatch.setenv(plugins.VARIABLE, os.pathsep.join(map(str, files)))


@pytest.mark.parametrize("part", [METHOD, SELECTOR, NETWORKS], ids=["method", "selector", "network"])
def test_a_name_that_two_files_have_is_refused_with_both(plugin, monkeypatch, part):
    first, second = plugin(part, names=("mine",)), plugin(part, "\n# another\n", names=("mine", ""))
    both(monkeypatch, first, second)
    again = f"which there is already in {re.escape(str(first))}; rename one, or leave out one of the files"
    with pytest.raises(BadInput, match=f"in {re.escape(str(second))} must be new, .* {again}"):
        plugins.own()


def test_a_module_of_the_name_in_another_folder_is_named(plugin, tmp_path, monkeypatch):
    first = plugin(METHOD)
    second = tmp_path / "results" / first.name
    second.parent.mkdir()
    second.write_text(first.read_text() + "# changed since\n")
    both(monkeypatch, first, second)
    with pytest.raises(BadInput, match=rf"got {first.name}; rename it \(the other is {re.escape(str(first))}\)"):
        plugins.own()


@pytest.mark.parametrize("name", [None, "renamed.py"])
def test_a_copy_of_a_file_is_that_file(plugin, tmp_path, monkeypatch, name):
    """As one given by its path, and kept next to the results."""
    helper = tmp_path / f"aid_{tmp_path.name}.py"
    helper.write_text("FACTOR = 2.0\n")
    file = plugin(METHOD, SELECTOR, NETWORKS + f"\nfrom {helper.stem} import FACTOR\n", names=("louder", "newest", "n"))
    alone = compose("seq-digits", "louder", selector="newest", overrides={"model": "n"})
    before = plugins.digests(alone.method, alone.memory, alone.model)
    copy = tmp_path / "results" / (name or file.name)
    copy.parent.mkdir()
    copy.write_bytes(file.read_bytes())
    both(monkeypatch, file, copy, file)
    twice = compose("seq-digits", "louder", selector="newest", overrides={"model": "n"})
    assert twice == alone
    assert plugins.digests(twice.method, twice.memory, twice.model) == before
    (copy.parent / helper.name).write_text("FACTOR = 3.0\n")  # not what the first imports
    plugins._read.cache_clear()
    with pytest.raises(BadInput, match="which there is already in" if name else "the name of another module"):
        plugins.own()


def test_settings_that_a_method_of_ones_own_ignores_are_refused(plugin):
    plugin(METHOD + "\n    unused = frozenset({'forward', 'sampling'})\n")
    for given in ({"forward": "separate"}, {"method.forward": "separate"}, {"sampling": "coin"}):
        with pytest.raises(BadInput, match=f"louder ignores {next(iter(given))}; leave it out"):
            compose("seq-digits", "louder", overrides=given)
    assert "method.forward" not in [key for key, *_ in setting_lines("seq-digits", "louder")]
    assert "method.factor" in [key for key, *_ in setting_lines("seq-digits", "louder")]


def test_a_file_that_a_plugin_imports_counts(plugin, tmp_path, monkeypatch):
    helper = tmp_path / f"help_{tmp_path.name}.py"
    helper.write_text("FACTOR = 2.0\n")
    file = plugin(METHOD, f"\nfrom {helper.stem} import FACTOR\nimport {helper.stem}\n")
    experiment = compose("seq-digits", "louder")
    assert set(plugins.digests(experiment.method, experiment.memory, experiment.model)) == {file.name, helper.name}
    found = {"plugins": plugins.digests(experiment.method, experiment.memory, experiment.model)}
    assert plugins.lacking(found) == ""
    monkeypatch.setenv(plugins.VARIABLE, "")
    assert plugins.lacking(found).startswith("name the files of its method, selector or network: gcr --plugin ")


@pytest.mark.parametrize(
    ("inside", "error"),
    [
        ("{}['hello']", "KeyError: 'hello'"),
        ("int('hello', base=99)", "ValueError: "),
        ("torch.nn.Linear(2, 2)(torch.ones(3))", "RuntimeError: "),
    ],
)
def test_an_error_in_a_plugin_has_its_file_and_line(inside, error, plugin, tmp_path, capsys):
    file = plugin(METHOD.replace("loss = super()", f"{inside}; loss = super()"))
    line = next(n for n, one in enumerate(file.read_text().splitlines(), 1) if inside in one)
    command = ["run", "seq-digits", "--method", "louder", "--model", "mlp", "--epochs", "1", "--out", str(tmp_path)]
    assert run_cli(command) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert error in said
    assert f" ({file.name}:{line})" in said


def test_an_error_elsewhere_has_the_file_and_line_of_the_innermost_call():
    def ended(fails):
        try:
            fails()
        except Exception as error:
            return ended_by(0, error).error

    assert re.fullmatch(r"JSONDecodeError: Expecting .* \(decoder\.py:\d+\)", ended(lambda: json.loads("hello")))
    assert ended(lambda: compose("seq-digits", "er", seed=-1)).endswith("got -1")


def test_files_of_which_only_constants_are_imported_count(plugin, tmp_path, capsys):
    own = f"own_{tmp_path.name}"
    helpers = {
        f"{own}_a.py": f"from {own}_b import *",
        f"{own}_b.py": f"def late():\n    from {own}.inner import deep",
        f"{own}/__init__.py": "",
        f"{own}/inner/__init__.py": "from ..json import SIDE",
        f"{own}/inner/deep.py": "not Python",
        f"{own}/json.py": "SIDE = 1",
        f"{own}/unused.py": "",
        "json.py": "",  # of Python is the one that is imported,
        "rich.py": "",  # and what is installed
    }
    for name, text in helpers.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    file = plugin(METHOD, f"\nimport json, rich\ndef late():\n    from {own}_a import SMOOTH\n")
    experiment = compose("seq-digits", "louder")
    found = plugins.digests(experiment.method, experiment.memory, experiment.model)
    assert set(found) == {file.name, *helpers} - {f"{own}/unused.py", "json.py", "rich.py"}
    command = ["run", "seq-digits", "--method", "louder", "--model", "mlp", "--epochs", "1", "--out", str(tmp_path)]
    assert run_cli(command) == 0
    (result,) = tmp_path.glob("*/seed-0/result.json")
    now = read_json(result)
    write_json(result, now | {"plugins": {file.name: found[file.name]}})  # as an earlier gcr
    assert run_cli(command) == 0
    write_json(result, now)
    (tmp_path / f"{own}/json.py").write_text("SIDE = 2")
    plugins._read.cache_clear()
    assert run_cli(command) == 2
    assert f"was trained with another {own}/json.py; choose another" in " ".join(capsys.readouterr().err.split())


def test_an_experiment_goes_through_json(plugin):
    file = plugin(METHOD, SELECTOR)
    experiment = compose("seq-digits", "louder", selector="newest", overrides={"factor": 3})
    assert experiment.method.factor == 3
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert plugins.methods()[: len(METHODS)] == METHODS
    assert list(plugins.digests(experiment.method, experiment.memory, experiment.model)) == [file.name]
    assert plugins.digests(compose("seq-digits", "finetune").method, None, "mlp") == {}


@pytest.mark.parametrize(
    ("parts", "options", "message"),
    [
        ([], {}, "must have a Method or a selector, a frozen dataclass"),
        ([METHOD], {"names": ["er"]}, 'name of Louder in .* must be new, got "er", which there is already'),
        (
            [METHOD.replace('    name: ClassVar[str] = "{name}"\n', "")],
            {},
            "Louder in .* must have a name and a summary",
        ),
        ([METHOD], {"name": "json"}, r"a plugin must not have the name of another module, got json\.py; rename it"),
        ([METHOD], {"name": "a-b"}, r"whose name is an identifier, got a-b\.py; rename it"),
        (
            [METHOD.replace("@dataclass(frozen=True)", "")],
            {},
            r"Louder in .* must be a frozen dataclass, got a plain class; write @dataclass\(frozen=True\) above it",
        ),
        (["raise OSError(3)"], {}, r"cannot be imported \(OSError: 3\)"),
    ],
    ids=["empty", "known", "unnamed", "module", "identifier", "plain", "broken"],
)
def test_files_that_are_no_plugins(plugin, parts, options, message):
    plugin(*parts, **options)
    with pytest.raises(BadInput, match=message):
        plugins.methods()


def test_a_file_that_is_not_there_and_ray(plugin, tmp_path, monkeypatch):
    from gcr.runs.engine import check_engine

    plugin(METHOD)
    with pytest.raises(BadInput, match="plugins are for the local engine"):
        check_engine(Execution(engine="ray"))
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "none.py"))
    with pytest.raises(BadInput, match=r"none\.py does not exist; name a Python file with --plugin or GCR_PLUGIN"):
        plugins.policies()


def test_a_field_that_runs_would_not_record_is_refused(plugin):
    plugin(METHOD + "\n    bare: float = 0.1\n", names=("louder",))
    with pytest.raises(BadInput, match=r"bare of Louder in .* must be declared as gcr\.settings\.setting"):
        compose("seq-digits", "er")
