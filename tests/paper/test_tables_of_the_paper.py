"""The paper as data: counts, values read off the paper by hand, what its tables must agree on; its main figure."""

from collections import Counter
from dataclasses import replace

import pytest
from made_runs import finish

from gcr import paper
from gcr.analysis.load import group_runs
from gcr.experiments.experiment import compose
from gcr.methods import METHODS
from gcr.paper.compare_to_paper import compare
from gcr.paper.main_figure import draw_main_figure
from gcr.paper.plan import Request, make_plan
from gcr.settings import BadInput

ALL = [cell for name in paper.tables() for cell in paper.cells(name)]


def value(table, **wanted):
    (cell,) = paper.find(table, **wanted)
    return cell.mean, cell.spread, cell.bold


@pytest.mark.parametrize(
    ("table", "n_cells", "n_bold"),
    [
        ("offline-accuracy", 102, 8 + 2 + 8 + 4),
        ("offline-forgetting", 102, 9 + 7),
        ("offline-forgetting-main", 36, 8 + 7),
        ("more-tasks", 24, 5),
        ("online-accuracy", 63, 1 + 4 + 7),
        ("online-forgetting", 51, 9),
        ("ablation", 10, 0),
        ("ocs", 2, 0),
        ("er-gcr", 16, 7),
        ("imagenet", 6, 2),
    ],
)
def test_every_cell_is_there_once(table, n_cells, n_bold):
    cells = paper.cells(table)
    assert len(cells) == n_cells
    assert len({(cell.column, cell.method) for cell in cells}) == n_cells
    assert sum(cell.bold for cell in cells) == n_bold
    assert all(0 < cell.mean < 100 for cell in cells)
    assert all((cell.spread is None) == (table == "imagenet") for cell in cells)


def test_tables_are_those_tested():
    assert set(paper.tables()) == {cell.table for cell in ALL}
    with pytest.raises(BadInput, match='did you mean "ablation"'):
        paper.cells("ablaton")


def test_the_offline_table_is_1530_runs():
    """6 methods, 9 columns, 2 settings, 15 seeds; GEM was not run on Tiny-ImageNet."""
    cells = paper.cells("offline-accuracy")
    assert len(cells) * paper.SEEDS == 1530 == (6 * 9 * 2 - 3 * 2) * 15
    assert {cell.method for cell in cells} == {"er", "gem", "gss", "icarl", "der++", "gcr"}
    assert not paper.find("offline-accuracy", method="gem", scenario="seq-tinyimagenet")
    assert Counter(cell.protocol for cell in cells) == {"class-il": 51, "task-il": 51}


def test_values_read_off_the_paper():
    tiny = {"scenario": "seq-tinyimagenet", "buffer": 2000}
    assert value("offline-accuracy", protocol="class-il", method="gcr", **tiny) == (35.68, 0.52, True)
    assert value("offline-accuracy", protocol="task-il", method="icarl", **tiny) == (49.07, 2.0, False)
    cifar = {"scenario": "seq-cifar10", "buffer": 200}
    assert value("offline-accuracy", protocol="task-il", method="er", **cifar) == (91.92, 1.01, False)
    assert value("offline-accuracy", protocol="task-il", method="der++", **cifar) == (91.91, 0.51, True)
    assert value("offline-forgetting", protocol="class-il", method="icarl", **cifar) == (23.52, 1.27, True)
    assert value("offline-forgetting-main", protocol="class-il", method="gcr", **cifar) == (32.75, 2.67, True)
    assert value("online-accuracy", method="mir", **cifar) == (21.5, 0.7, False)
    assert value("online-accuracy", method="gem", **tiny) == (9.56, 2.63, False)
    assert value("online-forgetting", method="gem", scenario="seq-cifar10", buffer=2000) == (53.27, 10.93, False)
    assert value("more-tasks", protocol="task-il", metric="forgetting", method="gcr", buffer=500) == (
        12.97,
        3.15,
        False,
    )
    assert value("ablation", method="gcr without supcon", buffer=2000) == (58.35, 0.78, False)
    assert value("ocs", method="ocs") == (60.5, 0.55, False)
    assert value("er-gcr", method="er + grad-approx", scenario="seq-cifar10", protocol="task-il", buffer=500) == (
        94.17,
        0.46,
        False,
    )
    assert value("imagenet", protocol="task-il", method="gcr") == (19.03, None, True)
    assert {cell.buffer for cell in paper.cells("imagenet")} == {1000}


