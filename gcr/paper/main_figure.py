"""The paper's main figure from runs: accuracy and forgetting over the buffer size, ours and the paper's values."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gcr import paper
from gcr.paper.compare_to_paper import Row
from gcr.settings import BadInput

COLOURS = {"der++": "#d55e00", "gcr": "#0072b2"}  # Okabe and Ito
ENDINGS = (".svg", ".png")


def draw_main_figure(
    rows: Sequence[Row], out: Path, mark: str = "", searched: bool = False, variant: str = ""
) -> list[Path]:
    """A panel per metric; ours with error bars (SEM), the paper's hollow. ``mark`` says that ours are a quick look:
    the paper's values are not drawn then."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise BadInput("the figure needs matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    metrics = list(dict.fromkeys(row.cell.metric for row in rows))
    panels = figure.subplots(1, len(metrics), squeeze=False)[0]
    for panel, metric in zip(panels, metrics, strict=True):
        _draw(panel, [row for row in rows if row.cell.metric == metric], paper_too=not mark)
        words = ", ".join(filter(None, [mark, f"variant={variant}" if variant else ""]))
        panel.set_title(f"class-IL {metric}{f' ({words})' if words else ''}")
    parts = ["main-figure", "sweep" * searched, variant, mark.replace(" ×", "-")]
    files = [out / f"{'-'.join(filter(None, parts))}{ending}" for ending in ENDINGS]
    for file in files:
        figure.savefig(file, dpi=150, metadata={"Date": None} if file.suffix == ".svg" else None)
    return files


def _draw(panel: Any, rows: Sequence[Row], paper_too: bool) -> None:
    sizes = sorted({row.cell.buffer for row in rows})
    for method in dict.fromkeys(row.cell.method for row in rows):
        mine = sorted((row for row in rows if row.cell.method == method), key=lambda row: row.cell.buffer)
        name, colour = paper.label(method).printed, COLOURS.get(method, "#7f7f7f")
        ours = [(sizes.index(row.cell.buffer), row.ours) for row in mine if row.ours is not None]
        if ours:
            places, spreads = zip(*ours, strict=True)
            means, sems = [s.mean for s in spreads], [s.sem or 0.0 for s in spreads]
            panel.errorbar(places, means, yerr=sems, color=colour, marker="o", capsize=3, label=f"{name}, ours")
        printed = [(sizes.index(row.cell.buffer), row.cell.mean) for row in mine if row.cell.mean is not None]
        if paper_too and printed:
            at, values = zip(*printed, strict=True)
            style = {"marker": "s", "markerfacecolor": "none", "linestyle": "--", "alpha": 0.6}
            panel.plot(at, values, color=colour, label=f"{name}, paper", **style)
    panel.set_xticks(range(len(sizes)), [str(size) for size in sizes])
    panel.set_xlabel("buffer size K")
    panel.set_ylabel("percent")
    panel.grid(alpha=0.3)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(fontsize=8)
