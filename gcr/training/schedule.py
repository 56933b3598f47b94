"""What is trained on, in which order: a stage per task offline, a stage per stream online, or one stage for all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcr.methods import Method
from gcr.scenarios import Scenario
from gcr.settings import BadInput
from gcr.training.randomness import arrival_order
from gcr.training.settings import Training


@dataclass(frozen=True)
class Stage:
    rows: Tensor  # of the training set, in the order in which they come
    epochs: int
    shuffled: bool  # whether every epoch shuffles them


@dataclass(frozen=True)
class Plan:
    stages: list[Stage]
    first: list[int]  # the stage in which each task begins
    last: list[int]  # and that in which it ends

    def steps(self, stage: int, training: Training) -> int:
        """Of one epoch of that stage."""
        return steps_of(len(self.stages[stage].rows), training.batch) * training.repeats

    def total_steps(self, training: Training) -> int:
        return sum(self.steps(number, training) * stage.epochs for number, stage in enumerate(self.stages))

    def steps_before(self, stage: int, epoch: int, training: Training) -> int:
        """Of all epochs before that one of that stage."""
        done = [*((number, each.epochs) for number, each in enumerate(self.stages[:stage])), (stage, epoch)]
        return sum(self.steps(number, training) * epochs for number, epochs in done)

    def epochs_before(self, stage: int) -> int:
        return sum(earlier.epochs for earlier in self.stages[:stage])


def check_stream(length: int, method: Method, training: Training) -> None:
    """Refuse what does not go with an online stream of this length."""
    if method.stages == "streams" and length < training.batch:
        raise BadInput(
            f"stream must be >= batch, which is {training.batch}, got {length}; use a longer stream or a smaller batch"
        )
    if method.stages != "all at once" and training.epochs > 1:
        raise BadInput(
            f"epochs must be 1 online, got {training.epochs}; a stream passes once "
            "(repeats sets the steps on every batch)"
        )


def make_schedule(scenario: Scenario, method: Method, training: Training, seed: int) -> Plan:
    """Online, examples come in the order of tasks, shuffled inside a task, and are cut into streams of equal length: a
    stream may end one task and begin the next. Methods that must know where a task ends get one stream per task."""
    labels = scenario.train.labels
    n_tasks = len(scenario.tasks)
    if method.stages == "all at once":
        everything = torch.arange(len(labels), device=labels.device)
        return Plan([Stage(everything, training.epochs, True)], [0] * n_tasks, [0] * n_tasks)
    task_of_row = scenario.task_of_class[labels]
    tasks = [torch.nonzero(task_of_row == task).flatten() for task in range(n_tasks)]
    length = scenario.stream_length
    if length:
        tasks = [rows[arrival_order((seed, task), len(rows)).to(rows.device)] for task, rows in enumerate(tasks)]
    if not length or method.stages == "tasks":
        numbers = list(range(n_tasks))
        return Plan([Stage(rows, training.epochs, not length) for rows in tasks], numbers, numbers)
    arriving = torch.cat(tasks)
    single = len(arriving) % length == 1  # a last example that is alone joins the stream before it
    n_streams = max(-(-len(arriving) // length) - single, 1)
    cuts = [length * number for number in range(1, n_streams)]
    stages = [Stage(rows, training.epochs, False) for rows in torch.tensor_split(arriving, cuts)]
    ends = torch.tensor([len(rows) for rows in tasks]).cumsum(0).tolist()
    begins = [0, *ends[:-1]]
    last = n_streams - 1
    return Plan(
        stages,
        first=[min(begin // length, last) for begin in begins],
        last=[min((end - 1) // length, last) for end in ends],
    )


def steps_of(n_examples: int, batch: int) -> int:
    """Batches of an epoch; the last may be smaller. A last batch of one is left out: batch statistics need two.

    >>> steps_of(64, 32), steps_of(65, 32), steps_of(66, 32)
    (2, 2, 3)
    """
    alone = batch > 1 and n_examples > 1 and n_examples % batch == 1
    return -(-n_examples // batch) - alone
