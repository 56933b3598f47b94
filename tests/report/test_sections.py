"""What the report is made of: which groups share a section, what is drawn, what is left out and said; the page of a
table."""

import cProfile
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from made_runs import SELECTION, experiment_of, finish, put_memory, put_run, square

from gcr import paper
from gcr.analysis.load import group_runs, read_runs
from gcr.analysis.statistics import Spread
from gcr.cli import reproducing
from gcr.experiments.experiment import compose
from gcr.paper import compare_to_paper
from gcr.paper.plan import Request, make_plan
from gcr.report import gallery, write_report
from gcr.report.against_paper import against_paper
from gcr.report.build import render
from gcr.report.cells import Cell, Facets, Row, Table, mean_cell
from gcr.report.charts import STYLES, Curve, line_chart
from gcr.report.sections import overview, sections, show


def sections_of(out):
    shown = show(read_runs(out).groups, Facets())
    return sections(shown, gallery.galleries(shown))


def test_scenarios_settings_and_buffers_are_apart(tmp_path):
    put_run(tmp_path, experiment_of("er", buffer=20), square(50.0))
    put_run(tmp_path, experiment_of("er", buffer=100), square(60.0))
    put_run(tmp_path, experiment_of("finetune"), square(20.0))
    put_run(tmp_path, experiment_of("er", buffer=20, online=True, stream=300), square(30.0))
    put_run(tmp_path, experiment_of("er", buffer=20, class_order=3), square(55.0), name="order")
    found = {section.title: [one.name for one in section.shown] for section in sections_of(tmp_path)}
    assert found == {
        "seq-digits, offline, K = 20": ["finetune", "er"],
        "seq-digits, offline, K = 100": ["finetune", "er"],
        "seq-digits, online, stream=300, K = 20": ["er"],
        "seq-digits, offline, class_order=3, K = 20": ["er"],
    }


def test_runs_without_memory_have_a_section_too(tmp_path):
    put_run(tmp_path, experiment_of("joint"), square(90.0)[:1])
    (section,) = sections_of(tmp_path)
    assert section.title == "seq-digits, offline, without memory"
    assert section.charts == []  # one training on all tasks has no course
    assert section.forgetting is None
    assert render(read_runs(tmp_path).groups)


def test_offline_curve_is_over_the_tasks_learned_so_far(tmp_path):
    for seed, first in enumerate((80.0, 90.0)):
        matrix = [[first, 0.0], [40.0, 60.0]]
        put_run(tmp_path, experiment_of("er", seed, tasks=2), matrix)
    (section,) = sections_of(tmp_path)
    (drawn,) = section.charts[0].curves
    assert [(of.mean, of.sem) for of in drawn.curve.means] == [(85.0, 5.0), (50.0, 0.0)]
    assert drawn.marks[0][2] == "er, after task 1: 85.00 ± 5.00"
    assert section.maps[0][0].matrix == [[85.0, 0.0], [40.0, 60.0]]


def test_online_curve_is_over_all_tasks(tmp_path):
    put_run(tmp_path, experiment_of("er", online=True, stream=700, tasks=2), [[80.0, 0.0], [70.0, 10.0], [30.0, 50.0]])
    (section,) = sections_of(tmp_path)
    assert [of.mean for of in section.charts[0].curves[0].curve.means] == [40.0, 40.0, 40.0]
    assert section.over_all_tasks
    assert section.charts[0].x_title == "streams learned"


def test_courses_of_different_lengths_share_the_examples_seen():
    long, short = ([Spread(50.0, None, 1)] * n for n in (4, 2))
    chart = line_chart("accuracy", [Curve(0, "long", long, False), Curve(1, "short", short, False)], "stream")
    assert chart.x_title == "percent of the examples seen"
    ends = [drawn.marks[-1][0] for drawn in chart.curves]
    assert ends[0] == ends[1]  # both have seen everything
    assert chart.curves[0].marks[1][0] == chart.curves[1].marks[0][0]  # and half of it


