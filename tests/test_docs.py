"""What the documents show runs as it stands, and the files they name are there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "results/README.md",
]


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.S)


@pytest.mark.parametrize("number", [0, 1])
def test_the_examples_of_selection(number, capsys):
    exec(compile(python_blocks(ROOT / "docs/selection.md")[number], "docs/selection.md", "exec"), {})
    assert capsys.readouterr().out


def test_the_example_of_settling():
    names = {}
    exec(compile(python_blocks(ROOT / "docs/methods.md")[0], "docs/methods.md", "exec"), names)
    assert names["net"][1].running_mean.abs().min() > 0


def test_the_example_of_the_papers_data(capsys):
    exec(compile(python_blocks(ROOT / "docs/tables.md")[0], "docs/tables.md", "exec"), {})
    assert "74.69 0.85 True" in capsys.readouterr().out


def test_the_training_example_of_the_readme(capsys):
    exec(compile(python_blocks(ROOT / "README.md")[0].replace("epochs=8", "epochs=1"), "README.md", "exec"), {})
    accuracy, forgetting = map(float, capsys.readouterr().out.split())
    assert 0 <= accuracy <= 100
    assert -100 <= forgetting <= 100


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
