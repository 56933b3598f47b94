"""The main figure: two panels, ours and the paper's; a quick look without the paper's."""

import pytest
from made_runs import finish

from gcr.analysis.load import group_runs
from gcr.paper.compare_to_paper import compare
from gcr.paper.main_figure import draw_main_figure
from gcr.paper.plan import Request, make_plan


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
