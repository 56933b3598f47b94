"""A classifier on disk: the learner's state, how examples reach it, what is held out, and the history of updates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gcr.classifier.examples import Form
from gcr.learner.learner import Learner
from gcr.learner.state_folder import StateFolder
from gcr.models import build
from gcr.settings import MISFITS, BadInput, Misfit, brief_of

HELD_OUT = "heldout."
PAGE = "inspect.html"  # in the state's folder
SMALL_NETS = ("convnet", "mlp")


@dataclass
class Classifier:
    folder: StateFolder
    form: Form
    net_name: str
    learner: Learner
    memory: int  # examples kept in all
    held_out: Tensor  # [n, *form.shape]
    held_out_labels: list[str]
    history: list[dict[str, Any]]

    @property
    def classes(self) -> list[str]:
        return [str(name) for name in self.learner.classes]

    @property
    def nbytes(self) -> int:
        """Of all examples that are kept."""
        return self.learner.memory.nbytes + self.held_out.nbytes + 8 * len(self.held_out)

    def memory_labels(self) -> list[str]:
        return [str(label) for label in self.learner.memory.labels]

    def memory_columns(self) -> dict[str, Tensor]:
        """Examples to replay: image, label as a number, weight."""
        held, place = self.learner.memory, {name: number for number, name in enumerate(self.classes)}
        labels = torch.tensor([place[name] for name in self.memory_labels()], dtype=torch.int64)
        return {"image": held.examples, "label": labels, "weight": held.weights}

    def write(self) -> int:
        """A new version; returns its number."""
        about, tensors = self.learner.state()
        place = {name: number for number, name in enumerate(self.classes)}
        of_classifier = {
            "form": self.form.to_json(),
            "net": self.net_name,
            "memory": self.memory,
            "history": self.history,
        }
        held_out = {
            HELD_OUT + "examples": self.held_out,
            HELD_OUT + "labels": torch.tensor([place[name] for name in self.held_out_labels], dtype=torch.int64),
        }
        tensors = {**tensors, **held_out}
        return self.folder.write({"learner": about, "classifier": of_classifier}, tensors, self.learner.forgot)


@contextmanager
def fitting_threads(net_name: str) -> Iterator[None]:
    """Small networks on a CPU are fastest on one thread: their steps are too short to share."""
    before = torch.get_num_threads()
    if net_name in SMALL_NETS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def new_net(name: str, form: Form, n_classes: int, seed: int) -> torch.nn.Module:
    shape = form.shape if form.kind == "pictures" else (*form.shape, 1, 1)
    channels, height, width = shape
    return build(name, (channels, height, width), n_classes, seed)


def load(folder: StateFolder, device: str = "cpu", version: int | None = None) -> Classifier:
    about, tensors = folder.read(version)
    if not isinstance(about.get("classifier"), dict):
        raise BadInput(
            f"{folder.path} holds no classifier: learner.save wrote it, not gcr update; read it with "
            "gcr.Learner.load(path, net)"
        )
    try:
        return _from_state(folder, about, tensors, device)
    except MISFITS as error:
        if isinstance(error, BadInput) and not isinstance(error, Misfit):
            raise
        raise BadInput(
            f"{folder.path} cannot be read by this gcr ({brief_of(error)}); use the gcr that made it, or begin anew"
        ) from None


def _from_state(
    folder: StateFolder, about: Mapping[str, Any], tensors: Mapping[str, Tensor], device: str
) -> Classifier:
    of = about["classifier"]
    form = Form.from_json(of["form"])
    labels: Sequence[str] = about["learner"]["classes"]
    learner = Learner.from_state(
        about["learner"],
        {name: tensor for name, tensor in tensors.items() if not name.startswith(HELD_OUT)},
        new_net(of["net"], form, len(labels), seed=0),
        device=device,
        precision="auto",
    )
    names = [str(name) for name in learner.classes]
    held_out, numbers = tensors[HELD_OUT + "examples"], tensors[HELD_OUT + "labels"].tolist()
    if held_out.shape != (len(numbers), *form.shape) or not all(n in range(len(names)) for n in numbers):
        raise Misfit("held-out examples do not fit the classifier")
    if type(of["memory"]) is not int or of["memory"] < 0:
        raise Misfit(f"memory must be a whole number >= 0, got {of['memory']!r:.40}")
    _check_history(of["history"])
    return Classifier(
        folder,
        form,
        of["net"],
        learner,
        of["memory"],
        held_out,
        [names[number] for number in numbers],
        of["history"],
    )


def _check_history(history: Any) -> None:
    """What the page of ``gcr inspect`` shows of each update."""
    for number, update in enumerate(history if isinstance(history, list) else [history], 1):
        for name, is_right in HISTORY.items():
            if not isinstance(update, dict) or name not in update or not is_right(update[name]):
                raise Misfit(f"update {number} of its history lacks {name}, or it is of another kind")


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value < 1e15


def _is_share(value: Any) -> bool:
    return _is_number(value) and value <= 1


HISTORY: dict[str, Callable[[Any], bool]] = {
    "date": lambda value: isinstance(value, str),
    "source": lambda value: isinstance(value, str),
    "new_classes": lambda value: isinstance(value, list) and all(isinstance(name, str) for name in value),
    "examples": lambda value: isinstance(value, dict) and all(map(_is_number, value.values())),
    "accuracy": lambda value: isinstance(value, dict) and all(map(_is_share, value.values())),
    "old_before": lambda value: value is None or _is_share(value),
    "old_after": lambda value: value is None or _is_share(value),
    "epochs": _is_number,
    "seconds": _is_number,
}
