"""A finished run, loaded from its folder: predict, features, and what it keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcr.augment import Views
from gcr.experiments import plugins
from gcr.experiments.experiment import Experiment
from gcr.files import brief
from gcr.memory import Buffer
from gcr.methods import Extras
from gcr.methods.ema import copy_in
from gcr.models import Network, attach, order_weights, seeded
from gcr.runs.folder import AGAIN, MEMORY_FILE, RunFolder, check_together, wrong_file
from gcr.runs.model_file import EXTRA, MODEL_FILE, NET, SavedModel, read_model
from gcr.settings import MISFITS, BadInput, brief_of
from gcr.training.numerics import computing, resolved, usable_device
from gcr.training.reselect import holding

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
        """The input of the head of the network that predicts, on the CPU: [n, f]."""
        with torch.no_grad(), holding(self.net, copy_in(self.experiment.method.predictor, self.extras)):
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
    file, remedy = run.path / MODEL_FILE, "train it again"
    try:
        values, result = run.experiment_values(), run.result()
        remedy = plugins.lacking(result) or remedy
        experiment = Experiment.from_dict(values)
        plugins.network(experiment.model)
        check_together(values, result)
    except (OSError, *MISFITS) as error:
        why = brief(error) if isinstance(error, BadInput | OSError) else brief_of(error)
        raise BadInput(f"{run.path} cannot be read ({why}); {remedy}") from None
    if not file.exists():
        if wrong_file(file, result):
            raise BadInput(f"{file} is missing; {AGAIN}")
        raise BadInput(
            f"{run.path} has no {MODEL_FILE}; train it again without --no-model, under another --out or --name"
        )
    saved, where = read_model(file), usable_device(device)
    about = saved.about
    try:
        shape, views = _checked_about(about), Views.from_json(about["views"])
        net = _network(saved, experiment, shape)
        if len(views.mean) != shape[0]:
            raise BadInput(f"views.mean must have {shape[0]} numbers, one for each channel")
    except MISFITS as error:
        raise BadInput(f"{file} does not fit this gcr ({brief_of(error)}); load it with the gcr that made it") from None
    columns = run.memory()
    try:
        memory = _buffer(columns, shape, about)
    except MISFITS as error:
        raise BadInput(f"{run.path / MEMORY_FILE} does not fit the run ({brief_of(error)}); move it away") from None
    for other in (file, run.path / MEMORY_FILE):
        if why := wrong_file(other, result):
            raise BadInput(f"{other} is not that of the run ({why}); put it back, or train the run again")
    order_weights(net.to(where), torch.zeros(2, *shape, device=where))
    return LoadedRun(
        experiment,
        result,
        memory,
        net,
        {name: tensor.to(where) for name, tensor in saved.extras.items()},
        views,
        tuple(about["class_names"]),
        shape,
        about["pixels"],
        where,
    )


def _checked_about(about: Mapping[str, Any]) -> tuple[int, int, int]:
    """The shape of images. An error names the field that is none."""
    shape, names = about["image_shape"], about["class_names"]
    if not isinstance(shape, list) or len(shape) != 3 or not all(type(n) is int and 0 < n < 2**20 for n in shape):
        raise BadInput(f"image_shape must be channels, height and width, got {shape!r:.40}")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise BadInput(f"class_names must be a list of text, got {names!r:.40}")
    if about["pixels"] not in ("uint8", "float32"):
        raise BadInput(f"pixels must be uint8 or float32, got {about['pixels']!r:.40}")
    if not isinstance(about["model"], str):
        raise BadInput(f"model must be text, got {about['model']!r:.40}")
    channels, height, width = shape
    return channels, height, width


def _network(saved: SavedModel, experiment: Experiment, shape: tuple[int, int, int]) -> Network:
    """With the saved weights. Shapes are compared first, without memory for weights."""
    name, n_classes = saved.about["model"], len(saved.about["class_names"])

    def made() -> Network:
        net, head = seeded(plugins.network(name), shape, n_classes, 0), saved.about.get("head")
        if not isinstance(net, Network) and head is None:
            raise BadInput("head is missing")
        return attach(net, None, n_classes, head)

    with torch.device("meta"):
        like = made()
        extras = experiment.method.predictor_state(experiment.method.extras(like, 1))
    for prefix, own, there in ((NET, like.state_dict(), saved.net), (EXTRA, extras, saved.extras)):
        for key in {**own, **there}:
            if key not in own or key not in there or own[key].shape != there[key].shape:
                shapes = [tuple(held[key].shape) if key in held else "nothing" for held in (there, own)]
                raise BadInput(f"{prefix}{key} is {shapes[0]} there, {shapes[1]} here")
            if own[key].dtype != there[key].dtype:
                raise BadInput(f"{prefix}{key} is {there[key].dtype} there, {own[key].dtype} here")
    net = made()
    net.load_state_dict(saved.net)
    return net


def _buffer(columns: dict[str, Tensor] | None, shape: tuple[int, ...], about: Mapping[str, Any]) -> Buffer | None:
    if columns is None:
        return None
    if not {"label", "image"} <= columns.keys() or not columns["label"].dim():
        raise BadInput("image or label is missing")
    n, n_classes, dtype = len(columns["label"]), len(about["class_names"]), getattr(torch, about["pixels"])
    buffer = Buffer.empty(max(n, 1), 0, shape, n_classes, dtype=dtype, also=columns)
    for name, column in buffer.columns.items():
        there = columns.get(name)
        if there is None or there.shape != (n, *column.shape[1:]) or there.dtype != column.dtype:
            raise BadInput(f"{name} is missing or of another shape")
        column[:n] = there
    if n and not 0 <= int(columns["label"].min()) <= int(columns["label"].max()) < n_classes:
        raise BadInput(f"label must be 0 to {n_classes - 1}")
    buffer.kept.fill_(n)
    return buffer
