"""All the randomness of an epoch, as tensors, a function of (seed, stage, epoch) alone.

Each field has a stream of its own, so that methods with different needs still see the same order of examples and the
same views on equal seeds, and so that CPU and GPU, a fresh and a resumed run see the same draws. NumPy makes them
because its streams are the same with every version of torch.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gcr.augment import DRAWS


@dataclass(frozen=True)
class ReplayDraws:
    rows: Tensor  # [steps, *shape the sampler asks for]
    views: tuple[Tensor, ...]  # each [steps, size, DRAWS[kind]]


@dataclass(frozen=True)
class EpochDraws:
    order: Tensor  # [n] int64: a permutation of the stage's examples
    views: Tensor  # [n, DRAWS["weak"]]
    reservoir: Tensor  # [n] float64: fine enough for millions of examples
    replays: tuple[ReplayDraws, ...]


def epoch_draws(
    key: tuple[int, int, int],
    n_examples: int,
    n_steps: int,
    sampler_shape: tuple[int, ...],
    replay_size: int,
    replays: tuple[tuple[str, ...], ...],
    device: torch.device | str,
) -> EpochDraws:
    """``key`` is (seed, stage, epoch); the rest are the shapes."""

    def uniform(field: str, *shape: int, dtype: type = np.float32) -> Tensor:
        return torch.from_numpy(_stream(key, field).random(shape, dtype=dtype)).to(device)

    return EpochDraws(
        order=torch.from_numpy(_stream(key, "order").permutation(n_examples)).to(device),
        views=uniform("views", n_examples, DRAWS["weak"]),
        reservoir=uniform("reservoir", n_examples, dtype=np.float64),
        replays=tuple(
            ReplayDraws(
                rows=uniform(f"replay {i}", n_steps, *sampler_shape),
                views=tuple(
                    uniform(f"replay {i} view {v}", n_steps, replay_size, DRAWS[kind]) for v, kind in enumerate(kinds)
                ),
            )
            for i, kinds in enumerate(replays)
        ),
    )


def selection_draws(key: tuple[int, int], n_rows: int) -> Tensor:
    """One uniform per row of the pool for the selection after a stage; ``key`` is (seed, stage)."""
    return torch.from_numpy(_stream(key, "selection").random(n_rows))


def _stream(key: tuple[int, ...], field: str) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence((*key, zlib.crc32(field.encode()))))
