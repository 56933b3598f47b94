"""``Learner.fit``: epochs over one task, validation, early stopping, progress."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcr.learner.core import Core
from gcr.learner.engine import Engine, pass_size
from gcr.learner.sources import Source, batches_of, make_source
from gcr.memory.examples import as_count
from gcr.models import state_tensors
from gcr.settings import BadInput
from gcr.training.rates import Schedule, begin_schedule, own_values, put_back

LEAST_EPOCHS, LEAST_STEPS = 10, 300  # where the number of epochs is not given

Show = Callable[[int, str], None]  # steps done, and words


@dataclass(frozen=True)
class FitEpoch:
    """Metrics of an epoch, for ``on_epoch``."""

    epoch: int  # from 1
    epochs: int
    loss: float  # mean over the epoch's new examples
    accuracy: float  # share of them classified right while training
    memory_accuracy: float | None  # on what memory holds; None where it is empty
    validation: float | None  # accuracy, or what the function gave


@dataclass(frozen=True)
class Options:
    """The arguments of ``Learner.fit`` other than the data."""

    epochs: int | None
    batch: int
    validation: Any
    patience: int | None
    schedule: Schedule | None
    on_epoch: Callable[[Any, FitEpoch], Any] | None
    progress: bool | None
    image: Any
    label: str | None

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "patience"):
            if name == "batch" or getattr(self, name) is not None:
                object.__setattr__(self, name, as_count(name, getattr(self, name), 1))
        if self.patience is not None and self.validation is None:
            raise BadInput("patience needs validation=(x, y), or a function of the learner that gives a number")
        if isinstance(self.validation, Iterator) and self.epochs != 1:
            raise BadInput("validation is looked at after every epoch, got an iterator, which ends once; give a list")


def fit(learner: Core, x: Any, y: Any, options: Options) -> None:
    if isinstance(x, Iterator) and y is None and options.epochs != 1 and not learner.frozen:
        raise BadInput("x is gone through once per epoch, got an iterator, which ends once; give a list, or epochs=1")
    with refused_whole(learner):
        _fit(learner, x, y, options)


@contextmanager
def refused_whole(learner: Core) -> Iterator[None]:
    """What fails before anything was learned leaves no labels: their outputs would be those of chance. A learner that
    had seen nothing still has not. Not so where another thread learns meanwhile, maybe with these labels."""
    with learner.turn:
        learner.turn.learning += 1
        known, unfinished, (steps, adds) = len(learner.labels), learner.unfinished, learner.progress
        counts, begun, optimizer = list(learner.class_weights.counts), learner.engine is not None, learner.optimizer
    try:
        yield
    except BaseException:
        with learner.turn:
            now = learner.progress
            if learner.turn.learning == 1 and now[0] == steps and int(now[1]) == int(adds):
                learner.labels.keep(known)
                learner.class_weights.counts = counts
                learner.unfinished = unfinished
                if not begun:
                    learner.layout = learner.engine = None
                    learner.optimizer = optimizer
        raise
    finally:
        with learner.turn:
            learner.turn.learning -= 1


def _fit(learner: Core, x: Any, y: Any, options: Options) -> None:
    source = make_source(learner, x, y, options.batch, options.image, options.label)
    steps = source.steps or 0
    epochs = options.epochs or max(LEAST_EPOCHS, -(-LEAST_STEPS // (steps or LEAST_STEPS)))
    best = Best(options.patience)
    with showing(options.progress, steps * epochs) as show:
        training = Training(learner, source, options, epochs, show)
        try:
            for epoch in range(epochs):
                metrics = training.epoch(epoch)
                said = options.on_epoch(learner, metrics) if options.on_epoch is not None else None
                with learner.turn:
                    enough = best.enough(metrics.validation, training.engine)
                if enough or (isinstance(said, bool | np.bool_) and said):
                    break
        finally:
            training.restore_values()
    with learner.turn:
        best.restore(training.engine)
        if epochs > 1:
            training.engine.refresh_logits(training.logits_before)
        learner.fits += 1
        learner.unfinished = False
        learner.end_task()


class Training:
    """The epochs of one fit. Memory takes examples in the first."""

    def __init__(self, learner: Core, source: Source, options: Options, epochs: int, show: Show | None) -> None:
        self.learner, self.source, self.options, self.epochs, self.show = learner, source, options, epochs, show
        self.steps = source.steps or 0
        self.scheduler: Any = None
        self.logits_before: Tensor | None = None  # that memory had stored before the first batch
        self.known = 0  # classes whose examples were offered to memory
        self.again = learner.unfinished  # memory may hold these examples already
        self.passed: set[tuple[bytes, int]] = set()  # those that have come again
        learner.unfinished = True
        learner.class_weights.begin_fit(self.again)
        if show and learner.engine is not None and learner.engine.state.memory is not None:
            held = learner.engine.state.memory
            show(0, f"memory: {held.rows} examples, {held.nbytes / 1e6:.2f} MB")

    @property
    def engine(self) -> Engine:
        assert self.learner.engine is not None  # from the first batch on
        return self.learner.engine

    def epoch(self, number: int) -> FitEpoch:
        seen = 0
        for step, (rows, labels) in enumerate(self.source.epoch(number)):
            state = self.engine.state
            if step == 0:
                state.loss_sum.zero_()
                state.correct.zero_()
                self.learner.follow_layers()
                self._begin()
                if number == 0:
                    self.learner.warn_of_other_scale(rows)
                    self._check_validation()
                    self.logits_before = self.engine.stored_logits() if self.epochs > 1 else None
            if number == 0 and self.again:
                self.learner.drop_of_task(rows, labels, self.passed)
            if len(labels) == 1 and self.learner.needs_two:  # no batch statistics: remembered, not trained on
                if number == 0 or int(labels) >= self.known:
                    with self.learner.turn:
                        self.engine.remember(rows, labels)
                continue
            if number > 0 and len(self.learner.labels) > self.known:  # classes that a loader did not bring before
                self.learner.offer_late(rows, labels, self.known)
            self.learner.step(rows, labels, offers=number == 0)
            if self.scheduler is not None:
                self.scheduler.step()
            seen += len(labels)
            if self.show:
                self.show(number * self.steps + step + 1, f"epoch {number + 1}/{self.epochs}")
        if not seen:
            raise BadInput("a batch of one example has no BatchNorm statistics; give batches of two or more")
        self.known = len(self.learner.labels)
        self.engine.refuse_diverged()
        metrics = self._metrics(number, seen)
        if self.show:
            self.show((number + 1) * self.steps, words(metrics))
        return metrics

    def restore_values(self) -> None:
        """A schedule is that of one fit: the next begins with the optimizer's own values."""
        engine = self.learner.engine
        if engine is not None and engine.own_values:
            put_back(engine.state.optimizer, engine.own_values)
            engine.own_values = []

    def _begin(self) -> None:
        """Make the scheduler, once there is an optimizer."""
        schedule, optimizer = self.options.schedule, self.engine.state.optimizer
        if schedule is None or self.scheduler is not None:
            return
        if not self.steps:
            raise BadInput("schedule needs the number of steps, which x does not tell; give a DataLoader with a length")
        self.engine.own_values = own_values(optimizer)
        self.scheduler = begin_schedule(schedule, optimizer, self.steps * self.epochs)

    def _metrics(self, number: int, seen: int) -> FitEpoch:
        validation, state = self.options.validation, self.engine.state
        value = on_memory = None
        if validation is not None:
            value = self._validated(validation)
        if self.show or self.options.on_epoch:
            with self.learner.turn:
                on_memory = accuracy_on_memory(self.engine, len(self.learner.labels))
        loss, right = float(state.loss_sum) / seen, int(state.correct) / seen
        return FitEpoch(number + 1, self.epochs, loss, right, on_memory, value)

    def _check_validation(self) -> None:
        """What can be said of it before training."""
        given, layout = self.options.validation, self.learner.layout
        if isinstance(given, tuple) and len(given) == 2 and layout is not None:
            self.learner.labels.look_up(given[1], len(layout.rows(given[0])))

    def _validated(self, validation: Any) -> float:
        if callable(validation):
            value = validation(self.learner)
            if not isinstance(value, int | float | np.number | Tensor):
                raise BadInput(f"validation must give a number, got {value!r}")
            return float(value)
        if isinstance(validation, tuple) and len(validation) == 2:
            if self.known and bool((self.learner.labels.look_up(validation[1]) < 0).all()):
                warnings.warn("validation has none of the labels that were learned; compare them", stacklevel=2)
            return self.learner.share_right(*validation)
        return share_right(self.learner, "validation", validation, self.options.image, self.options.label)


