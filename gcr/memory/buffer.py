"""What is remembered: columns of fixed capacity on the device, filled without Python loops or host reads.

Rows ``[0, capacity)`` are the kept buffer (X and W_X in the paper), rows ``[capacity, capacity + candidates)`` the
pool of candidates (C_t), and one spare row at the end swallows writes that a reservoir rejects, so that the update
for a whole batch is one indexed write. The spare row is never read or saved. Counters are tensors on the device.

>>> memory = Buffer.empty(capacity=2, candidates=0, image_shape=(1, 1, 1), n_classes=2)
>>> batch = {"image": torch.full((3, 1, 1, 1), 7, dtype=torch.uint8), "label": torch.tensor([0, 1, 0])}
>>> memory.offer(batch, draws=torch.tensor([0.0, 0.0, 0.9]).double())  # the third draws slot 2: rejected
>>> int(memory.kept), memory.columns["label"][:2].tolist()
(2, [0, 1])
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass
class Buffer:
    capacity: int  # K: rows of the kept buffer
    candidates: int  # rows of the candidate pool; 0 where the policy keeps none
    columns: dict[str, Tensor]  # each [capacity + candidates + 1, ...]
    kept: Tensor  # () int64: rows of the kept buffer in use
    pooled: Tensor  # () int64: rows of the candidate pool in use
    seen: Tensor  # () int64: examples offered in the whole run (n)
    seen_since: Tensor  # () int64: examples offered since the last reselection (n_t)
    updates: Tensor  # () int64: reselections so far

    @classmethod
    def empty(
        cls,
        capacity: int,
        candidates: int,
        image_shape: tuple[int, int, int],
        n_classes: int,
        device: torch.device | str = "cpu",
        scored: bool = False,
    ) -> Buffer:
        """``scored``: with a column for what GSS-Greedy knows of an example."""
        rows = capacity + candidates + 1
        columns = {
            "image": torch.zeros((rows, *image_shape), dtype=torch.uint8, device=device),
            "label": torch.zeros(rows, dtype=torch.int64, device=device),
            "logits": torch.zeros((rows, n_classes), device=device),
            "weight": torch.zeros(rows, device=device),
            "task": torch.zeros(rows, dtype=torch.int64, device=device),
        }
        if scored:
            columns["score"] = torch.zeros(rows, device=device)
        counters = [torch.zeros((), dtype=torch.int64, device=device) for _ in range(5)]
        return cls(capacity, candidates, columns, *counters)

    @property
    def rows(self) -> int:
        """Rows that can hold an example: all but the spare one."""
        return self.capacity + self.candidates

    def offer(self, batch: dict[str, Tensor], draws: Tensor, admitted: Tensor | None = None) -> None:
        """Reservoir update with a whole batch, equal to offering its examples one by one.

        Example number n (from 0) of those ``admitted`` takes slot n while there is room, and slot ``floor(u * (n +
        1))`` afterwards, if that is one.
        """
        if admitted is None:
            admitted = torch.ones_like(draws, dtype=torch.bool)
        ordinal = self.ordinals(admitted)
        drawn = (draws * (ordinal + 1)).long()
        self.put(batch, torch.where(ordinal < (self.candidates or self.capacity), ordinal, drawn), admitted)

    def ordinals(self, admitted: Tensor) -> Tensor:
        """The number (from 0) that each admitted example of a batch has among all since the last reselection."""
        return self.seen_since + admitted.cumsum(0) - 1

    def put(self, batch: dict[str, Tensor], slot: Tensor, admitted: Tensor) -> None:
        """Write every admitted example to its slot of the candidate pool, if there is one, else of the kept buffer.

        A slot that is too large is none. Where examples share one, the last has it. Columns that the batch lacks keep
        their default: weight 1, all others 0.
        """
        start, size = (self.capacity, self.candidates) if self.candidates else (0, self.capacity)
        spare = self.rows
        slot = torch.where(admitted & (slot < size), start + slot, spare)
        slot = torch.where(_taken_later(slot), spare, slot)
        for name, column in self.columns.items():
            if name in batch:
                column[slot] = batch[name].to(column.dtype)
            else:
                column.index_fill_(0, slot, 1 if name == "weight" else 0)
        count = admitted.sum()
        self.seen += count
        self.seen_since += count
        filled = self.pooled if self.candidates else self.kept
        filled.copy_(self.seen_since.clamp_max(size))

    def read(self, rows: Tensor) -> dict[str, Tensor]:
        return {name: column[rows] for name, column in self.columns.items()}

    def mean_weight(self) -> Tensor:
        """Of the kept buffer."""
        weights = self.columns["weight"][: self.capacity]
        in_use = torch.arange(self.capacity, device=weights.device) < self.kept
        return torch.where(in_use, weights, 0.0).sum() / self.kept.clamp_min(1)

    def filled_rows(self) -> Tensor:
        """Rows in use, kept ones first. Reads the counters on the host: not for the training step."""
        device = self.kept.device
        kept = torch.arange(int(self.kept), device=device)
        return torch.cat([kept, self.capacity + torch.arange(int(self.pooled), device=device)])

    def keep(self, rows: Tensor, weights: Tensor) -> None:
        """Make ``rows`` (of the filled ones) the kept buffer, with these weights, and empty the candidate pool."""
        chosen = self.read(rows)
        chosen["weight"] = weights.to(self.columns["weight"])
        for name, column in self.columns.items():
            column[: len(rows)] = chosen[name]
        self.kept.fill_(len(rows))
        self.pooled.zero_()
        self.seen_since.zero_()
        self.updates += 1

    def set_candidates(self, columns: dict[str, Tensor]) -> None:
        """Make these examples the candidates."""
        n = len(columns["label"])
        for name, column in self.columns.items():
            column[self.capacity : self.capacity + n] = columns[name].to(column.dtype)
        self.pooled.fill_(n)

    @property
    def nbytes(self) -> int:
        """Of all columns; what a run really keeps of its past."""
        return sum(column[: self.rows].nbytes for column in self.columns.values())


def _taken_later(slot: Tensor) -> Tensor:
    """Which entries of ``slot`` [b] occur again further on. The later example wins, as in a loop; an indexed write with
    repeated slots has no defined order on a GPU."""
    same = slot.unsqueeze(0) == slot.unsqueeze(1)
    return same.triu(diagonal=1).any(1)
