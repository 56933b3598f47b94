"""Tables on terminals of any width: numbers are never cut."""

import io
import re
from functools import partial

import pytest
from rich.console import Console

from gcr.analysis.formats import Entry, Sheet
from gcr.cli import console

LONG = "gcr + class-balanced (variant=paper, normalise=weights, contrast=logits)"
HEADINGS = ["method", "K", "seeds", "class-IL any-time accuracy", "ours: mean ± SEM", "paper: mean ± spread", "seconds"]
ROWS = [[LONG, "500", "15", "72.02 ± 0.32", "83.21 ± 0.63", "72.15 ± 1.31", "1623.8"]]
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


def words(text):
    return set(re.findall(r"[\w+=-]+", text))


@pytest.mark.parametrize("width", [None, 40, 60, 80, 100, 120, 200])
def test_nothing_is_cut(show, width):
    text = show(width)
    for number in ROWS[0][3:6]:
        assert number in text or number.replace(" ± ", "±") in text
    assert "…" not in text
    assert "- a note" in text
    if width not in (40, 60):  # there words of the name are in pieces
        assert words(LONG) <= words(text)


@pytest.mark.parametrize("width", [80, 100, 120, 200])
def test_it_fits(show, width):
    assert max(map(len, show(width).splitlines())) <= width


def test_names_and_headings_fold_before_anything_is_left_out(show):
    assert LONG in show(200)
    folded = show(90)
    assert LONG not in folded
    assert "seconds" in folded
    assert "left out" not in folded
    assert "left out for lack of room: seconds\n" in show(80)
    assert "left out for lack of room: seconds, seeds\n" in show(70)


def test_where_leaving_out_does_not_help_all_is_shown(show):
    text = show(40)
    assert "seeds" in text
    assert "left out" not in text


def test_outside_a_terminal_lines_are_as_long_as_they_need_to_be(show):
    assert LONG in show(None)
    assert max(map(len, show(None).splitlines())) > 120


def test_a_long_table_looks_as_a_short_one(show, monkeypatch):
    short = show(None)
    monkeypatch.setattr(console, "MANY", 0)
    assert show(None) == short
