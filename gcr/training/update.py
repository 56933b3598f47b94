"""One update of the kept buffer: filled rows -> features and residuals -> selector -> rows and weights."""

from __future__ import annotations

from dataclasses import asdict

import torch
from torch import Tensor

from gcr.memory import Memory, Policy
from gcr.methods import Batch, Method
from gcr.models import Network
from gcr.scenarios import Scenario
from gcr.select import Pool, Selector, explain
from gcr.training.draws import selection_draws


def reselect(
    memory: Memory, policy: Policy, method: Method, net: Network, scenario: Scenario, key: tuple[int, int]
) -> dict[str, object]:
    """Choose a new kept buffer from old buffer and candidates, and say how good it is."""
    assert isinstance(policy.selector, Selector)
    rows = memory.filled_rows()
    stored = memory.read(rows)
    kept = rows < memory.capacity
    batch = Batch((scenario.views.plain(stored["image"]),), stored["label"], stored["logits"], stored["weight"])
    pool = make_pool(net, method, batch, kept, policy.selector.needs)
    coreset = policy.selector(pool, policy.buffer, selection_draws(key, len(rows)).to(rows.device))
    memory.keep(rows[coreset.rows], coreset.weights)
    told: dict[str, object] = {"stage": key[1], "from": len(rows), "kept": len(coreset.rows), "note": coreset.note}
    return told | asdict(explain(coreset, pool)) if pool.residuals is not None else told


@torch.no_grad()
def make_pool(
    net: Network, method: Method, batch: Batch, kept: Tensor, needs: frozenset[str], size: int = 1000
) -> Pool:
    """The columns a selector needs, in one pass of the network in evaluation mode over plain images."""
    if not needs & {"features", "residuals"}:
        return Pool(batch.labels, batch.weights, kept=kept)
    net.eval()
    features, residuals = [], []
    for start in range(0, len(batch.labels), size):
        part = _rows(batch, slice(start, start + size))
        features.append(net.features(part.images))
        residuals.append(method.residual(net.head(features[-1]), part))
    return Pool(batch.labels, batch.weights, torch.cat(features), torch.cat(residuals), kept)


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(tuple(v[rows] for v in batch.views), batch.labels[rows], batch.logits[rows], batch.weights[rows])
