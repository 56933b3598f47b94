"""The report in a real browser: whole, quiet, sorted, filtered, escaped, printed, and useful without its script."""

from types import SimpleNamespace

import numpy as np
import pytest
from chromium import CHROMIUM, Browser
from made_runs import SELECTION, experiment_of, put_run, square
from PIL import Image

from gcr.analysis.load import read_runs
from gcr.cli.main import run_cli
from gcr.report import gallery, write_report

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium found; install it to test the report in a browser"
)
EVIL = "<img src=x onerror=alert(1)>"
SHOWN = "[...document.querySelectorAll('table.results tbody tr')].filter(row => row.offsetParent)"
FIRST_CELLS = f"{SHOWN}.map(row => row.cells[0].textContent)"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as browser:
        yield browser


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Three sections: offline with two buffer sizes, and online."""
    out = tmp_path_factory.mktemp("report")
    accuracies = {"finetune": 9.0, "er": 70.5, "gcr": 100.0, "joint": 80.0}
    for method, accuracy in accuracies.items():
        for seed in range(2):
            matrix = square(accuracy - seed)[: 1 if method == "joint" else 5]
            more = {"memory": True, "selections": [SELECTION, SELECTION]} if method == "gcr" else {}
            put_run(out, experiment_of(method, seed), matrix, memory_bytes=10, peak_bytes=20, **more)
    put_run(out, experiment_of("er", buffer=50), square(75.0))
    put_run(out, experiment_of("er", online=True, stream=300), square(40.0))
    return write_report(read_runs(out).groups, out / "report.html")


@pytest.fixture(scope="module")
def evil_page(tmp_path_factory):
    """All that comes from files says something in HTML; the folders' names make up "</script>"."""
    out = tmp_path_factory.mktemp("evil")
    for folder in ("a<", "b<"):
        name = f"{folder}/script>{EVIL}"
        selection = SELECTION | {"note": EVIL, "kept": EVIL}
        more = {"device": EVIL, "versions": {EVIL: EVIL}, "memory": True, "selections": [selection]}
        put_run(out, experiment_of("gcr"), square(50.0), name=name, **more)
    (out / EVIL / "seed-0").mkdir(parents=True)
    for file in ("experiment.json", "result.json"):
        (out / EVIL / "seed-0" / file).write_text("{}")
    runs = read_runs(out)
    with pytest.MonkeyPatch.context() as patch:
        named = SimpleNamespace(recorded=lambda _: SimpleNamespace(class_names=(EVIL,) * 10))
        patch.setattr(gallery, "scenarios", named)
        return write_report(runs.groups, out / "report.html", title=f"A {EVIL} title", unreadable=runs.unreadable)


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1200, 400])
def test_opens_whole_quiet_and_alone(browser, page, width, dark):
    browser.look(width, dark=dark)
    browser.open(page.as_uri())
    assert browser.problems() == []
    assert [url for url in browser.requests() if not url.startswith("data:")] == [page.as_uri()]
    assert browser.do("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    seen = browser.do("""({
        rows: document.querySelectorAll('table.results tbody tr').length,
        sections: document.querySelectorAll('section.group').length,
        links: document.querySelectorAll('nav a').length,
        images: document.images.length,
        broken: [...document.images].filter(image => image.complete && image.naturalWidth === 0).length,
        curves: document.querySelectorAll('.curve').length,
        cells: document.querySelectorAll('table.map td').length,
        selections: document.querySelectorAll('details.buffer tbody tr').length,
    })""")
    # finetune and joint stand in both offline sections: 4 + 3 + 1 groups, each in two protocols
    assert seen == {
        "rows": 6,
        "sections": 3,
        "links": 3,
        "images": 20,
        "broken": 0,
        "curves": 2 * 8,
        "cells": 2 * (25 * 6 + 5 * 2),
        "selections": 2,
    }
    shades = browser.do(
        "[...document.querySelectorAll('table.map td')].map(td => getComputedStyle(td).backgroundColor)"
    )
    assert len(set(shades)) > 4  # by the value of the cell
    background = browser.do("getComputedStyle(document.body).backgroundColor")
    assert (sum(int(part) for part in background[4:-1].split(",")) < 200) is dark


def head(column):
    return f"[...document.querySelectorAll('table.results th')].find(th => th.textContent === '{column}')"


def test_a_click_sorts_by_the_number_and_another_reverses(browser, page):
    browser.look()
    browser.open(page.as_uri())
    column = head("class-IL accuracy")
    browser.do(f"{column}.querySelector('button').click()")
    assert browser.do(FIRST_CELLS) == ["finetune", "er", "er", "er", "joint", "gcr"]  # 9 before 40, 100 last
    assert browser.do(f"{column}.ariaSort") == "ascending"
    browser.do(f"{column}.querySelector('button').click()")
    assert browser.do(FIRST_CELLS) == ["gcr", "joint", "er", "er", "er", "finetune"]
    assert browser.do(f"{column}.ariaSort") == "descending"
    assert browser.do("document.querySelectorAll('[aria-sort]').length") == 1


def test_what_is_missing_comes_last_either_way(browser, page):
    browser.look()
    browser.open(page.as_uri())
    for _ in range(2):
        browser.do(f"{head('K')}.querySelector('button').click()")
        assert browser.do(FIRST_CELLS)[-2:] == ["finetune", "joint"]
    assert browser.do(f"{SHOWN}.map(row => row.cells[2].textContent)")[0] == "50"


def test_sorting_by_keyboard(browser, page):
    browser.look()
    browser.open(page.as_uri())
    browser.do(f"{head('method')}.querySelector('button').focus()")
    browser.key("Enter")
    assert browser.do(FIRST_CELLS) == ["er", "er", "er", "finetune", "gcr", "joint"]


def choose(name, value):
    return f"""(() => {{ const control = document.querySelector('#filters [name={name}]');
        control.value = '{value}'; control.dispatchEvent(new Event('input', {{ bubbles: true }})); }})()"""


def test_filters_hide_rows_curves_and_sections(browser, page):
    browser.look()
    browser.open(page.as_uri())
    sections = "[...document.querySelectorAll('section.group')].filter(s => s.offsetParent).length"
    curves = "[...document.querySelectorAll('.curve')].filter(c => c.getBoundingClientRect().width).length"
    assert browser.do("[...document.querySelectorAll('#filters select')].map(s => s.name)") == [
        "regime",  # there is but one scenario
        "buffer",
        "method",
    ]
    browser.do(choose("method", "er"))
    assert browser.do(FIRST_CELLS) == ["er"] * 3
    assert (browser.do(sections), browser.do(curves)) == (3, 6)
    browser.do(choose("regime", "online"))
    assert browser.do(FIRST_CELLS) == ["er"]
    assert browser.do(sections) == 1
    assert browser.do("[...document.querySelectorAll('nav li')].filter(li => li.offsetParent).length") == 1
    assert browser.do("document.querySelector('#filters output').textContent") == "1 of 6 rows"
    browser.do("document.querySelector('#filters [type=reset]').click()")
    assert len(browser.do(FIRST_CELLS)) == 6
    browser.do(choose("text", "Digits GC"))
    assert browser.do(FIRST_CELLS) == ["gcr"]
    browser.do(choose("text", "no such thing"))
    assert browser.do(FIRST_CELLS) == []
    assert browser.problems() == []


def test_a_curve_under_the_pointer_stands_out(browser, page):
    browser.look()
    browser.open(page.as_uri())
    legend = "[...document.querySelectorAll('.legend li')].find(li => li.textContent === 'gcr')"
    browser.do(f"{legend}.dispatchEvent(new PointerEvent('pointerover', {{ bubbles: true }}))")
    assert browser.do("document.querySelectorAll('.dim .curve.lit').length") == 2  # in both protocols


def test_text_stays_text(browser, evil_page):
    browser.look()
    browser.open(evil_page.as_uri())
    assert browser.problems() == []
    assert not [event for event in browser.events if event.get("method") == "Page.javascriptDialogOpening"]
    assert browser.do("[...document.querySelectorAll('img')].every(image => image.src.startsWith('data:image/png'))")
    assert browser.do("document.scripts.length") == 2  # the data and the page's own
    assert browser.do("document.title") == f"A {EVIL} title"
    assert sorted(browser.do(FIRST_CELLS)) == [f"gcr (folder={name}</script>{EVIL})" for name in "ab"]
    assert browser.do("document.querySelector('.pictures img').alt") == EVIL
    browser.do(choose("text", "a</script>"))
    assert len(browser.do(FIRST_CELLS)) == 1
    browser.look(400)
    assert browser.do("document.documentElement.scrollWidth <= document.documentElement.clientWidth")


def test_text_of_a_classifier_stays_text(browser, tmp_path):
    """Its name, its classes, and the folder that they came from."""
    classes = [EVIL, '" onmouseover="alert(1)', "'; alert(1);", "<style>*{display:none}"]
    for label, name in enumerate(classes):
        (tmp_path / EVIL / name).mkdir(parents=True)
        for number in range(5):
            pixels = np.random.default_rng((label, number)).integers(0, 256, (8, 8, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / EVIL / name / f"{number}.png")
    state, page = str(tmp_path / f"state {EVIL}"), tmp_path / "inspect.html"
    assert run_cli(["update", state, str(tmp_path / EVIL), "--epochs", "1"]) == 0
    assert run_cli(["inspect", state, "--page", str(page)]) == 0
    browser.look()
    browser.open(page.as_uri())
    assert browser.problems() == []
    assert browser.do("document.title") == f"state {EVIL}"
    assert browser.do("document.scripts.length + document.querySelectorAll('style').length") == 1
    assert browser.do("[...document.querySelectorAll('img')].every(image => image.src.startsWith('data:image/png'))")
    assert browser.do("[...document.querySelectorAll('*')].every(one => !one.onmouseover && !one.onerror)")
    cells = browser.do("[...document.querySelectorAll('table.bars tbody tr')].map(row => row.cells[0].textContent)")
    assert sorted(cells) == sorted(classes)


def test_what_got_into_a_page_would_not_run(browser, tmp_path):
    """The policy stands behind the escaping: scripts, styles and requests that are not the page's own are blocked."""
    put_run(tmp_path, experiment_of("er"), square(50.0))
    page = write_report(read_runs(tmp_path).groups, tmp_path / "report.html")
    added = "<script>document.title = 'ran'</script><p id=p style='color: red' onclick='x()'>a</p><img src=http://127.0.0.1:9/x>"
    page.write_text(page.read_text().replace("<main>", f"<main>{added}", 1))
    browser.look()
    browser.open(page.as_uri())
    assert browser.do("document.title") != "ran"
    assert browser.do("getComputedStyle(document.getElementById('p')).color") != "rgb(255, 0, 0)"
    texts = " ".join(problem["entry"]["text"] for problem in browser.problems() if "entry" in problem)
    for directive in ("script-src", "style-src", "img-src"):
        assert f"{directive} " in texts


def test_all_is_there_without_the_script(browser, page):
    browser.look(400)
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(page.as_uri())
        assert browser.do("document.querySelector('#filters').offsetParent === null")
        assert browser.do("document.querySelectorAll('th button').length") == 0
        assert browser.do(f"{SHOWN}.length") == 6
        assert browser.do("document.querySelectorAll('.curve').length") == 16
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


def test_print_hides_controls_and_clips_nothing(browser, page, tmp_path):
    browser.look(700, dark=True, media="print")
    browser.open(page.as_uri())
    assert browser.do("getComputedStyle(document.querySelector('#filters')).display") == "none"
    assert browser.do("""[...document.querySelectorAll('.scroll')].filter(box => box.offsetParent)
        .every(box => getComputedStyle(box).overflowX === 'visible' && box.scrollWidth <= innerWidth)""")
    assert browser.do("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"  # also at night
    browser.pdf(tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")
