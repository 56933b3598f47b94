"""Pages and examples: code blocks, commands and scripts run, links resolve, tables and figures equal the raw results,
pages keep to their limits."""

import ast
import importlib
import importlib.util
import itertools
import re
import runpy
import shlex
import statistics
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import stdev

import measured
import pytest
import torch
from conftest import ROOT

from gcr import paper
from gcr.analysis.load import read_runs
from gcr.cli.main import parser, run_cli
from gcr.experiments.experiment import Experiment

README, SITE = ROOT / "README.md", sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *SITE, ROOT / "results/README.md"]


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def python_blocks(page):
    """All but those right after a comment ``<!-- not run: why -->``."""
    return re.findall(r"(?<!-->\n)^```python\n(.*?)^```", page.read_text(), re.S | re.M)


UPDATE = ROOT / "docs/update.md"  # its blocks and commands run together, below
WITH_CODE = [page for page in (README, *SITE) if python_blocks(page) and page != UPDATE]


@pytest.mark.parametrize("page", WITH_CODE, ids=names(WITH_CODE))
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """Page by page, its blocks one after another in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "__main__"}
    for number, block in enumerate(python_blocks(page)):
        exec(compile(block, f"{page.name}, block {number}", "exec", dont_inherit=True), namespace)


def commands(page):
    """The lines of console blocks that call gcr, without comments."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.S | re.M)
    lines = [shlex.split(line.replace(";", " ; "), comments=True) for block in blocks for line in block.splitlines()]
    calls = [
        list(call) for line in lines for last, call in itertools.groupby(line, lambda word: word == ";") if not last
    ]
    return [call[1:] for call in calls if call and call[0] == "gcr"]


WITH_COMMANDS = [page for page in (README, *SITE, ROOT / "results/README.md") if commands(page)]


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=names(WITH_COMMANDS))
def test_commands_and_options_exist(page):
    for words in commands(page):
        command = parser()
        words = words[2:] if words[0] == "--plugin" else words
        while hasattr(command, "commands"):
            command = command.commands[words.pop(0)]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        assert known >= {word for word in words if word.startswith("-")}, (command.name, words)


def test_few_blocks_are_left_out():
    assert sum(page.read_text().count("<!-- not run:") for page in PAGES) <= 3


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


def test_pages_named_in_code_exist():
    for folder in ("gcr", "benchmarks", "examples", "tests"):
        for file in (ROOT / folder).rglob("*.py"):
            for page in re.findall(r"\bdocs/[a-z-]+\.md\b", file.read_text()):
                assert (ROOT / page).exists(), f"{file}: {page}"


def test_files_of_python_named_in_code_exist():
    """By name, or with the last folders of their path."""
    folders = ("gcr", "benchmarks", "examples", "tests")
    files = [f"/{file.relative_to(ROOT)}" for folder in folders for file in (ROOT / folder).rglob("*.py")]
    for file in (ROOT / "gcr").rglob("*.py"):
        for name in re.findall(r"[\w./-]*\w\.py\b", file.read_text()):
            assert any(path.endswith(f"/{name}") for path in files), f"{file}: {name}"


@pytest.mark.parametrize("page", [README, *SITE], ids=names([README, *SITE]))
def test_pages_are_short(page):
    lines = page.read_text().splitlines()
    assert len(lines) <= (120 if page == README else 150)
    prose = [line for line in lines if not line.startswith(("|", "!["))]
    assert max(map(len, prose)) <= 120


def test_the_navigation_has_every_page():
    config = (ROOT / "mkdocs.yml").read_text()
    assert sorted(re.findall(r"^  - [^:]+: (\S+\.md)$", config, re.M)) == [page.name for page in SITE]