def test_bars_have_a_scale_with_zero():
    rows = [Row(0, [mean_cell(Spread(mean, sem, 3))]) for mean, sem in ((8.0, 2.0), (-10.0, None))]
    first, second = (row.cells[0].bar for row in Table("t", ["a"], rows, words=0).with_bars([0]).rows)
    assert (first.zero, first.start, first.length, first.low, first.high) == (50, 50, 40, 80, 100)
    assert (second.start, second.length) == (0, 50)


def test_columns_that_say_nothing_are_dropped(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    put_run(tmp_path, experiment_of("er", buffer=100), square(50.0))
    table = overview(show(read_runs(tmp_path).groups, Facets()))
    assert table.columns[:3] == ["method", "K", "seeds"]
    assert table.words == 1
    assert [row.cells[1] for row in table.rows] == [Cell("20", 20.0), Cell("100", 100.0)]


def test_seconds_and_bytes(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0), seconds=4.0, memory_bytes=2_000_000, peak_bytes=512)
    put_run(tmp_path, experiment_of("gcr"), square(50.0))  # from before bytes were kept
    (section,) = sections_of(tmp_path)
    assert section.cost.columns == ["method", "seconds", "memory held", "most bytes in use"]
    assert [[cell.text for cell in row.cells] for row in section.cost.rows] == [
        ["er", "4.0", "2 MB", "512 B"],
        ["gcr", "2.0", "–", "–"],
    ]


def test_many_curves_are_cut_to_the_best_and_said(tmp_path):
    for n in range(STYLES + 2):
        put_run(tmp_path, experiment_of("er", lr=0.01 + n / 1000), square(30.0 + n), name=f"er-{n}")
    (section,) = sections_of(tmp_path)
    assert section.curves_left_out == 2
    assert min(drawn.curve.means[0].mean for drawn in section.charts[0].curves) == 32.0
    page = render(read_runs(tmp_path).groups)
    assert "2 more are in the tables" in page
    assert page.count('<table class="map"') == 2 * (STYLES + 2)


def test_gallery_tells_weights_classes_and_gradient_error(tmp_path, caplog):
    folder = put_run(tmp_path, experiment_of("gcr"), square(50.0), memory=True, selections=[SELECTION])
    (section,) = sections_of(tmp_path)
    (found,) = section.galleries
    assert [(p.class_name, p.weight) for p in found.contents.pictures[:2]] == [
        ("0", pytest.approx(0.5 + 10 * 2.5 / 19)),
        ("0", 0.5),
    ]
    assert [cell.text for cell in found.selections.rows[0].cells] == [
        "1",
        "20 of 40",
        "4.5",
        "0.40",
        "17.0",
        "0.5 to 3",
    ]
    assert "The last selection kept 2 of each of 10 classes." in found.about
    (folder.path / "memory.safetensors").write_bytes(b"nothing")
    (section,) = sections_of(tmp_path)
    assert section.galleries[0].contents is None
    assert "memory.safetensors cannot be read (not the file that result.json names)" in section.galleries[0].about
    assert "cannot be shown" in render(read_runs(tmp_path).groups)
    assert [record.message.count("put back a copy of it") for record in caplog.records] == [1]  # once, with the remedy


@pytest.mark.parametrize(("given", "said"), [({}, 1), ({"atoms": "plain"}, 0), ({"weights": "unit"}, 0)])
def test_where_new_weights_replace_the_old_the_error_is_explained(tmp_path, given, said):
    made = compose("seq-digits", "gcr", overrides=given)
    put_run(tmp_path, made, square(50.0), selections=[SELECTION])
    assert render(read_runs(tmp_path).groups).count("new weights replace those of before") == said


@pytest.mark.parametrize("selections", [None, {}, ["text"], [{"gradient_error": "much"}], [{"gradient_error": 1.0}]])
def test_odd_selections_do_no_harm(tmp_path, selections):
    put_run(tmp_path, experiment_of("gcr"), square(50.0), selections=selections)
    assert render(read_runs(tmp_path).groups)


