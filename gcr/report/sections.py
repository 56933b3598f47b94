"""A section of the page: the groups of one scenario, regime and buffer size, which may share a chart.

Groups without memory stand in the sections of every buffer size of their scenario, to compare with.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from gcr.analysis.load import METRICS, PROTOCOLS, Group
from gcr.analysis.statistics import Spread, spread
from gcr.analysis.tables import row_names
from gcr.report.cells import (
    MISSING,
    Cell,
    Facets,
    Row,
    Shown,
    Table,
    buffer_cell,
    buffer_text,
    bytes_cell,
    mean_cell,
)
from gcr.report.charts import STYLES, Curve, LineChart, line_chart
from gcr.report.gallery import Gallery
from gcr.scenarios import Stream

MAP_CELLS = 60_000  # of all heat maps of a page
Matrix = list[list[float]]


@dataclass(frozen=True)
class HeatMap:
    facet: int
    name: str
    protocol: str
    matrix: Matrix  # mean over seeds


@dataclass(frozen=True)
class Section:
    title: str
    anchor: str
    shown: list[Shown]
    charts: list[LineChart]
    over_all_tasks: bool
    curves_left_out: int
    forgetting: Table | None
    cost: Table
    maps: list[list[HeatMap]]  # of each group, in its two protocols
    maps_left_out: int
    galleries: list[Gallery]
    stage: str  # what a row of the maps stands for
    notes: list[str] = field(default_factory=list)

    @property
    def n_runs(self) -> int:
        return sum(len(one.group.seeds) for one in self.shown)

    @property
    def best(self) -> str:
        """The highest mean class-IL accuracy of what learns task by task, in words."""
        learners = [one for one in self.shown if one.group.experiment.method.stages != "all at once"] or self.shown
        highest = max(learners, key=lambda one: _accuracy(one.group))
        return f"{highest.name} {highest.group.spread('class_il', 'accuracy')}"

    @property
    def open_gallery(self) -> Gallery | None:
        """The one to show at once: weights are what there is to see."""
        pictured = [one for one in self.galleries if one.contents]
        pictured.sort(key=lambda one: one.contents is not None and not one.contents.weighted)
        return pictured[0] if pictured else None

    @property
    def has_level(self) -> bool:
        return any(drawn.curve.flat for chart in self.charts for drawn in chart.curves)


@dataclass
class CellBudget:
    left: int = MAP_CELLS


def show(groups: Sequence[Group], facets: Facets) -> list[Shown]:
    """Groups under names that are distinct within a scenario and stream."""
    named: dict[int, Shown] = {}
    for members in _by_stream(groups).values():
        for name, group in zip(row_names(members), members, strict=True):
            named[id(group)] = Shown(group, name, facets.of(group.experiment, name))
    return [named[id(group)] for group in groups]


def overview(shown: Sequence[Shown], serves: Callable[[Group], str] | None = None) -> Table:
    """A row per group: all that `gcr table` says, and which protocols of the page's table it ``serves``."""
    metrics = [(protocol, metric) for protocol in PROTOCOLS for metric in ("accuracy", "forgetting")]
    columns = ["method", "scenario", "regime", *(["serves"] if serves else []), "K", "seeds"]
    rows = []
    for one in shown:
        made = one.group.experiment
        words = [Cell(one.name), Cell(made.scenario), Cell(_regime(made.stream))]
        words += [Cell(serves(one.group) or MISSING)] if serves else []
        numbers = [mean_cell(one.group.spread(protocol, metric)) for protocol, metric in metrics]
        n, diverged = len(one.group.seeds), one.group.diverged
        seeds = Cell(f"{n} ({diverged} diverged)" if diverged else str(n), n)
        cost = [mean_cell(one.group.seconds, 1)]
        rows.append(Row(one.facet, [*words, buffer_cell(buffer_text(made)), seeds, *numbers, *cost]))
    columns += [f"{PROTOCOLS[protocol]} {METRICS[metric]}" for protocol, metric in metrics]
    table = Table("all results", [*columns, "seconds"], rows, words=4 if serves else 3)
    return table.without_constant(("scenario", "regime", "K"))


def sections(shown: Sequence[Shown], galleries: dict[int, Gallery]) -> list[Section]:
    """In the order of the groups, then by buffer size."""
    made: list[Section] = []
    anchors: set[str] = set()
    budget = CellBudget()
    facet_of = {id(one.group): one for one in shown}
    for (scenario, stream), groups in _by_stream([one.group for one in shown]).items():
        members = [facet_of[id(group)] for group in groups]
        memories = [one.group.experiment.memory for one in members]
        sizes = sorted({memory.buffer for memory in memories if memory})
        for size in sizes or (None,):
            alike = [one for one in members if (m := one.group.experiment.memory) is None or m.buffer == size]
            where = f"{scenario}, {_regime(stream)}"
            title = f"{where}, K = {size}" if size is not None else f"{where}, without memory"
            anchor = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "runs"
            while anchor in anchors:
                anchor += "-"
            anchors.add(anchor)
            made.append(_section(title, anchor, alike, galleries, budget))
    return made


