"""``Learner``: teach a classifier of one's own new classes, with a small memory of the old ones.

>>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
>>> learner = Learner(net, memory=20)
>>> x = torch.rand(40, 4)
>>> learner = learner.fit(x, ["low" if sum(row) < 2 else "high" for row in x.tolist()], epochs=2)
>>> learner = learner.fit(x + 10, ["huge"] * 40, epochs=2)  # a new class: the head grows
>>> len(learner.classes), net[3].out_features, len(learner.memory)
(3, 3, 20)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from gcr.learner import fitting, saving
from gcr.learner.checks import (
    MakeOptimizer,
    checked_clip,
    checked_net,
    checked_optimizer,
    checked_policy,
    checked_precision,
)
from gcr.learner.class_weights import ClassWeights, Given
from gcr.learner.engine import AT_ONCE, Engine
from gcr.learner.head import grow_head
from gcr.learner.inputs import Layout, as_one
from gcr.learner.labels import Labels, plain_labels
from gcr.learner.memory_view import Memory
from gcr.learner.views import Augment, Plain, make_views
from gcr.memory import Policy
from gcr.memory.examples import as_count
from gcr.methods import ErAce, Method
from gcr.models import Network, attach
from gcr.models.network import HeadAlone
from gcr.settings import BadInput
from gcr.training.numerics import computing
from gcr.training.optimizer import AnyOptimizer


class Learner:
    """A classifier that learns classes one after another and remembers ``memory`` examples of what it has seen.

    ``net`` is any classifier with a linear head (``head`` names it where it cannot be found); it is trained in place,
    and its head grows with the classes. ``memory`` is the number of examples kept, or a ``Policy``. ``method`` is the
    loss, by default ER-ACE. ``optimizer`` is one of ``torch.optim`` over the network's parameters, ``gcr.Sgd``, or a
    function that makes one of parameters; by default AdamW.

    ``augment``: "auto" shifts images (and mirrors those of three channels), None leaves examples as they are,
    ``gcr.augment.Views`` normalise too, and a function gets a batch of what the network takes. ``frozen``: only the head
    learns, on features that are computed once; memory holds features. ``classes`` are the labels that the outputs of
    ``net`` already mean. ``class_weight`` is "balanced" or a weight per label, ``clip`` the most that the norm of all
    gradients may be. ``seed`` decides the order of examples, their views and what is remembered.
    """

    def __init__(
        self,
        net: nn.Module,
        memory: int | Policy = 500,
        *,
        method: Method | None = None,
        optimizer: AnyOptimizer | MakeOptimizer | None = None,
        augment: Augment = "auto",
        frozen: bool = False,
        classes: Sequence[Hashable] = (),
        class_weight: Given = None,
        clip: float | None = None,
        precision: str = "auto",
        device: torch.device | str | None = None,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        self.net = checked_net(net)
        self.method = ErAce() if method is None else method
        self.policy = checked_policy(memory, self.method)
        self.optimizer = checked_optimizer(optimizer)
        self.augment, self.frozen, self.head, self.seed = augment, frozen, head, as_count("seed", seed, 0, 2**31 - 1)
        self.labels = Labels(classes)
        self.class_weights, self.clip = ClassWeights(class_weight), checked_clip(clip)
        self.device = torch.device(device) if device is not None else next(net.parameters()).device
        self.precision = checked_precision(precision, self.device)
        self.fits = 0
        self.layout: Layout | None = None  # of what the network takes; known from the first batch on
        self.engine: Engine | None = None

    # Learning.

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int = 10,
        batch: int = 32,
        validation: Any = None,
        patience: int | None = None,
        schedule: fitting.Schedule | None = None,
        on_epoch: Callable[[Learner, fitting.FitEpoch], Any] | None = None,
        progress: bool | None = None,
        image: Any = None,
        label: str | None = None,
    ) -> Self:
        """Learn one task, or whatever came today, and end the task.

        ``x`` and ``y`` are tensors, arrays or lists; ``x`` alone may be a Dataset, a DataLoader or a Hugging Face
        dataset with its columns named by ``image`` and ``label``. Memory takes examples in the first epoch and
        their logits after the last.

        ``validation`` is (x, y) or a function of the learner that gives a number; after ``patience`` epochs without a
        better one training stops, and the best weights come back. ``schedule(optimizer, steps)`` makes a
        learning-rate scheduler, which is stepped after every batch. ``on_epoch(learner, epoch)`` is called after every
        epoch; if it returns True, training stops. ``progress`` shows a bar, by default on a terminal.
        """
        fitting.fit(self, x, y, epochs, batch, validation, patience, schedule, on_epoch, progress, image, label)
        return self

    def observe(self, x: Any, y: Any) -> Tensor:
        """One step on one batch, which is then offered to memory. Returns the loss, on the device."""
        rows, labels = self.take(x, y)
        assert self.engine is not None
        state = self.engine.state
        state.loss_sum.zero_()
        self.step(rows, labels)
        return state.loss_sum / len(labels)

    def remember(self, x: Any, y: Any) -> None:
        """Offer examples to memory without training on them, as those that ``net`` was trained on before."""
        rows, labels = self.take_all(x, y)
        assert self.engine is not None
        for part, numbers in zip(rows.split(AT_ONCE), labels.split(AT_ONCE), strict=True):
            self.engine.remember(part.to(self.device), numbers.to(self.device))

    def end_task(self) -> None:
        """Say that a task is over: where a selector chooses memory, it does so now."""
        self._engine("end_task").end_task()

    def learn_one(self, x: Any, y: Hashable) -> Self:
        """One step on one example: a tensor, or a dict of numbers."""
        self.observe(as_one(x), [y])
        return self

    # Predicting.

    def predict(self, x: Any) -> np.ndarray:
        """The label of each example."""
        return self.labels.of(self.logits(x).argmax(1))

    def predict_proba(self, x: Any, labels: Sequence[Hashable] | None = None) -> np.ndarray:
        """[n, classes], in the order of ``classes``, or of ``labels``."""
        probabilities = self.logits(x).softmax(1)
        if labels is not None:
            numbers = self.labels.look_up(labels)
            if missing := [label for label, number in zip(labels, numbers.tolist(), strict=True) if number < 0]:
                raise BadInput(f"labels must be known to the learner, got {missing[0]!r}; it knows {self._known()}")
            probabilities = probabilities[:, numbers]
        return probabilities.numpy()

    def score(self, x: Any, y: Any) -> float:
        """Share of examples whose label is predicted. Labels that were never learned count as errors."""
        predicted = self.logits(x).argmax(1)
        return float((predicted == self.labels.look_up(y, len(predicted))).double().mean())

    def logits(self, x: Any) -> Tensor:
        """Scores of the known classes, on the CPU: [n, classes]."""
        engine = self._engine("predict")
        assert self.layout is not None
        rows = self.layout.rows(x)
        parts = [engine.logits(self._features(part.to(self.device))).cpu() for part in rows.split(AT_ONCE)]
        return torch.cat(parts)[:, : len(self.labels)]

    def predict_one(self, x: Any) -> Hashable:
        """The label of one example; None before anything was learned."""
        return None if self.engine is None else self.classes[int(self.logits(as_one(x)).argmax(1))]

    def predict_proba_one(self, x: Any) -> dict[Hashable, float]:
        """The probability of each label; empty before anything was learned."""
        if self.engine is None:
            return {}
        return dict(zip(self.classes, self.predict_proba(as_one(x))[0].tolist(), strict=True))

    # What it knows.

    @property
    def classes(self) -> list[Hashable]:
        """The labels in the order in which they came: that of the network's outputs."""
        return list(self.labels.known)

    @property
    def memory(self) -> Memory:
        """What is remembered: examples, labels, weights, logits."""
        engine = self._engine("memory")
        if engine.state.memory is None or self.layout is None:
            raise BadInput(f"{self.method.name} keeps no memory; use another method")
        layout = Layout.of(torch.empty(1, *engine.shape, dtype=engine.dtype)) if self.frozen else self.layout
        return Memory(engine.state.memory, layout, self.labels, engine)

    def memory_bytes(self, x: Any) -> int:
        """What memory will take for examples like those of ``x``, known before training."""
        if self.policy is None:
            return 0
        layout = self.layout or Layout.of(x)
        shape, dtype = layout.shape, layout.dtype
        n_outputs = max(len(self.labels), 1)
        if self.engine is not None:
            shape, dtype, n_outputs = self.engine.shape, self.engine.dtype, self.engine.n_outputs
        else:
            network = self.attach_head(layout, x)
            n_outputs = max(n_outputs, network.head.out_features)
            if self.frozen:
                shape, dtype = (network.head.in_features,), torch.float32
        return self.policy.nbytes(shape, n_outputs, dtype)

    def __repr__(self) -> str:
        known = f"{len(self.labels)} classes" if self.engine else "nothing learned yet"
        kept = f", {self.memory!r}" if self.engine and self.engine.state.memory is not None else ""
        return f"Learner({type(self.net).__name__}, {known}{kept})"

    # Saving.

    def save(self, path: str | Path) -> None:
        """Write everything to the folder ``path``, atomically; the version before it is kept there."""
        saving.save(self, path)

    @classmethod
    def load(cls, path: str | Path, net: nn.Module, *, version: int | None = None, **given: Any) -> Self:
        """Go on from what ``save`` wrote, exactly. ``net`` has the same layers; its weights are replaced.

        What a file cannot hold is given again: ``optimizer`` where it is not of ``torch.optim``, a function for
        ``augment``, a ``method`` of one's own.
        """
        return saving.load(cls, path, net, version, given)

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What ``save`` writes: values that JSON can hold, and tensors by name."""
        return saving.state(self)

    @classmethod
    def from_state(cls, about: Mapping[str, Any], tensors: Mapping[str, Tensor], net: nn.Module, **given: Any) -> Self:
        """The opposite of ``state``."""
        return saving.from_state(cls, about, tensors, net, given)

    # For the parts of this room.

    def take(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """A batch as rows and class numbers on the device. New labels make the head grow."""
        if self.layout is None:
            self._begin(x, y)
        assert self.layout is not None
        rows = self.layout.rows(x)
        labels = self.learn_labels(y, len(rows))
        return self._features(rows.to(self.device, non_blocking=True)), labels.to(self.device)

    def learn_labels(self, y: Any, n: int) -> Tensor:
        """Class numbers [n] on the CPU."""
        new = self.labels.unknown(y, n)
        known = len(self.labels) + len(new)
        if new and self.policy is not None and known > self.policy.buffer:
            raise BadInput(
                f"memory must hold an example of each class, {known} with {new[0]!r}, got memory={self.policy.buffer}; "
                "make a learner with a larger memory"
            )
        numbers = self.labels.numbers(y, n)
        if self.engine is not None and known > self.engine.n_outputs:
            self.engine.grow(known)
        return numbers

    def step(self, rows: Tensor, labels: Tensor, offers: bool = True) -> None:
        """Train on a batch from ``take``."""
        assert self.engine is not None
        if (weights := self.engine.state.class_weights) is not None:
            self.class_weights.update(weights, labels, self.labels.known)
        try:
            self.engine.step(rows, labels, offers)
        except ValueError as error:
            if len(labels) == 1 and "more than 1 value per channel" in str(error):
                raise BadInput(
                    "a batch of one example has no BatchNorm statistics; give two or more, or use a network with "
                    "LayerNorm or GroupNorm"
                ) from None
            raise

    def take_all(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """The same for a whole task, which need not fit the device: rows stay where they are, numbers on the CPU."""
        if self.layout is None:
            self._begin(x, y)
        assert self.layout is not None
        rows = self.layout.rows(x, x.device if isinstance(x, Tensor) else "cpu")
        labels = self.learn_labels(y, len(rows))
        if self.frozen:
            rows = torch.cat([self._features(part.to(self.device)) for part in rows.split(AT_ONCE)])
        return rows, labels

    def attach_head(self, layout: Layout, example: Any) -> Network:
        """The network, moved to the device, with its head found."""
        return attach(self.net.to(self.device), self._example(layout, example), None, self.head, layout.call)

    def start(self, layout: Layout, example: Any, n_classes: int) -> None:
        """Prepare network, optimizer and memory for inputs of this layout."""
        network = self._trunk = self.attach_head(layout, example)
        if self.device.type == "cuda" and layout.is_image:
            network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        optimizer = self.optimizer
        if n_classes > network.head.out_features:
            given = optimizer if isinstance(optimizer, AnyOptimizer) else None
            grow_head(network.head, n_classes, self.seed, given)
        trained: Network = network
        views, shape, dtype = make_views(layout, self.augment), layout.shape, layout.dtype
        if self.frozen:
            trained, shape, dtype = HeadAlone(network.head), (network.head.in_features,), torch.float32
            self._raw_views = Plain(layout)
            views = Plain(Layout.of(torch.empty(1, *shape)))
        if not isinstance(optimizer, AnyOptimizer):
            optimizer = optimizer([p for p in trained.parameters() if p.requires_grad])
        self.optimizer = optimizer
        engine = Engine(
            trained, optimizer, self.method, self.policy, views, shape, dtype, self.device, self.precision, self.seed
        )
        engine.state.clip = self.clip
        if self.class_weights.given is not None:
            engine.state.class_weights = torch.ones(engine.n_outputs, device=self.device)
        self.layout, self.engine = layout, engine

    def _begin(self, x: Any, y: Any) -> None:
        layout = Layout.of(x)
        labels = plain_labels(y)
        rows = layout.rows(x)
        new = self.labels.unknown(labels, len(rows))
        self.start(layout, x, len(self.labels) + len(new))

    def _example(self, layout: Layout, x: Any) -> Tensor:
        """Two examples as the network takes them."""
        rows = layout.rows(x)[:2]
        rows = rows if len(rows) == 2 else rows.repeat(2, *(1,) * (rows.dim() - 1))
        return make_views(layout, self.augment).plain(rows.to(self.device))

    def _features(self, rows: Tensor) -> Tensor:
        """What the engine trains on: rows as they are, or their features where the rest of the network is frozen."""
        if not self.frozen:
            return rows
        with torch.no_grad(), computing(self.precision, self.device):
            self._trunk.eval()
            parts = [self._trunk.features(self._raw_views.plain(part)).float() for part in rows.split(AT_ONCE)]
        return torch.cat(parts)

    def _engine(self, what: str) -> Engine:
        if self.engine is None:
            raise BadInput(f"{what} needs a learner that has seen something; call fit or observe first")
        return self.engine

    def _known(self) -> str:
        shown = ", ".join(map(repr, self.classes[:10]))
        return shown + (f", … ({len(self.labels)} in all)" if len(self.labels) > 10 else "")
