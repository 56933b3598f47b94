"""The report in a real browser."""

import json
import re
import shutil
import subprocess

import pytest
import torch

from gcr.experiments.experiment import compose
from gcr.experiments.groups import read_runs
from gcr.experiments.report import write_report
from gcr.experiments.run_folder import RunFolder

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_browser = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium found; install it to test the report in a browser"
)

CHECK = """<script>
addEventListener('load', () => {
  const images = [...document.images];
  const box = element => element.getBoundingClientRect();
  document.body.dataset.check = JSON.stringify({
    rows: document.querySelectorAll('table.results tbody tr').length,
    images: images.length,
    broken: images.filter(image => image.complete && image.naturalWidth === 0).length,
    curves: [...document.querySelectorAll('polyline')].filter(line => box(line).width > 100).length,
    cells: document.querySelectorAll('table.map td').length,
    galleries: document.querySelectorAll('details').length,
    open: document.querySelectorAll('details[open]').length,
    wide: document.documentElement.scrollWidth > innerWidth,
    scripts: document.scripts.length,
    links: [...document.querySelectorAll('[src],[href]')].filter(e => !(e.src || e.href).startsWith('data:')).length,
  });
});
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    for method in ("finetune", "gcr", "joint"):
        for seed in range(2):
            experiment = compose("seq-digits", method, seed=seed, overrides={} if method != "gcr" else {"buffer": 20})
            folder = RunFolder.of(out, experiment, name=f"<b>{method}</b>".replace("/", "")[:20])
            folder.begin(experiment)
            matrix = [[50.0 + seed] * 5] * (1 if method == "joint" else 5)
            view = {"matrix": matrix, "accuracy": 50.0 + seed, "forgetting": None if method == "joint" else 10.0}
            memory = {
                "image": torch.randint(256, (20, 1, 8, 8), dtype=torch.uint8),
                "label": torch.arange(20) % 10,
                "weight": torch.linspace(0.5, 3, 20),
            }
            result = {
                "class_il": view,
                "task_il": view,
                "seconds": 2.0,
                "steps": 9,
                "device": "<i>cpu</i>",
                "versions": {"gcr": "1"},
            }
            folder.finish(result, memory if method == "gcr" else None)
    return write_report(read_runs(out).groups, out / "report.html", title="A <b>bold</b> title & more")


def browse(page, tmp_path, width=1200):
    checked = tmp_path / "checked.html"
    checked.write_text(page.read_text().replace("</body>", CHECK + "</body>"))
    command = [
        *(
            CHROMIUM,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
        ),
        *("--disable-background-networking", "--disable-component-update", f"--user-data-dir={tmp_path / 'profile'}"),
        *("--enable-logging=stderr", f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom"),
        checked.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'data-check="([^"]*)"', done.stdout)
    assert found, done.stderr[-2000:]
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(found[1].replace("&quot;", '"')), console


@needs_browser
@pytest.mark.parametrize("width", [1200, 500])
def test_report_opens_whole_and_without_errors(page, tmp_path, width):
    check, console = browse(page, tmp_path, width)
    assert console == []
    assert check == {
        "rows": 3,
        "images": 20,
        "broken": 0,
        "curves": 3,
        "cells": 2 * (25 + 25 + 5),
        "galleries": 1,
        "open": 1,
        "wide": False,
        "scripts": 1,  # the check's own
        "links": 0,  # nothing is fetched
    }


def test_text_is_escaped(page):
    text = page.read_text()
    assert "A &lt;b&gt;bold&lt;/b&gt; title &amp; more" in text
    assert "<b>" not in text
    assert "<i>" not in text
