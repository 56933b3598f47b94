"""What a buffer holds at the end: its pictures with class and weight, and how good each selection was.

A page is for sending, so pictures have a budget of bytes. It is shared evenly, and a buffer that does not fit shows the
heaviest examples of every class.
"""

from __future__ import annotations

import base64
import io
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from torch import Tensor

from gcr import scenarios
from gcr.analysis.load import Group, StoredRun
from gcr.experiments.experiment import Experiment
from gcr.report.cells import MISSING, Cell, Row, Shown, Table, number_cell
from gcr.runs.folder import AGAIN, MEMORY_FILE, NAMED, RunFolder, wrong_file
from gcr.settings import BadInput, printable

PICTURE_BYTES = 5_000_000  # of all pictures of a page
MARKUP_BYTES = 220  # of a picture, without its pixels
MOST_PICTURES = 500  # of a buffer
SIDE, SMALL_SIDE = 64, 32  # pixels; larger pictures are shown smaller, still smaller where bytes are few
ROOMY = 300_000  # bytes of a buffer
MOST_SELECTIONS = 40  # of a buffer; the last ones
log = logging.getLogger(__name__)
warned: set[Path] = set()


@dataclass(frozen=True)
class Picture:
    source: str  # data URI
    class_name: str
    weight: float


@dataclass(frozen=True)
class Contents:
    """The final buffer of one run."""

    pictures: list[Picture]
    size: int
    weighted: bool
    largest: float
    effective: float  # (sum of weights)^2 / (sum of squared weights)

    @property
    def n_bytes(self) -> int:
        return sum(len(picture.source) + MARKUP_BYTES for picture in self.pictures)


@dataclass(frozen=True)
class Gallery:
    facet: int
    name: str
    seed: int
    contents: Contents | None  # None: the run folder has no memory, or no bytes are left
    selections: Table | None
    notes: list[str]
    replaces_weights: bool = False  # of before: then the weighted gradient need not match

    @property
    def about(self) -> str:
        held = self.contents
        if held is None:
            return " ".join(f"{note}." for note in self.notes)
        sentences = [f"{held.size} examples of seed {self.seed}, by class and falling weight."]
        if held.weighted:
            sentences.append(f"Effective number, (Σw)² / Σw²: {held.effective:.1f}.")
        else:
            sentences.append("All weights are 1.")
        if len(held.pictures) < held.size:
            sentences.append(
                f"To keep the page small, {len(held.pictures)} are shown: the heaviest of every class first."
            )
        return " ".join([*sentences, *(f"{note}." for note in self.notes)])


def galleries(shown: Sequence[Shown]) -> dict[int, Gallery]:
    """By facet: what is known of each group's buffer, from its first seed that has one."""
    sources = {one.facet: number for one in shown if (number := _first_with_memory(one.group.runs)) is not None}
    left = PICTURE_BYTES
    share = PICTURE_BYTES // max(len(sources), 1)
    found = {}
    for one in shown:
        number = sources.get(one.facet, 0)
        run, result = one.group.runs[number], one.group.results[number]
        contents, notes = None, _lost(one.group)
        if one.facet in sources and left <= 0:
            notes.append("Its pictures are left out, to keep the page small")
        elif one.facet in sources:
            try:
                if why := wrong_file(run.path / MEMORY_FILE, result):
                    raise BadInput(f"{run.path / MEMORY_FILE} cannot be read ({why}); {AGAIN}")
                contents = read_contents(run.path, one.group.experiment.scenario, share)
                left -= contents.n_bytes
            except (BadInput, OSError, KeyError, IndexError, ValueError, TypeError, RuntimeError) as error:
                notes.append(f"Its memory cannot be shown: {error}")
                if run.path not in warned:  # a live page asks again and again
                    warned.add(run.path)
                    log.warning("memory cannot be shown: %s", printable(str(error)))
        selections = selection_table(one, result.get("selections"))
        if contents or selections or notes:
            found[one.facet] = Gallery(
                one.facet,
                one.name,
                one.group.seeds[number],
                contents,
                selections,
                [*notes, *_remarks(result)],
                replaces_weights=_replaces_weights(one.group.experiment),
            )
    return found


def _lost(group: Group) -> list[str]:
    """Files that results name and that are no longer there."""
    stored = zip(group.runs, group.results, strict=True)
    named = ((run.path / name, result) for run, result in stored if isinstance(run, RunFolder) for name in NAMED)
    lost = [file for file, result in named if not file.exists() and wrong_file(file, result)]
    for file in lost:
        if file not in warned:
            warned.add(file)
            log.warning("%s is missing; %s", printable(str(file)), AGAIN)
    return [f"{file.parent.name}/{file.name} is missing; {AGAIN}" for file in lost]


