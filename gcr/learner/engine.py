"""The training step over batches that a user brings: the same step, memory and selection as in ``gcr.train``.

Draws are a function of (seed, step), made for some steps ahead. On a GPU the step is captured as a CUDA graph: batches
are copied to a fixed place first.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gcr.augment import AnyViews
from gcr.learner.head import grow_head, grown_extras, refuse_tied
from gcr.memory import Policy, offer_balanced
from gcr.memory.buffer_state import COUNTERS
from gcr.memory.randomness import generator
from gcr.methods import Method
from gcr.models import Network
from gcr.settings import BadInput, Misfit
from gcr.training.loop import own_cuda_stream
from gcr.training.numerics import computing
from gcr.training.optimizer import (
    AnyOptimizer,
    add_parameters,
    drop_parameters,
    make_capturable,
    new_parameters,
    order_moments,
    trained_parameters,
)
from gcr.training.randomness import AdmissionDraws, EpochDraws, StepDraws, torch_randomness
from gcr.training.reselect import order_by_herding, recompute_bn_on_memory, reselect
from gcr.training.settings import Training
from gcr.training.state import RunState
from gcr.training.step import Incoming, draw_plan, offer
from gcr.training.step_runner import StepRunner, pick_mode

AHEAD = 64  # steps whose draws are made at once
MOST_ROWS = 2**20  # of a batch
MOST_DRAWN = 2**16  # examples whose draws are made at once
AT_ONCE, NUMBERS_AT_ONCE = 256, 2**24  # examples of a pass without gradients, and the numbers that they have
KEPT_SELECTIONS = 100  # of which it is kept what was said
PLACE = ("steps", "batch", "offered", "arrived", "tasks", "selections")  # numbers that a saved engine has


def pass_size(shape: tuple[int, ...]) -> int:
    """How many examples of this shape go through the network at once, without gradients."""
    return max(1, min(AT_ONCE, NUMBERS_AT_ONCE // max(1, math.prod(shape))))


def at_once(rows: Tensor) -> list[Tensor]:
    return list(rows.split(pass_size(rows.shape[1:])))


def at_once_with(rows: Tensor, labels: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(at_once(rows), labels.split(pass_size(rows.shape[1:])), strict=True)


def _noted(layers: Sequence[nn.Parameter]) -> list[tuple[bool, tuple[int, ...]]]:
    return [(parameter.requires_grad, parameter.stride()) for parameter in layers]


class Engine:
    """``shape`` and ``dtype`` are those of an example as memory keeps it."""

    layers: list[nn.Parameter]  # of the network when it was last looked at
    noted: list[tuple[bool, tuple[int, ...]]]  # whether they wanted a gradient then, and how they lay in memory
    outputs: int  # of the head then

    def __init__(
        self,
        network: Network,
        optimizer: AnyOptimizer,
        method: Method,
        policy: Policy | None,
        views: AnyViews,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        precision: str,
        seed: int,
        mode: str = "auto",
    ) -> None:
        self.method, self.policy, self.views = method, policy, views
        self.shape, self.dtype, self.device, self.precision, self.seed = shape, dtype, device, precision, seed
        self.mode, remark = pick_mode(mode, device, optimizer)
        if remark:
            warnings.warn(remark, stacklevel=2)
        memory = policy.make_buffer(shape, network.head.out_features, device, dtype) if policy else None
        self.state = RunState.fresh(network, optimizer, method, memory, 1, device)
        self.made_optimizer = False  # from the layers that learn: those that are unfrozen later join it
        self.own_values: list[dict[str, Any]] = []  # of the optimizer's groups, while a schedule changes them
        self._note_layers()
        self.batch = 0  # the largest so far
        self.tasks = 0  # that have ended
        self.task = torch.zeros((), dtype=torch.int64, device=device)  # the same, where a captured step reads it
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @property
    def ahead(self) -> int:
        """Steps whose draws are made at once; fewer for large batches."""
        return min(AHEAD, max(1, MOST_DRAWN // max(1, self.batch)))

    @property
    def n_outputs(self) -> int:
        return self.state.net.head.out_features

    def step(self, rows: Tensor, labels: Tensor, offers: bool = True) -> None:
        """Train on a batch on the device, and offer it to memory."""
        state, n = self.state, len(labels)
        if n > MOST_ROWS:
            raise BadInput(f"a batch must have at most {MOST_ROWS:,} examples, got {n:,}; give smaller ones")
        self._follow_learning()
        if n > self.batch:
            self.batch = n
            self._make_runner()
        elif state.epoch_steps == self.ahead:
            self._draw()
        with self._on_own_stream():
            if self.slots is None:
                self.incoming = self._arriving(rows, labels)
            else:
                self.slots.images[:n].copy_(rows, non_blocking=True)
                self.slots.labels[:n].copy_(labels, non_blocking=True)
            self.runner(n, offers)
        if offers:
            self._select_if_due(n)

    @torch.no_grad()
    def remember(self, rows: Tensor, labels: Tensor) -> None:
        """Offer a batch to memory without training on it, with the network's logits of now."""
        state, policy = self.state, self.policy
        if policy is None or state.memory is None:
            return
        key, n = (self.seed, int(state.memory.adds)), len(labels)
        draws = generator(key, "remember").random(n)
        admission = None
        if policy.compared and len(state.memory):
            shapes = {"compared": (policy.compared,), "slots": (n, 2)}
            uniforms = [generator(key, field).random(shape, dtype=np.float32) for field, shape in shapes.items()]
            admission = AdmissionDraws(*(torch.from_numpy(of).to(self.device) for of in uniforms))
        state.memory.adds += 1
        with computing(self.precision, self.device):
            logits = state.net.eval()(self.views.plain(rows))
        reservoir = torch.from_numpy(draws).to(self.device)
        offer(state.memory, policy, state.net, self.views, self._arriving(rows, labels), logits, reservoir, admission)
        self.method.note_remembered(labels, state.extras)
        state.offered = True
        self._select_if_due(len(labels))

    def stored_logits(self) -> Tensor | None:
        """A copy, row by row of memory; NaN in rows that hold nothing."""
        memory = self.state.memory
        if memory is None or not len(memory):
            return None
        logits, rows = memory.columns["logits"], memory.filled_rows()
        return torch.full_like(logits, torch.nan).index_copy_(0, rows, logits[rows])

    @torch.no_grad()
    def refresh_logits(self, before: Tensor | None = None) -> None:
        """Store what is predicted now with the examples of this task, which came when the network knew less. Those
        whose logits were stored ``before`` keep them: they came without training, or were trained on already."""
        state, memory = self.state, self.state.memory
        if memory is None:
            return
        rows = self.rows_of_task()
        if before is not None:
            now = memory.columns["logits"][rows, : before.shape[1]]
            rows = rows[~(now == before[rows]).logical_or_(now.isnan() & before[rows].isnan()).all(1)]
        with computing(self.precision, self.device):
            for part in rows.split(pass_size(self.shape)):
                images = self.views.plain(memory.columns["image"][part])
                memory.columns["logits"][part] = self.method.predict(state.net.eval(), images, state.extras).float()

    def rows_of_task(self) -> Tensor:
        """Rows of memory whose examples came since the last task ended."""
        memory = self.state.memory
        if memory is None:
            return torch.empty(0, dtype=torch.int64)
        rows = memory.filled_rows()
        return rows[memory.columns["task"][rows] == (self.task if self._selects_within_tasks else memory.updates)]

    def erase(self, rows: Any) -> int:
        """Examples of memory; returns how many."""
        memory = self.state.memory
        assert memory is not None
        n = memory.remove(rows)
        self.state.offered = len(memory) > 0  # nothing is replayed from an empty one
        return n

    @torch.no_grad()
    def resize(self, policy: Policy) -> None:
        """Keep memory by a policy that differs in ``buffer`` alone. What is there stays, as far as it fits, with its
        priorities: against examples to come it has the chance that it had."""
        state, old = self.state, self.state.memory
        assert old is not None
        assert policy.balanced
        new = policy.make_buffer(self.shape, self.n_outputs, self.device, self.dtype)
        held = old.read(old.filled_rows())
        offer_balanced(new, held, held["score"], losses=held.get("loss"))
        for name in COUNTERS:
            if name != "kept":
                getattr(new, name).copy_(getattr(old, name))
        self.policy, state.memory = policy, new
        if self.batch:
            self._make_runner()

    def end_task(self) -> None:
        """Where a selector chooses memory, it does so now."""
        state, policy = self.state, self.policy
        if policy is not None and state.memory is not None:
            if policy.selects and not policy.every and int(state.memory.pooled):
                self._select()
            elif not policy.selects:
                state.memory.updates += 1
            if policy.evicts_by_herding and len(state.memory):
                self.refuse_diverged()
                with computing(self.precision, self.device, autocast=False):
                    order_by_herding(state.memory, policy, self.method, state.net, self.views, state.extras)
            if policy.statistics == "memory" and len(state.memory):
                with computing(self.precision, self.device):
                    recompute_bn_on_memory(state.net, state.memory, self.views)
        self.tasks += 1
        self.task.fill_(self.tasks)

    def grow(self, n_outputs: int) -> None:
        """Give the head more outputs. What memory has stored does not know them."""
        self.follow_layers()
        state, head = self.state, self.state.net.head
        refuse_tied(state.net)
        before = [id(parameter) for parameter in head.parameters()]
        grow_head(head, n_outputs, self.seed, state.optimizer)
        grown = dict(zip(before, head.parameters(), strict=True))
        self.layers = [grown.get(id(parameter), parameter) for parameter in self.layers]
        self._widen()
        self._follow_layers()

    def follow_layers(self) -> None:
        """Layers that were put into the network, or replaced, since it was last looked at learn from now on."""
        now = list(self.state.net.parameters())
        if len(now) != len(self.layers) or any(a is not b for a, b in zip(now, self.layers, strict=True)):
            if self.n_outputs < self.outputs:
                raise BadInput(f"the head of net must keep its {self.outputs} outputs or more, got {self.n_outputs}")
            self.state.net.to(self.device)
            self._widen()
            self._follow_layers()
        self._follow_learning()

    def _follow_learning(self) -> None:
        """Layers may have been frozen or unfrozen, or moved to another memory format."""
        if self.noted != _noted(self.layers):
            self._follow_layers()

    def _widen(self) -> None:
        """What goes with the outputs, where the head has more of them."""
        state, n_outputs = self.state, self.n_outputs
        if state.memory is not None:
            state.memory.widen_logits(n_outputs)
        if state.class_weights is not None:
            state.class_weights = torch.cat(
                [state.class_weights, state.class_weights.new_ones(n_outputs - len(state.class_weights))]
            )

    def _note_layers(self) -> None:
        self.layers = list(self.state.net.parameters())
        self.noted = _noted(self.layers)
        self.outputs = self.n_outputs

    def _follow_layers(self) -> None:
        """The head has grown, or layers have been frozen, unfrozen, put in, replaced or moved in memory since the last
        step."""
        state, now = self.state, list(self.state.net.parameters())
        if self.made_optimizer:
            learned = {parameter for parameter, (learns, _) in zip(self.layers, self.noted, strict=True) if learns}
            new = new_parameters(state.optimizer, [p for p in now if p.requires_grad and p not in learned])
            if new and self.own_values:
                raise BadInput(
                    "layers that are to learn cannot come under a schedule; unfreeze or add them between fits"
                )
            drop_parameters(state.optimizer, set(self.layers).difference(now))
            add_parameters(state.optimizer, new)
            if self.mode != "eager":
                make_capturable(state.optimizer)
        state.parameters = trained_parameters(state.optimizer, state.net)
        order_moments(state.optimizer)
        self._note_layers()
        state.extras = grown_extras(self.method, state.net, state.extras)
        if self.batch:
            self._make_runner()

    @torch.no_grad()
    def logits(self, rows: Tensor) -> Tensor:
        """Scores of the classes, by the method's rule: [n, outputs] on the device."""
        with computing(self.precision, self.device):
            return self.method.predict(self.state.net.eval(), self.views.plain(rows), self.state.extras).float()

    def refuse_diverged(self) -> None:
        if int(self.state.diverged_at) >= 0:
            raise BadInput("the loss became NaN or inf; load the last saved state, and try a smaller learning rate")

    # Saving.

    def place(self) -> dict[str, Any]:
        own = {"batch": self.batch, "tasks": self.tasks}
        return {name: own[name] if name in own else getattr(self.state, name) for name in PLACE}

    def restore(self, place: dict[str, Any]) -> None:
        """Go on from there; tensors have been put back already."""
        for name in ("steps", "batch", "arrived", "tasks"):
            if type(place[name]) is not int or not 0 <= place[name] <= (MOST_ROWS if name == "batch" else 2**53):
                raise Misfit(f"place.{name} must be a whole number >= 0, got {place[name]!r:.40}")
        if type(place["offered"]) is not bool or not isinstance(place["selections"], list):
            raise Misfit("place.offered must be true or false, and place.selections a list")
        self.batch, self.tasks = place["batch"], place["tasks"]
        self.task.fill_(self.tasks)
        for name in ("steps", "offered", "arrived"):
            setattr(self.state, name, place[name])
        self.state.selections = place["selections"][-KEPT_SELECTIONS:]
        if self.batch:
            self._make_runner()

    def _make_runner(self) -> None:
        """For batches up to ``batch``: draws and slots of that size, and no captured step."""
        plan = draw_plan(self.method, self.policy, Training(batch=self.batch))
        self.draws = EpochDraws(plan, self.ahead, self.device)
        self.slots: Incoming | None = None
        if self.mode != "eager":
            images = torch.zeros((self.batch, *self.shape), dtype=self.dtype, device=self.device)
            self.slots = Incoming(images, torch.zeros(self.batch, dtype=torch.int64, device=self.device))
        self.runner = StepRunner(
            self.state,
            self._incoming,
            self.views,
            self.method,
            self.policy,
            self.draws,
            self.seed,
            self.precision,
            self.mode,
        )
        self._draw()

    def _draw(self) -> None:
        """Make the draws of the next steps. A step finds its own by ``state.step``."""
        chunk, place = divmod(self.state.steps, self.ahead)
        self.draws.fill((self.seed, 0, chunk), torch.arange(self.ahead * self.batch), self.ahead, shuffled=False)
        self.state.step.fill_(place)
        self.state.epoch_steps = place

    def _incoming(self, draws: StepDraws) -> Incoming:
        if self.slots is None:
            return self.incoming
        n = len(draws.rows)
        return self._arriving(self.slots.images[:n], self.slots.labels[:n])

    @property
    def _selects_within_tasks(self) -> bool:
        """Then the number of selections, by which memory tells tasks apart, is not that of tasks."""
        return self.policy is not None and self.policy.selects and self.policy.every > 0

    def _arriving(self, rows: Tensor, labels: Tensor) -> Incoming:
        return Incoming(rows, labels, self.task.expand_as(labels) if self._selects_within_tasks else None)

    def _select_if_due(self, arrived: int) -> None:
        """After every ``policy.every`` examples, if that is asked for."""
        state, policy = self.state, self.policy
        if policy is not None and self._selects_within_tasks:
            state.arrived += arrived
            if state.arrived >= policy.every:
                self._select()
                state.arrived = 0

    def _select(self) -> None:
        state, policy = self.state, self.policy
        assert policy is not None
        assert state.memory is not None
        self.refuse_diverged()
        key = (self.seed, int(state.memory.updates))
        randomness = torch_randomness((self.seed, state.steps), self.device, "selection")
        with computing(self.precision, self.device, autocast=False), randomness:
            about = reselect(state.memory, policy, self.method, state.net, self.views, key, extras=state.extras)
        state.selections = [*state.selections, {"task": self.tasks} | about][-KEPT_SELECTIONS:]

    def _on_own_stream(self) -> Any:
        return own_cuda_stream(self.device, self.stream) if self.stream is not None else nullcontext()