def test_memory_of_another_shape_is_said(tmp_path):
    folder = put_run(tmp_path, experiment_of("gcr"), square(50.0))
    put_memory(folder.path, classes=15)  # labels that the scenario does not have
    assert "class 14" in render(read_runs(tmp_path).groups)


def test_pictures_have_a_budget_that_is_shared(tmp_path, monkeypatch):
    for buffer in (20, 50):
        folder = put_run(tmp_path, experiment_of("gcr", buffer=buffer), square(50.0))
        put_memory(folder.path, size=200, side=16)
    monkeypatch.setattr(gallery, "PICTURE_BYTES", 20_000)
    shown = show(read_runs(tmp_path).groups, Facets())
    both = list(gallery.galleries(shown).values())
    assert all(8_000 < one.contents.n_bytes <= 10_000 for one in both)
    pictures = both[0].contents.pictures
    assert {p.class_name for p in pictures} == {str(label) for label in range(10)}  # the heaviest of every class
    assert min(p.weight for p in pictures) > 2.5
    assert f"To keep the page small, {len(pictures)} are shown" in both[0].about


def test_a_seed_with_a_matrix_of_another_shape_is_left_out_and_said(tmp_path):
    put_run(tmp_path, experiment_of("er", 0), square(50.0))
    put_run(tmp_path, experiment_of("er", 1), square(70.0, tasks=4))
    (section,) = sections_of(tmp_path)
    assert section.maps[0][0].matrix[0] == [50.0] * 5
    assert section.notes == ["Runs whose accuracy matrix has another shape, not in the charts: 1"]


def test_unreadable_results_are_named_and_counted(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    for n in range(25):
        (tmp_path / f"bad-{n:02}" / "seed-0").mkdir(parents=True)
        for file in ("experiment.json", "result.json"):
            (tmp_path / f"bad-{n:02}" / "seed-0" / file).write_text("[")
    runs = read_runs(tmp_path)
    page = write_report(runs.groups, tmp_path / "page.html", unreadable=runs.unreadable).read_text()
    assert "25 results left out that cannot be read" in page
    assert "bad-19" in page
    assert "bad-20" not in page
    assert "and 5 more" in page


def cell_of(method, buffer=500):
    (cell,) = paper.find("offline-accuracy", protocol="class-il", scenario="seq-cifar10", method=method, buffer=buffer)
    return cell


def test_ours_against_the_paper(tmp_path):
    for method in ("er", "gcr"):
        for seed in range(3):
            put_run(tmp_path, paper.experiment(cell_of(method), seed), square(cell_of(method).mean + seed), method)
    facets = Facets()
    found = against_paper(read_runs(tmp_path).groups, facets)
    assert [chart.title for chart in found.charts] == ["accuracy", "forgetting"]
    marks = {drawn.mark.series: drawn for drawn in found.charts[0].marks}
    assert marks["gcr"].mark.ours.mean == pytest.approx(cell_of("gcr").mean + 1)
    assert "the paper's 74.69 ± 0.85" in marks["gcr"].mark.title
    x_low, y_low, x_high, y_high = found.charts[0].diagonal
    on_diagonal = y_low + (marks["gcr"].x - x_low) / (x_high - x_low) * (y_high - y_low)
    assert marks["gcr"].y < on_diagonal  # ours is above the paper's, and y grows downwards
    (accuracy,) = [table for table in found.tables if table.table.name.endswith("accuracy")][:1]
    assert accuracy.n_repeated < accuracy.n_cells
    assert "difference" in accuracy.table.columns


def test_no_scatter_where_nothing_repeats_the_paper(tmp_path):
    put_run(tmp_path, experiment_of("er"), square(50.0))
    groups = read_runs(tmp_path).groups
    found = against_paper(groups, Facets())
    assert (found.charts, found.tables) == ([], [])
    assert "against-the-paper" not in render(groups)


@pytest.mark.slow
def test_the_papers_1530_runs_make_a_page_with_little_work(tmp_path):
    """Work is counted in calls of functions, which do not depend on the machine."""
    for cell in paper.table("offline-accuracy").cells:
        for seed in range(15):
            name = f"{cell.scenario}-{cell.method}-{cell.protocol}-{cell.buffer}"
            put_run(tmp_path, paper.experiment(cell, seed), square(cell.mean + seed / 10), name)
    runs = read_runs(tmp_path)
    assert sum(len(group.seeds) for group in runs.groups) == 1530
    with cProfile.Profile() as profile:
        page = write_report(runs.groups, tmp_path / "page.html")
    calls = sum(entry.callcount for entry in profile.getstats())
    assert calls < 6_000_000  # twice what it takes
    assert page.stat().st_size < 3_000_000
    facets = page.read_text().split('id="facets">')[1].split("</script>")[0]
    assert len(json.loads(facets)) >= 102


# --- The page of a table: what the terminal prints, whole, under its own name, and nothing that contradicts it


def show_table(request, out):
    """The page that a command writes once everything it asks for is trained."""
    with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
        reproducing.show(make_plan(request, out), page=True)


def search(request, out, best):
    """Finish the trials, so that for each method and protocol the trial number ``best(protocol)`` of its grid wins."""
    plan = make_plan(request, out)
    for one in {id(search): search for search in plan.searches.values()}.values():
        for number, trial in enumerate(one.trials(out)):
            finish(trial, class_il=50.0 + (number == best("class-il")), task_il=50.0 + (number == best("task-il")))
    return plan.with_choices()


def rows_of(page, title):
    """Texts of the cells of a table, with ** for bold."""
    body = page.split(f'data-name="{title}"')[1].split("<tbody>")[1].split("</tbody>")[0]
    body = re.sub("</?strong>", "**", body)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL) for row in body.split("</tr>")[:-1]]


