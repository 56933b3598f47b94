"""All the randomness of an epoch, as tensors, a function of (seed, stage, epoch) alone.

Each field has its own generator: methods with different needs see the same order of examples and the same views on
equal seeds. CPU and GPU, a fresh and a resumed run see the same draws. NumPy makes them because its generators give
the same numbers with every version of torch.

The draws of an epoch lie on the device at fixed addresses, a line per step, and a step finds its line by a counter on
the device: a captured step needs nothing from the host.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gcr.augment import DRAWS
from gcr.memory.randomness import generator


@dataclass(frozen=True)
class ReplayDraws:
    rows: Tensor  # [*shape the sampler asks for]
    views: tuple[Tensor, ...]  # each [size, DRAWS[kind]]


@dataclass(frozen=True)
class AdmissionDraws:
    """Where gradients decide which examples enter memory."""

    compared: Tensor  # [m]: the remembered examples to compare with
    slots: Tensor  # [b, 2]: for each new example a slot and a coin

    def of(self, examples: Tensor) -> AdmissionDraws:
        """When only some new examples are offered."""
        return AdmissionDraws(self.compared, self.slots[examples])


@dataclass(frozen=True)
class StepDraws:
    """The draws of one step, and the rows of the training set they go with."""

    rows: Tensor  # [b]
    views: Tensor  # [b, weak draws]
    reservoir: Tensor  # [b] float64: fine enough for millions of examples
    replays: tuple[ReplayDraws, ...]
    admission: AdmissionDraws | None = None  # none in a run's first step: nothing is remembered yet


@dataclass(frozen=True)
class DrawPlan:
    """What a step draws: new examples, and for every replay minibatch the sampler's uniforms and those of its views."""

    batch: int
    sampler_shape: tuple[int, ...]
    replay_size: int
    replays: tuple[tuple[str, ...], ...]  # kinds of view
    compared: int = 0  # remembered examples whose gradients decide on what enters memory; 0: they do not

    def replay_fields(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Name and shape, for one step, of every uniform that a step takes once memory holds something."""
        for i, kinds in enumerate(self.replays):
            yield f"replay {i}", self.sampler_shape
            for v, kind in enumerate(kinds):
                yield f"replay {i} view {v}", (self.replay_size, DRAWS[kind])
        if self.compared:
            yield "compared", (self.compared,)
            yield "slots", (self.batch, 2)

    def replay_draws(self, fields: dict[str, Tensor]) -> tuple[ReplayDraws, ...]:
        return tuple(
            ReplayDraws(fields[f"replay {i}"], tuple(fields[f"replay {i} view {v}"] for v in range(len(kinds))))
            for i, kinds in enumerate(self.replays)
        )

    @property
    def width(self) -> int:
        """Uniforms of a step."""
        return self.batch * DRAWS["weak"] + sum(math.prod(shape) for _, shape in self.replay_fields())


class EpochDraws:
    def __init__(self, plan: DrawPlan, most_steps: int, device: torch.device) -> None:
        self.plan = plan
        self.host_rows = np.empty((0, plan.batch), np.int64)
        self.rows = torch.zeros((most_steps, plan.batch), dtype=torch.int64, device=device)
        self.reservoir = torch.zeros((most_steps, plan.batch), dtype=torch.float64, device=device)
        self.uniforms = torch.zeros((most_steps, plan.width), device=device)

    def fill(
        self, key: tuple[int, int, int], stage_rows: Tensor, n_batches: int, shuffled: bool = True, repeats: int = 1
    ) -> None:
        """Make the draws of an epoch over ``stage_rows``, with ``repeats`` steps on every batch; ``key`` is (seed,
        stage, epoch)."""
        plan, n, n_steps = self.plan, len(stage_rows), n_batches * repeats
        order = stage_rows.cpu().numpy()
        if shuffled:
            order = order[generator(key, "order").permutation(n)]
        rows = np.zeros((n_batches, plan.batch), np.int64)
        _put(rows, order)
        rows = self.host_rows = rows.repeat(repeats, axis=0)
        reservoir = np.zeros((n_batches, plan.batch))
        _put(reservoir, generator(key, "reservoir").random(n))
        reservoir = reservoir.repeat(repeats, axis=0)
        views = np.zeros((n_steps, plan.batch * DRAWS["weak"]), np.float32)
        n_views = n if repeats == 1 else n_steps * plan.batch  # another view of a batch every time it is trained on
        _put(views, generator(key, "views").random((n_views, DRAWS["weak"]), dtype=np.float32))
        parts = [views] + [
            generator(key, field).random((n_steps, *shape), dtype=np.float32).reshape(n_steps, -1)
            for field, shape in plan.replay_fields()
        ]
        for slot, made in ((self.rows, rows), (self.reservoir, reservoir), (self.uniforms, np.hstack(parts))):
            source = torch.from_numpy(made)
            if slot.is_cuda:
                source = source.pin_memory()  # else the copy would wait for the steps before it
            slot[:n_steps].copy_(source, non_blocking=True)

    def at(self, step: Tensor, size: int, replaying: bool) -> StepDraws:
        """The draws of step number ``step`` (a () tensor on the device), which has ``size`` new examples."""
        plan, place = self.plan, step.reshape(1)
        line = self.uniforms.index_select(0, place).squeeze(0)
        start = plan.batch * DRAWS["weak"]
        views = line[:start].reshape(plan.batch, -1)[:size]
        fields = {}
        for field, shape in plan.replay_fields() if replaying else ():
            stop = start + math.prod(shape)
            fields[field], start = line[start:stop].reshape(shape), stop
        replays = plan.replay_draws(fields) if replaying else ()
        rows, reservoir = (lines.index_select(0, place)[0, :size] for lines in (self.rows, self.reservoir))
        admission = AdmissionDraws(fields["compared"], fields["slots"][:size]) if "slots" in fields else None
        return StepDraws(rows, views, reservoir, replays, admission)


@contextmanager
def torch_randomness(key: tuple[int, int], device: torch.device, field: str = "step") -> Iterator[None]:
    """Inside, what torch draws on a CPU, as for dropout, follows ``key`` and ``field``; ``key`` is (seed, steps so
    far). Numbers drawn outside are not touched."""
    if device.type != "cpu":
        yield
        return
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(zlib.crc32(f"{field} {key}".encode()))  # torch takes 32 bits
    try:
        yield
    finally:
        torch.set_rng_state(before)


def arrival_order(key: tuple[int, int], n: int) -> Tensor:
    """The order in which the examples of a task come in a stream; ``key`` is (seed, task)."""
    return torch.from_numpy(generator(key, "arrival").permutation(n))


def selection_views(key: tuple[int, int], n_rows: int, view: int = 0) -> Tensor:
    """The draws of a weak view of each of the pool's examples; ``key`` is (seed, number of the selection in its run).

    With several ``view``s of an example, each has draws of its own.
    """
    field = f"selection views {view}" if view else "selection views"
    return torch.from_numpy(generator(key, field).random((n_rows, DRAWS["weak"]), dtype=np.float32))


def _put(lines: np.ndarray, values: np.ndarray) -> None:
    """Write ``values`` into ``lines`` from the beginning; what does not fit (a single last example) is left out."""
    flat, values = lines.reshape(-1), values.reshape(-1)
    size = min(len(flat), len(values))
    flat[:size] = values[:size]
