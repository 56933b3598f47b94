"""Where the marks of a chart go: values in, coordinates of an SVG out. ``charts.html`` draws them.

A chart is about as wide as a phone, so that its letters are not shrunk there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gcr.analysis.statistics import Spread

WIDTH, HEIGHT = 380, 270
LEFT, RIGHT, TOP, BOTTOM = 34, 12, 10, 40
SQUARE = WIDTH - LEFT - RIGHT + TOP + BOTTOM  # the height that makes both axes equally long
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # Okabe and Ito
DASHES = ("", "7 4", "4 2", "9 3 2 3")
STYLES = len(COLOURS) * len(DASHES)  # curves that can be distinguished
FLAT = "2 4"  # one training on all tasks
Tick = tuple[float, str]


@dataclass(frozen=True)
class Scale:
    low: float
    high: float
    start: float  # the coordinate of ``low``
    end: float  # and that of ``high``

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + share * (self.end - self.start), 1)


@dataclass(frozen=True)
class Curve:
    facet: int
    name: str
    means: list[Spread]  # one per stage
    flat: bool  # one training on all tasks: a level, not a course


@dataclass(frozen=True)
class Style:
    colour: str
    dash: str


@dataclass(frozen=True)
class DrawnCurve:
    curve: Curve
    style: Style
    line: str
    band: str
    marks: list[tuple[float, float, str]]


@dataclass(frozen=True)
class LineChart:
    title: str
    x_title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    curves: list[DrawnCurve]


@dataclass(frozen=True)
class Mark:
    """A value of ours and the paper's."""

    facet: int
    series: str  # what its colour stands for
    square: bool
    ours: Spread
    paper: float
    title: str


@dataclass(frozen=True)
class DrawnMark:
    mark: Mark
    colour: str
    x: float
    y: float
    low: float
    high: float


@dataclass(frozen=True)
class Scatter:
    title: str
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    diagonal: tuple[float, float, float, float]
    marks: list[DrawnMark]
    series: list[tuple[str, str]]  # colours and what they stand for


def style_of(number: int, flat: bool) -> Style:
    colour = COLOURS[number % len(COLOURS)]
    return Style(colour, FLAT if flat else DASHES[number // len(COLOURS) % len(DASHES)])


def line_chart(title: str, curves: Sequence[Curve], unit: str) -> LineChart | None:
    """Percent over stages; ``unit`` says what a stage is. Where courses differ in their number of stages, over the
    share of the examples seen. None where nothing has a course."""
    counts = {len(curve.means) for curve in curves if not curve.flat}
    if not counts:
        return None
    ends = [end for curve in curves for of in curve.means for end in (of.mean - (of.sem or 0), of.mean + (of.sem or 0))]
    bottom, top, step = whole_range([min(max(end, 0.0), 100.0) for end in ends])
    y = Scale(bottom, top, HEIGHT - BOTTOM, TOP)
    shared = len(counts) == 1
    stages = max(counts)
    low, high = (1.0, float(stages)) if shared else (0.0, 100.0)
    x = Scale(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)
    if shared:
        every = max(1, math.ceil(stages / 10))
        x_ticks = [(x(n), str(n)) for n in range(1, stages + 1) if n % every == 0 or (n == 1 and every < 3)]
        x_title = f"{unit}s learned"
    else:
        x_ticks = [(x(n), str(n)) for n in range(0, 101, 20)]
        x_title = "percent of the examples seen"
    drawn = []
    for number, curve in enumerate(curves):
        places = [n + 1.0 if shared else 100 * (n + 1) / len(curve.means) for n in range(len(curve.means))]
        drawn.append(_draw(curve, style_of(number, curve.flat), x, y, places, unit))
    return LineChart(title, x_title, x_ticks, [(y(v), str(v)) for v in range(bottom, top + 1, step)], drawn)


def _draw(curve: Curve, style: Style, x: Scale, y: Scale, places: Sequence[float], unit: str) -> DrawnCurve:
    if curve.flat:
        level = y(curve.means[0].mean)
        return DrawnCurve(curve, style, f"{x(x.low)},{level} {x(x.high)},{level}", "", [])
    marks = [
        (x(place), y(of.mean), f"{curve.name}, after {unit} {n}: {of}")
        for n, (place, of) in enumerate(zip(places, curve.means, strict=True), 1)
    ]
    reach = [(place, of.mean, of.sem or 0.0) for place, of in zip(places, curve.means, strict=True)]
    above = [f"{x(place)},{y(min(mean + sem, y.high))}" for place, mean, sem in reach]
    below = [f"{x(place)},{y(max(mean - sem, y.low))}" for place, mean, sem in reversed(reach)]
    has_band = any(sem for _, _, sem in reach)
    line = " ".join(f"{at},{height}" for at, height, _ in marks)
    return DrawnCurve(curve, style, line, " ".join(above + below) if has_band else "", marks)


def whole_range(values: Sequence[float]) -> tuple[int, int, int]:
    """Ends of an axis, and the step of its ticks, which both ends are multiples of.

    >>> whole_range([31.0, 88.0]), whole_range([50.0])
    ((20, 100, 20), (40, 50, 5))
    """
    reach = max(values) - min(values)
    step = 20 if reach > 50 else 10 if reach > 20 else 5
    high = step * math.ceil(max(values) / step)
    return min(step * math.floor(min(values) / step), high - 10), high, step


def scatter(title: str, marks: Sequence[Mark], series: Sequence[str]) -> Scatter:
    """Ours over the paper's, on equal axes. ``series`` are those of all charts, so that they agree in their colours."""
    low, high, step = whole_range([end for mark in marks for end in (mark.paper, mark.ours.mean)])
    x, y = Scale(low, high, LEFT, WIDTH - RIGHT), Scale(low, high, SQUARE - BOTTOM, TOP)
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(series)}
    present = {mark.series for mark in marks}
    drawn = []
    for mark in marks:
        mean, sem = mark.ours.mean, mark.ours.sem or 0.0
        low_end, high_end = y(max(mean - sem, low)), y(min(mean + sem, high))
        drawn.append(DrawnMark(mark, colours[mark.series], x(mark.paper), y(mean), low_end, high_end))
    ticks = range(low, high + 1, step)
    return Scatter(
        title,
        [(x(v), str(v)) for v in ticks],
        [(y(v), str(v)) for v in ticks],
        (x(low), y(low), x(high), y(high)),
        drawn,
        [(colours[name], name) for name in series if name in present],
    )
