"""Gradients as directions in the space of all parameters: as long vectors, and back.

A direction is a list with a tensor, or None for zero, per parameter. A network has many parameters; what is done with
them as one vector takes few kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Direction = Sequence[Tensor | None]


def vectors(directions: Sequence[Direction]) -> list[Tensor]:
    """Each as one vector, its numbers in the order in which they lie in memory; without what is None in all.

    >>> vectors([[torch.tensor([1.0, 2.0]), None], [None, None]])
    [tensor([1., 2.]), tensor([0., 0.])]
    """
    columns = []
    for same in zip(*directions, strict=True):
        first = next((part for part in same if part is not None), None)
        if first is not None:
            columns.append([_as_it_lies(part, first) for part in same])
    return [_joined(pieces) for pieces in zip(*columns, strict=True)]


def parts(vector: Tensor, directions: Sequence[Direction]) -> list[Tensor | None]:
    """The direction that is ``vector``, made from ``vectors(directions)``."""
    firsts = [next((part for part in same if part is not None), None) for same in zip(*directions, strict=True)]
    rest = iter(vector.split([first.numel() for first in firsts if first is not None]))
    return [None if first is None else _like(next(rest), first) for first in firsts]


def _joined(pieces: tuple[Tensor, ...]) -> Tensor:
    """As ``torch.cat``, which is slow on a GPU where pieces are many and of very different lengths."""
    whole = pieces[0].new_empty(sum(len(piece) for piece in pieces))
    torch._foreach_copy_(whole.split([len(piece) for piece in pieces]), pieces)
    return whole


def _as_it_lies(part: Tensor | None, first: Tensor) -> Tensor:
    """In the memory order of ``first``, which is dense: no copy where they agree."""
    if part is None:
        part = torch.zeros_like(first)
    elif part.stride() != first.stride():
        part = torch.empty_like(first).copy_(part)
    return part.as_strided((part.numel(),), (1,))


def _like(piece: Tensor, first: Tensor) -> Tensor:
    return piece.as_strided(first.shape, first.stride(), piece.storage_offset())
