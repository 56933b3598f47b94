"""One training step: a function of fixed shapes over tensors on the device, without host reads.

rows -> weak views of the new batch -> replay minibatches from memory -> ``method.loss`` -> backward -> optimizer ->
memory takes the batch.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from gcr.augment import AnyViews
from gcr.memory import SAMPLERS, Buffer, Distinct, Policy, Sampler, offer_balanced, update_losses
from gcr.methods import Batch, Extras, Method
from gcr.methods.losses import label_loss
from gcr.methods.method import Loss
from gcr.models import Network, statistics
from gcr.settings import BadInput
from gcr.training.gss_admission import offer_by_gradients
from gcr.training.optimizer import apply_gradients, clipped
from gcr.training.randomness import AdmissionDraws, DrawPlan, ReplayDraws, StepDraws
from gcr.training.settings import Training
from gcr.training.state import RunState


def sampler_of(method: Method, policy: Policy) -> Sampler | None:
    """None where the whole kept buffer is replayed."""
    (kind,) = {replay.kind for replay in method.replays}
    if kind == "whole":
        return None
    return Distinct if kind == "distinct" else next(known for known in SAMPLERS if known.name == policy.sampling)


def draw_plan(method: Method, policy: Policy | None, training: Training) -> DrawPlan:
    if policy is None:
        return DrawPlan(training.batch, (), 0, ())
    sampler = sampler_of(method, policy)
    size = method.replay_size(policy.replay_batch) if sampler else policy.buffer
    shape = sampler.draws_shape(size, policy.buffer, policy.pool_size) if sampler else (0,)
    return DrawPlan(training.batch, shape, size, tuple(replay.views for replay in method.replays), policy.compared)


class Incoming(NamedTuple):
    """The new examples of a step, on the device."""

    images: Tensor  # [b, ...] as memory keeps them
    labels: Tensor  # [b]
    tasks: Tensor | None = None  # [b]; None: the number of selections so far


def train_step(
    state: RunState,
    incoming: Incoming,
    views: AnyViews,
    method: Method,
    policy: Policy | None,
    draws: StepDraws,
    offers: bool = True,
) -> None:
    """Train on one batch and offer it to memory. ``draws`` may ask for replay once memory was offered something."""
    (images, labels, tasks), reservoir = incoming, draws.reservoir
    admission, weights = draws.admission, state.class_weights
    drawn: list[dict[str, Tensor]] = []
    if policy is not None and state.memory is not None and draws.replays:
        relative = policy.kept_weights == "relative"
        drawn = draw_replays(state.memory, sampler_of(method, policy), draws.replays, relative)
    if weights is not None:
        drawn = [columns | {"weight": columns["weight"] * weights[columns["label"]]} for columns in drawn]
    replay, (new_view,) = replay_batches(views, method, drawn, draws.replays, ("weak", images, draws.views))
    net, extras = state.net.train(), state.extras
    new = _new_batch(new_view, labels, weights)
    rows = method.choose(net, new, replay, extras)
    if rows is not None:
        images, labels, reservoir = images[rows], labels[rows], reservoir[rows]
        tasks = None if tasks is None else tasks[rows]
        new = _new_batch(new_view[rows], labels, weights)
        admission = admission and admission.of(rows)
    loss, logits, old_logits = checked(method.loss(net, new, replay, extras), labels, method.name)
    by_loss = net.gradients(loss, state.parameters)
    gradients = method.project(by_loss, state.parameters, net, replay, extras, state.stage)
    average_statistics(net, extras)
    if state.clip:
        gradients = clipped(gradients, state.clip)
    apply_gradients(state.optimizer, state.parameters, gradients)
    method.after_step(net, extras)
    right = logits.argmax(1) == labels
    arrived, n_right = len(incoming.labels), right.sum()
    state.loss_sum += loss.detach() * arrived
    state.correct += n_right * arrived // len(labels) if rows is not None else n_right  # the chosen speak for all
    first_bad = (state.diverged_at < 0) & ~loss.detach().isfinite()
    state.diverged_at.copy_(torch.where(first_bad, state.step, state.diverged_at))
    state.step += 1
    if policy is not None and policy.evicts_by_loss and state.memory is not None and old_logits is not None:
        update_losses(state.memory, drawn[0]["row"], label_loss(old_logits, replay[0].labels))
    if offers and policy is not None and state.memory is not None:
        offer(state.memory, policy, net, views, Incoming(images, labels, tasks), logits, reservoir, admission, right)


def offer(
    memory: Buffer,
    policy: Policy,
    net: Network,
    views: AnyViews,
    incoming: Incoming,
    logits: Tensor,
    draws: Tensor,
    admission: AdmissionDraws | None = None,
    right: Tensor | None = None,
) -> None:
    """Let memory take what it wants of new examples, with their ``logits`` [b, classes]; ``draws`` are [b].

    ``right`` [b], where it is known: whether the logits give the labels.
    """
    images, labels, tasks = incoming
    task = memory.updates.expand_as(labels) if tasks is None else tasks
    offered = {"image": images, "label": labels, "logits": logits, "task": task}
    admitted = None
    if policy.admit == "correct":  # but an empty memory takes everything, so that there is something to replay
        right = logits.argmax(1) == labels if right is None else right
        admitted = right | (memory.kept + memory.pooled == 0)
    if policy.compared:
        offer_by_gradients(net, memory, views, offered, admission, admitted, policy.compares_whole_gradients)
    elif policy.balanced:
        losses = label_loss(logits, labels) if policy.evicts_by_loss else None
        offer_balanced(memory, offered, draws, admitted, losses)
    else:
        memory.offer(offered, draws, admitted)


def checked(loss: Loss, labels: Tensor, method: str) -> Loss:
    """Refuse what a method must not return: by types and shapes, which a capture may read."""
    if not isinstance(loss, Loss):
        raise BadInput(f"loss of {method} must return a Loss(value, logits), got {type(loss).__name__}")
    if loss.value.shape != ():
        raise BadInput(f"loss of {method} must be one number, shape [], got {list(loss.value.shape)}; take the mean")
    if loss.logits.shape[:1] != labels.shape or loss.logits.dim() != 2:
        raise BadInput(
            f"logits of {method}'s Loss must be those of the {len(labels)} new examples, [{len(labels)}, classes], got "
            f"{list(loss.logits.shape)}"
        )
    return loss


def _new_batch(view: Tensor, labels: Tensor, class_weights: Tensor | None) -> Batch:
    nothing = torch.empty(0, device=labels.device)
    ones = torch.ones_like(labels, dtype=torch.float32)
    return Batch((view,), labels, nothing, ones, class_weights=class_weights)


def average_statistics(net: Network, extras: Extras) -> None:
    """Of ghost batches, over processes; those of the method's copies of the network, too."""
    if net.shares is not None and net.shares.ghosts > 1:
        copies = [t for name, t in extras.items() if name.endswith((".running_mean", ".running_var"))]
        net.shares.average([*statistics(net), *copies])


