"""``benchmarks/measured.py``: a file that several write. ``benchmarks/own_project.py``: the page shows the results, the
rivals do what their names say, features repeat."""

import json
import os
import subprocess
import sys

import measured
import numpy as np
import pytest
import torch
from conftest import ROOT

pytest.importorskip("scipy")


# --- evidence.py


def test_a_figure_differs_by_its_words_and_numbers_not_by_their_last_digits():
    from evidence import alike

    drawn = '<path id="m0123456789" d="M 12.004 -3.5"/>K = 500 (n = 15)<use href="#m0123456789"/>'
    assert alike(drawn, drawn.replace("12.004", "12.003").replace("m0123456789", "m9876543210"))
    for old, new in (("12.004", "12.204"), ("n = 15", "n = 14"), ("-3.5", "3.5"), ('"/>K', ' 1.5"/>K'), ("#", "")):
        assert not alike(drawn, drawn.replace(old, new)), (old, new)


# --- measured.py


@pytest.fixture
def file(tmp_path, monkeypatch):
    """Three measurements in a file of the test's own."""
    monkeypatch.setattr(measured, "FILE", tmp_path / "made/measured.json")
    for name in ("step", "busy", "faults"):
        measured.write(name, {"of": name, "values": [0.1, 1e-300, None]})
    return measured.FILE


def test_a_line_for_each_measurement_in_the_order_of_names():
    text = measured.FILE.read_text()
    values = json.loads(text)
    assert list(values) == sorted(values)
    assert [line.split('"')[1] for line in text.splitlines()[1:-1]] == list(values)
    assert all(measured.read(name) == value for name, value in values.items())


def test_writing_leaves_the_other_lines_as_they_are(file):
    spaced = file.read_text().replace('{"of":"busy",', '{ "of" : "busy" , ')
    file.write_text(spaced)
    measured.write("faults", [1, 2.5])
    measured.write("zero", {})
    before, after = spaced.splitlines(), file.read_text().splitlines()
    assert after == ["{", before[1], '"faults": [1,2.5],', f"{before[3]},", '"zero": {}', "}"]
    assert os.listdir(file.parent) == [file.name]


def test_processes_that_write_at_the_same_time(file):
    code = "import sys, measured; [measured.write(f'{sys.argv[1]}-{i}', i) for i in range(30)]"
    env = os.environ | {"PYTHONPATH": str(ROOT / "benchmarks"), "MEASURED": str(file)}
    writers = [subprocess.Popen([sys.executable, "-c", code, name], env=env) for name in ("a", "b")]
    assert [writer.wait() for writer in writers] == [0, 0]
    written = {f"{name}-{i}": i for name in ("a", "b") for i in range(30)}
    assert json.loads(file.read_text()).items() >= written.items()
    assert measured.read("busy")["of"] == "busy"


def test_a_name_that_was_not_measured(file):
    with pytest.raises(SystemExit, match=r"measured.json has no stepp; it has: busy, faults, step$"):
        measured.read("stepp")
    assert measured.read("stepp", []) == []


def test_measurements_of_another_file(file, tmp_path, monkeypatch, capsys):
    other = tmp_path / "other.json"
    other.write_text('{"busy": 1, "new": 2, "step": 3}')
    for words in (["busy", "new"], ["--as", "whole"], []):
        monkeypatch.setattr(sys, "argv", ["measured.py", *([str(other)] if words else []), *words])
        measured.main()
    found = {name: measured.read(name) for name in ("busy", "new", "whole")}
    assert found == {"busy": 1, "new": 2, "whole": {"busy": 1, "new": 2, "step": 3}}
    assert measured.read("step")["of"] == "step"
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[-5:]] == list(
        json.loads(file.read_text())
    )


# --- own_project.py


def test_the_table_equals_the_raw_results(monkeypatch, capsys):
    import own_project

    monkeypatch.setattr(sys, "argv", ["own_project.py", "--check"])
    with pytest.raises(SystemExit) as ended:
        own_project.main()
    assert ended.value.code == 0, capsys.readouterr().out


def test_every_learner_has_the_same_seeds_on_every_set():
    seeds = {}
    for row in measured.read("own-project")["rows"]:
        seeds.setdefault((row["data"], row["name"]), []).append(row["seed"])
    assert len(seeds) == 14
    assert all(found == [0, 1, 2, 3, 4] for found in seeds.values())


def made_data():
    """Ten classes, far apart."""
    from own_project_data import Data

    generator = torch.Generator().manual_seed(0)
    y = torch.arange(300) % 10
    x = 0.1 * torch.randn(300, 16, generator=generator) + torch.eye(10, 16)[y]
    return Data("made", 30, (x[:200], y[:200]), (x[200:], y[200:]))


def test_steps_part_the_classes_and_the_seed_decides_on_their_order():
    data = made_data()
    train, test = data.steps(3)
    classes = [sorted(set(y.tolist())) for _, y in train]
    assert sorted(label for pair in classes for label in pair) == list(range(10))
    assert [sorted(set(y.tolist())) for _, y in test] == classes
    assert classes != [sorted(set(y.tolist())) for _, y in data.steps(4)[0]]


def test_memory_keeps_what_fine_tuning_forgets(monkeypatch):
    import own_project_rivals as rivals
    from own_project_data import digits

    monkeypatch.setattr(rivals, "EPOCHS", 4)
    data = digits()
    rows = {name: rivals.run(name, rival, data, 7) for name, rival in rivals.RIVALS.items()}
    final = {name: np.mean(row["matrix"][-1]) for name, row in rows.items()}
    assert final["fine-tuning"] < 30
    for name in ("gcr.Learner", "reservoir by hand", "keep everything"):
        assert final[name] > 50, name
    assert rows["reservoir by hand"]["bytes"] == 100 * (64 * 4 + 8)
    assert rows["fine-tuning"]["bytes"] == rows["SGDClassifier.partial_fit"]["bytes"] == 0
    assert rows["keep everything"]["bytes"] == len(data.train[1]) * (64 * 4 + 8)


def test_features_repeat_and_tell_textures_apart(tmp_path):
    from own_project_data import Data, patch_features

    generator = torch.Generator().manual_seed(1)
    stripes = torch.arange(32) % 4 < 2
    across, down = stripes.expand(32, 32), stripes[:, None].expand(32, 32)
    y = torch.arange(60) % 2
    pixels = 100 * torch.where(y[:, None, None] == 0, across, down)[:, None].expand(-1, 3, -1, -1).float()
    images = (pixels + 100 * torch.rand(60, 3, 32, 32, generator=generator)).to(torch.uint8)
    x, x_test = patch_features(images[:40], images[40:], centroids=8)
    again, _ = patch_features(images[:40], images[40:], centroids=8)
    assert torch.equal(x, again)
    assert x.shape == (40, 32)
    assert x_test.shape == (20, 32)
    centres = torch.stack([x[y[:40] == label].mean(0) for label in (0, 1)])
    assert torch.equal(torch.cdist(x_test, centres).argmin(1), y[40:])
    data = Data("stripes", 5, (x, y[:40]), (x_test, y[40:]))
    data.save(tmp_path / "data.npz")
    assert torch.equal(Data.load(tmp_path / "data.npz").test[0], x_test)