def test_the_tables_equal_the_raw_results(monkeypatch, capsys):
    pytest.importorskip("scipy")
    monkeypatch.setattr(sys, "argv", ["evidence.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module("evidence").main()
    assert ended.value.code == 0, capsys.readouterr().out


def test_counts_in_prose_are_those_of_the_tables():
    pytest.importorskip("scipy")
    runs, tables = importlib.import_module("evidence_runs"), importlib.import_module("evidence_tables")
    words = dict(enumerate(["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]))
    found = {}
    for metric in ("accuracy", "forgetting"):
        labels = [label for cell, label in tables.judged(metric) if cell.regime == "online" and cell.comparable]
        found[metric] = len(labels), *(sum(side in label for label in labels) for side in ("inside", "above", "below"))
    cells, inside, above, below = found["accuracy"]
    text = f"Of the paper's {cells} measured online accuracies, taken as exact, ours agree with {inside}, are above"
    labels = [of for cell, of in tables.judged("accuracy", welch=True) if cell.regime == "online" and cell.comparable]
    welch = [sum(side in label for label in labels) for side in ("inside", "above", "below")]
    other = f"With its ± as the deviation of 15 seeds: {welch[0]}, {welch[1]} and {welch[2]}."
    said = {"README.md": [f"{text} {above} and below {below}. {other}"]}
    starred = Counter(cell.method for cell, label in tables.judged("accuracy") if label == "above*")
    stars = [
        f"{name} {starred[of]}"
        for of, name in sorted(runs.NAMES.items(), key=lambda item: -starred[item[0]])
        if starred[of]
    ]
    cells, _, above, below = found["forgetting"]
    measured = {
        regime: (sum(cell.regime == regime and "+ " not in cell.method for cell in runs.cells("accuracy")),
                 len(paper.find(f"{regime}-accuracy", protocol="class-il")))
        for regime in ("online", "offline")
    }  # fmt: skip
    online, offline = measured["online"], measured["offline"]
    sources = [
        "source" in result
        for cell in runs.cells("accuracy")
        if cell.regime == "offline"
        for result in cell.group.results.values()
    ]
    said["docs/evidence.md"] = [
        f"{sources.count(False)} of {len(sources)} offline ones do not",
        f"Starred: {', '.join(stars)}.",
        f"below the paper's in {below} of {cells} cells and above in {words[above]}",
        f"Measured were {online[0]} of {online[1]} online and {words[offline[0]]} of {offline[1]} offline class-IL",
    ]
    assert not any("unnamed" in group.sources for group in runs.read("online").values())
    said["docs/online.md"] = ["All runs at equal K name the source that computed them"]
    said["results/README.md"] = ["All runs of `online` name their `source`"]
    table = tables.others("online", "accuracy")
    differences = table.count("±") - len(table.splitlines()[2:])  # the first of a row is a mean
    said["docs/online.md"].append(f"and {table.count('*')} of {differences} differences are")
    online = [cell.group for cell in runs.cells("accuracy") if cell.regime == "online"]
    noisier = sum(stdev(of.by_seed("accuracy").values()) > stdev(of.by_seed("anytime").values()) for of in online)
    said["docs/choose.md"] = [f"varies more between seeds in {noisier} of {len(online)} cells of the paper"]
    for page, texts in said.items():
        prose = " ".join((ROOT / page).read_text().split())
        assert [text for text in texts if text not in prose] == [], page


def test_runs_of_gcr_plus_are_those_that_were_announced():
    """No run under another name, seed or setting than the scripts have."""
    cells, read = announced("gcr_plus_runs")
    named = [*cells, *announced("evidence_due")[0]]
    for file in {cell.file for cell in cells if (ROOT / "results" / f"{cell.file}.jsonl.gz").exists()}:
        assert read(file).keys() <= {cell.name for cell in named if cell.file == file}
    check_runs(cells, read)


def test_further_runs_of_the_evidence_have_the_settings_of_their_cells():
    check_runs(*announced("evidence_due"))


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_what_benchmarks_import_from_here_is_there(script):
    """Also inside of functions. Scripts take minutes, so tests run few of them."""
    pytest.importorskip("scipy")
    pytest.importorskip("matplotlib")
    own = {"gcr", "reference", *(path.stem for path in (ROOT / "benchmarks").glob("*.py"))}
    for node in ast.walk(ast.parse(script.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] in own:
            module, lacking = None, ""
            try:
                module = importlib.import_module(node.module)
            except ModuleNotFoundError as error:
                lacking = error.name.split(".")[0]
            assert lacking not in own  # a peer's library may be
            for alias in node.names:
                assert lacking or hasattr(module, alias.name) or importlib.util.find_spec(f"{node.module}.{alias.name}")


def announced(script):
    """The cells of a script, and how files of runs are read."""
    pytest.importorskip("scipy")
    module = importlib.import_module(script)
    cells = list((module.announced if script == "gcr_plus_runs" else module.due)())
    assert len(cells) == len({(cell.file, cell.name) for cell in cells})
    return cells, importlib.import_module("evidence_runs").read


def check_runs(cells, read):
    found = 0
    for cell in cells:
        if not (ROOT / "results" / f"{cell.file}.jsonl.gz").exists() or cell.name not in read(cell.file):
            continue
        group = read(cell.file)[cell.name]
        assert group.results.keys() <= set(cell.seeds)
        experiment = Experiment.from_dict(group.experiment)
        assert experiment == cell.experiment(experiment.seed)
        found += len(group.results)
    assert found > 0


def test_the_site_builds(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = list((tmp_path / "site").rglob("*.html"))
    assert pages
    for page in pages:  # nothing is loaded from elsewhere
        foreign = re.findall(r"<(?:script|link|img)[^>]+(?:src|href)=\"?https?://[^\s>]+", page.read_text())
        assert not foreign, page


# --- The commands of docs/update.md, run in their order


def test_the_commands_of_the_page(tmp_path, monkeypatch, capsys):
    page = UPDATE.read_text()
    monkeypatch.chdir(tmp_path)
    outputs, namespace = [], {}
    for language, block in re.findall(r"^```(python|console)\n(.*?)^```", page, re.S | re.M):
        if language == "python":
            exec(compile(block, "update.md", "exec", dont_inherit=True), namespace)
            assert not capsys.readouterr().out or namespace["classifier"].classes == [*"0123456789"]
            continue
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            assert words[0] == "gcr"
            assert run_cli(words[1:]) == 0, line
            outputs.append(capsys.readouterr().out)
    assert Path("predictions.csv").read_text().startswith("file,class,probability\nmonday-3/7/0.png,7,")
    assert namespace["classifier"].predict("monday-3/7/0.png") == ["7"]
    assert any(text.startswith("page: state/inspect.html") for text in outputs)
    assert not Path("state/inspect.html").exists()  # it showed what was erased
    (shown,) = re.findall(r"^```text\n(.*?)^```", page, re.S | re.M)
    classes = [re.match(r"│ (\w[\w, ]*)", line) for line in shown.splitlines()]
    assert [found[1].strip() for found in classes if found] == [*"0123456", "old, mean"]
    assert outputs[-3:-1] == ["state is at version 2 again\n", "state: 1 checked, 0 damaged\n"]
    assert re.search(
        r"^state: version 3, erased \d+ examples to replay and \d+ held out, of 100 given", outputs[-1], re.M
    )


# --- Figures in the README and the docs equal what the files under results/ give


def cells(page):
    """The rows of all tables of a page, terminal or Markdown, as lists of cells."""
    lines = [line.strip() for line in (ROOT / page).read_text().splitlines()]
    rows = [line[1:-1].replace("│", "|").split("|") for line in lines if line.startswith(("│", "|"))]
    return [[cell.strip().strip("*") for cell in row] for row in rows]


def test_every_results_file_can_be_read():
    runs = read_runs(ROOT / "results")
    assert not runs.unreadable
    assert sum(len(group.seeds) for group in runs.groups) > 3000


def test_results_stay_small():
    files = [file for file in (ROOT / "results").rglob("*") if file.is_file() and file.name != "report.html"]
    assert len(files) <= 30
    assert sum(file.stat().st_size for file in files) <= 8_000_000


def test_the_avalanche_table():
    shown = cells("docs/frameworks.md")
    for row in measured.read("avalanche")["rows"]:
        mean, error = statistics.mean(row["accuracies"]), statistics.stdev(row["accuracies"])
        accuracy = f"{mean:.2f} ± {error / len(row['accuracies']) ** 0.5:.2f}"
        assert [row["plugin"], row["about"], accuracy, f"{row['seconds']:.1f}"] in shown


# --- Every script in examples/ runs as it is and learns something

SCRIPTS = sorted((ROOT / "examples").glob("*.py"))
NEEDS = {"lightning_module": "lightning", "river_stream": "river"}  # not part of make setup


def skip_without_library(script):
    if script.stem in NEEDS and importlib.util.find_spec(NEEDS[script.stem]) is None:
        pytest.skip(f"{NEEDS[script.stem]} is not installed")


def check_accuracy(script, printed):
    accuracy = re.search(r"accuracy (\d+\.\d)", printed)
    assert accuracy is not None, printed
    assert float(accuracy[1]) > (80 if script.stem == "patchcore" else 40)  # chance is 50 there, else 10 to 25


@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_an_example_runs(script, tmp_path, monkeypatch, capsys):
    """In this process: a new one takes seconds to import torch."""
    skip_without_library(script)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(script)])
    with torch.random.fork_rng(devices=[]):
        runpy.run_path(str(script), run_name="__main__")
    check_accuracy(script, capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=[script.stem for script in SCRIPTS])
def test_an_example_runs_alone(script, tmp_path):
    """In a process of its own, where nothing has been imported yet."""
    skip_without_library(script)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    check_accuracy(script, done.stdout)


def test_own_net_is_short():
    lines = (ROOT / "examples/own_net.py").read_text().splitlines()
    assert len(lines) <= 25


def test_a_new_method_is_short():
    text = (ROOT / "examples/new_method.py").read_text()
    assert len([line for line in text.splitlines() if line.strip()]) <= 45


@pytest.mark.parametrize("name", ["less_text", "patchcore"])
def test_examples_of_selection_are_short(name):
    assert len((ROOT / f"examples/{name}.py").read_text().splitlines()) < 40