def test_the_value_printed_twice_is_kept_and_noted():
    twice = paper.find("offline-forgetting", protocol="task-il", method="der++", scenario="seq-cifar100")
    assert [(cell.mean, cell.spread) for cell in twice] == [(25.98, 1.55), (25.98, 1.55), (7.37, 0.85)]
    assert any("copy" in note for note in paper.table("offline-forgetting").notes)


def test_tables_that_repeat_others_agree_with_them():
    for part, whole in (
        ("offline-forgetting-main", "offline-forgetting"),
        ("ablation", "offline-accuracy"),
        ("er-gcr", "offline-accuracy"),
    ):
        known = {(cell.column, cell.method): cell for cell in paper.cells(whole)}
        shared = [cell for cell in paper.cells(part) if (cell.column, cell.method) in known]
        assert len(shared) in (36, 4, 8)
        for cell in shared:
            other = known[cell.column, cell.method]
            assert (cell.mean, cell.spread) == (other.mean, other.spread)


@pytest.mark.parametrize("table", paper.tables())
def test_every_cell_has_chosen_values(table):
    for cell in paper.cells(table):
        found = paper.chosen(cell.regime, cell.protocol, cell.scenario, cell.method, cell.buffer)
        assert "lr" in found.overrides
        plain = cell.method in ("er", "gem", "gss", "icarl", "mir", "der++", "gcr")
        named = cell.scenario in ("seq-cifar10", "seq-cifar100", "seq-tinyimagenet")
        assert found.ours == (not (plain and named))
        assert bool(found.why) == found.ours


def test_chosen_values_read_off_the_paper():
    def overrides(*case):
        return paper.chosen(*case).overrides

    assert overrides("offline", "class-il", "seq-cifar10", "gem", 200) == {"lr": 0.01, "margin": 1.0}
    assert overrides("offline", "task-il", "seq-cifar10", "icarl", 2000) == {"lr": 0.01, "weight_decay": 5e-5}
    assert overrides("online", "class-il", "seq-tinyimagenet", "gss", 500) == {"lr": 0.1, "compared": 32}
    assert overrides("online", "class-il", "seq-tinyimagenet", "der++", 2000) == {"lr": 0.01, "alpha": 1.0, "beta": 3.5}
    gcr = {"lr": 0.03, "alpha": 0.1, "beta": 0.1, "gamma": 0.05}
    assert overrides("offline", "task-il", "seq-cifar100", "gcr", 500) == gcr
    assert overrides("offline", "class-il", "seq-cifar100", "gcr without supcon", 500)["gamma"] == 0


def test_chosen_values_of_ours_say_what_was_taken():
    assert paper.chosen("offline", "task-il", "seq-cifar100-20", "gcr", 100).why == "S-Cifar-100 at K = 200"
    assert paper.chosen("offline", "class-il", "seq-cifar10", "er + grad-approx", 500).why == "ER"
    assert paper.chosen("online", "task-il", "seq-cifar10", "er", 500).why == "the one online search"
    with pytest.raises(BadInput, match="no offline values for mir"):
        paper.chosen("offline", "class-il", "seq-cifar10", "mir", 500)
    for case in (("offlin", "class-il", "seq-cifar10", "er"), ("offline", "class", "seq-cifar10", "er")):
        with pytest.raises(BadInput, match="unknown"):
            paper.chosen(*case, 500)


def test_what_was_chosen_was_searched():
    for cell in ALL:
        found = paper.chosen(cell.regime, cell.protocol, cell.scenario, cell.method, cell.buffer)
        if cell.method in ("er", "gem", "gss", "icarl", "mir", "der++", "gcr"):
            searched = paper.grid(cell.regime, cell.method)
            for name, chosen in found.overrides.items():
                assert chosen in searched.get(name, (32,)), (cell, name)
    sizes = {method: len(paper.grid("online", method)["lr"]) for method in ("er", "gss", "mir", "gcr")}
    assert sizes == {"er": 3, "gss": 4, "mir": 2, "gcr": 3}
    assert paper.grid("offline", "gcr")["gamma"] == (0.0, 0.01, 0.05, 0.1, 0.2)
    with pytest.raises(BadInput, match="mir"):
        paper.grid("offline", "mir")