def draw_replays(
    memory: Buffer, sampler: Sampler | None, asked: tuple[ReplayDraws, ...], relative: bool = False
) -> list[dict[str, Tensor]]:
    """The columns of every replay minibatch, all read together, and their rows. Without a sampler, the whole kept
    buffer.

    ``relative``: weights of kept examples are divided by their mean.
    """
    size = len(asked[0].views[0])
    if sampler is None:
        rows = torch.arange(memory.capacity, device=memory.kept.device)
        columns = memory.read(rows) | {"row": rows}
        return [columns | {"weight": torch.where(rows < memory.kept, columns["weight"], 0.0)}]
    rows = sampler.rows(memory, torch.stack([replay.rows for replay in asked]), size)
    columns = memory.read(rows.flatten()) | {"row": rows.flatten()}
    if relative:
        scale = torch.where(rows.flatten() < memory.capacity, memory.mean_weight().clamp_min(1e-12), 1.0)
        columns["weight"] = columns["weight"] / scale
    if sampler is Distinct:  # what comes again counts for nothing
        again = torch.arange(size, device=rows.device) >= memory.kept + memory.pooled
        columns["weight"] = torch.where(again.expand(rows.shape).flatten(), 0.0, columns["weight"])
    split = [column.split(size) for column in columns.values()]
    return [dict(zip(columns, parts, strict=True)) for parts in zip(*split, strict=True)]


def replay_batches(
    views: AnyViews,
    method: Method,
    drawn: list[dict[str, Tensor]],
    asked: tuple[ReplayDraws, ...],
    *others: tuple[str, Tensor, Tensor],
) -> tuple[tuple[Batch, ...], list[Tensor]]:
    """The replay minibatches of what was drawn, none if nothing was; and other views, made together with theirs."""
    wanted = list(others)
    for of, columns, draws in zip(method.replays, drawn, asked, strict=False):
        wanted += [(kind, columns["image"], u) for kind, u in zip(of.views, draws.views, strict=True)]
    made = iter(make_views(views, wanted))
    first = [next(made) for _ in others]
    replay = tuple(
        Batch(tuple(next(made) for _ in of.views), *(columns[name] for name in ("label", "logits", "weight", "task")))
        for of, columns in zip(method.replays, drawn, strict=False)
    )
    return replay, first


def make_views(views: AnyViews, wanted: list[tuple[str, Tensor, Tensor]]) -> list[Tensor]:
    """The view of each (kind, images, draws). Those of one kind are made in one pass: few large kernels."""
    made: dict[int, Tensor] = {}
    for kind in dict.fromkeys(kind for kind, _, _ in wanted):
        places = [place for place, (other, _, _) in enumerate(wanted) if other == kind]
        images = torch.cat([wanted[place][1] for place in places])
        draws = torch.cat([wanted[place][2] for place in places])
        parts = views.make(kind, images, draws).split([len(wanted[place][1]) for place in places])
        made |= dict(zip(places, parts, strict=True))
    return [made[place] for place in range(len(wanted))]
