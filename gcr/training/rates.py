"""A learning-rate schedule: a torch scheduler over one task of a run, or one fit of a learner, stepped every batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from gcr.settings import BadInput
from gcr.training.optimizer import AnyOptimizer

Schedule = Callable[[Optimizer, int], Any]  # (optimizer, steps) -> a scheduler of torch
Values = list[dict[str, Any]]  # of each group of an optimizer


def check_schedule(schedule: Schedule, optimizer: AnyOptimizer) -> None:
    if not isinstance(optimizer, Optimizer):
        raise BadInput(f"schedule needs an optimizer of torch.optim, got {type(optimizer).__name__}")
    if not callable(schedule):
        raise BadInput(f"schedule must be a function (optimizer, steps) -> scheduler, got {type(schedule).__name__}")


def begin_schedule(schedule: Schedule, optimizer: AnyOptimizer, steps: int, done: int = 0) -> Any:
    """The scheduler of ``steps`` steps, after ``done`` of them. Until then the optimizer has its own values."""
    check_schedule(schedule, optimizer)
    assert isinstance(optimizer, Optimizer)
    scheduler = schedule(optimizer, steps)
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise BadInput("schedule is stepped after every batch, which ReduceLROnPlateau does not allow; use on_epoch")
    if not callable(getattr(scheduler, "step", None)):
        raise BadInput(f"schedule must return a scheduler of torch, got {type(scheduler).__name__}")
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise BadInput("schedule must return a scheduler of the optimizer that it is given, got one of another")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer made these steps in a process that has ended
        for _ in range(done):
            scheduler.step()
    return scheduler


def own_values(optimizer: AnyOptimizer) -> Values:
    """Copies, since a schedule writes into tensors."""
    return [
        {name: v.clone() if isinstance(v, Tensor) else v for name, v in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]


def put_back(optimizer: AnyOptimizer, values: Iterable[dict[str, Any]]) -> None:
    """The optimizer's own values, without those that a scheduler added, as the initial rate."""
    for group, own in zip(optimizer.param_groups, values, strict=False):
        for name in group.keys() - own.keys() - {"params"}:
            del group[name]
        for name, value in own.items():
            if isinstance(value, Tensor) and isinstance(group[name], Tensor):
                group[name].copy_(value)  # where a captured step reads it
            else:
                group[name] = value.clone() if isinstance(value, Tensor) else value
