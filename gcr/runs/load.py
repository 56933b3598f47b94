"""A finished run, loaded from its folder: predict, features, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcr.augment import Views
from gcr.experiments.experiment import Experiment
from gcr.files import brief
from gcr.memory import Buffer
from gcr.methods import Extras
from gcr.models import Network, build
from gcr.runs.folder import RunFolder
from gcr.runs.model_file import MODEL_FILE, read_model
from gcr.settings import BadInput
from gcr.training.numerics import computing, resolved

BATCH = 1000  # images at a time, as in evaluation


@dataclass(frozen=True)
class LoadedRun:
    """A finished run. Images are given as the data set has them; its views normalise them."""

    experiment: Experiment
    result: dict[str, Any]  # result.json
    memory: Buffer | None  # the kept examples; None without memory
    net: Network
    extras: Extras  # what the method predicts with, other than the network
    views: Views
    class_names: tuple[str, ...]
    image_shape: tuple[int, int, int]
    pixels: str  # type of the data set's images: uint8 or float32
    device: torch.device

    def predict(self, images: Any) -> Tensor:
        """The class of each image, by the method's own rule: [n] int64. ``class_names`` has their names."""
        return self.scores(images).argmax(1)

    def scores(self, images: Any) -> Tensor:
        """What the method scores each class with, on the CPU: [n, classes]. Logits for most methods."""
        method = self.experiment.method
        return self._each(images, lambda views: method.predict(self.net, views, self.extras))

    def features(self, images: Any) -> Tensor:
        """The input of the network's head, on the CPU: [n, f]."""
        return self._each(images, self.net.features)

    @torch.no_grad()
    def _each(self, images: Any, function: Callable[[Tensor], Tensor]) -> Tensor:
        precision = resolved(self.experiment.training.precision, self.device)
        self.net.eval()
        with computing(precision, self.device):
            parts = [function(views).float().cpu() for views in self._normalised(self._checked(images))]
        return torch.cat(parts)

    def _normalised(self, images: Tensor) -> Iterator[Tensor]:
        for part in images.split(BATCH):
            yield self.views.plain(part.to(self.device))

    def _checked(self, images: Any) -> Tensor:
        """[n, c, h, w] of a type that the views can normalise, on the CPU."""
        given = images.detach().cpu() if isinstance(images, Tensor) else torch.tensor(np.asarray(images))
        shape, wanted = tuple(given.shape), f"[n, {', '.join(map(str, self.image_shape))}]"
        if len(shape) != 4 or shape[1:] != self.image_shape or not shape[0]:
            hint = "; one image is images[None]" if shape == self.image_shape else ""
            channels, *sides = self.image_shape
            hint = "; permute(0, 3, 1, 2) puts channels first" if shape[1:] == (*sides, channels) else hint
            raise BadInput(f"images must have shape {wanted}, got {list(shape)}{hint}")
        if given.dtype == torch.uint8 and self.pixels == "uint8":
            return given
        if not given.is_floating_point():
            allowed = "uint8, or float in [0, 1]" if self.pixels == "uint8" else "float, as those it was trained on"
            raise BadInput(f"images must be {allowed}, got {given.dtype}; convert them")
        if not bool(given.isfinite().all()):
            raise BadInput("images must be finite, got NaN or inf")
        if self.pixels == "uint8" and not 0 <= float(given.min()) <= float(given.max()) <= 1:
            low, high = float(given.min()), float(given.max())
            raise BadInput(f"float images must be in [0, 1], got {low:g}..{high:g}; convert bytes to uint8")
        return given


def load_run(folder: str | Path, device: str = "cpu") -> LoadedRun:
    """The finished run in ``folder``, as ``runs/seq-digits-gcr-k100/seed-0``. The data set need not be there."""
    run = RunFolder(Path(folder))
    if not run.finished:
        seeds = sorted(path.parent.name for path in run.path.glob("*/result.json")) if run.path.is_dir() else []
        hint = f"give one of its runs, as {run.path / seeds[0]}" if seeds else "give a folder that has a result.json"
        raise BadInput(f"{run.path} is not a finished run; {hint}")
    file = run.path / MODEL_FILE
    if not file.exists():
        raise BadInput(
            f"{run.path} has no {MODEL_FILE}; train it again without --no-model, under another --out or --name"
        )
    try:
        experiment, result = run.experiment(), run.result()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{run.path} cannot be read ({brief(error)}); train it again") from None
    saved, where = read_model(file), torch.device(device)
    about = saved.about
    try:
        shape = tuple(about["image_shape"])
        views = Views(**{name: _fixed(value) for name, value in about["views"].items()})
        net = build(about["model"], shape, len(about["class_names"]), seed=0)
        net.load_state_dict(saved.net)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        why = " ".join(str(error).split())
        raise BadInput(f"{file} does not fit this gcr ({why:.200}); load it with the gcr that made it") from None
    net.to(where)
    if where.type == "cuda":
        net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return LoadedRun(
        experiment,
        result,
        _buffer(run.memory()),
        net,
        {name: tensor.to(where) for name, tensor in saved.extras.items()},
        views,
        tuple(about["class_names"]),
        shape,
        about["pixels"],
        where,
    )


def _buffer(columns: dict[str, Tensor] | None) -> Buffer | None:
    if columns is None:
        return None
    n, image, logits = len(columns["label"]), columns["image"], columns["logits"]
    scored = "score" in columns
    buffer = Buffer.empty(max(n, 1), 0, tuple(image.shape[1:]), logits.shape[1], scored=scored, dtype=image.dtype)
    for name, column in buffer.columns.items():
        column[:n] = columns[name]
    buffer.kept.fill_(n)
    return buffer


def _fixed(value: Any) -> Any:
    """JSON has lists where ``Views`` has tuples."""
    return tuple(value) if isinstance(value, list) else value
