"""One update of the kept buffer: filled rows -> features and residuals -> selector -> rows and weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import NamedTuple, cast

import torch
from torch import Tensor

from gcr.augment import AnyViews
from gcr.memory import Buffer, Policy, deal_priorities
from gcr.memory.randomness import selection_draws
from gcr.methods import Batch, Extras, Method
from gcr.methods.ema import copy_in
from gcr.methods.losses import reducible_loss
from gcr.models import Network, recompute_bn, statistics
from gcr.models.recompute_bn import statistics_layers
from gcr.models.shares import Shares
from gcr.scenarios.scenario import Images as DataSet
from gcr.select import Coreset, Herding, Pool, Selector, explain
from gcr.select.coreset import checked, rows_by_class
from gcr.training.randomness import selection_views

FROM_NETWORK = ("features", "residuals", "reducible")  # columns of a pool
AT_ONCE = 1000  # examples of a pass
OF_A_CLASS = 32  # examples of a pass with pool_mode=class, as the reference code has it


class Arrived(NamedTuple):
    """What came since the last selection."""

    train: DataSet
    rows: Tensor  # of the training set


Images = Callable[[Tensor], Tensor]  # rows of the pool -> their normalised images


def reselect(
    memory: Buffer,
    policy: Policy,
    method: Method,
    net: Network,
    views: AnyViews,
    key: tuple[int, int],
    arrived: Arrived | None = None,
    extras: Extras | None = None,
) -> dict[str, object]:
    """Choose a new kept buffer from old buffer and candidates, and say how good it is.

    ``key`` is (seed, number of this selection). With ``arrived`` the selector first chooses the candidates among all of
    them, in place of the reservoir. ``extras`` are the method's own tensors, where the predictor's copy is needed.

    With several ``pool_views``, an example's features are their mean over the views, and so are its residuals and its
    reducible loss. The gradient that matching sees is the outer product of these means: the mean of the views'
    gradients, less the covariance of features and residuals over them.
    """
    assert isinstance(policy.selector, Selector)
    if arrived is not None:
        choose_candidates(memory, policy, method, net, views, arrived, key, extras)
    rows = memory.filled_rows()
    stored = memory.read(rows)

    def pool_of(view: int) -> Pool:
        draws = selection_views(key, len(rows), view).to(rows.device) if policy.pool_view == "weak" else None

        def images(part: Tensor) -> Tensor:
            if draws is None:
                return views.plain(stored["image"][part])
            return views.make("weak", stored["image"][part], draws[part])

        return make_pool(net, method, batch, images, policy, rows < memory.capacity, extras)

    batch = Batch((), stored["label"], stored["logits"], stored["weight"], stored["task"])
    pool = mean_over_views([pool_of(view) for view in range(policy.pool_views)])
    chances = selection_draws(key, len(rows)).to(rows.device)
    selector = agreed(policy.selector, net)
    coreset = memory.reselect(selector, pool.features, pool.residuals, policy.buffer, chances, pool.reducible)
    about: dict[str, object] = {"from": len(rows), "kept": len(coreset.rows), "note": coreset.note}
    if pool.residuals is None:
        return about
    found = asdict(explain(coreset, pool))
    return about | {name: value for name, value in found.items() if name not in ("cosine", "by_target")}


def order_by_herding(
    memory: Buffer, policy: Policy, method: Method, net: Network, views: AnyViews, extras: Extras | None = None
) -> None:
    """Let memory give up the rows of a class from the end of herding's order."""
    rows, herding = memory.filled_rows(), Herding()
    stored = memory.read(rows)
    batch = Batch((), stored["label"], stored["logits"], stored["weight"])

    def images(part: Tensor) -> Tensor:
        return views.plain(stored["image"][part])

    pool = make_pool(net, method, batch, images, replace(policy, selector=herding), extras=extras)
    every_row = agreed(herding, net)(pool, len(rows), torch.zeros(len(rows), device=rows.device))
    deal_priorities(memory, every_row.rows)


def agreed(selector: Selector, net: Network) -> Selector:
    """The selector, or where several processes train the network, one whose choice is the first process's in all: on
    a GPU they might differ by rounding."""
    return selector if net.shares is None else cast(Selector, Agreed(selector, net.shares))


class Agreed:
    def __init__(self, selector: Selector, shares: Shares) -> None:
        self.selector, self.shares = selector, shares
        self.name, self.summary, self.needs = selector.name, selector.summary, selector.needs

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        coreset = self.selector(pool, budget, draws)
        number = torch.tensor(len(coreset.rows), device=coreset.rows.device)
        self.shares.same_everywhere(number)
        rows, weights = (tensor.new_zeros(int(number)) for tensor in (coreset.rows, coreset.weights))
        if self.shares.rank == 0:
            rows, weights = coreset.rows, coreset.weights
        self.shares.same_everywhere(rows, weights)
        return replace(coreset, rows=rows, weights=weights)


def mean_over_views(pools: list[Pool]) -> Pool:
    """The pool of the same rows with the means of what the network says of them."""
    names = [name for name in FROM_NETWORK if getattr(pools[0], name) is not None]
    if len(pools) == 1 or not names:
        return pools[0]
    means = {name: torch.stack([getattr(pool, name) for pool in pools]).mean(0) for name in names}
    return replace(pools[0], **means)


@contextmanager
def statistics_kept(net: Network) -> Iterator[None]:
    """Afterwards the network has the batch statistics that it has now."""
    before = [(kept, kept.clone()) for layer in statistics_layers(net) for kept in layer.buffers()]
    try:
        yield
    finally:
        for kept, old in before:
            kept.copy_(old)


