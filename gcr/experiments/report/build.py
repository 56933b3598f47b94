"""The report: one HTML page that needs nothing but itself. Numbers are prepared here, drawn by ``page.html``."""

from __future__ import annotations

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcr import scenarios
from gcr.experiments.groups import Group
from gcr.experiments.run_folder import write_whole
from gcr.experiments.statistics import Spread, spread
from gcr.experiments.tables import by_scenario, columns, row_names, table
from gcr.settings import BadInput

GALLERY_LIMIT = 500  # pictures per buffer: a page should stay small enough to send
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")  # Okabe and Ito


@dataclass(frozen=True)
class Picture:
    source: str  # data URI
    class_name: str
    weight: float


def write_report(groups: list[Group], path: Path, title: str = "Continual learning runs") -> Path:
    """Write the page for ``groups`` to ``path`` and return it."""
    try:
        from jinja2 import Environment, PackageLoader, select_autoescape
    except ImportError:
        raise BadInput("the report needs jinja2 and pillow: pip install jinja2 pillow") from None

    environment = Environment(
        loader=PackageLoader("gcr.experiments.report", "."),
        autoescape=select_autoescape(["html"]),
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("page.html").render(
        title=title,
        sections=[_section(name, members) for name, members in by_scenario(groups).items()],
        made_with=sorted({_made_with(result) for group in groups for result in group.results}),
    )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, page.encode())
    except OSError as error:
        raise BadInput(f"cannot write {path} ({error.strerror}); choose another file") from None
    return path


def needs_of_report() -> set[str]:
    """Libraries that only the report needs."""
    return {"jinja2", "PIL"}


def _made_with(result: dict[str, Any]) -> str:
    versions = " · ".join(f"{name} {version}" for name, version in result["versions"].items())
    return f"{versions} · {result['device']}"


def _section(scenario: str, groups: list[Group]) -> dict[str, Any]:
    names = [
        f"{name}, K = {group.experiment.memory.buffer}" if group.experiment.memory else name
        for name, group in zip(row_names(groups), groups, strict=True)
    ]
    return {
        "scenario": scenario,
        "columns": columns(),
        "rows": table(groups),
        "curves": [_curve(name, group, i) for i, (name, group) in enumerate(zip(names, groups, strict=True))],
        "n_tasks": len(groups[0].results[0]["class_il"]["matrix"][0]),
        "heat_maps": [
            {"name": name, "view": view, "matrix": _mean_matrix(group, key)}
            for name, group in zip(names, groups, strict=True)
            for view, key in (("class-IL", "class_il"), ("task-IL", "task_il"))
        ],
        "galleries": [g for name, group in zip(names, groups, strict=True) if (g := _gallery(name, group))],
    }


def _curve(name: str, group: Group, number: int) -> dict[str, Any]:
    """Class-IL accuracy over the tasks seen so far, after each task; a flat line for one training on all tasks."""
    matrices = [result["class_il"]["matrix"] for result in group.results]
    if len(matrices[0]) == 1:
        flat = spread([sum(matrix[0]) / len(matrix[0]) for matrix in matrices])
        points: list[Spread | None] = [flat] * len(matrices[0][0])
    else:
        points = [
            spread([sum(matrix[stage][: stage + 1]) / (stage + 1) for matrix in matrices])
            for stage in range(len(matrices[0]))
        ]
    return {
        "name": name,
        "colour": PALETTE[number % len(PALETTE)],
        "dashed": len(matrices[0]) == 1,
        "points": [(p.mean, p.sem or 0.0) for p in points if p is not None],
    }


def _mean_matrix(group: Group, view: str) -> list[list[float]]:
    matrices = torch.tensor([result[view]["matrix"] for result in group.results], dtype=torch.float64)
    mean: list[list[float]] = matrices.mean(0).tolist()
    return mean


def _gallery(name: str, group: Group) -> dict[str, Any] | None:
    """The final buffer of the group's first seed, by class and falling weight."""
    memory = group.folders[0].memory()
    if memory is None:
        return None
    class_names = scenarios.entry(group.experiment.scenario).class_names
    entries = list(zip(memory["label"].tolist(), memory["weight"].tolist(), memory["image"], strict=True))
    entries.sort(key=lambda entry: (entry[0], -entry[1]))
    weights = memory["weight"]
    return {
        "name": name,
        "seed": group.seeds[0],
        "pictures": [Picture(_png(image), class_names[label], w) for label, w, image in entries[:GALLERY_LIMIT]],
        "left_out": max(0, len(entries) - GALLERY_LIMIT),
        "largest": max(float(weights.max()), 1e-12) if len(weights) else 1.0,
        "weighted": bool(len(weights)) and bool((weights != 1).any()),
        "effective": float(weights.sum() ** 2 / weights.square().sum().clamp_min(1e-12)) if len(weights) else 0.0,
        "size": len(entries),
        "last_selection": (group.results[0].get("selections") or [None])[-1],
    }


def _png(image: Tensor) -> str:
    """[c, h, w] uint8 -> data URI."""
    from PIL import Image

    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
