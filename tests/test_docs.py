"""Code blocks of the pages run, links resolve, tables equal the raw results, and pages keep to their limits."""

import itertools
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import typer

ROOT = Path(__file__).parents[1]
README, SITE = ROOT / "README.md", sorted((ROOT / "docs").glob("*.md"))
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *SITE, ROOT / "results/README.md"]


def names(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def python_blocks(page):
    """All but those right after a comment ``<!-- not run: why -->``."""
    return re.findall(r"(?<!-->\n)^```python\n(.*?)^```", page.read_text(), re.S | re.M)


WITH_CODE = [page for page in (README, *SITE) if python_blocks(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=names(WITH_CODE))
def test_code_blocks_run(page, tmp_path, monkeypatch):
    """Page by page, its blocks one after another in one namespace."""
    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
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
    from gcr.cli.main import app

    for words in commands(page):
        command = typer.main.get_command(app)
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


@pytest.mark.parametrize("page", [README, *SITE], ids=names([README, *SITE]))
def test_pages_are_short(page):
    lines = page.read_text().splitlines()
    assert len(lines) <= (120 if page == README else 150)
    prose = [line for line in lines if not line.startswith(("|", "!["))]
    assert max(map(len, prose)) <= 120


def test_the_navigation_has_every_page():
    config = (ROOT / "mkdocs.yml").read_text()
    assert sorted(re.findall(r"^  - [^:]+: (\S+\.md)$", config, re.M)) == [page.name for page in SITE]


def test_the_tables_equal_the_raw_results():
    pytest.importorskip("scipy")
    command = [sys.executable, str(ROOT / "benchmarks/evidence.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


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
