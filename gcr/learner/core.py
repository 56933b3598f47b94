"""What a learner is made of: labels, inputs, network, head, and the engine that trains them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from gcr.augment import Views
from gcr.learner.checks import (
    MakeOptimizer,
    checked_clip,
    checked_device,
    checked_net,
    checked_optimizer,
    checked_policy,
    checked_precision,
    network_state,
    refuse_inference_mode,
)
from gcr.learner.class_weights import ClassWeights, Given
from gcr.learner.engine import Engine, at_once
from gcr.learner.head import grow_head, refuse_tied
from gcr.learner.inputs import Layout, as_one
from gcr.learner.labels import Labels
from gcr.learner.turns import Turn, in_turn
from gcr.learner.views import Augment, Own, Plain, make_views, warn_of_views
from gcr.memory import Buffer, Policy
from gcr.memory.examples import as_count, digests, warn_of_scale
from gcr.methods import ErAce, Method
from gcr.models import Network, attach, order_weights
from gcr.models.network import HeadAlone, frozen_norm
from gcr.models.recompute_bn import refuse_without_statistics
from gcr.settings import BadInput
from gcr.training.numerics import computing
from gcr.training.optimizer import AnyOptimizer, held_parameters

ANY = -1  # label
FIXED = frozenset({"net", "method", "optimizer", "augment", "frozen", "head", "seed", "device", "precision", "clip"})


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
        self.class_weights.refuse_other(self.labels.known)
        self.device = checked_device(device, net)
        self.precision = checked_precision(precision, self.device)
        self.fits, self.turn = 0, Turn()
        self.forgot = False  # whether examples were erased, which saved versions may still hold
        self.cleared: set[str] = set()  # folders saved to after that, which hold them no more
        self.unfinished = False  # whether a fit was broken off: memory may hold some of its examples
        self.layout: Layout | None = None  # of what the network takes; known from the first batch on
        self.engine: Engine | None = None

    def __setattr__(self, name: str, value: Any) -> None:
        """An engine has been made of these: another value would have no effect."""
        if name in FIXED and self.__dict__.get("engine") is not None:
            also = ", or change its param_groups" if name == "optimizer" else ""
            raise BadInput(f"{name} cannot be replaced after the first batch; make a new Learner{also}")
        if name == "class_weight":  # would be an attribute that nothing reads
            raise BadInput("class_weight is given to Learner(…) and cannot be replaced; make a new Learner")
        super().__setattr__(name, value)

    @property
    def classes(self) -> list[Hashable]:
        """The labels in the order in which they came: that of the network's outputs."""
        return list(self.labels.known)

    @in_turn
    def end_task(self) -> None:
        """Say that a task is over: where a selector chooses memory, it does so now."""
        self._engine("end_task").end_task()

    @in_turn
    def logits(self, x: Any) -> Tensor:
        """Scores of the known classes, on the CPU: [n, classes]."""
        engine = self._engine("predict")
        engine.refuse_diverged()
        assert self.layout is not None
        rows = self.layout.rows(x)
        parts = [engine.logits(self._features(part.to(self.device))).cpu() for part in at_once(rows)]
        return torch.cat(parts)[:, : len(self.labels)]

    def share_right(self, x: Any, y: Any) -> float:
        """Of examples whose label is predicted."""
        predicted = self.logits(x).argmax(1)
        return float((predicted == self.labels.look_up(y, len(predicted))).double().mean())

    @property
    def progress(self) -> tuple[int, Tensor]:
        """Steps so far, and batches that were offered to memory; that is on the device, which nothing waits for."""
        if self.engine is None:
            return 0, torch.zeros(())
        state = self.engine.state
        return state.steps, torch.zeros(()) if state.memory is None else state.memory.adds.clone()

    @property
    def needs_two(self) -> bool:
        """Whether a batch of one example cannot be trained on."""
        return not self.frozen and any(
            isinstance(layer, _BatchNorm) and not frozen_norm(layer) for layer in self.net.modules()
        )

    def refuse_alone(self, n: int) -> None:
        """An error where batches of ``n`` examples cannot be trained on."""
        if n == 1 and self.needs_two:
            raise BadInput(
                "a batch of one example has no BatchNorm statistics; give two or more, or use a network with LayerNorm "
                "or GroupNorm"
            )

    @in_turn
    def take(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """A batch as rows and class numbers on the device. New labels make the head grow."""
        rows, labels = self._rows_and_numbers(x, y)
        return self._features(rows.to(self.device, non_blocking=True)), labels.to(self.device)

    @in_turn
    def learn_labels(self, y: Any, n: int) -> Tensor:
        """Class numbers [n] on the CPU."""
        values = self.labels.checked(y, n)
        known = self._count_with(values)
        if self.engine is not None and known > self.engine.n_outputs:
            self.engine.grow(known)
        return self.labels.learn(values)

    @in_turn
    def step(self, rows: Tensor, labels: Tensor, offers: bool = True) -> None:
        """Train on a batch from ``take``."""
        assert self.engine is not None
        if offers and (weights := self.engine.state.class_weights) is not None:
            self.class_weights.update(weights, labels, self.labels.known)
        self.engine.step(rows, labels, offers)

    @in_turn
    def offer_late(self, rows: Tensor, labels: Tensor, known: int) -> None:
        """Offer those examples of a batch to memory whose classes are not among the first ``known``."""
        assert self.engine is not None
        late = labels >= known
        if bool(late.any()):
            if (weights := self.engine.state.class_weights) is not None:
                self.class_weights.update(weights, labels[late], self.labels.known)
            self.engine.remember(rows[late], labels[late])

    @in_turn
    def drop_copies(self, rows: Tensor, labels: Sequence[Hashable] | None = None) -> None:
        """Examples that come again are offered to memory again: what it has of them now leaves, under any label, or
        under those ``labels`` that they have now."""
        assert self.engine is not None
        if (memory := self.engine.state.memory) is not None:
            own = digests(rows)
            numbers = [ANY] * len(own) if labels is None else self.labels.look_up(labels).tolist()
            self._erase(memory, set(zip(own, numbers, strict=True)), memory.filled_rows(), labels is not None)

    @in_turn
    def drop_of_task(self, rows: Tensor, labels: Tensor, passed: set[tuple[bytes, int]]) -> None:
        """Likewise, but only what came in this task with these labels. ``passed`` are the examples that have come again
        before; it takes these."""
        assert self.engine is not None
        again = set(zip(digests(rows), labels.tolist(), strict=True)) - passed
        passed |= again
        if (memory := self.engine.state.memory) is not None and again:
            self._erase(memory, again, self.engine.rows_of_task(), by_label=True)

    def _erase(self, memory: Buffer, again: set[tuple[bytes, int]], held: Tensor, by_label: bool) -> None:
        """Those of the rows ``held`` whose digest and label are among these."""
        assert self.engine is not None
        place = {row: number for number, row in enumerate(memory.filled_rows().tolist())}
        labels = memory.columns["label"][held].tolist() if by_label else [ANY] * len(held)
        there = zip(held.tolist(), digests(memory.columns["image"][held]), labels, strict=True)
        self.engine.erase([place[row] for row, *example in there if tuple(example) in again])

    @in_turn
    def warn_of_other_scale(self, rows: Tensor) -> None:
        """Images in floats that are not scaled as those in memory."""
        assert self.engine is not None
        assert self.layout is not None
        memory = self.engine.state.memory
        if memory is not None and len(memory) and not self.frozen and self.layout.is_image and rows.is_floating_point():
            warn_of_scale("x", rows, "memory", memory.columns["image"][memory.filled_rows()])

    @in_turn
    def follow_layers(self) -> None:
        """Layers may have been put into ``net``, or replaced, since the last step."""
        engine = self._engine("follow_layers")
        if self.frozen and self.trunk.head is not engine.state.net.head:
            raise BadInput("the head of net was replaced, which frozen=True does not follow; make a new Learner")
        engine.follow_layers()

    @in_turn
    def take_all(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """As ``take``, of a whole task, which need not fit the device: rows stay where they are, numbers on the CPU."""
        rows, labels = self._rows_and_numbers(x, y)
        if self.frozen:
            rows = torch.cat([self._features(part.to(self.device)) for part in at_once(rows)])
        return rows, labels

    def attach_head(self, layout: Layout, example: Any) -> Network:
        """The network, moved to the device, with its head found: without an example, ``head`` names it."""
        batch = None if example is None else self._example(layout, example)
        try:
            return attach(self.net.to(self.device), batch, None, self.head, layout.call)
        except BadInput:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            given = ", ".join(map(str, layout.parts))
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            remedy = "channels come first, and numbers have the type that net takes"
            if any(parameter.dtype == torch.float64 for parameter in self.net.parameters()):
                remedy = "float64 numbers reach net as float32, so make its parameters such by net.float()"
            raise BadInput(f"net cannot take x ({why}); an example is {given}: {remedy}") from None

    def start(self, layout: Layout, example: Any, n_classes: int, attached: Network | None = None) -> None:
        """Prepare network, optimizer and memory for inputs of this layout."""
        refuse_inference_mode()
        network = self.trunk = self.attach_head(layout, example) if attached is None else attached
        network_state(self.net)  # refuses what could not be saved, before anything is learned
        if layout.is_image:
            order_weights(network, self._example(layout, example))
        optimizer = self.optimizer
        if n_classes > network.head.out_features:
            given = optimizer if isinstance(optimizer, AnyOptimizer) else None
            refuse_tied(network)
            grow_head(network.head, n_classes, self.seed, given)
        trained: Network = network
        views, shape, dtype = make_views(layout, self.augment), layout.shape, layout.dtype
        if self.frozen:
            if isinstance(views, Own):
                raise BadInput("augment must be None, a name or Views with frozen=True: features are computed once")
            trained, shape, dtype = HeadAlone(network.head), (network.head.in_features,), torch.float32
            self._raw_views, views = views, Plain(Layout.of_rows(shape, dtype))
        if not any(parameter.requires_grad for parameter in trained.parameters()):
            what = "the head" if self.frozen else "net"
            raise BadInput(f"{what} has no parameter that wants a gradient; unfreeze some")
        if not isinstance(optimizer, AnyOptimizer):
            optimizer = optimizer([p for p in trained.parameters() if p.requires_grad])
        elif self.frozen:
            _refuse_more_than(network.head, optimizer)
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
        engine.made_optimizer, engine.state.clip = optimizer is not self.optimizer, self.clip
        if self.class_weights.given is not None:
            engine.state.class_weights = torch.ones(engine.n_outputs, dtype=torch.float32, device=self.device)
        if len(self.labels):  # classes that net knows already
            self.method.note_remembered(torch.arange(len(self.labels), device=self.device), engine.state.extras)
        self.optimizer, self.layout, self.engine = optimizer, layout, engine

    def _rows_and_numbers(self, x: Any, y: Any) -> tuple[Tensor, Tensor]:
        """Rows where they are, numbers on the CPU. The first batch prepares everything."""
        layout = self.layout or Layout.of(x)
        rows = layout.rows(x)
        values = self.labels.checked(y, len(rows))
        if self.layout is None:
            if self.policy is not None and self.policy.statistics == "memory":
                refuse_without_statistics(nn.Identity() if self.frozen else self.net)
            self.start(layout, x, self._count_with(values))
            if isinstance(self.augment, Views):
                warn_of_views(self.augment, at_once(rows)[0].to(self.device))
        return rows, self.learn_labels(values, len(rows))

    def _count_with(self, values: list[Hashable]) -> int:
        """Classes known with these labels. Memory must have room for an example of each."""
        self.class_weights.refuse_other(values)
        new = self.labels.unknown(values)
        known = len(self.labels) + len(new)
        if new and self.policy is not None and known > self.policy.buffer:
            room = self.policy.buffer - len(self.labels)
            raise BadInput(
                f"memory must hold an example of each class, {known} with {new[max(room, 0)]!r}, got "
                f"memory={self.policy.buffer}; use a larger memory{', by resize' if self.policy.balanced else ''}"
            )
        return known

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
            self.trunk.eval()
            parts = [self.trunk.features(self._raw_views.plain(part)).float() for part in at_once(rows)]
        return torch.cat(parts)

    def _engine(self, what: str) -> Engine:
        if self.engine is None:
            raise BadInput(f"{what} needs a learner that has seen something; call fit or observe first")
        return self.engine

    def _known(self) -> str:
        shown = ", ".join(map(repr, self.classes[:10]))
        return shown + (f", … ({len(self.labels)} in all)" if len(self.labels) > 10 else "")


def _refuse_more_than(head: nn.Linear, optimizer: AnyOptimizer) -> None:
    own = set(head.parameters())
    if any(parameter not in own for parameter in held_parameters(optimizer)):
        raise BadInput(
            "with frozen=True the optimizer must hold the head's parameters alone; give a function, as "
            "optimizer=lambda head: torch.optim.Adam(head)"
        )
