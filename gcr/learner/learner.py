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
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from gcr.learner import fitting, saving
from gcr.learner.checks import refuse_inference_mode, refuse_without_gradients
from gcr.learner.core import Core
from gcr.learner.engine import Engine, at_once_with
from gcr.learner.head import cut_or_grow
from gcr.learner.inputs import Layout
from gcr.learner.labels import plain_labels
from gcr.learner.memory_view import Memory
from gcr.learner.turns import in_turn
from gcr.memory import Buffer
from gcr.memory.examples import as_count
from gcr.methods import Method
from gcr.methods.ema import copy_in
from gcr.models import attach
from gcr.models.network import HeadAlone
from gcr.settings import BadInput
from gcr.training.rates import Schedule
from gcr.training.reselect import holding


class Learner(Core):
    """A classifier that learns classes one after another and remembers ``memory`` examples of what it has seen.

    ``net`` is any classifier with a linear head (``head`` names it where it cannot be found); it is trained in place,
    and its head grows with the classes; ``predictor()`` gives the network that predicts. ``memory`` is the number of
    examples kept, or a ``Policy``. ``method`` is the loss, by default ER-ACE. ``optimizer`` is one of ``torch.optim``
    over the network's parameters, ``gcr.Sgd``, or a function that makes one of parameters; by default AdamW.

    ``augment``: "auto" shifts images of 16 pixels or more and mirrors those of three channels, "shift" does not mirror,
    None leaves examples as they are, ``gcr.augment.Views`` normalise too, and a function gets a batch of what the
    network takes. With ``frozen`` only the head learns, on features that are computed once; memory holds features.

    ``classes`` are the labels that the outputs of ``net`` already mean. ``class_weight`` is "balanced" or a weight per
    label, ``clip`` the most that the norm of all gradients may be. ``seed`` decides the order of examples, their views
    and what is remembered.
    """

    # Learning.

    def fit(
        self,
        x: Any,
        y: Any = None,
        *,
        epochs: int | None = None,
        batch: int = 32,
        validation: Any = None,
        patience: int | None = None,
        schedule: Schedule | None = None,
        on_epoch: Callable[[Learner, fitting.FitEpoch], Any] | None = None,
        progress: bool | None = None,
        image: Any = None,
        label: str | None = None,
    ) -> Self:
        """Learn one task, or whatever came today, and end the task. If not given, ``epochs`` are 10, or as many as give
        300 steps.

        ``x`` and ``y`` are tensors, arrays or lists; ``x`` alone may be a Dataset, a DataLoader or a Hugging Face
        dataset with its columns named by ``image`` and ``label``. Memory takes examples in the first epoch and
        their logits after the last.

        ``validation`` is (x, y) or a function of the learner that gives a number; after ``patience`` epochs without a
        better one training stops, and the best weights come back. ``schedule(optimizer, steps)`` makes a
        learning-rate scheduler, which is stepped after every batch. ``on_epoch(learner, epoch)`` is called after every
        epoch; if it returns True, training stops. ``progress`` shows a bar, by default on a terminal.
        """
        refuse_without_gradients()
        options = fitting.Options(epochs, batch, validation, patience, schedule, on_epoch, progress, image, label)
        fitting.fit(self, x, y, options)
        return self

    @in_turn
    def observe(self, x: Any, y: Any) -> Tensor:
        """One step on one batch, which is then offered to memory. Returns the loss, on the device."""
        refuse_without_gradients()
        y = plain_labels(y)
        self.refuse_alone(len(y))
        with fitting.refused_whole(self):
            rows, labels = self.take(x, y)
            assert self.engine is not None
            self.follow_layers()
            state = self.engine.state
            state.loss_sum.zero_()
            self.step(rows, labels)
        return state.loss_sum / len(labels)

    @in_turn
    def remember(self, x: Any, y: Any) -> None:
        """Offer examples to memory without training on them, as those that ``net`` was trained on before."""
        refuse_inference_mode()
        with fitting.refused_whole(self):
            rows, labels = self.take_all(x, y)
            assert self.engine is not None
            self.follow_layers()
            for part, numbers in at_once_with(rows, labels):
                self.engine.remember(part.to(self.device), numbers.to(self.device))

    @in_turn
    def learn_one(self, x: Any, y: Hashable) -> Self:
        """One step on one example: a tensor, or a dict of numbers with the same keys each time."""
        self.observe(self._one(x), [y])
        assert self.layout is not None
        self.layout = self.layout.named(x)
        return self

    # Predicting.

    @in_turn
    def predict(self, x: Any) -> np.ndarray:
        """The label of each example."""
        return self.labels.of(self.logits(x).argmax(1))

    @in_turn
    def predict_proba(self, x: Any, labels: Sequence[Hashable] | None = None) -> np.ndarray:
        """[n, classes], in the order of ``classes``, or of ``labels``."""
        probabilities = self.logits(x).softmax(1)
        if labels is not None:
            labels = plain_labels(labels, "labels")
            numbers = self.labels.look_up(labels)
            if missing := [label for label, number in zip(labels, numbers.tolist(), strict=True) if number < 0]:
                raise BadInput(f"labels must be known to the learner, got {missing[0]!r}; it knows {self._known()}")
            probabilities = probabilities[:, numbers]
        return probabilities.numpy()

    def score(self, x: Any, y: Any = None, *, image: Any = None, label: str | None = None) -> float:
        """Share of examples whose label is predicted; ``x`` alone may be what ``fit`` takes alone. Labels that were
        never learned count as errors; those of another type than the learned ones are refused."""
        if y is None and isinstance(x, tuple) and len(x) == 2:
            x, y = x
        return fitting.share_right(self, "x", x, image, label) if y is None else self.share_right(x, y)

    @in_turn
    def predict_one(self, x: Any) -> Hashable:
        """The label of one example; None before anything was learned."""
        return None if self.engine is None else self.classes[int(self.logits(self._one(x)).argmax(1))]

    @in_turn
    def predict_proba_one(self, x: Any) -> dict[Hashable, float]:
        """The probability of each label; empty before anything was learned."""
        if self.engine is None:
            return {}
        return dict(zip(self.classes, self.predict_proba(self._one(x))[0].tolist(), strict=True))

    # What it knows.

    @property
    def memory(self) -> Memory:
        """What is remembered: examples, labels, weights, logits."""
        engine, buffer = self._with_memory("memory")
        assert self.layout is not None
        layout = Layout.of_rows(engine.shape, engine.dtype) if self.frozen else self.layout
        return Memory(buffer, layout, self.labels, engine, self.turn)

    @in_turn
    def memory_bytes(self, x: Any) -> int:
        """What memory will take for examples like those of ``x``, and the method's own tensors, as averages of weights.
        Known before training."""
        layout = self.layout or Layout.of(x)
        shape, dtype = layout.shape, layout.dtype
        n_outputs = max(len(self.labels), 1)
        if self.engine is not None:
            shape, dtype, n_outputs = self.engine.shape, self.engine.dtype, self.engine.n_outputs
            extras = self.engine.state.extras
        else:
            network = self.attach_head(layout, x)
            n_outputs = max(n_outputs, network.head.out_features)
            if self.frozen:
                shape, dtype = (network.head.in_features,), torch.float32
                network = HeadAlone(network.head)
            extras = self.method.extras(network, 1)
        own = sum(tensor.nbytes for tensor in extras.values())
        return own + (self.policy.nbytes(shape, n_outputs, dtype) if self.policy else 0)

    @in_turn
    def predictor(self) -> nn.Module:
        """The network that predicts, as a module of its own in evaluation mode: a copy of ``net`` without outputs
        that have no class, with averaged weights where the method averages them (``GcrPlus``, ``ClsEr``). It takes
        what ``net`` takes: uint8 is not scaled to [0, 1], and nothing is normalised as by ``gcr.augment.Views``."""
        engine = self._engine("predictor")
        engine.refuse_diverged()
        method = engine.method
        if not method.predictor and type(method).predict is not Method.predict:
            raise BadInput(f"{method.name} predicts by a rule of its own, not by a network; use predict")
        with torch.no_grad(), holding(engine.state.net, copy_in(method.predictor, engine.state.extras)):
            net = _copy(self.net)
        head = attach(net, None, head=getattr(self.trunk, "head_name", None)).head
        cut_or_grow(head, len(self.labels), self.seed)
        return net.eval()

    @in_turn
    def forget(self, rows: Any) -> int:
        """Erase examples from memory and return their number. ``rows`` are a mask over ``memory``, numbers of its rows,
        or a function of ``memory`` that gives them, where other threads may change it. The next ``save`` to a folder
        removes all versions before it there. What the network learned stays in its weights."""
        engine, _ = self._with_memory("forget")
        if isinstance(rows, str) or (isinstance(rows, list) and any(isinstance(row, str) for row in rows)):
            raise BadInput(
                f"rows must be a mask over memory, numbers of its rows or a function of memory, got {rows!r}; all of a "
                "class are: learner.memory.labels == label"
            )
        n = engine.erase(rows(self.memory) if callable(rows) else rows)
        if n:
            self.forgot = True
            self.cleared.clear()
        return n

    @in_turn
    def resize(self, memory: int) -> None:
        """Let memory hold so many examples from now on. Those that are there stay, as far as they fit: the same random
        sample of each class. Not while ``fit`` runs."""
        if self.policy is None or not self.policy.balanced:
            raise BadInput("resize is for memory in a class-balanced reservoir, as memory=100 makes it")
        if self.turn.learning:  # a fit knows by their rows which examples came before it
            raise BadInput("resize cannot be called while fit runs; call it before or after")
        size = as_count("memory", memory, max(1, len(self.labels)))  # an example of each class
        if size != self.policy.buffer:
            policy = replace(self.policy, buffer=size)
            if self.engine is not None:
                self.follow_layers()
                self.engine.resize(policy)
            self.policy = policy

    def _with_memory(self, what: str) -> tuple[Engine, Buffer]:
        engine = self._engine(what)
        if engine.state.memory is None:
            raise BadInput(f"{self.method.name} keeps no memory; use another method")
        return engine, engine.state.memory

    def __repr__(self) -> str:
        known = f"{len(self.labels)} classes" if self.engine else "nothing learned yet"
        kept = f", {self.memory!r}" if self.engine and self.engine.state.memory is not None else ""
        return f"Learner({type(self.net).__name__}, {known}{kept})"

    # Saving.

    @in_turn
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

    @in_turn
    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What ``save`` writes: values that JSON can hold, and tensors by name."""
        return saving.state(self)

    @classmethod
    def from_state(cls, about: Mapping[str, Any], tensors: Mapping[str, Tensor], net: nn.Module, **given: Any) -> Self:
        """The opposite of ``state``."""
        return saving.from_state(cls, about, tensors, net, given)


def _copy(net: nn.Module) -> nn.Module:
    """Also of a network that keeps activations of its last pass, which torch does not copy."""
    kept = [value for layer in net.modules() for value in vars(layer).values() if isinstance(value, Tensor)]
    memo = {id(tensor): tensor.detach().clone() for tensor in kept if not tensor.is_leaf}
    try:
        return deepcopy(net, memo)
    except (RuntimeError, TypeError) as error:
        why = str(error).splitlines()[0]
        raise BadInput(f"net cannot be copied ({why}); let its layers keep nothing of a pass, or detach() it") from None