def share_right(learner: Core, name: str, data: Any, image: Any, label: str | None) -> float:
    """Of the examples of a data set whose label is predicted."""
    right = n = 0.0
    for x, y in batches_of(name, data, image, label):
        right, n = right + learner.share_right(x, y) * len(y), n + len(y)
    if not n:
        raise BadInput(f"{name} must be (x, y), a DataLoader, a Dataset or a function, and not empty")
    return right / n


def accuracy_on_memory(engine: Engine, n_classes: int) -> float | None:
    """As ``predict`` has it: among the classes that came, not spare outputs."""
    buffer = engine.state.memory
    if buffer is None or not len(buffer):
        return None
    rows = buffer.filled_rows()
    parts = [engine.logits(buffer.columns["image"][part]) for part in rows.split(pass_size(engine.shape))]
    return float((torch.cat(parts)[:, :n_classes].argmax(1) == buffer.columns["label"][rows]).double().mean())


class Best:
    """The weights of the best epoch, where training stops early."""

    def __init__(self, patience: int | None) -> None:
        self.patience, self.value, self.worse = patience, -float("inf"), 0
        self.kept: dict[str, Tensor] = {}

    def enough(self, value: float | None, engine: Engine) -> bool:
        """Whether as many epochs as we have patience for were no better."""
        if self.patience is None or value is None:
            return False
        if value > self.value or not self.kept:  # NaN is no better than anything
            self.value, self.worse = -float("inf") if math.isnan(value) else value, 0
            self.kept = {name: tensor.detach().clone() for name, tensor in _weights(engine).items()}
        else:
            self.worse += 1
        return self.worse >= self.patience

    @torch.no_grad()
    def restore(self, engine: Engine) -> None:
        if self.worse:
            for name, tensor in _weights(engine).items():
                best = self.kept.get(name, tensor)  # the copy of a layer that was frozen then is as good
                (tensor[: len(best)] if tensor.dim() else tensor).copy_(best)  # the head may have grown since


def _weights(engine: Engine) -> dict[str, Tensor]:
    return state_tensors(engine.state.net) | {f"extra.{name}": t for name, t in engine.state.extras.items()}


def words(epoch: FitEpoch) -> str:
    parts = [
        f"epoch {epoch.epoch}/{epoch.epochs}",
        f"loss {epoch.loss:.3f}",
        f"new {100 * epoch.accuracy:.1f}%",
    ]
    if epoch.memory_accuracy is not None:
        parts.append(f"memory {100 * epoch.memory_accuracy:.1f}%")
    if epoch.validation is not None:
        parts.append(f"validation {epoch.validation:.3f}")
    return ", ".join(parts)


@contextmanager
def showing(wanted: bool | None, total: int) -> Iterator[Show | None]:
    """A progress bar on the terminal's error stream; None where none is wanted."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=total or None)
        last: list[str] = []  # what the last epoch ended with

        def show(done: int, text: str) -> None:
            first, *rest = text.split(", ")
            last[:] = rest or last
            bar.update(task, completed=done, description=", ".join([first, *last]))

        yield show