def printed(found, mark=""):
    return {
        sheet.title: [[f"**{entry.text}**" if entry.bold else entry.text for entry in row] for row in sheet.rows]
        for sheet in compare_to_paper.sheets(found, mark)
    }


def test_a_searched_table_is_the_terminals(tmp_path):
    """Task-IL's values are the paper's for class-IL or others: the search's choice for each protocol counts."""
    request = Request("offline-accuracy", ("seq-cifar10",), ("er",), (200, 500), (0, 1), values="sweep")
    plan = search(request, tmp_path, best=lambda protocol: 0 if protocol == "class-il" else 2)
    for job in plan.jobs():
        finish(job, class_il=1000 * job.experiment.optimizer.lr, task_il=90.0 + job.experiment.seed)
    show_table(request, tmp_path)
    assert [file.name for file in tmp_path.glob("*.html")] == ["offline-accuracy-sweep.html"]
    page = (tmp_path / "offline-accuracy-sweep.html").read_text()
    whole = make_plan(Request("offline-accuracy", seeds=(0, 1), values="sweep"), tmp_path).with_choices()
    found = compare_to_paper.compare(group_runs(job.folder for job in plan.jobs()).groups, whole.table, whole.values)
    assert sum(row.ours is not None for row in found.rows) == 4
    tables = printed(found)
    assert tables
    for title, rows in tables.items():
        assert rows_of(page, title.replace("'", "&#39;")) == rows
    assert "<h2>The table: searched values</h2>" in page
    assert "(searched values)</h1>" in page
    assert "values were chosen by a search on 10% of the training images" in page
    marks = page.split('id="against-the-paper"')[1]
    assert marks.count("K = 200: ours") == 2  # both protocols, which by the paper's values would lack one
    assert "cells repeated" not in marks  # no table goes by the paper's values