def _replaces_weights(experiment: Experiment) -> bool:
    settings = experiment.settings
    return settings.get("selector.atoms") == "weighted" and settings.get("selector.weights") == "fitted"


def read_contents(folder: Path, scenario: str, n_bytes: int) -> Contents:
    names = scenarios.recorded(scenario).class_names
    changed = (folder / "memory.safetensors").stat().st_mtime_ns
    return _contents(folder, changed, tuple(names), n_bytes)


@lru_cache(maxsize=256)  # a live page is made again and again
def _contents(path: Path, changed: int, class_names: tuple[str, ...], n_bytes: int) -> Contents:
    memory = RunFolder(path).memory()
    if memory is None:
        raise BadInput(f"{path} has lost its memory.safetensors")
    return contents_of(memory, class_names, n_bytes)


def contents_of(memory: Mapping[str, Tensor], class_names: Sequence[str], n_bytes: int) -> Contents:
    """Of the columns image, label and weight, in at most ``n_bytes`` of the page."""
    labels, weights = memory["label"].tolist(), memory["weight"].tolist()
    order = sorted(range(len(labels)), key=lambda row: -weights[row])
    seen: dict[int, int] = {}
    ranked = []
    for row in order:
        ranked.append((seen.setdefault(labels[row], 0), row))
        seen[labels[row]] += 1
    side = SIDE if n_bytes >= ROOMY else SMALL_SIDE
    taken: dict[int, str] = {}
    for _, row in sorted(ranked)[:MOST_PICTURES]:  # the heaviest of every class, then the second of every class, …
        source = _png(memory["image"][row], side)
        n_bytes -= len(source) + MARKUP_BYTES
        if n_bytes < 0:
            break
        taken[row] = source
    shown = sorted(taken, key=lambda row: (labels[row], -weights[row]))
    squares = sum(weight**2 for weight in weights)
    return Contents(
        [Picture(taken[row], _class_name(class_names, labels[row]), weights[row]) for row in shown],
        size=len(labels),
        weighted=any(weight != 1 for weight in weights),
        largest=max([*weights, 1e-12]),
        effective=sum(weights) ** 2 / squares if squares else 0.0,
    )


def selection_table(one: Shown, selections: Any) -> Table | None:
    """A row per selection of a run with a recorded gradient error."""
    if not isinstance(selections, list):
        return None
    measured = [(n, s) for n, s in enumerate(selections, 1) if isinstance(s, dict) and "gradient_error" in s]
    if not measured:
        return None
    columns = ["selection", "chosen", "gradient error", "relative to random rows", "effective number", "weights"]
    rows = [
        Row(
            one.facet,
            [
                Cell(str(n), n),
                Cell(f"{_text(of.get('kept'))} of {_text(of.get('from'))}", _number(of.get("kept"))),
                number_cell(_number(of.get("gradient_error")), "{:.3g}"),
                number_cell(_number(of.get("relative_to_uniform")), "{:.2f}"),
                number_cell(_number(of.get("effective_size")), "{:.1f}"),
                Cell(f"{_text(of.get('smallest_weight'))} to {_text(of.get('largest_weight'))}"),
            ],
        )
        for n, of in measured[-MOST_SELECTIONS:]
    ]
    return Table(f"selections of {one.name}", columns, rows, words=0).with_bars([2]).with_bars([3], full=1)


def _remarks(result: dict[str, Any]) -> list[str]:
    """What the last selection said of itself: a note, and how many examples of each class it kept."""
    selections = result.get("selections")
    last = selections[-1] if isinstance(selections, list) and selections else None
    if not isinstance(last, dict):
        return []
    remarks = [str(last["note"])] if last.get("note") else []
    kept = last.get("per_class")
    if isinstance(kept, dict) and kept:
        counts = sorted({str(n) for n in kept.values()}, key=lambda text: (len(text), text))
        each = counts[0] if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        remarks.append(f"The last selection kept {each} of each of {len(kept)} classes")
    return remarks


def _first_with_memory(runs: Sequence[StoredRun]) -> int | None:
    return next((n for n, run in enumerate(runs) if (run.path / "memory.safetensors").exists()), None)


def _class_name(names: Sequence[str], label: int) -> str:
    return names[label] if 0 <= label < len(names) else f"class {label}"


def _number(value: Any) -> float | None:
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if right and abs(value) < 1e300 else None


def _text(value: Any) -> str:
    number = _number(value)
    return MISSING if number is None else f"{number:.3g}" if number != int(number) else str(int(number))


def _png(image: Tensor, side: int) -> str:
    """[c, h, w] uint8 -> data URI, with no side longer than ``side``."""
    from PIL import Image

    pixels = image.permute(1, 2, 0).numpy()
    picture = Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels)
    picture.thumbnail((side, side))
    file = io.BytesIO()
    picture.save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