def recompute_bn_on_memory(net: Network, memory: Buffer, views: AnyViews) -> None:
    """Recompute BatchNorm statistics on plain images of all that memory holds, whatever their weights. Frozen layers
    keep theirs.

    Rows of a task may lie together, so every batch takes rows from all over memory.
    """
    rows = memory.filled_rows()
    batches = (rows[part] for part in _interleaved(len(rows)))
    recompute_bn(net, (views.plain(memory.columns["image"][part]) for part in batches), frozen=False)
    if net.shares is not None:
        net.shares.average(statistics(net))


def choose_candidates(
    memory: Buffer,
    policy: Policy,
    method: Method,
    net: Network,
    views: AnyViews,
    arrived: Arrived,
    key: tuple[int, int],
    extras: Extras | None = None,
) -> None:
    """Make the selector's choice among all examples that arrived the candidates, with its weights.

    Their stored logits are the trained network's of now, on plain images.
    """
    assert isinstance(policy.selector, Selector)
    (train, came), device = arrived, arrived.rows.device

    def pixels(rows: Tensor) -> Tensor:
        return train.pixels_of(rows if train.resident else rows.cpu()).to(device)

    def images(part: Tensor) -> Tensor:
        return views.plain(pixels(came[part]))

    with _untouched(net.eval()):
        logits = torch.cat([net(images(part)) for part in torch.arange(len(came), device=device).split(AT_ONCE)])
    labels = train.labels[came]
    ones = torch.ones_like(labels, dtype=torch.float32)
    tasks = memory.updates.expand_as(labels)
    batch = Batch((), labels, logits, ones, tasks)
    pool = make_pool(net, method, batch, images, policy, torch.zeros_like(labels, dtype=torch.bool), extras)
    draws = selection_draws((*key, 1), len(came)).to(device)
    budget = min(policy.pool_size, len(came))
    coreset = checked(agreed(policy.selector, net)(pool, budget, draws), len(came), budget, policy.selector.name)
    rows = coreset.rows
    own = {"label": labels[rows], "logits": logits[rows], "weight": coreset.weights, "task": tasks[rows]}
    memory.set_candidates({"image": pixels(came[rows])} | own)


@torch.no_grad()
def make_pool(
    net: Network,
    method: Method,
    batch: Batch,
    images: Images,
    policy: Policy,
    kept: Tensor | None = None,
    extras: Extras | None = None,
) -> Pool:
    """The columns that the selector needs, by one pass of the network over the images.

    Rows of a task may lie together, so every batch takes rows from all over the pool: in training mode its statistics
    count. With ``pool_mode=class`` it takes rows of one class instead. A single image has no statistics. With
    ``pool_network=predictor`` the network has the weights and statistics of the copy that predicts, in ``extras``.
    """
    assert isinstance(policy.selector, Selector)
    if policy.selector.needs.isdisjoint(FROM_NETWORK):
        return Pool(batch.labels, batch.weights, kept=kept, tasks=batch.tasks)
    n, found = len(batch.labels), []
    every_row = torch.arange(n, device=batch.labels.device)
    parts = _of_a_class(batch.labels) if policy.pool_mode == "class" else [every_row[part] for part in _interleaved(n)]
    copy: Extras = {}
    if policy.pool_network == "predictor":
        assert extras is not None
        copy = copy_in(method.predictor, extras)
    with _untouched(net), holding(net, copy):
        for rows in parts:
            net.train(policy.pool_mode != "evaluation" and len(rows) > 1)
            features = net.features(images(rows)).float()
            part = replace(batch, labels=batch.labels[rows], logits=batch.logits[rows], weights=batch.weights[rows])
            logits = net.head(features)
            columns = {"features": features, "residuals": method.residual(logits, part)}
            if "reducible" in policy.selector.needs:
                columns["reducible"] = reducible_loss(part.logits, logits, part.labels)
            found.append(columns)
    order = torch.cat(parts).argsort()
    columns = {name: torch.cat([part[name] for part in found])[order] for name in found[0]}
    return Pool(batch.labels, batch.weights, kept=kept, tasks=batch.tasks, **columns)


def _interleaved(n: int) -> list[slice]:
    n_parts = -(-n // AT_ONCE)
    return [slice(first, n, n_parts) for first in range(n_parts)]


def _of_a_class(labels: Tensor) -> list[Tensor]:
    """Rows of one class each, so many at a time; one that would be left alone joins the others. Classes of a single
    row come first: they need the running statistics, which the others change."""
    parts: list[Tensor] = []
    for rows in rows_by_class(labels):
        *full, rest = rows.split(OF_A_CLASS)
        parts += [*full[:-1], torch.cat([full[-1], rest])] if full and len(rest) == 1 else [*full, rest]
    return sorted(parts, key=lambda rows: len(rows) > 1)


@contextmanager
def holding(net: Network, copy: Extras) -> Iterator[None]:
    """Inside, the network has these tensors in place of its own of the same names. They stay as they are."""
    own = net.state_dict()  # by reference
    before = {name: own[name].clone() for name in copy}
    try:
        for name, tensor in copy.items():
            own[name].copy_(tensor)
        yield
    finally:
        for name, tensor in before.items():
            own[name].copy_(tensor)


@contextmanager
def _untouched(net: Network) -> Iterator[None]:
    """Passes without gradients that leave running statistics as they were. Convolutions are not tuned for them."""
    tuned, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False  # sizes come once or twice
    try:
        with torch.no_grad(), statistics_kept(net):
            yield
    finally:
        torch.backends.cudnn.benchmark = tuned
