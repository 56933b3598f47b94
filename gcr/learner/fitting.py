"""``Learner.fit``: epochs over one task, validation, early stopping, progress."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gcr.learner.core import Core
from gcr.learner.engine import Engine
from gcr.learner.sources import make_source
from gcr.memory.examples import as_count
from gcr.settings import BadInput

LEAST_EPOCHS, LEAST_STEPS = 10, 300  # where the number of epochs is not given

Schedule = Callable[[Optimizer, int], Any]  # (optimizer, steps of this fit) -> a learning-rate scheduler
Show = Callable[[int, int, str], None]  # steps done, of all, and words


@dataclass(frozen=True)
class FitEpoch:
    """What ``on_epoch`` is told."""

    epoch: int  # from 1
    epochs: int
    loss: float  # mean over the epoch's new examples
    accuracy: float  # share of them classified right while training
    memory_accuracy: float | None  # on what memory holds; None where it is empty
    validation: float | None  # accuracy, or what the function gave


def fit(
    learner: Core,
    x: Any,
    y: Any,
    epochs: int | None,
    batch: int,
    validation: Any,
    patience: int | None,
    schedule: Schedule | None,
    on_epoch: Callable[[Any, FitEpoch], Any] | None,
    progress: bool | None,
    image: Any,
    label: str | None,
) -> None:
    batch = as_count("batch", batch, 1)
    wanted = None if epochs is None else as_count("epochs", epochs, 1)
    if patience is not None and validation is None:
        raise BadInput("patience needs validation=(x, y), or a function of the learner that gives a number")
    patience = None if patience is None else as_count("patience", patience, 1)
    source = make_source(learner, x, y, batch, image, label)
    epochs = wanted or max(LEAST_EPOCHS, -(-LEAST_STEPS // (source.steps or LEAST_STEPS)))
    engine: Engine | None = learner.engine
    scheduler = None
    best = Best(patience)
    with showing(progress) as show:
        for epoch in range(epochs):
            begun = False
            seen, total = 0, (source.steps or 0) * epochs
            for step, (rows, labels) in enumerate(source.epoch(epoch)):
                engine = learner.engine
                assert engine is not None
                if not begun:
                    engine.state.loss_sum.zero_()
                    engine.state.correct.zero_()
                    begun = True
                if schedule is not None and scheduler is None:
                    scheduler = _scheduler(engine, schedule, total)
                learner.step(rows, labels, offers=epoch == 0)
                if scheduler is not None:
                    scheduler.step()
                seen += len(labels)
                if show:
                    show(epoch * (source.steps or 0) + step + 1, total, f"epoch {epoch + 1}/{epochs}")
            assert engine is not None
            engine.refuse_diverged()
            told = _told(learner, engine, epoch, epochs, seen, validation, show is not None or on_epoch is not None)
            if show:
                show((epoch + 1) * (source.steps or 0), total, words(told))
            stop = on_epoch is not None and on_epoch(learner, told) is True
            if best.enough(told.validation, engine) or stop:
                break
        assert engine is not None
        best.restore(engine)
    if epochs > 1:
        engine.refresh_logits()
    learner.fits += 1
    learner.end_task()


class Best:
    """The weights of the best epoch, where training stops early."""

    def __init__(self, patience: int | None) -> None:
        self.patience, self.value, self.worse = patience, -float("inf"), 0
        self.kept: dict[str, Tensor] = {}

    def enough(self, value: float | None, engine: Engine) -> bool:
        """Whether as many epochs as we have patience for were no better."""
        if self.patience is None or value is None:
            return False
        if value > self.value:
            self.value, self.worse = value, 0
            self.kept = {name: tensor.detach().clone() for name, tensor in _weights(engine).items()}
        else:
            self.worse += 1
        return self.worse >= self.patience

    @torch.no_grad()
    def restore(self, engine: Engine) -> None:
        if self.worse:
            for name, tensor in _weights(engine).items():
                tensor.copy_(self.kept[name])


def _weights(engine: Engine) -> dict[str, Tensor]:
    return engine.state.net.state_dict() | {f"extra.{name}": t for name, t in engine.state.extras.items()}


def _scheduler(engine: Engine, schedule: Schedule, total: int) -> Any:
    optimizer = engine.state.optimizer
    if not isinstance(optimizer, Optimizer):
        raise BadInput(f"schedule needs an optimizer of torch.optim, got {type(optimizer).__name__}")
    if engine.mode != "eager":  # a captured step has its learning rate in it
        engine.run_eagerly()
    return schedule(optimizer, total)


def _told(
    learner: Core, engine: Engine, epoch: int, epochs: int, seen: int, validation: Any, thoroughly: bool
) -> FitEpoch:
    value = None
    if validation is not None:
        value = float(validation(learner) if callable(validation) else learner.score(*validation))
    on_memory = None
    if thoroughly and engine.state.memory is not None and len(engine.state.memory):
        buffer = engine.state.memory
        rows = buffer.filled_rows()
        parts = [engine.logits(buffer.columns["image"][part]).argmax(1) for part in rows.split(256)]
        on_memory = float((torch.cat(parts) == buffer.columns["label"][rows]).double().mean())
    state = engine.state
    return FitEpoch(epoch + 1, epochs, float(state.loss_sum) / seen, int(state.correct) / seen, on_memory, value)


def words(told: FitEpoch) -> str:
    parts = [f"epoch {told.epoch}/{told.epochs}", f"loss {told.loss:.3f}", f"new {100 * told.accuracy:.1f}%"]
    if told.memory_accuracy is not None:
        parts.append(f"memory {100 * told.memory_accuracy:.1f}%")
    if told.validation is not None:
        parts.append(f"validation {told.validation:.3f}")
    return ", ".join(parts)


@contextmanager
def showing(wanted: bool | None) -> Iterator[Show | None]:
    """A progress bar on the terminal's error stream; None where none is wanted."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)
        last = ""

        def show(done: int, total: int, text: str) -> None:
            nonlocal last
            last = text if "loss" in text else last.replace(last.split(",")[0], text, 1) or text
            bar.update(task, completed=done, total=total or None, description=last)

        yield show
