"""Checkpoints: one safetensors file, the tensors of a ``RunState``; its counters and the optimizer's numbers as JSON in
the header.

The last two are kept: where the newest is damaged, the one before it is used. Restoring copies into the tensors that
are there, so captured steps stay valid.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcr.files import Damaged, read_tensors, tensor_bytes, under, write_whole
from gcr.memory import Policy
from gcr.memory.buffer_state import check_held
from gcr.methods import Method
from gcr.models.shares import Shares
from gcr.scenarios.scenario import Images, Scenario
from gcr.settings import LARGEST, MISFITS, BadInput, brief_of
from gcr.training.optimizer import (
    check_group_numbers,
    group_flags,
    group_numbers,
    optimizer_tensors,
    restore_group_numbers,
    restore_optimizer,
)
from gcr.training.schedule import Plan
from gcr.training.settings import Training
from gcr.training.state import MEMORY, OPTIMIZER, PLACE, RunState

KEPT = 2
NUMBERS = "optimizer"  # in the header; earlier versions had none
SOURCES = "sources"  # likewise
PIXEL_BYTES = 2**28  # of each data set that a checkpoint of a run of objects knows by a hash


@dataclass(frozen=True)
class Checkpoints:
    folder: Path
    identity: Mapping[str, Any]  # plain values: what determines the run's numbers; a checkpoint must say the same
    sources: list[str] = field(default_factory=list)  # of gcr that trained the run, in order; this one's is the last
    remedy: str = "give what it was made with, or another folder"  # where a checkpoint is of another run

    def files(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("checkpoint-*.safetensors"), reverse=True)

    def save(self, state: RunState) -> None:
        place = {name: getattr(state, name) for name in PLACE}
        about = {"identity": dict(self.identity), "place": place, NUMBERS: group_numbers(state.optimizer)}
        about[SOURCES] = self.sources
        content = tensor_bytes(dict(state.tensors()), about)
        write_whole(self.folder / f"checkpoint-{state.steps:09d}.safetensors", content)
        for old in self.files()[KEPT:]:
            old.unlink(missing_ok=True)

    def restore(self, state: RunState, plan: Plan, training: Training) -> list[str]:
        """Put the newest readable checkpoint into ``state``, if there is one. Returns what the user should know."""
        remarks = []
        for file in self.files():
            try:
                about, tensors = read_tensors(file)
                if not all(isinstance(about.get(part), dict) for part in ("identity", "place")):
                    raise Damaged(file, "its header does not say what it is")
                self._refuse_another(file, about["identity"])
                _check(file, tensors, state)
                _check_place(file, about["place"], plan, training)
                _check_sources(file, about.get(SOURCES, []))
                _restore_optimizer(file, about.get(NUMBERS), tensors, state)
            except (OSError, Damaged) as error:
                why = error.why if isinstance(error, Damaged) else error.strerror
                remarks.append(f"{file} is not a complete checkpoint ({why}); going back to the one before it")
                continue
            for name, tensor in state.tensors():
                tensor.copy_(tensors[name])
            for name in PLACE:
                setattr(state, name, about["place"][name])
            remarks += self._add_sources(file, about.get(SOURCES, []))
            break
        else:
            if remarks:
                remarks.append(f"no whole checkpoint in {self.folder}; starting from the beginning")
        return remarks

    def _add_sources(self, file: Path, before: list[str]) -> list[str]:
        """Put those that trained until now ahead. A remark if the last one was another."""
        if not before or self.sources in ([], before[-1:]):
            self.sources[:] = before or self.sources
            return []
        self.sources[:0] = before
        return [f"{file} was made by another source of gcr ({before[-1]:.12}); going on, and the result names both"]

    def _refuse_another(self, file: Path, there: Mapping[str, Any]) -> None:
        differences = [
            f"{key} is {there.get(key, 'absent')} there, {self.identity.get(key, 'absent')} here"
            for key in dict.fromkeys([*there, *self.identity])
            if there.get(key) != self.identity.get(key)
        ]
        if differences:
            raise BadInput(f"{file} is of another run ({'; '.join(differences)}); {self.remedy}")


def checkpoints_of(
    folder: str | Path, state: RunState, scenario: Scenario, method: Method, policy: Policy | None, **plain: Any
) -> Checkpoints:
    """Checkpoints of a run that is given as objects, in a folder that is made. ``plain``: values as JSON has them."""
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"checkpoints must be a folder, got {folder} ({error.strerror}); give another") from None
    net, optimizer = state.net, state.optimizer
    learns = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    identity = plain | {
        "method": {"name": method.name} | {name: _plainly(value) for name, value in vars(method).items()},
        "memory": None if policy is None else policy.to_json(),
        "optimizer": {"name": type(optimizer).__name__, "groups": group_numbers(optimizer)},
        "flags": group_flags(optimizer, net),
        "tasks": scenario.tasks,
        "stream": scenario.stream_length,
        "labels": _digest(*map(_bytes, (scenario.train.labels, scenario.test.labels))),
        "images": _digest(*map(_some_pixels, (scenario.train, scenario.test))),
        "views": {name: _rounded(value) for name, value in vars(scenario.views).items()},
        "net": _digest(_plainly(repr(net)), *learns),
    }
    return Checkpoints(folder, json.loads(json.dumps(identity)))


def _digest(*parts: str | bytes) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update((part.encode() if isinstance(part, str) else part) + b"\0")
    return digest.hexdigest()[:16]


def _plainly(value: Any) -> Any:
    """Numbers and text; of other objects what they say of themselves, without the place where they lie."""
    return value if isinstance(value, bool | int | float | str | None) else re.sub(r"0x[0-9a-f]+", "", repr(value))


def _rounded(value: Any) -> Any:
    """Sums depend on the number of threads, by rounding."""
    if isinstance(value, list | tuple):
        return [_rounded(one) for one in value]
    return float(f"{value:.6g}") if isinstance(value, float) else _plainly(value)


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _some_pixels(images: Images) -> bytes:
    """Of all images, or of so many, evenly spaced, that they do not take long."""
    n = len(images.labels)
    example = images.pixels_of(slice(1))
    most = max(1, PIXEL_BYTES // example.nbytes)
    return _bytes(images.pixels_of(torch.arange(0, n, -(-n // most), device=images.pixels.device)))


def copy_from_first(state: RunState, shares: Shares) -> None:
    """In several processes, take over the state of the first. Before the first step memory is empty in all."""
    place = {name: getattr(state, name) for name in PLACE}
    remembered = dict(optimizer_tensors(state.optimizer))
    kinds = {name: (t.shape, t.dtype, t.device.type) for name, t in remembered.items()}
    first = shares.from_first((place, kinds, group_numbers(state.optimizer)))
    if shares.rank:
        remembered = {
            name: torch.zeros(shape, dtype=dtype, device=state.step.device if kind == "cuda" else kind)
            for name, (shape, dtype, kind) in first[1].items()
        }
    shares.same_everywhere(*remembered.values())
    if shares.rank:
        restore_optimizer(state.optimizer, remembered)
        restore_group_numbers(state.optimizer, first[2])
        for name, value in first[0].items():
            setattr(state, name, value)
    done = (OPTIMIZER,) if state.steps else (OPTIMIZER, MEMORY)
    shares.same_everywhere(*(tensor for name, tensor in state.tensors() if not name.startswith(done)))


def _check(file: Path, tensors: dict[str, Tensor], state: RunState) -> None:
    """Before anything is overwritten: all is there, in the right shapes, and memory can be read."""
    for name, tensor in state.tensors():
        there = tensors.get(name)
        if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
            raise Damaged(file, f"{name} is missing or of another shape")
        if name.startswith("net.") and there.is_floating_point() and not bool((there.abs() < LARGEST).all()):
            raise Damaged(file, f"{name} has NaN, inf or numbers above {LARGEST:g}")
    if state.memory is not None:
        held = under(MEMORY, tensors)
        try:
            check_held(state.memory, held, state.net.head.out_features)
        except BadInput as error:
            raise Damaged(file, str(error)) from None


def _check_place(file: Path, place: dict[str, Any], plan: Plan, training: Training) -> None:
    """Where in the plan it was made, and the accuracies until then."""
    if missing := set(PLACE) - place.keys():
        raise Damaged(file, f"it lacks {', '.join(sorted(missing))}")
    stage, epoch, epoch_steps = (place[name] for name in ("stage", "epoch", "epoch_steps"))
    for name in ("stage", "epoch", "epoch_steps", "steps", "arrived"):
        if type(place[name]) is not int or place[name] < 0:
            raise Damaged(file, f"{name} must be a whole number >= 0, got {place[name]!r:.40}")
    if stage >= len(plan.stages) or epoch > plan.stages[stage].epochs or epoch_steps > plan.steps(stage, training):
        raise Damaged(file, f"stage {stage}, epoch {epoch}, step {epoch_steps} is not in the plan of the run")
    if place["steps"] != plan.steps_before(stage, epoch, training) + epoch_steps:
        raise Damaged(file, f"steps must be those before stage {stage}, epoch {epoch}, got {place['steps']}")
    if type(place["offered"]) is not bool or not _is_number(place["seconds"]):
        raise Damaged(file, "offered must be true or false, and seconds a number")
    for name, rows in (("untrained", 2), ("class_il", stage), ("task_il", stage)):
        if not _is_matrix(place[name], rows, len(plan.first)):
            raise Damaged(file, f"{name} must be {rows} rows of {len(plan.first)} accuracies")
    if not isinstance(place["selections"], list) or not all(isinstance(one, dict) for one in place["selections"]):
        raise Damaged(file, "selections must be a list of objects")


def _check_sources(file: Path, sources: Any) -> None:
    if not isinstance(sources, list) or not all(isinstance(one, str) and one.isalnum() for one in sources):
        raise Damaged(file, f"{SOURCES} must be a list of hashes")


def _is_matrix(value: Any, rows: int, columns: int) -> bool:
    return (
        isinstance(value, list)
        and len(value) == rows
        and all(isinstance(row, list) and len(row) == columns and all(map(_is_percent, row)) for row in value)
    )


def _is_percent(value: Any) -> bool:
    return _is_number(value) and bool(value <= 100)


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < LARGEST


def _restore_optimizer(file: Path, numbers: Any, tensors: Mapping[str, Tensor], state: RunState) -> None:
    try:
        if numbers is not None:
            check_group_numbers(state.optimizer, numbers)
        restore_optimizer(state.optimizer, under(OPTIMIZER, tensors))
        if numbers is not None:
            restore_group_numbers(state.optimizer, numbers)
    except MISFITS as error:
        raise Damaged(file, f"optimizer: {brief_of(error)}") from None
