"""One training step: a function of fixed shapes over tensors on the device, without host reads.

rows -> weak views of the new batch -> replay minibatches from memory -> ``method.loss`` -> backward -> SGD -> memory
takes the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from gcr.memory import SAMPLERS, Memory, Policy, Sampler
from gcr.methods import Batch, Method
from gcr.scenarios import Scenario
from gcr.training.draws import EpochDraws, ReplayDraws
from gcr.training.state import RunState


@dataclass(frozen=True)
class StepDraws:
    """The draws of one step, cut out of an epoch's, and the rows of the training set they go with."""

    rows: Tensor  # [b]
    views: Tensor  # [b, weak draws]
    reservoir: Tensor  # [b]
    replays: tuple[ReplayDraws, ...]  # without the leading dimension

    @classmethod
    def cut(cls, draws: EpochDraws, stage_rows: Tensor, step: int, batch: int) -> StepDraws:
        span = slice(step * batch, (step + 1) * batch)
        return cls(
            rows=stage_rows[draws.order[span]],
            views=draws.views[span],
            reservoir=draws.reservoir[span],
            replays=tuple(ReplayDraws(r.rows[step], tuple(view[step] for view in r.views)) for r in draws.replays),
        )


def sampler_of(policy: Policy) -> Sampler:
    return next(sampler for sampler in SAMPLERS if sampler.name == policy.sampling)


def train_step(state: RunState, scenario: Scenario, method: Method, policy: Policy | None, draws: StepDraws) -> None:
    """Train on one batch and let memory take it. ``draws`` may ask for replay once memory was offered something."""
    images = scenario.train.pixels[draws.rows]
    labels = scenario.train.labels[draws.rows]
    new = Batch(
        views=(scenario.views.weak(images, draws.views),),
        labels=labels,
        logits=torch.empty(0, device=labels.device),
        weights=torch.ones_like(labels, dtype=torch.float32),
    )
    replay: tuple[Batch, ...] = ()
    if policy is not None and state.memory is not None:
        replay = tuple(
            replay_batch(state.memory, scenario, sampler_of(policy), kinds, asked)
            for kinds, asked in zip(method.replays, draws.replays, strict=False)  # the very first step asks for none
        )
    state.net.train()
    state.optimizer.zero_grad()
    loss, logits = method.loss(state.net, new, replay)
    loss.backward()  # type: ignore[no-untyped-call]
    state.optimizer.step()
    right = logits.argmax(1) == labels
    state.loss_sum += loss.detach() * len(labels)
    state.correct += right.sum()
    if policy is not None and state.memory is not None:
        offered = {"image": images, "label": labels, "logits": logits, "task": scenario.task_of_class[labels]}
        if policy.admit == "correct":  # but an empty memory takes everything, so that there is something to replay
            right = right | (state.memory.kept + state.memory.pooled == 0)
        state.memory.offer(offered, draws.reservoir, right if policy.admit == "correct" else None)


def replay_batch(
    memory: Memory, scenario: Scenario, sampler: Sampler, kinds: tuple[str, ...], draws: ReplayDraws
) -> Batch:
    """Draw one replay minibatch and make the views of it that the method wants."""
    size = len(draws.views[0])
    drawn = memory.read(sampler.rows(memory, draws.rows, size))
    views = (scenario.views.make(kind, drawn["image"], u) for kind, u in zip(kinds, draws.views, strict=True))
    return Batch(tuple(views), drawn["label"], drawn["logits"], drawn["weight"])
