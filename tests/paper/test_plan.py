"""A table as a list of runs: names, sharing, filters, quick looks; grids searched for it."""

import json
import math
from dataclasses import replace

import pytest
from made_runs import count_reading, finish, put_run

from gcr import paper
from gcr.analysis.load import group_runs
from gcr.cli.main import run_cli
from gcr.files import json_bytes
from gcr.paper import grid
from gcr.paper.compare_to_paper import compare, sheets
from gcr.paper.grid_search import (
    Search,
    check_grid,
    choose,
    paper_grid,
    read_grid,
    write_choice,
)
from gcr.paper.plan import Request, make_plan, unfinished
from gcr.settings import BadInput

ISSUED = (
    "offline-accuracy",
    "offline-forgetting",
    "more-tasks",
    "online-accuracy",
    "online-forgetting",
    "ablation",
    "ocs",
    "er-gcr",
    "imagenet1k",
    "main-figure",
    "demo-table",
)


def paths(plan):
    return {job.folder.path for job in plan.jobs()}


@pytest.mark.parametrize("name", ISSUED)
def test_every_table_has_a_plan(tmp_path, name):
    plan = make_plan(Request(name), tmp_path)
    assert plan.jobs() or plan.trials()
    for job in [*plan.jobs(), *plan.trials()]:
        assert tmp_path in job.folder.path.parents


def test_the_offline_table_asks_for_1530_runs_and_shares_equal_ones(tmp_path):
    plan = make_plan(Request("offline-accuracy"), tmp_path)
    assert sum(len(plan.jobs_of(place)) for place in plan.places) == 1530
    assert len(plan.jobs()) == 1200  # iCaRL, GSS and some others have the same values for both protocols
    assert len({job.experiment for job in plan.jobs()}) == 1200


def test_tables_share_runs(tmp_path):
    accuracy, forgetting, figure = (
        paths(make_plan(Request(name), tmp_path)) for name in ("offline-accuracy", "offline-forgetting", "main-figure")
    )
    assert accuracy == forgetting
    assert figure < accuracy
    assert len(figure) == 2 * 3 * 15  # DER++ and GCR, three buffer sizes, accuracy and forgetting from one run


def test_planned_runs_stand_beside_their_cells(tmp_path):
    """What is planned for a cell repeats it."""
    for name in paper.tables():
        plan = make_plan(Request(name), tmp_path)
        for cell in plan.table.cells:
            assert paper.departures(plan.jobs_of(cell.place)[0].experiment, cell) == []


def test_filters(tmp_path):
    request = Request("offline-accuracy", ("seq-cifar10",), ("er", "gcr"), (200, 500), (3, 4))
    plan = make_plan(request, tmp_path)
    assert len(plan.places) == 1 * 2 * 2 * 2
    assert {job.experiment.seed for job in plan.jobs()} == {3, 4}


@pytest.mark.parametrize(
    ("request_for", "message"),
    [
        ({"table": "offline-accuracy", "methods": ("gcr", "foo")}, "method must be one of er, gem, .*got foo"),
        ({"table": "offline-accuracy", "buffers": (200, 333)}, "buffer must be one of 200, 500, 2000 .*got 333"),
        ({"table": "offline-acuracy"}, 'did you mean "offline-accuracy"'),
        ({"table": "ocs", "methods": ("gem",)}, "method must be one of ocs, gcr in ocs, got gem"),
        ({"table": "ocs", "buffers": (200,)}, "buffer must be one of 100 in ocs, got 200"),
        ({"table": "er-gcr", "scenarios": ("seq-digits",)}, "scenario must be one of"),
        ({"table": "ocs", "epochs_scale": 0.0}, "epochs-scale must be above 0 and at most 1, got 0"),
        ({"table": "ocs", "values": "mine"}, 'unknown source of values "mine"'),
        ({"table": "demo-table", "values": "paper"}, "values must be sweep for demo-table"),
    ],
)
def test_requests_that_are_refused(tmp_path, request_for, message):
    with pytest.raises(BadInput, match=message):
        make_plan(Request(**request_for), tmp_path)


def test_a_filter_pair_that_matches_nothing(tmp_path):
    request = Request("offline-accuracy", scenarios=("seq-tinyimagenet",), methods=("gem",))
    with pytest.raises(BadInput, match="nothing of offline-accuracy matches all filters together"):
        make_plan(request, tmp_path)


def test_one_view_alone_asks_for_the_runs_of_its_values(tmp_path):
    cells = {"scenarios": ("seq-cifar10",), "methods": ("gcr",), "buffers": (500,), "seeds": (0,)}
    both = make_plan(Request("offline-accuracy", **cells), tmp_path).jobs()
    one = make_plan(Request("offline-accuracy", **cells, protocols=("class-il",)), tmp_path)
    assert [job.experiment.method.gamma for job in one.jobs()] == [0.1]
    assert {cell.protocol for cell in one.table.cells} == {"class-il"}
    assert len(both) == 2
    with pytest.raises(BadInput, match="protocol must be one of class-il in online-accuracy, got task-il"):
        make_plan(Request("online-accuracy", protocols=("task-il",)), tmp_path)


