"""Replay memory: columns of fixed capacity on the device, filled without Python loops.

Rows ``[0, capacity)`` are the kept buffer (X and W_X in the paper), rows ``[capacity, capacity + candidates)`` the
pool of candidates (C_t), and one spare row at the end takes the writes that a reservoir rejects, so that the update
for a whole batch is one indexed write. The spare row is never read or saved. Counters are tensors on the device.

``add``, ``sample`` and ``reselect`` check their input and draw from the buffer's own seed. The training step uses
``offer``, ``read`` and its own draws.

>>> buffer = Buffer(capacity=2)
>>> buffer.add(torch.full((3, 1, 4, 4), 7, dtype=torch.uint8), labels=torch.tensor([0, 1, 0]))
>>> len(buffer), buffer.sample(5).images.shape
(2, torch.Size([5, 1, 4, 4]))
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from gcr.memory.buffer_state import COUNTERS, SIZES, checked_columns
from gcr.memory.examples import Examples, as_batch, as_count, as_floats, check_dtype, check_fits
from gcr.memory.randomness import generator, selection_draws
from gcr.memory.sampling import Coin
from gcr.select import Coreset, Pool, Selector
from gcr.select.checks import as_rows
from gcr.select.coreset import checked
from gcr.settings import BadInput


class Buffer:
    """``capacity`` rows to keep, and ``candidates`` rows to select from where a selector chooses what is kept.

    Columns are allocated by the first ``add``. With logits in the first batch, every batch needs them.
    """

    kept: Tensor  # () int64, as all counters: rows of the kept buffer in use
    pooled: Tensor  # rows of the candidate pool in use
    seen: Tensor  # examples offered in the whole run (n)
    seen_since: Tensor  # examples offered since the last reselection (n_t)
    updates: Tensor  # reselections so far
    adds: Tensor  # calls of add so far
    samples: Tensor  # calls of sample so far

    def __init__(self, capacity: int, candidates: int = 0, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.capacity = as_count("capacity", capacity, 1)  # K: rows of the kept buffer
        self.candidates = as_count("candidates", candidates, 0)  # rows of the candidate pool; 0: none
        self.seed = as_count("seed", seed, 0)
        self.columns: dict[str, Tensor] = {}  # each [capacity + candidates + 1, ...]
        for name in COUNTERS:
            setattr(self, name, torch.zeros((), dtype=torch.int64, device=device))

    @classmethod
    def empty(
        cls,
        capacity: int,
        candidates: int,
        image_shape: tuple[int, ...],
        n_classes: int,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.uint8,
        also: Collection[str] = (),
    ) -> Self:
        """A buffer whose columns are there from the start. ``dtype``: of the images; ``also``: columns of one number an
        example, ``score`` (or priority) and ``loss``."""
        buffer = cls(capacity, candidates, device=device)
        buffer._allocate(image_shape, dtype, n_classes, also)
        return buffer

    def _allocate(
        self,
        image_shape: tuple[int, ...],
        dtype: torch.dtype,
        n_classes: int | None,
        also: Collection[str] = (),
    ) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
            return torch.zeros((self.rows + 1, *shape), dtype=dtype, device=self.device)

        self.columns = {"image": zeros(*image_shape, dtype=dtype), "label": zeros(dtype=torch.int64)}
        if n_classes is not None:
            self.columns["logits"] = zeros(n_classes)
        self.columns |= {"weight": zeros(), "task": zeros(dtype=torch.int64)}
        self.columns |= {name: zeros() for name in ("score", "loss") if name in also}

    # For a training loop of one's own.

    def add(self, images: Any, labels: Any, logits: Any = None, weights: Any = None, tasks: Any = None) -> None:
        """Offer a batch: each example seen so far is in the reservoir with the same probability.

        Images are uint8 or float, [n, ...]. What is not given has weight 1 and task 0.
        """
        batch = as_batch(images, labels, logits, weights, tasks, self.device)
        if self.columns:
            check_fits(batch, self.columns)
        else:
            n_classes = batch["logits"].shape[1] if "logits" in batch else None
            self._allocate(tuple(batch["image"].shape[1:]), batch["image"].dtype, n_classes)
        draws = generator((self.seed, int(self.adds)), "add").random(len(batch["label"]))
        self.offer(batch, torch.from_numpy(draws).to(self.device))
        self.adds += 1

    def sample(self, n: int) -> Examples:
        """``n`` examples with replacement, uniform over the reservoir.

        With candidates, these get the share of what was seen since the last reselection (Algorithm 3 of the paper).
        """
        n = as_count("n", n, 1)
        self._refuse_empty("sample from")
        draws = generator((self.seed, int(self.samples)), "sample").random((n, 2), dtype=np.float32)
        self.samples += 1
        return self._examples(Coin.rows(self, torch.from_numpy(draws).to(self.device), n))

    def pool(self, features: Any = None, residuals: Any = None, reducible: Any = None) -> Pool:
        """What a selector chooses from: all rows in use, in the order of ``images``."""
        rows = self.filled_rows()
        given = {
            name: as_floats(name, values, len(rows), dim, self.device)
            for name, values, dim in (
                ("features", features, 2),
                ("residuals", residuals, 2),
                ("reducible", reducible, 1),
            )
            if values is not None
        }
        label, weight, task = (self.columns[name][rows] for name in ("label", "weight", "task"))
        return Pool(label, weight, **given, kept=rows < self.capacity, tasks=task)

    def reselect(
        self,
        selector: Selector,
        features: Any = None,
        residuals: Any = None,
        budget: int | None = None,
        draws: Tensor | None = None,
        reducible: Any = None,
    ) -> Coreset:
        """Keep the rows that ``selector`` chooses from buffer and candidates, with its weights; empty the candidates.

        ``features`` [n, f], ``residuals`` [n, classes] and ``reducible`` losses [n] are those of ``images``, row by
        row; a selector names what it needs. ``budget`` is the capacity if not given; ``draws`` [n] replace the buffer's
        own. Rows of the result are those of ``images`` before the call.
        """
        if not isinstance(selector, Selector) or isinstance(selector, type):
            raise BadInput(f"selector must be one of gcr.select, such as GradApprox(), got {selector!r}")
        if not self.candidates:
            raise BadInput(
                f"candidates must be > 0 to reselect, got 0; use Buffer({self.capacity}, candidates={self.capacity})"
            )
        self._refuse_empty("reselect")
        budget = self.capacity if budget is None else as_count("budget", budget, 1, self.capacity)
        for name, values in (("features", features), ("residuals", residuals), ("reducible", reducible)):
            if values is None and name in selector.needs:
                raise BadInput(f"{name} must be given for {selector.name}, a row for each of buffer.images")
        pool = self.pool(features, residuals, reducible)
        if draws is None:
            draws = selection_draws((self.seed, int(self.updates)), len(pool)).to(self.device)
        coreset = checked(selector(pool, budget, draws), len(pool), budget, selector.name)
        self.keep(self.filled_rows()[coreset.rows], coreset.weights)
        return coreset

    def remove(self, rows: Any) -> int:
        """Erase examples: ``rows`` are a mask or numbers of rows of ``images``. The next examples take their places.
        Returns how many there were."""
        out = as_rows("rows", rows, len(self), self.device)
        stays = torch.ones(len(self), dtype=torch.bool, device=self.device).index_fill_(0, out, False)
        places = self.filled_rows()
        for first, end, count in ((0, self.capacity, self.kept), (self.capacity, self.rows + 1, self.pooled)):
            left = places[(places >= first) & (places < end) & stays]
            for column in self.columns.values():
                column[first : first + len(left)] = column[left]
                column[first + len(left) : end] = 0  # free rows, too: they hold what was there before a selection
            count.fill_(len(left))
        return len(out)

    def __len__(self) -> int:
        """Examples held: kept ones and candidates."""
        return int(self.kept) + int(self.pooled)

    def __repr__(self) -> str:
        held = f"{int(self.kept)} of {self.capacity} rows"
        pooled = f", {int(self.pooled)} of {self.candidates} candidates" if self.candidates else ""
        return f"Buffer({held}{pooled}, {self.nbytes / 1e6:.2f} MB)"

    @property
    def images(self) -> Tensor:
        """Of all rows in use, kept ones first."""
        return self._examples(self.filled_rows()).images

    @property
    def labels(self) -> Tensor:
        return self._examples(self.filled_rows()).labels

    @property
    def logits(self) -> Tensor | None:
        return self._examples(self.filled_rows()).logits

    @property
    def weights(self) -> Tensor:
        return self._examples(self.filled_rows()).weights

    @property
    def tasks(self) -> Tensor:
        return self._examples(self.filled_rows()).tasks

    @property
    def nbytes(self) -> int:
        """Of all columns; what a run keeps of its past."""
        return sum(column[: self.rows].nbytes for column in self.columns.values())

    def _examples(self, rows: Tensor) -> Examples:
        if not self.columns:
            self._refuse_empty("read")
        columns = (self.columns.get(name) for name in ("image", "label", "logits", "weight", "task"))
        return Examples(*(None if column is None else column[rows] for column in columns))  # type: ignore[arg-type]

    def _refuse_empty(self, what: str) -> None:
        if not len(self):
            raise BadInput(f"cannot {what} an empty buffer; call add(images, labels) first")

    # For the training step: no host reads, fixed shapes.

    @property
    def device(self) -> torch.device:
        return self.kept.device

    @property
    def rows(self) -> int:
        """Rows that can hold an example: all but the spare one."""
        return self.capacity + self.candidates

    def offer(self, batch: dict[str, Tensor], draws: Tensor, admitted: Tensor | None = None) -> None:
        """Reservoir update with a whole batch, equal to offering its examples one by one.

        Of those ``admitted`` an example takes the next free slot while there is one. Then number n (from 0) takes slot
        ``floor(u * (n + 1))``, if that is one.
        """
        if admitted is None:
            admitted = torch.ones_like(draws, dtype=torch.bool)
        drawn = (draws * (self.seen_since + admitted.cumsum(0))).long()
        self.put(batch, self.free_slots(admitted, drawn), admitted)

    def free_slots(self, admitted: Tensor, otherwise: Tensor) -> Tensor:
        """[b]: the next free slot for each admitted example of a batch; where there is none, what ``otherwise`` has."""
        free = self.filled + admitted.cumsum(0) - 1
        return torch.where(free < (self.candidates or self.capacity), free, otherwise)

    @property
    def filled(self) -> Tensor:
        """() int64: examples where new ones are put."""
        return self.pooled if self.candidates else self.kept

    def put(self, batch: dict[str, Tensor], slot: Tensor, admitted: Tensor, distinct: bool = False) -> None:
        """Write every admitted example to its slot of the candidate pool, if there is one, else of the kept buffer.

        A slot that is too large is none. Where examples share one, the last has it (``distinct``: none do). Columns
        that the batch lacks keep their default: weight 1, all others 0.
        """
        check_dtype(batch["image"], self.columns)
        rows = self.rows_to_write(slot, admitted, distinct)
        for name, column in self.columns.items():
            if name in batch:
                column[rows] = batch[name].to(column.dtype)
            else:
                column.index_fill_(0, rows, 1 if name == "weight" else 0)
        count = admitted.sum()
        self.seen += count
        self.seen_since += count
        self.filled.copy_((self.filled + count).clamp_max(self.candidates or self.capacity))

    def rows_to_write(self, slot: Tensor, admitted: Tensor, distinct: bool = False) -> Tensor:
        """[b] slots -> [b] rows; the spare row for an example that is not stored. No other row occurs twice: an
        indexed write with repeated rows has no defined order on a GPU."""
        start, size = (self.capacity, self.candidates) if self.candidates else (0, self.capacity)
        rows = torch.where(admitted & (slot < size), start + slot, self.rows)
        return rows if distinct else torch.where(_taken_later(rows), self.rows, rows)

    def read(self, rows: Tensor) -> dict[str, Tensor]:
        return {name: column[rows] for name, column in self.columns.items()}

    def mean_weight(self) -> Tensor:
        """Of the kept buffer."""
        weights = self.columns["weight"][: self.capacity]
        in_use = torch.arange(self.capacity, device=weights.device) < self.kept
        return torch.where(in_use, weights, 0.0).sum() / self.kept.clamp_min(1)

    # At boundaries: these read counters on the host.

    def filled_rows(self) -> Tensor:
        """Rows in use, kept ones first."""
        kept = torch.arange(int(self.kept), device=self.device)
        return torch.cat([kept, self.capacity + torch.arange(int(self.pooled), device=self.device)])

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

    def widen_logits(self, n_classes: int) -> None:
        """Make room for new classes. What is stored does not know them: NaN."""
        logits = self.columns["logits"]
        unknown = logits.new_full((len(logits), n_classes - logits.shape[1]), torch.nan)
        self.columns["logits"] = torch.cat([logits, unknown], 1)

    def set_candidates(self, columns: dict[str, Tensor]) -> None:
        """Make these examples the candidates."""
        n = len(columns["label"])
        for name, column in self.columns.items():
            column[self.capacity : self.capacity + n] = columns[name].to(column.dtype)
        self.pooled.fill_(n)

    # Saving.

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that changes, by name: columns without the spare row, and counters. Not copies."""
        for name, column in self.columns.items():
            yield name, column[: self.rows]
        for name in COUNTERS:
            yield name, getattr(self, name)

    def state_dict(self) -> dict[str, Tensor]:
        """A copy of all tensors, with sizes and seed."""
        sizes = {name: torch.tensor(getattr(self, name)) for name in SIZES}
        return {name: tensor.clone() for name, tensor in self.tensors()} | sizes

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take over what ``state_dict`` gave, onto this buffer's device. Nothing changes if it does not fit."""
        columns = checked_columns(self.capacity, self.candidates, self.columns, state)
        if columns and not self.columns:
            logits = columns.get("logits")
            shape, dtype = tuple(columns["image"].shape[1:]), columns["image"].dtype
            n_classes = None if logits is None else logits.shape[1]
            self._allocate(shape, dtype, n_classes, columns)
        for name, tensor in self.tensors():
            tensor.copy_(state[name])
        self.seed = int(state["seed"])


def _taken_later(slot: Tensor) -> Tensor:
    """Which entries of ``slot`` [b] occur again further on: the later example wins, as in a loop."""
    same = slot.unsqueeze(0) == slot.unsqueeze(1)
    return same.triu(diagonal=1).any(1)