PRESENT = {method.name for method in METHODS}


@pytest.mark.parametrize("name", paper.labels())
def test_labels_and_settings_are_ours(name):
    """Composing fails on a setting that the method does not have: then methods.toml maps it wrongly."""
    label = paper.label(name)
    if label.method not in PRESENT:
        pytest.skip(f"there is no method {label.method} yet")
    for cell in (cell for cell in ALL if cell.method == name):
        made = paper.experiment(cell, seed=3)
        assert made.seed == 3
        assert made.label == name.replace(" without supcon", "")
        assert paper.departures(made, cell) == []


def test_experiments_of_cells():
    (cell,) = paper.find("online-accuracy", method="gcr", scenario="seq-cifar10", buffer=500)
    made = paper.experiment(cell, 0)
    assert made.stream.online
    assert made.training.epochs == 1
    assert made.optimizer.lr == 0.005
    tiny = paper.find("offline-accuracy", method="er", scenario="seq-tinyimagenet", buffer=200, protocol="class-il")[0]
    assert paper.experiment(tiny, 0).training.epochs == 100


def test_departures_of_runs():
    by_class, by_task = paper.find("offline-accuracy", method="gcr", scenario="seq-cifar10", buffer=500)
    run = paper.experiment(by_class, 7)
    assert paper.departures(run, by_class) == []
    assert "alpha is 0.1, the paper's 0.2" in paper.departures(run, by_task)
    other_ridge = compose(
        "seq-cifar10",
        "gcr",
        overrides={"lr": 0.03, "alpha": 0.1, "beta": 0.1, "gamma": 0.1, "ridge": 0.1, "precision": "bf16"},
    )
    assert paper.departures(other_ridge, by_class) == []
    short = replace(run, training=replace(run.training, epochs=10))
    assert paper.departures(short, by_class) == ["epochs is 10, the paper's 50"]
    recomputed = replace(run, memory=replace(run.memory, statistics="memory"))
    assert paper.departures(recomputed, by_class) == ["statistics is memory, the paper's training"]
    text = compose("seq-cifar10", "gcr", overrides={"lr": 0.03, "beta": 0.1, "variant": "paper"})
    assert paper.departures(text, by_class) == []
    reservoir = replace(run, memory=compose("seq-cifar10", "er").memory)
    assert any("selector.name is reservoir" in text for text in paper.departures(reservoir, by_class))
    for name in ("power", "shrink", "trim", "pool_views"):  # options of ours, given as a user would
        ours = {name: 3, "pool_view": "weak"} if name == "pool_views" else {name: 0.5}
        given = {"lr": 0.03, "beta": 0.1, "variant": "paper"} | ours
        (departure,) = paper.departures(compose("seq-cifar10", "gcr", overrides=given), by_class)
        assert departure.startswith(f"{name} is {ours[name]}, the paper's ")
    tuned = replace(run, stream=replace(run.stream, validation=0.1))
    assert paper.departures(tuned, by_class) == ["validation is 0.1, the paper's 0.0"]


# --- The main figure: two panels, ours and the paper's; a quick look without the paper's


@pytest.mark.parametrize(("scale", "beside_the_papers"), [(1.0, True), (0.1, False)])
def test_the_main_figure(tmp_path, scale, beside_the_papers):
    plan = make_plan(Request("main-figure", seeds=(0, 1), epochs_scale=scale), tmp_path)
    for job in plan.jobs():
        if job.experiment.memory.buffer < 2000:  # a missing point must not stop it
            finish(job, class_il=40.0 + job.experiment.seed)
    groups = group_runs(job.folder for job in plan.jobs() if job.folder.finished).groups
    found = compare(groups, plan.table, plan.values)
    assert {row.cell.metric for row in found.rows} == {"accuracy", "forgetting"}
    svg, png = draw_main_figure(found.rows, tmp_path, plan.request.mark)
    assert png.read_bytes().startswith(b"\x89PNG")
    text = svg.read_text()
    for words in ("GCR, ours", "DER, ours", "class-IL forgetting"):
        assert f"<!-- {words}" in text
    assert ("<!-- GCR, paper" in text) == beside_the_papers
    assert ("epochs ×0.1" in text) != beside_the_papers