def test_a_quick_look_is_marked_everywhere_and_never_beside_the_papers_values(tmp_path):
    request = Request("ocs", methods=("gcr",), seeds=(0, 1), epochs_scale=0.1)
    plan = make_plan(request, tmp_path)
    jobs = plan.jobs()
    assert {job.experiment.training.epochs for job in jobs} == {5}
    assert all("epochs5" in job.folder.path.parent.name for job in jobs)
    for job in jobs:
        finish(job, n_tasks=20)
    groups = group_runs(job.folder for job in jobs).groups
    (sheet,) = sheets(compare(groups, plan.table, plan.values), alone=request.mark)
    assert "epochs ×0.1" in sheet.title
    assert not any("paper" in column for column in sheet.columns)
    assert sheet.rows[0][2].text == "50.00 ± 0.00"
    assert compare(groups, "ocs").rows[1].ours is None  # `gcr table --paper` does not take them for repetitions


def test_a_stream_has_no_epochs_to_scale(tmp_path):
    with pytest.raises(BadInput, match="epochs-scale has nothing to scale in online-accuracy"):
        make_plan(Request("online-accuracy", epochs_scale=0.1), tmp_path)


def test_the_demo_is_searched_then_trained(tmp_path):
    plan = make_plan(Request("demo-table", methods=("er",), buffers=(50,)), tmp_path)
    assert plan.jobs() == []
    assert plan.values == {}
    trials = plan.trials()
    assert [job.experiment.optimizer.lr for job in trials] == [0.03, 0.1]
    finish(trials[0], class_il=80.0, task_il=90.0)
    finish(trials[1], class_il=70.0, task_il=95.0)
    plan = plan.with_choices()
    assert {place[1]: values["lr"] for place, values in plan.chosen.items()} == {"class-il": 0.03, "task-il": 0.1}
    assert len(plan.jobs()) == 10
    assert {job.experiment.seed for job in trials} == {0}
    assert {job.experiment.seed for job in plan.jobs()} == {1, 2, 3, 4, 5}  # none of them chose the values
    assert unfinished(trials) == []
    for job in plan.jobs():
        finish(job, class_il=100 * job.experiment.optimizer.lr, task_il=90.0)
    groups = group_runs(job.folder for job in plan.jobs()).groups
    found = compare(groups, plan.table, plan.values)
    assert [row.ours.mean for row in found.rows] == [3.0, 90.0]
    assert all("paper" not in column for sheet in sheets(found) for column in sheet.columns)
    assert len(list(tmp_path.glob("sweep-*.json"))) == 1


def test_rows_of_one_method_are_searched_apart():
    names = {
        Search("seq-digits", "offline", row, 500, {"lr": [0.1]}, {}, (0,)).file_name
        for row in ("gcr", "gcr + reservoir", "gcr without supcon")
    }
    assert len(names) == 3


def test_our_own_search_for_a_table_of_the_paper(tmp_path):
    """Runs with values of our search are compared with the paper's cells."""
    request = Request("offline-accuracy", ("seq-cifar10",), ("er",), (200,), (0,), values="sweep")
    plan = make_plan(request, tmp_path)
    for number, trial in enumerate(plan.trials()):
        finish(trial, class_il=number, task_il=number)
    plan = plan.with_choices()
    (job,) = plan.jobs()
    assert job.experiment.optimizer.lr == 0.1  # the last of the grid; the paper's choice was another
    finish(job, class_il=49.0)
    found = compare(group_runs([job.folder]).groups, plan.table, plan.values)
    assert [row.ours.mean for row in found.rows] == [49.0, 50.0]
    assert not any("left out" in note for note in found.notes)


def test_mixed_precisions_are_said(tmp_path):
    jobs = make_plan(Request("ocs", seeds=(0, 1, 2)), tmp_path).jobs()
    for number, job in enumerate(jobs):
        finish(job, precision="tf32" if number == 1 else "bf16")
    mixed = jobs[1].folder.path.parent
    assert group_runs(job.folder for job in jobs).notes == [
        f"mixed precisions in {mixed}: bf16 (2), tf32 (1) runs; what they computed may differ"
    ]


def test_mixed_versions_are_said(tmp_path):
    jobs = make_plan(Request("ocs", methods=("gcr",), seeds=(0, 1, 2)), tmp_path).jobs()
    for number, job in enumerate(jobs):
        finish(job, versions={"gcr": "0.2" if number else "0.1", "torch": "2.13"})
    assert group_runs(job.folder for job in jobs).notes == [
        "mixed versions of gcr: 0.1 (1), 0.2 (2) runs; what they computed may differ"
    ]


