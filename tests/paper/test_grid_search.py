"""Searching a grid: what wins, what is recorded, what is refused."""

import json
import math

import pytest
from made_runs import finish

from gcr.paper import grid
from gcr.paper.grid_search import (
    Search,
    check_grid,
    choose,
    paper_grid,
    read_grid,
    write_choice,
)
from gcr.settings import BadInput

GRID = {"lr": (0.01, 0.03), "batch": (16, 32)}


def make_search(**changes):
    about = {"scenario": "seq-digits", "regime": "offline", "method": "er", "buffer": 50, "grid": GRID}
    return Search(**(about | {"common": {"epochs": 1}, "seeds": (0, 1)} | changes))


def finish_all(search, out, class_il, task_il):
    """Every seed one below and one above the value of its point."""
    for point, of_class, of_task in zip(search.points, class_il, task_il, strict=True):
        for seed, around in zip(search.seeds, (-1, 1), strict=True):
            finish(search.trial(point, seed, out), of_class + around, of_task + around)


def test_the_last_setting_varies_fastest_and_trials_are_apart(tmp_path):
    search = make_search()
    assert [(p["lr"], p["batch"]) for p in search.points] == [(0.01, 16), (0.01, 32), (0.03, 16), (0.03, 32)]
    trials = search.trials(tmp_path)
    assert len({job.folder.path for job in trials}) == 8
    assert all(job.experiment.stream.validation == 0.1 for job in trials)
    assert all((tmp_path / "trials") in job.folder.path.parents for job in trials)
    final = search.final(search.points[0], 3, tmp_path)
    assert final.experiment.stream.validation == 0
    assert (tmp_path / "trials") not in final.folder.path.parents


def test_views_are_chosen_apart_and_the_first_of_equals_wins(tmp_path):
    search = make_search()
    finish_all(search, tmp_path, (70.0, 80.0, 80.0, 60.0), (95.0, 90.0, 91.0, 99.0))
    choice = choose(search, tmp_path)
    assert choice.values("class-il") == {"lr": 0.01, "batch": 32}  # before its equal (0.03, 16)
    assert choice.values("task-il") == {"lr": 0.03, "batch": 32}
    assert [point["mean"] for point in choice.ranking["class-il"]] == [80.0, 80.0, 70.0, 60.0]
    written = json.loads(write_choice(search, choice, tmp_path).read_text())
    assert written["chosen"]["class-il"] == {
        "values": {"lr": 0.01, "batch": 32},
        "mean": 80.0,
        "n": 2,
        "errors": [],
    }
    assert len(written["ranking"]["task-il"]) == 4
    assert written["grid"] == {"lr": [0.01, 0.03], "batch": [16, 32]}


def test_nothing_is_chosen_while_trials_are_missing(tmp_path):
    search = make_search()
    finish_all(search, tmp_path, (70.0,) * 4, (90.0,) * 4)
    trial = search.trials(tmp_path)[5]
    (trial.folder.path / "result.json").unlink()
    assert choose(search, tmp_path) is None


def test_a_point_with_a_failed_trial_has_lost(tmp_path):
    search = make_search()
    finish_all(search, tmp_path, (99.0, 80.0, 70.0, 60.0), (99.0, 80.0, 70.0, 60.0))
    trial = search.trials(tmp_path)[1]  # the second seed of the best
    (trial.folder.path / "result.json").unlink()
    trial.folder.fail("loss is NaN or inf")
    choice = choose(search, tmp_path)
    assert choice.values("class-il") == {"lr": 0.01, "batch": 32}
    last = choice.ranking["class-il"][-1]
    assert last["values"] == {"lr": 0.01, "batch": 16}
    assert last["mean"] is None
    assert last["errors"] == ["loss is NaN or inf"]


def test_all_failing_is_an_error(tmp_path):
    search = make_search()
    for trial in search.trials(tmp_path):
        trial.folder.path.mkdir(parents=True)
        trial.folder.fail("loss is NaN or inf")
    with pytest.raises(BadInput, match=r"all 4 points of the grid of er failed .*NaN or inf.*another --grid"):
        choose(search, tmp_path)


def test_a_trial_that_cannot_be_read_is_named(tmp_path):
    search = make_search()
    finish_all(search, tmp_path, (70.0,) * 4, (90.0,) * 4)
    broken = search.trials(tmp_path)[2].folder.path
    (broken / "result.json").write_text("{}")
    with pytest.raises(BadInput, match=f"{broken} cannot be read .*lacks class_il"):
        choose(search, tmp_path)


def test_rows_of_the_paper_that_take_anothers_grid():
    assert paper_grid("offline", "er + grad-approx") == grid("offline", "er")
    assert "gamma" not in paper_grid("offline", "gcr without supcon")
    search = make_search(method="gcr without supcon", grid={"alpha": (0.1, 0.5)})
    assert search.points == [{"alpha": 0.1, "gamma": 0.0}, {"alpha": 0.5, "gamma": 0.0}]
    assert math.prod(len(values) for values in paper_grid("offline", "gcr").values()) == 60


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = []", "lr must be a list with a value or more"),
        ("lr = 0.1", "lr must be a list with a value or more"),
        ("lr = [0.1, 0.1]", "lr must have different values"),
        ("", "is empty; give a list per setting"),
        ("lr = [", "is not TOML"),
        ("validation = [0.1]", "validation cannot be searched"),
    ],
)
def test_grids_that_are_refused(tmp_path, text, message):
    (tmp_path / "grid.toml").write_text(text)
    with pytest.raises(BadInput, match=message):
        read_grid(tmp_path / "grid.toml")
    with pytest.raises(BadInput, match="cannot be read"):
        read_grid(tmp_path / "nowhere.toml")


def test_an_unknown_setting_is_named(tmp_path):
    search = make_search(grid=check_grid({"learning": [0.1]}, "of mine"))
    with pytest.raises(BadInput, match='unknown setting of er "learning"'):
        search.trials(tmp_path)


def test_values_that_are_nearly_equal_are_trials_of_their_own(tmp_path):
    search = make_search(grid={"lr": (0.1234567, 0.1234568)})
    assert len({job.folder.path for job in search.trials(tmp_path)}) == 4
    with pytest.raises(BadInput, match="different values"):
        check_grid({"lr": [1, 1.0]}, "mine")