def test_the_papers_values_have_a_page_of_their_own(tmp_path):
    for values, best in (("sweep", 0), ("paper", None)):
        request = Request("er-gcr", methods=("er",), buffers=(500,), seeds=(0,), values=values)
        plan = search(request, tmp_path, lambda protocol, best=best: best)
        for job in plan.jobs():
            finish(job, class_il=61.0, task_il=62.0)
        show_table(request, tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.html")) == ["er-gcr-sweep.html", "er-gcr.html"]
    page = (tmp_path / "er-gcr.html").read_text()
    assert "<h2>The table</h2>" in page
    assert "searched values" not in page
    assert "cells repeated" in page  # other tables with the same runs
    names = re.findall('data-name="(next to the paper, [^"]*)"', page)
    assert names
    assert not any(plan.table.title in name for name in names)  # that comes first, once


def test_the_demos_table_is_bold_and_says_which_runs_serve_which_view(tmp_path):
    request = Request("demo-table", methods=("er", "gss"), buffers=(50,))
    plan = search(request, tmp_path, best=lambda protocol: int(protocol == "task-il"))
    for job in plan.jobs():
        lift = 10.0 * (job.experiment.method.name == "er")
        finish(job, class_il=70.0 + lift + job.experiment.seed, task_il=80.0 + lift + job.experiment.seed)
    show_table(request, tmp_path)
    page = (tmp_path / "demo-table.html").read_text()
    rows = {row[0]: row for row in rows_of(page, "seq-digits, offline, class-IL accuracy: percent") if row[1] == "50"}
    assert rows["er"][2:] == ["**83.00 ± 0.71**", "81.04 to 84.96", "5", "–"]  # seeds 1 to 5
    assert rows["gss"][2:] == ["73.00 ± 0.71", "71.04 to 74.96", "5", "–"]
    assert rows["gcr"][2:] == ["missing", "–", "0", "–"]
    served = {row[0]: row[1] for row in rows_of(page, "all results")}
    by_class, by_task = (
        plan.chosen["offline", protocol, "seq-digits", "er", 50]["lr"] for protocol in ("class-il", "task-il")
    )
    assert served[f"er (lr={by_class})"] == "class-IL"
    assert served[f"er (lr={by_task})"] == "task-IL"
    assert "against-the-paper" not in page


@pytest.mark.parametrize("values", ["paper", "sweep"])
def test_a_quick_look_has_no_value_of_the_paper(tmp_path, values):
    request = Request("offline-accuracy", ("seq-cifar10",), ("er",), (500,), (0, 1), values, epochs_scale=0.1)
    plan = search(request, tmp_path, best=lambda protocol: 0)
    for job in plan.jobs():
        finish(job, class_il=12.34, task_il=43.21)
    show_table(request, tmp_path)
    (file,) = tmp_path.glob("*.html")
    assert file.name == f"offline-accuracy{'-sweep' * (values == 'sweep')}-epochs-0.1.html"
    page = file.read_text()
    assert "12.34" in page
    assert "epochs ×0.1, a quick look" in page
    assert "paper: mean" not in page
    assert "against-the-paper" not in page
    for cell in plan.table.cells:
        assert str(cell) not in page


def test_a_part_of_the_table_leaves_the_page_whole(tmp_path):
    whole = Request("demo-table", methods=("er", "gss"), buffers=(50,))
    for job in search(whole, tmp_path, best=lambda protocol: 0).jobs():
        finish(job)
    more = make_plan(Request("demo-table", methods=("er",), buffers=(50,), seeds=(7,)), tmp_path).with_choices()
    show_table(whole, tmp_path)
    page = tmp_path / "demo-table.html"
    assert "10 finished runs." in page.read_text()
    for job in more.jobs():
        finish(job)
    show_table(more.request, tmp_path)
    assert "11 finished runs." in page.read_text()  # also a seed that the table does not ask for
    show_table(Request("demo-table", methods=("gss",), buffers=(50,), seeds=(0,)), tmp_path)
    assert "11 finished runs." in page.read_text()


def test_another_precision_has_a_page_of_its_own(tmp_path):
    for precision in (None, "bf16"):
        request = Request("ocs", methods=("gcr",), seeds=(0,), precision=precision)
        for job in make_plan(request, tmp_path).jobs():
            finish(job, n_tasks=20)
        show_table(request, tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.html")) == ["ocs-bf16.html", "ocs.html"]
