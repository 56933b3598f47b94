"""Tables on terminals of any width: no number is ever cut."""

import io
import re
from functools import partial

import pytest
from rich.console import Console

from gcr import console
from gcr.experiments.formats import Entry, Sheet

LONG = "gcr + class-balanced (reading=text, normalise=weights, contrast=logits)"
HEADINGS = ["method", "K", "seeds", "class-IL accuracy", "class-IL any-time accuracy", "task-IL forgetting", "seconds"]
ROWS = [[LONG, "500", "15", "72.02 ± 0.32", "83.21 ± 0.63", "5.25 ± 0.22", "1623.8"]]
SHEET = Sheet("a table", HEADINGS, [[Entry(text) for text in row] for row in ROWS])


@pytest.fixture
def show(monkeypatch):
    def show(width):
        file = io.StringIO()
        terminal = {"force_terminal": True, "color_system": None} if width else {"force_terminal": False}
        monkeypatch.setattr(console, "Console", partial(Console, file=file, **terminal))
        monkeypatch.setattr(console, "out", console.Console(width=width))
        console.print_sheets([SHEET], ["a note"])
        return file.getvalue()

    return show


@pytest.mark.parametrize("width", [None, 40, 70, 80, 100, 120, 200])
def test_all_numbers_are_whole(show, width):
    text = show(width).replace("±", " ± ").replace("  ±  ", " ± ")
    for number in ROWS[0][3:6]:
        assert number in text
    assert "…" not in text
    assert "- a note" in text


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_it_fits(show, width):
    assert max(map(len, show(width).splitlines())) <= width


def test_names_and_headings_fold_before_anything_is_left_out(show):
    assert LONG in show(200)
    folded = show(110)
    assert LONG not in folded
    assert set(re.findall(r"[\w+=-]+", LONG)) <= set(re.findall(r"[\w+=-]+", folded))
    assert "seconds" in folded
    assert "seeds" in folded
    assert "seconds" not in show(70)


def test_outside_a_terminal_lines_are_as_long_as_they_need_to_be(show):
    assert LONG in show(None)
    assert max(map(len, show(None).splitlines())) > 120
