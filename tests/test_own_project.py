"""``benchmarks/own_project.py``: the page shows the results, the rivals do what their names say, features repeat."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from conftest import ROOT

pytest.importorskip("scipy")


@pytest.fixture(scope="module", autouse=True)
def benchmarks():
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield
    sys.path.remove(str(ROOT / "benchmarks"))


def test_the_table_equals_the_raw_results():
    command = [sys.executable, str(ROOT / "benchmarks/own_project.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_learner_has_the_same_seeds_on_every_set():
    rows = json.loads((ROOT / "results/own_project.json").read_text())["rows"]
    seeds = {}
    for row in rows:
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
