"""GSS: rows whose gradients point in different directions. Chosen rows have weight 1; classes play no part.

Aljundi et al., "Gradient based sample selection for online continual learning" (NeurIPS 2019). The memory is to have
the least sum of cosines between its gradients (their surrogate of the feasible region). Two forms of the paper:

- ``greedy`` (Algorithm 2, GSS-Greedy). Rows arrive one by one. A row's score is ``c = 1 + max cosine`` to a random
  subset of the memory. While there is room it enters. After that it may enter only if ``c < 1`` (it opposes the whole
  subset): a slot i is drawn with probability ``C_i / sum C`` and taken over with probability ``C_i / (C_i + c)``.
- ``clustering`` (GSS-Clust). Rows within some distance ``1 - cosine`` of a centre belong to its cluster, a row outside
  all clusters opens one, and the distance grows until the centres fit into the memory. A pool shows all its rows at
  once, so that distance need not be searched in steps: the farthest-first walk finds ``budget`` centres that are at
  least as far from each other as any other row is from its centre. The first centre is the first to arrive.

Rows arrive as the buffer met them: kept rows first, then the candidates; in both groups in the order of their draws.
Gradients are those of the last layer; the cosine with a gradient of length zero is 0, and so is the greatest cosine to
an empty memory.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from gcr.select.coreset import Coreset, Pool
from gcr.settings import Settings, setting


@dataclass(frozen=True)
class Gss(Settings):
    """Rows of diverse gradients. Of three gradients, two alike and one opposed, the opposed one is always kept:

    >>> pool = Pool(
    ...     labels=torch.zeros(3).long(),
    ...     weights=torch.ones(3),
    ...     features=torch.zeros(3, 1),
    ...     residuals=torch.tensor([[1.0, -1.0], [2.0, -2.0], [-1.0, 1.0]]),
    ... )
    >>> 2 in Gss()(pool, 2, torch.tensor([0.1, 0.2, 0.3])).rows
    True
    >>> Gss(form="clustering")(pool, 2, torch.tensor([0.1, 0.2, 0.3])).rows.tolist()
    [0, 2]
    """

    name: ClassVar[str] = "gss"
    summary: ClassVar[str] = "rows whose gradients point in different directions, over the whole pool"
    needs: ClassVar[frozenset[str]] = frozenset({"features", "residuals", "kept"})

    form: str = setting(
        "greedy",
        "greedy: admit rows one by one by their score; clustering: one row per cluster of directions",
        choices=("greedy", "clustering"),
    )
    neighbours: int = setting(10, "memory rows that a new row is compared with (greedy form)", low=1)

    def __call__(self, pool: Pool, budget: int, draws: Tensor) -> Coreset:
        rows = torch.arange(len(pool), device=pool.labels.device)
        if budget < len(pool):
            arrivals = arrival_order(pool, draws.to(rows.device))
            factors = unit_factors(pool)
            units = factors[0][arrivals], factors[1][arrivals]
            if self.form == "greedy":
                positions = admitted(units, budget, self.neighbours, seed_of(draws))
            else:
                positions = cluster_centres(units, budget)
            rows = arrivals[positions].sort().values
        return Coreset(rows, torch.ones_like(pool.weights[rows]))


Factors = tuple[Tensor, Tensor]  # [n, classes], [n, f + 1]: row i of each, multiplied out, is a gradient of length 1


def unit_factors(pool: Pool) -> Factors:
    """Each last-layer gradient scaled to length 1, as its two factors in float64. A zero gradient stays zero."""
    assert pool.features is not None
    assert pool.residuals is not None
    inputs = pad(pool.features.double(), (0, 1), value=1.0)
    return normalize(pool.residuals.double(), dim=1, eps=1e-300), normalize(inputs, dim=1, eps=1e-300)


def cosines(rows: Factors, others: Factors) -> Tensor:
    """Cosines of gradients: n rows, m others -> [n, m]."""
    return (rows[0] @ others[0].T) * (rows[1] @ others[1].T)


def arrival_order(pool: Pool, draws: Tensor) -> Tensor:
    """Kept rows by their draws, then the others by theirs; the lowest row first among equal draws."""
    order = draws.argsort(stable=True)
    if pool.kept is None:
        return order
    return order[(~pool.kept[order]).to(torch.int8).argsort(stable=True)]


def seed_of(draws: Tensor) -> int:
    """A seed from the bits of all draws: GSS needs more uniforms than one a row, and they too must follow the draws.

    >>> seed_of(torch.tensor([0.25, 0.5])) == seed_of(torch.tensor([0.25, 0.5], dtype=torch.float64))
    True
    >>> seed_of(torch.tensor([0.25, 0.5])) == seed_of(torch.tensor([0.5, 0.25]))
    False
    """
    values = draws.double().tolist()
    return int.from_bytes(hashlib.blake2b(struct.pack(f"<{len(values)}d", *values), digest_size=4).digest(), "little")


def random_subsets(sizes: Tensor, uniforms: Tensor) -> Tensor:
    """For each row a uniformly random subset of ``range(sizes[row])``, without repeats: [n], [n, k] -> [n, k].

    Floyd's method, one member of all subsets at a time. Where fewer than k are to be had, the rest is -1.

    >>> random_subsets(torch.tensor([0, 1, 4]), torch.full((3, 2), 0.4)).tolist()
    [[-1, -1], [-1, 0], [1, 3]]
    """
    subsets = torch.full_like(uniforms, -1, dtype=torch.int64)
    k = uniforms.shape[1]
    for j in range(k):
        last = sizes - k + j
        member = torch.minimum((uniforms[:, j] * (last + 1)).long(), last)
        repeated = (subsets == member[:, None]).any(1)
        subsets[:, j] = torch.where(repeated, last, member).clamp(min=-1)
    return subsets


def admitted(units: Factors, budget: int, neighbours: int, seed: int) -> Tensor:
    """Positions, in order of arrival, of the rows in memory after all have arrived (Algorithm 2): -> [budget].

    The subsets are drawn for all arrivals at once, as slots. Between two replacements the memory stands still, so all
    later arrivals are judged against it together and the first that gets in is the next replacement: as many rounds as
    replacements, with the outcome of the row-by-row algorithm.
    """
    n, k = len(units[0]), min(neighbours, budget)
    # on the CPU whatever the device, so that every device sees the same numbers
    uniforms = torch.rand(n, k + 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    uniforms = uniforms.to(units[0].device)
    which_slot, whether = uniforms[:, k], uniforms[:, k + 1]
    positions = torch.arange(n, device=units[0].device)
    subsets = random_subsets(positions.clamp(max=budget), uniforms[:, :k])
    memory = positions[:budget].clone()
    to_memory = cosines(units, (units[0][memory], units[1][memory]))  # [n, budget]
    memory_scores = scores(to_memory[:budget], subsets[:budget])
    start = budget
    while start < n:
        new = scores(to_memory[start:], subsets[start:])
        total = memory_scores.cumsum(0)
        slots = torch.searchsorted(total, which_slot[start:] * total[-1], right=True).clamp(max=budget - 1)
        # scores of 0 on both sides give a NaN, which is below nothing: the old row stays
        enters = (new < 1) & (whether[start:] < memory_scores[slots] / (memory_scores[slots] + new))
        first = int(enters.to(torch.int8).argmax())
        if not enters[first]:
            break
        slot, start = int(slots[first]), start + first + 1
        memory[slot], memory_scores[slot] = start - 1, new[first]
        to_memory[:, slot] = cosines(units, (units[0][start - 1 : start], units[1][start - 1 : start]))[:, 0]
    return memory


def scores(to_memory: Tensor, subsets: Tensor) -> Tensor:
    """One plus the greatest cosine to the memory rows of each subset; 1 where the subset is empty."""
    greatest = to_memory.gather(1, subsets.clamp(min=0)).where(subsets >= 0, -torch.inf).amax(1)
    return (1 + greatest.where(greatest > -torch.inf, 0.0)).clamp(min=0.0)


def cluster_centres(units: Factors, budget: int) -> Tensor:
    """Positions of ``budget`` rows, each the farthest in direction from those before it; the first is position 0."""
    centre = torch.zeros(1, dtype=torch.int64, device=units[0].device)
    nearest = units[0].new_full((len(units[0]),), -torch.inf)  # greatest cosine of each row to a centre
    order = [centre]
    for _ in range(budget - 1):
        nearest = torch.maximum(nearest, cosines(units, (units[0][centre], units[1][centre]))[:, 0])
        nearest = nearest.index_fill(0, centre, torch.inf)  # a centre is not chosen again
        centre = nearest.argmin(0, keepdim=True)
        order.append(centre)
    return torch.cat(order)