def _section(title: str, anchor: str, shown: list[Shown], galleries: dict[int, Gallery], budget: CellBudget) -> Section:
    online = shown[0].group.experiment.stream.online
    stage = "stream" if online else "task"
    drawn = shown
    if len(shown) > STYLES:
        ranked = sorted(shown, key=lambda one: -_accuracy(one.group))[:STYLES]
        drawn = [one for one in shown if one in ranked]
    charts = []
    for protocol, name in PROTOCOLS.items():
        curves = [_curve(one, protocol, over_all_tasks=online) for one in drawn]
        if chart := line_chart(f"{name} accuracy", curves, stage):
            charts.append(chart)
    maps: list[list[HeatMap]] = []
    for one in shown:
        pair = [
            HeatMap(one.facet, one.name, PROTOCOLS[protocol], mean_matrix(one.group, protocol))
            for protocol in PROTOCOLS
        ]
        budget.left -= sum(len(each.matrix) * len(each.matrix[0]) for each in pair)
        maps += [pair] if budget.left >= 0 else []
    odd = sum(len(one.group.results) - len(_matrices(one.group, "class_il")) for one in shown)
    return Section(
        title=title,
        anchor=anchor,
        shown=shown,
        charts=charts,
        over_all_tasks=online,
        curves_left_out=len(shown) - len(drawn),
        forgetting=_forgetting(title, shown),
        cost=_cost(title, shown),
        maps=maps,
        maps_left_out=len(shown) - len(maps),
        galleries=[galleries[one.facet] for one in shown if one.facet in galleries],
        stage=stage,
        notes=[f"Runs whose accuracy matrix has another shape, not in the charts: {odd}"] if odd else [],
    )


def _forgetting(title: str, shown: Sequence[Shown]) -> Table | None:
    rows = [
        Row(
            one.facet,
            [Cell(one.name), *(mean_cell(one.group.spread(protocol, "forgetting")) for protocol in PROTOCOLS)],
        )
        for one in shown
    ]
    if all(cell.value is None for row in rows for cell in row.cells[1:]):
        return None
    return Table(f"forgetting, {title}", ["method", *PROTOCOLS.values()], rows).with_bars([1, 2])


def _cost(title: str, shown: Sequence[Shown]) -> Table:
    """Seconds, bytes of the memory, and the most bytes that the process held."""
    rows = []
    for one in shown:
        results = one.group.results
        device = ", ".join(sorted({result["device"] for result in results}))
        held, peak = (spread([_count(result.get(key)) for result in results]) for key in ("memory_bytes", "peak_bytes"))
        words = [Cell(one.name), Cell(device)]
        rows.append(Row(one.facet, [*words, mean_cell(one.group.seconds, 1), bytes_cell(held), bytes_cell(peak)]))
    columns = ["method", "device", "seconds", "memory held", "most bytes in use"]
    table = Table(f"seconds and memory, {title}", columns, rows, words=2).with_bars([2, 3, 4])
    return table.without_constant(("device",)).without_empty()


def _curve(one: Shown, protocol: str, over_all_tasks: bool) -> Curve:
    """The mean accuracy after each stage, on the tasks begun so far or on all tasks."""
    matrices = _matrices(one.group, protocol)
    flat = len(matrices[0]) == 1 and one.group.experiment.method.stages == "all at once"
    means: list[Spread] = []
    for stage in range(len(matrices[0])):
        n_tasks = len(matrices[0][0]) if over_all_tasks or flat else min(stage + 1, len(matrices[0][0]))
        of = spread([sum(matrix[stage][:n_tasks]) / n_tasks for matrix in matrices])
        assert of is not None
        means.append(of)
    return Curve(one.facet, one.name, means, flat)


def mean_matrix(group: Group, protocol: str) -> Matrix:
    matrices = _matrices(group, protocol)
    n = len(matrices)
    return [[sum(cell) / n for cell in zip(*rows, strict=True)] for rows in zip(*matrices, strict=True)]


def _matrices(group: Group, protocol: str) -> list[Matrix]:
    """Of the runs whose matrix has the shape of the first; one from elsewhere may not."""
    found: list[Matrix] = [result[protocol]["matrix"] for result in group.results]
    return [m for m in found if (len(m), len(m[0])) == (len(found[0]), len(found[0][0]))]


def _accuracy(group: Group) -> float:
    of = group.spread("class_il", "accuracy")
    return of.mean if of else 0.0


def _count(value: object) -> float | None:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else None


def _by_stream(groups: Sequence[Group]) -> dict[tuple[str, Stream], list[Group]]:
    split: dict[tuple[str, Stream], list[Group]] = {}
    for group in groups:
        split.setdefault((group.experiment.scenario, group.experiment.stream), []).append(group)
    return split


def _regime(stream: Stream) -> str:
    """offline or online, and what else is not as usual.

    >>> _regime(Stream(online=True, stream=300))
    'online, stream=300'
    """
    plain = Stream(online=stream.online)
    unusual = [
        f"{f.name}={getattr(stream, f.name)}"
        for f in fields(stream)
        if getattr(stream, f.name) != getattr(plain, f.name)
    ]
    return ", ".join([stream.regime, *unusual]) or MISSING