@pytest.mark.parametrize(("option", "per_run"), [("--dry-run", 0), ("--show", 2)])
def test_1530_results_are_read_once(thousands, option, per_run, monkeypatch, capsys):
    counts = count_reading(monkeypatch)
    assert run_cli(["reproduce", "offline-accuracy", option, "--out", str(thousands)]) == 0
    out = capsys.readouterr().out
    assert per_run * 1200 <= counts["texts"] <= per_run * 1200 + 10
    assert counts["experiments"] <= 1200 / 15
    if option == "--dry-run":
        assert "1200 of them different ones: 1200 done, 0 running, 0 missing" in out
        assert "nothing is left to train" in out
    else:
        assert out.count("50.00") >= 102
        assert "missing" not in out


@pytest.fixture(scope="module")
def thousands(tmp_path_factory):
    """1,530 results: all that the offline table asks for, and those of other tables."""
    out = tmp_path_factory.mktemp("thousands")
    wanted = [job for name in ("offline-accuracy", "online-accuracy") for job in make_plan(Request(name), out).jobs()]
    assert len(wanted) >= 1530
    for job in wanted[:1530]:
        finish(job)
    return out


# --- Searching a grid: what wins, what is recorded, what is refused

GRID = {"lr": (0.01, 0.03), "batch": (16, 32)}


def make_search(**changes):
    about = {"scenario": "seq-digits", "regime": "offline", "method": "er", "buffer": 50, "grid": GRID}
    return Search(**(about | {"common": {"epochs": 1}, "seeds": (0, 1)} | changes))


def finish_all(search, out, class_il, task_il):
    """Every seed one below and one above the value of its point."""
    for point, of_class, of_task in zip(search.points, class_il, task_il, strict=True):
        for seed, around in zip(search.seeds, (-1, 1), strict=False):
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


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("validation", "gcr run --set"),
        ("stream.validation", "gcr run"),
        ("memory.buffer", "--buffer"),
        ("online", "--o"),
    ],
)
def test_what_a_search_sets_cannot_be_set_for_all_its_runs(key, remedy):
    """Final runs with validation=0.3 would be judged on validation images."""
    with pytest.raises(BadInput, match=f"{key} cannot be set for all runs of a search; .*{remedy}"):
        make_search(common={key: 0.3})


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


def test_a_search_may_choose_by_any_time_accuracy(tmp_path):
    search = make_search(grid={"lr": (0.01, 0.03)}, seeds=(0,))
    by_anytime = replace(search, metric="anytime")
    for trial, early, last in zip(search.trials(tmp_path), (40.0, 90.0), (70.0, 60.0), strict=True):
        matrix = [[early] * 5] * 4 + [[last] * 5]
        mean = (4 * early + last) / 5
        protocol = {"matrix": matrix, "accuracy": last, "forgetting": 1.0, "anytime": mean}
        put_run(tmp_path / "trials", trial.experiment, matrix, trial.folder.path.parent.name, class_il=protocol)
    for one, lr in ((search, 0.01), (by_anytime, 0.03)):
        if one is by_anytime:
            with pytest.raises(BadInput, match="has no any-time accuracy; train it again, or choose by accuracy"):
                choose(one, tmp_path)  # the other protocol
            for trial in search.trials(tmp_path):
                result = trial.folder.result()
                result["task_il"] = result["class_il"]
                (trial.folder.path / "result.json").write_bytes(json_bytes(result))
        assert choose(one, tmp_path).values("class-il") == {"lr": lr}
        written = write_choice(one, choose(one, tmp_path), tmp_path)
        assert json.loads(written.read_text())["metric"] == one.metric
    assert len([*tmp_path.glob("sweep-*.json")]) == 2  # from the same trials
    assert json.loads(written.read_text())["chosen"]["class-il"]["mean"] == 84.0
    with pytest.raises(BadInput, match="metric must be accuracy for joint, which is evaluated once, got anytime"):
        make_search(method="joint", buffer=None, metric="anytime")


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


def test_selectors_are_searched(tmp_path):
    search = make_search(grid={"selector": ("reservoir", "k-centre"), "lr": (0.1,)}, seeds=(0,))
    finish_all(search, tmp_path, (70.0, 80.0), (70.0, 80.0))
    chosen = choose(search, tmp_path).values("class-il")
    assert chosen == {"selector": "k-centre", "lr": 0.1}
    final = search.final(chosen, 1, tmp_path)
    assert final.experiment.memory.selector.name == "k-centre"
    assert final.folder.path.parent.name == "seq-digits-er-k-centre-k50-lr0.1-epochs1"
    assert search.trials(tmp_path)[0].folder.path.parent.name == "seq-digits-er-k50-lr0.1-epochs1"
    with pytest.raises(BadInput, match="has its selector; leave out selector, or use method er"):
        make_search(method="er + grad-approx", grid=search.grid).trials(tmp_path)


def test_values_that_are_nearly_equal_are_trials_of_their_own(tmp_path):
    search = make_search(grid={"lr": (0.1234567, 0.1234568)})
    assert len({job.folder.path for job in search.trials(tmp_path)}) == 4
    with pytest.raises(BadInput, match="different values"):
        check_grid({"lr": [1, 1.0]}, "mine")
