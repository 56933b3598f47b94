"""A look into a learner's memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gcr.learner.engine import Engine
from gcr.learner.inputs import Layout
from gcr.learner.labels import Labels
from gcr.learner.turns import Turn, in_turn
from gcr.memory import Buffer
from gcr.methods import Batch
from gcr.select import GradApprox, Pool
from gcr.settings import BadInput
from gcr.training.numerics import computing
from gcr.training.reselect import make_pool


class Memory:
    """What is remembered, row by row, as the learner's user knows it. Copies, on the CPU."""

    def __init__(self, buffer: Buffer, layout: Layout, labels: Labels, engine: Engine, turn: Turn) -> None:
        self._buffer, self._layout, self._labels, self._engine, self.turn = buffer, layout, labels, engine, turn

    @property
    def examples(self) -> Any:
        """As they were given: a tensor, or a tuple or dict of tensors; features where the network is frozen."""
        return self._layout.inputs(self._column("image"))

    @property
    def labels(self) -> np.ndarray:
        return self._labels.of(self._column("label"))

    @property
    def weights(self) -> Tensor:
        """[n]: 1 for each, unless a selector gave others."""
        return self._column("weight")

    @property
    def logits(self) -> Tensor:
        """[n, outputs]: what the network said when they were stored; NaN for classes that came later."""
        return self._column("logits")

    @property
    def tasks(self) -> Tensor:
        """[n]: the number of the task in which each came."""
        return self._column("task")

    @property
    def capacity(self) -> int:
        """Examples that fit, candidates included."""
        return self._buffer.rows

    @property
    def nbytes(self) -> int:
        """Of all columns, full or not."""
        return self._buffer.nbytes

    def counts(self) -> dict[Hashable, int]:
        """Examples of each class."""
        found = Counter(self._column("label").tolist())
        return {label: found[number] for number, label in enumerate(self._labels.known)}

    @in_turn
    def pool(self) -> Pool:
        """The same examples with the features and residuals of now, for ``gcr.explain`` and ``gcr.select_coreset``."""
        engine, buffer = self._engine, self._buffer
        assert engine.policy is not None
        if not len(self):
            raise BadInput("memory holds nothing to look at; call fit, observe or remember first")
        engine.refuse_diverged()
        rows = buffer.filled_rows()
        stored = buffer.read(rows)
        batch = Batch((), stored["label"], stored["logits"], stored["weight"], stored["task"])
        policy = replace(engine.policy, selector=GradApprox(), pool_mode="evaluation")
        with torch.no_grad(), computing(engine.precision, engine.device, autocast=False):
            return make_pool(
                engine.state.net,
                engine.method,
                batch,
                lambda part: engine.views.plain(stored["image"][part]),
                policy,
                kept=rows < buffer.capacity,
                extras=engine.state.extras,
            )

    def __len__(self) -> int:
        return len(self._buffer)

    def __repr__(self) -> str:
        return f"Memory({len(self)} of {self.capacity} examples, {self.nbytes / 1e6:.2f} MB)"

    @in_turn
    def _column(self, name: str) -> Tensor:
        return self._buffer.columns[name][self._buffer.filled_rows()].cpu()
