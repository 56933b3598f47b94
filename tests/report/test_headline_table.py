"""The page of a table: what the terminal prints, whole, under its own name, and nothing that contradicts it."""

import re
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO

import pytest
from made_runs import finish

from gcr.analysis.load import group_runs
from gcr.cli import reproducing
from gcr.paper import compare_to_paper
from gcr.paper.plan import Request, make_plan


def show(request, out):
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
    show(request, tmp_path)
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
        show(request, tmp_path)
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
    show(request, tmp_path)
    page = (tmp_path / "demo-table.html").read_text()
    rows = {row[0]: row for row in rows_of(page, "seq-digits, offline, class-IL accuracy: percent") if row[1] == "50"}
    assert rows["er"][2:] == ["**82.00 ± 0.71**", "5", "–"]
    assert rows["gss"][2:] == ["72.00 ± 0.71", "5", "–"]
    assert rows["gcr"][2:] == ["missing", "0", "–"]
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
    show(request, tmp_path)
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
    show(whole, tmp_path)
    page = tmp_path / "demo-table.html"
    assert "10 finished runs." in page.read_text()
    for job in more.jobs():
        finish(job)
    show(more.request, tmp_path)
    assert "11 finished runs." in page.read_text()  # also a seed that the table does not ask for
    show(Request("demo-table", methods=("gss",), buffers=(50,), seeds=(0,)), tmp_path)
    assert "11 finished runs." in page.read_text()


def test_another_precision_has_a_page_of_its_own(tmp_path):
    for precision in (None, "bf16"):
        request = Request("ocs", methods=("gcr",), seeds=(0,), precision=precision)
        for job in make_plan(request, tmp_path).jobs():
            finish(job, n_tasks=20)
        show(request, tmp_path)
    assert sorted(file.name for file in tmp_path.glob("*.html")) == ["ocs-bf16.html", "ocs.html"]
