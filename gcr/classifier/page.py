"""``gcr inspect``: one HTML page of a classifier: classes, updates, accuracy, memory. It needs no script."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from gcr.classifier.held_out import counts, mean
from gcr.classifier.saved import Classifier
from gcr.files import write_whole
from gcr.report.build import policy, style
from gcr.report.cells import Cell, Row, Table, bytes_text, number_cell
from gcr.report.charts import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Curve,
    DrawnCurve,
    LineChart,
    Scale,
    style_of,
    whole_range,
)
from gcr.report.gallery import PICTURE_BYTES, Contents, contents_of
from gcr.settings import BadInput

MOST_CURVES = 8  # groups of classes by the update that brought them, next to the mean over all
NAMED = 6  # classes in a legend or a row

History = Sequence[Mapping[str, Any]]


def write_page(classifier: Classifier, version: int, path: Path) -> Path:
    page = render(classifier, version)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())
    except OSError as error:
        raise BadInput(f"cannot write {path} ({error.strerror}); choose another --page") from None
    return path


def render(classifier: Classifier, version: int) -> str:
    history = classifier.history
    contents = _pictures(classifier)
    return str(
        _template().render(
            title=classifier.folder.path.resolve().name,
            policy=policy(scripts=False),
            style=style(),
            version=version,
            classifier=classifier,
            parameters=f"{sum(p.numel() for p in classifier.learner.net.parameters()):,}",
            memory_bytes=bytes_text(classifier.nbytes),
            n_updates=len(history),
            chart=accuracy_chart(history),
            size={"width": WIDTH, "height": HEIGHT},
            classes=class_table(classifier),
            updates=update_table(history),
            contents=contents,
        )
    )


def _template() -> Any:
    try:
        from jinja2 import ChoiceLoader, Environment, PackageLoader
    except ImportError:
        raise BadInput("the page needs jinja2 and pillow: pip install jinja2 pillow") from None
    loader = ChoiceLoader([PackageLoader("gcr.classifier", "."), PackageLoader("gcr.report", ".")])
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.get_template("inspect.html")


def class_table(classifier: Classifier) -> Table:
    remembered, held_out = (counts(labels) for labels in (classifier.memory_labels(), classifier.held_out_labels))
    first: dict[str, int] = {}
    seen: dict[str, int] = {}
    for number, update in enumerate(classifier.history, 1):
        for name, n in update["examples"].items():
            first.setdefault(name, number)
            seen[name] = seen.get(name, 0) + n
    now = classifier.history[-1]["accuracy"] if classifier.history else {}
    rows = [
        Row(
            0,
            [
                Cell(name),
                number_cell(first.get(name)),
                number_cell(seen.get(name, 0)),
                number_cell(remembered.get(name, 0)),
                number_cell(held_out.get(name, 0)),
                _percent(now.get(name)),
            ],
        )
        for name in classifier.classes
    ]
    columns = ["class", "since update", "examples seen", "in memory", "held out", "accuracy, %"]
    return Table("classes", columns, rows).with_bars([5], full=100)


def update_table(history: History) -> Table:
    rows = []
    for number, update in enumerate(history, 1):
        new = update["new_classes"]
        rows.append(
            Row(
                0,
                [
                    Cell(f"{number}: {update['source']}"),
                    Cell(update["date"][:16].replace("T", " ")),
                    Cell(_some(new)),
                    number_cell(sum(update["examples"].values()), "{:,}"),
                    _percent(update["old_before"]),
                    _percent(update["old_after"]),
                    _percent(mean(update["accuracy"].get(name) for name in new)),
                    _percent(mean(update["accuracy"].values())),
                    number_cell(update["epochs"]),
                    number_cell(update["seconds"], "{:.0f}"),
                ],
            )
        )
    columns = ["update", "date", "new classes", "examples", "old before, %", "old after, %", "new, %", "all, %"]
    return Table("updates", [*columns, "epochs", "seconds"], rows, words=3)


def accuracy_chart(history: History) -> LineChart | None:
    """After each update: the mean over all classes, and over the classes that each update brought."""
    if not history:
        return None
    accuracies = [update["accuracy"] for update in history]
    courses = [("all classes", list(range(1, len(history) + 1)), [mean(of.values()) for of in accuracies])]
    groups = [(number, update["new_classes"]) for number, update in enumerate(history, 1) if update["new_classes"]]
    for number, names in groups[:MOST_CURVES] if len(groups) > 1 else []:
        stages = list(range(number, len(history) + 1))
        values = [mean(accuracies[stage - 1].get(name) for name in names) for stage in stages]
        courses.append((f"since update {number}: {_some(names)}", stages, values))
    shown = [100 * value for _, _, values in courses for value in values if value is not None]
    if not shown:
        return None
    bottom, top, step = whole_range(shown)
    n = len(history)
    x, y = Scale(1.0, max(n, 2), LEFT, WIDTH - RIGHT), Scale(bottom, top, HEIGHT - BOTTOM, TOP)
    every = -(-n // 10)
    return LineChart(
        "Held-out accuracy, percent",
        "updates",
        [(x(stage), str(stage)) for stage in range(1, n + 1) if stage % every == 0],
        [(y(value), str(value)) for value in range(bottom, top + 1, step)],
        [_drawn(number, *course, x, y) for number, course in enumerate(courses)],
    )


def _drawn(
    number: int, name: str, stages: Sequence[int], values: Sequence[float | None], x: Scale, y: Scale
) -> DrawnCurve:
    there = [(stage, 100 * value) for stage, value in zip(stages, values, strict=True) if value is not None]
    marks = [(x(stage), y(value), f"{name}, after update {stage}: {value:.1f}") for stage, value in there]
    line = " ".join(f"{across},{up}" for across, up, _ in marks)
    return DrawnCurve(Curve(number, name, [], False), style_of(number, False), line, "", marks)


def _pictures(classifier: Classifier) -> Contents | None:
    """None: its examples are not pictures, or none are remembered."""
    held = classifier.memory_columns()
    if classifier.form.kind != "pictures" or not len(held["label"]):
        return None
    return contents_of(held, [str(name) for name in classifier.classes], PICTURE_BYTES)


def _percent(share: float | None) -> Cell:
    return number_cell(None if share is None else 100 * share, "{:.1f}")


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(map(str, names[:NAMED])) + more if names else "–"
