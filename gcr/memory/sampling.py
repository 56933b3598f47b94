"""Which rows of memory are replayed: adaptive sampling, as the paper writes it and as its code does it.

Both share a minibatch between candidates and kept buffer in the proportion ``p = n_t / n`` of what has been seen
since the last reselection. Without a candidate pool, ``coin`` is uniform with replacement and ``split`` uniform
without. Shapes are fixed and counters stay on the device. Memory must hold something.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor


class Counted(Protocol):
    """What a sampler reads of a buffer: its sizes, and its counters on the device."""

    capacity: int
    candidates: int
    kept: Tensor
    pooled: Tensor
    seen: Tensor
    seen_since: Tensor
    updates: Tensor


class Coin:
    """Algorithm 3 of the paper: a coin of probability p per example, then a uniform draw from pool or buffer."""

    name = "coin"
    summary = "the paper: a coin per example decides between candidates and kept buffer, with replacement"

    @staticmethod
    def draws_shape(size: int, capacity: int, candidates: int) -> tuple[int, ...]:
        return (size, 2)

    @staticmethod
    def rows(memory: Counted, draws: Tensor, size: int) -> Tensor:
        """[..., size, 2] uniforms (coin, index) -> [..., size] rows of memory. An empty side gives way to the other."""
        coin, index = draws.unbind(-1)
        tails = coin * memory.seen < memory.seen_since
        from_pool = (memory.pooled > 0) & (tails | (memory.kept == 0))
        count = torch.where(from_pool, memory.pooled, memory.kept)
        position = (index * count).long().minimum((count - 1).clamp_min(0))
        return torch.where(from_pool, memory.capacity + position, position)


class Split:
    """The reference code: ``floor(size * n_t / n)`` rows from the first ``ceil(K / (reselections + 1))`` candidates,
    the rest from the kept buffer, each without replacement (in the same order again once all have been taken)."""

    name = "split"
    summary = "the reference code: fixed shares of candidates and kept buffer, without replacement"

    @staticmethod
    def draws_shape(size: int, capacity: int, candidates: int) -> tuple[int, ...]:
        return (capacity + candidates,)

    @staticmethod
    def rows(memory: Counted, draws: Tensor, size: int) -> Tensor:
        """One uniform per row of memory, [..., capacity + candidates] -> [..., size] rows."""
        place = torch.arange(size, device=draws.device)
        kept_order = _shuffled(draws[..., : memory.capacity], memory.kept)
        if not memory.candidates:
            return kept_order[..., place % memory.kept.clamp_min(1)]
        parts = memory.updates + 1
        usable = memory.pooled.minimum((memory.capacity + parts - 1) // parts)
        pool_order = memory.capacity + _shuffled(draws[..., memory.capacity :], usable)
        share = size * memory.seen_since // memory.seen.clamp_min(1)
        share = torch.where(usable == 0, 0, torch.where(memory.kept == 0, size, share))
        from_kept = kept_order[..., (place - share).clamp_min(0) % memory.kept.clamp_min(1)]
        return torch.where(place < share, pool_order[..., place % usable.clamp_min(1)], from_kept)


class Distinct:
    """For methods that search memory: every row once, in random order; once all are taken, in that order again."""

    @staticmethod
    def draws_shape(size: int, capacity: int, candidates: int) -> tuple[int, ...]:
        return (capacity + candidates,)

    @staticmethod
    def rows(memory: Counted, draws: Tensor, size: int) -> Tensor:
        """One uniform per row of memory, [..., capacity + candidates] -> [..., size] rows."""
        row = torch.arange(draws.shape[-1], device=draws.device)
        filled = torch.where(row < memory.capacity, row < memory.kept, row - memory.capacity < memory.pooled)
        order = torch.where(filled, draws, 2.0).argsort()
        return order[..., torch.arange(size, device=draws.device) % (memory.kept + memory.pooled).clamp_min(1)]


def _shuffled(draws: Tensor, count: Tensor) -> Tensor:
    """The first ``count`` positions in random order, the unused ones behind them."""
    used = torch.arange(draws.shape[-1], device=draws.device) < count
    return torch.where(used, draws, 2.0).argsort()


Sampler = type[Coin] | type[Split] | type[Distinct]
SAMPLERS: tuple[type[Coin] | type[Split], ...] = (Coin, Split)  # that a user may choose
