"""The loop: stages > epochs > steps, with an update of memory and an evaluation after every stage."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gcr.memory import Policy
from gcr.methods import Method
from gcr.scenarios import Scenario
from gcr.training.draws import epoch_draws
from gcr.training.evaluate import average_accuracy, evaluate, forgetting
from gcr.training.settings import Training
from gcr.training.state import RunState
from gcr.training.step import StepDraws, sampler_of, train_step
from gcr.training.update import reselect


@dataclass(frozen=True)
class Epoch:
    """What an epoch tells: one line of metrics.jsonl."""

    stage: int
    epoch: int
    steps: int  # of the whole run so far
    total_steps: int
    loss: float  # mean over the epoch's new examples
    accuracy: float  # percent of the epoch's new examples classified right while training
    seconds: float


class Diverged(RuntimeError):
    """The loss is no longer a number."""


@dataclass(frozen=True)
class Outcome:
    state: RunState
    class_il: dict[str, object]  # matrix, accuracy, forgetting
    task_il: dict[str, object]
    seconds: float
    steps: int


def train(
    scenario: Scenario,
    model: str,
    method: Method,
    policy: Policy | None,
    training: Training,
    seed: int,
    device: torch.device | str = "cpu",
    threads: int = 1,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
) -> Outcome:
    """Train one run from beginning to end. On a CPU, equal arguments (``threads`` among them) give equal bits."""
    device = torch.device(device)
    with _cpu_threads(threads):
        started = time.perf_counter()
        scenario = scenario.to(device)
        if not method.replays:
            policy = None
        state = RunState.fresh(scenario, model, policy, training, seed, device)
        stages, first_stages = stages_of(scenario, method)
        total_steps = sum(steps_of(len(rows), training.batch) for rows in stages) * training.epochs
        for stage, rows in enumerate(stages):
            for epoch in range(training.epochs):
                began = time.perf_counter()
                run_epoch(state, scenario, method, policy, training, rows, (seed, stage, epoch))
                # The host waits here, once an epoch.
                loss, right = float(state.loss_sum) / len(rows), int(state.correct)
                seconds = time.perf_counter() - began
                if not math.isfinite(loss):
                    raise Diverged(f"the loss is {loss} in task {stage + 1}, epoch {epoch + 1}; try a smaller lr")
                on_epoch(Epoch(stage, epoch, state.steps, total_steps, loss, 100 * right / len(rows), seconds))
            if not all(torch.isfinite(p).all() for p in state.net.parameters()):
                raise Diverged(f"weights of the network are no numbers after task {stage + 1}; try a smaller lr")
            if policy is not None and policy.selects and state.memory is not None:
                state.selections.append(reselect(state.memory, policy, method, state.net, scenario, (seed, stage)))
            class_il, task_il = evaluate(state.net, scenario)
            state.class_il.append(class_il)
            state.task_il.append(task_il)
        return Outcome(
            state=state,
            class_il=_summary(state.class_il, first_stages),
            task_il=_summary(state.task_il, first_stages),
            seconds=time.perf_counter() - started,
            steps=state.steps,
        )


@contextmanager
def _cpu_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def run_epoch(
    state: RunState,
    scenario: Scenario,
    method: Method,
    policy: Policy | None,
    training: Training,
    rows: Tensor,
    key: tuple[int, int, int],
) -> None:
    """One pass over the examples in ``rows``; ``key`` is (seed, stage, epoch)."""
    n_steps = steps_of(len(rows), training.batch)
    shape: tuple[int, ...] = ()
    replay_size = 0
    if policy is not None:
        replay_size = policy.replay_batch
        shape = sampler_of(policy).draws_shape(replay_size, policy.buffer, policy.pool_size)
    draws = epoch_draws(key, len(rows), n_steps, shape, replay_size, method.replays, rows.device)
    state.loss_sum.zero_()
    state.correct.zero_()
    for step in range(n_steps):
        cut = StepDraws.cut(draws, rows, step, training.batch)
        if state.steps == 0:  # memory has not been offered anything
            cut = replace(cut, replays=())
        train_step(state, scenario, method, policy, cut)
        state.steps += 1


def steps_of(n_examples: int, batch: int) -> int:
    """Batches of an epoch; the last may be smaller. A last batch of one is left out: batch statistics need two.

    >>> steps_of(64, 32), steps_of(65, 32), steps_of(66, 32)
    (2, 2, 3)
    """
    alone = batch > 1 and n_examples > 1 and n_examples % batch == 1
    return -(-n_examples // batch) - alone


def stages_of(scenario: Scenario, method: Method) -> tuple[list[Tensor], list[int]]:
    """Training rows of each stage, and the stage in which each task begins: a stage per task, or one for all."""
    labels = scenario.train.labels
    if method.sees_all_tasks:
        return [torch.arange(len(labels), device=labels.device)], [0] * len(scenario.tasks)
    task_of_row = scenario.task_of_class[labels]
    stages = [torch.nonzero(task_of_row == task).flatten() for task in range(len(scenario.tasks))]
    return stages, list(range(len(stages)))


def _summary(matrix: list[list[float]], first_stages: list[int]) -> dict[str, object]:
    return {
        "matrix": matrix,
        "accuracy": average_accuracy(matrix),
        "forgetting": forgetting(matrix, first_stages),
    }
