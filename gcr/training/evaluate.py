"""Accuracy on every task, in percent, in both protocols (class-IL, task-IL), from one head."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from gcr.methods import Extras, Method
from gcr.models import Network
from gcr.scenarios import Scenario

BATCH = 1000
NUMBERS = BATCH * 3 * 32 * 32  # of a batch on a CPU, whose memory larger images would fill


@torch.no_grad()
def evaluate(
    net: Network, scenario: Scenario, method: Method, extras: Extras, each_batch: Callable[[], None] = lambda: None
) -> Tensor:
    """Class-IL and task-IL accuracy on each task: [2, tasks], on the device, which need not be done with it yet.

    Task-IL masks the head to the classes of the example's task. A class with the score -inf is never predicted.
    """
    net.eval()
    on_cpu = scenario.task_of_class.device.type == "cpu"
    batch = max(1, min(BATCH, NUMBERS // math.prod(scenario.image_shape))) if on_cpu else BATCH
    task_of_class = scenario.task_of_class
    n_tasks = len(scenario.tasks)
    totals = torch.zeros(3, n_tasks, dtype=torch.float64, device=task_of_class.device)
    for start in range(0, len(scenario.test.labels), batch):
        rows = slice(start, start + batch)
        labels = scenario.test.labels[rows]
        pixels = scenario.test.pixels_of(rows).to(labels.device)  # a copy only if they stay on the host
        logits = method.predict(net, scenario.views.plain(pixels), extras)
        task = task_of_class[labels]
        masked = logits.masked_fill(task_of_class.unsqueeze(0) != task.unsqueeze(1), -torch.inf)
        possible = logits.gather(1, labels.unsqueeze(1)).squeeze(1) != -torch.inf  # else it is the first of equals
        right = torch.stack(
            [torch.ones_like(labels), possible & (logits.argmax(1) == labels), possible & (masked.argmax(1) == labels)]
        )
        totals.index_add_(1, task, right.double())
        each_batch()
    return 100 * totals[1:] / totals[0]
