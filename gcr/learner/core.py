"""What a learner is made of: labels, inputs, network, head, and the engine that trains them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

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
from gcr.learner.labels import Labels
from gcr.learner.views import Augment, Own, Plain, make_views
from gcr.memory import Policy
from gcr.memory.examples import as_count
from gcr.methods import ErAce, Method
from gcr.models import Network, attach
from gcr.models.network import HeadAlone
from gcr.settings import BadInput
from gcr.training.numerics import computing
from gcr.training.optimizer import AnyOptimizer


class Core:
    """All but the public face; see ``Learner`` for what its arguments mean."""

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

    @property
    def classes(self) -> list[Hashable]:
        """The labels in the order in which they came: that of the network's outputs."""
        return list(self.labels.known)

    def end_task(self) -> None:
        """Say that a task is over: where a selector chooses memory, it does so now."""
        self._engine("end_task").end_task()

    def logits(self, x: Any) -> Tensor:
        """Scores of the known classes, on the CPU: [n, classes]."""
        engine = self._engine("predict")
        assert self.layout is not None
        rows = self.layout.rows(x)
        parts = [engine.logits(self._features(part.to(self.device))).cpu() for part in rows.split(AT_ONCE)]
        return torch.cat(parts)[:, : len(self.labels)]

    def score(self, x: Any, y: Any) -> float:
        """Share of examples whose label is predicted. Labels that were never learned count as errors."""
        predicted = self.logits(x).argmax(1)
        return float((predicted == self.labels.look_up(y, len(predicted))).double().mean())

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
        values = self.labels.checked(y, n)
        new = self.labels.unknown(values)
        known = len(self.labels) + len(new)
        if new and self.policy is not None and known > self.policy.buffer:
            raise BadInput(
                f"memory must hold an example of each class, {known} with {new[0]!r}, got memory={self.policy.buffer}; "
                "make a learner with a larger memory"
            )
        numbers = self.labels.learn(values)
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
        rows = self.layout.rows(x)
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
            self._raw_views, views = views, Plain(Layout.of_rows(shape, dtype))
        if not isinstance(optimizer, AnyOptimizer):
            optimizer = optimizer([p for p in trained.parameters() if p.requires_grad])
        self.optimizer = optimizer
        mode = "eager" if isinstance(views, Own) else "auto"  # functions of users may do anything
        engine = Engine(
            trained,
            optimizer,
            self.method,
            self.policy,
            views,
            shape,
            dtype,
            self.device,
            self.precision,
            self.seed,
            mode,
        )
        engine.state.clip = self.clip
        if self.class_weights.given is not None:
            engine.state.class_weights = torch.ones(engine.n_outputs, device=self.device)
        self.layout, self.engine = layout, engine

    def _begin(self, x: Any, y: Any) -> None:
        layout = Layout.of(x)
        new = self.labels.unknown(self.labels.checked(y, len(layout.rows(x))))
        self.start(layout, x, len(self.labels) + len(new))

    def _example(self, layout: Layout, x: Any) -> Tensor:
        """Two examples as the network takes them."""
        rows = layout.rows(x)[:2]
        rows = rows if len(rows) == 2 else rows.repeat(2, *(1,) * (rows.dim() - 1))
        return make_views(layout, self.augment).plain(rows.to(self.device))

    def _one(self, x: Any) -> Any:
        """A batch of one. The first dict of numbers decides on their order."""
        if self.layout is None:
            return as_one(x)
        self.layout = self.layout.named(x)
        return as_one(x, self.layout.names)

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
