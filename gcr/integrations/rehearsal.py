"""Replay for a training loop that belongs to somebody else: its forward pass, its loss, its optimizer.

The loop has passed a new batch through the network and has a loss of its own. ``terms`` are what a method adds to it,
``remember`` offers the batch to memory, ``end_task`` lets the policy's selector choose what is kept. Losses, memory,
draws and selection are those of ``gcr.train``.

>>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
>>> rehearsal, x, y = Rehearsal(memory=6), torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
>>> for _ in range(2):
...     logits = net(x)
...     loss = torch.nn.functional.cross_entropy(logits, y) + rehearsal.terms(net, x, y, logits)
...     rehearsal.remember(net, x, y, logits)
>>> about = rehearsal.end_task(net)
>>> len(rehearsal.memory), int(rehearsal.memory.kept)
(6, 6)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from gcr.augment import AnyViews
from gcr.learner.inputs import Layout, Part
from gcr.learner.views import Own, Plain
from gcr.memory import Buffer, Policy
from gcr.memory.examples import as_count
from gcr.memory.randomness import generator
from gcr.methods import Batch, ErAce, Gcr, Method, Mir
from gcr.models import Network, attach
from gcr.models.network import Output, modes_kept
from gcr.select import GradApprox
from gcr.settings import BadInput
from gcr.training.randomness import AdmissionDraws, DrawPlan
from gcr.training.reselect import order_by_herding, reselect
from gcr.training.settings import Training
from gcr.training.step import Incoming, draw_plan, draw_replays, offer, replay_batches, sampler_of

Augment = Callable[[Any], Any]  # a batch as the network takes it -> such a batch
COUNTERS = ("steps", "tasks", "arrived")
ADDS_TERMS = 'gcr.methods.Er(forward="separate"), Der(), DerPlusPlus() or Gcr()'


class Rehearsal:
    """``memory`` is a number of examples, kept by gradient coresets, or a ``Policy``; ``method`` adds the loss.

    Memory keeps what the network got. ``augment`` makes new views of replayed batches. ``head`` names the linear layer
    of the logits where it cannot be found.
    """

    def __init__(
        self,
        memory: int | Policy = 500,
        method: Method | None = None,
        *,
        augment: Augment | None = None,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        self.method = Gcr(gamma=0.0) if method is None else method
        self.policy = memory if isinstance(memory, Policy) else None
        self.capacity = memory.buffer if isinstance(memory, Policy) else as_count("memory", memory, 1)
        check_method(self.method)
        if self.policy is not None:
            _check_policy(self.policy)
        self.augment = augment
        self.layout: Layout | None = None  # of the network's input, as the first batch has it
        self.head, self.seed = head, as_count("seed", seed, 0)
        self.memory: Buffer | None = None  # made by the first batch
        self.steps = 0  # batches remembered
        self.tasks = 0  # ended
        self.arrived = 0  # examples since the last selection
        self.network: tuple[nn.Module, Network] | None = None
        self.plans: dict[int, DrawPlan] = {}  # what a step draws, by its batch size

    def terms(self, net: nn.Module, x: Any, y: Tensor, logits: Tensor) -> Tensor:
        """What the method adds to the loss of the new batch, whose pass gave ``logits``: (). 0 in the first step.

        ``x`` is a tensor, or a tuple or dict of tensors: the arguments of the network.
        """
        rows, memory = self._rows(x), self._memory_on(logits.device)
        if memory is None or not self.steps:
            return logits.new_zeros(())
        self._widen(memory, logits)
        policy, draws = self._policy(len(y)), self._draws(len(y), logits.device)
        asked = self._plan(len(y)).replay_draws(draws)
        drawn = draw_replays(memory, sampler_of(self.method, policy), asked, policy.kept_weights == "relative")
        replay, _ = replay_batches(self._views(), self.method, drawn, asked)
        return self._added(self._attached(net, rows, logits), y, logits, replay)

    def _added(self, network: Network, y: Tensor, logits: Tensor, replay: tuple[Batch, ...]) -> Tensor:
        """The method's loss without that of the new batch, whose logits are constants here."""
        ones = torch.ones_like(y, dtype=torch.float32)
        new = Batch((logits,), y, logits.new_empty(0), ones)  # its images are not passed again
        passed = cast(Network, PassedAlready(network, logits.detach().float()))
        value = self.method.loss(passed, new, replay, {}).value
        return value - new.cross_entropy(logits.detach().float())

    @torch.no_grad()
    def remember(self, net: nn.Module, x: Any, y: Tensor, logits: Tensor) -> None:
        """Offer the new batch to memory, after the step on it."""
        rows, device = self._rows(x), logits.device
        memory, policy = self._memory_on(device), self._policy(len(y))
        if memory is None:
            memory = self.memory = policy.make_buffer(tuple(rows.shape[1:]), logits.shape[1], device, rows.dtype)
        self._widen(memory, logits)
        by_selection = policy.selects and not policy.every  # these follow selections
        new = Incoming(rows, y, None if by_selection else torch.full_like(y, self.tasks))
        reservoir = torch.from_numpy(generator((self.seed, self.steps), "reservoir").random(len(y))).to(device)
        admission = None
        if policy.compared and self.steps:
            draws = self._draws(len(y), device)
            admission = AdmissionDraws(draws["compared"], draws["slots"])
        network = self._attached(net, rows, logits)
        with modes_kept(net) if policy.compared else nullcontext():
            offer(memory, policy, network, self._views(), new, logits.detach().float(), reservoir, admission)
        self.steps += 1
        self.arrived += len(y)
        if policy.selects and policy.every and self.arrived >= policy.every:
            self._select(net)

    def end_task(self, net: nn.Module) -> dict[str, object] | None:
        """Choose what is kept, if the policy selects at the ends of tasks; what is said of the selection."""
        self.tasks += 1
        policy = self._policy()
        if self.memory is None or not self.arrived or policy.every:
            return None
        if policy.evicts_by_herding:
            (memory, network), self.arrived = self._reached(net), 0
            with modes_kept(net):
                order_by_herding(memory, policy, self.method, network, self._views())
        return self._select(net) if policy.selects else None

    def _reached(self, net: nn.Module) -> tuple[Buffer, Network]:
        memory = self._memory_on(next(net.parameters()).device)
        assert memory is not None
        return memory, self._attached(net, memory.images, memory.columns["logits"])

    def _select(self, net: nn.Module) -> dict[str, object]:
        (memory, network), self.arrived = self._reached(net), 0
        key = (self.seed, int(memory.updates))
        with modes_kept(net):
            return reselect(memory, self._policy(), self.method, network, self._views(), key)

    def state_dict(self) -> dict[str, Any]:
        """Memory and counters: enough to go on exactly."""
        state: dict[str, Any] = {name: getattr(self, name) for name in COUNTERS}
        if self.memory is not None:
            state["memory"] = self.memory.state_dict()
        if self.policy is not None:
            state["replay_batch"] = self.policy.replay_batch
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if missing := [name for name in COUNTERS if not isinstance(state.get(name), int)]:
            raise BadInput(f"state lacks {', '.join(missing)}; give what state_dict() returned")
        memory = None
        if "memory" in state:
            memory = Buffer(self.capacity, self._policy().pool_size)
            memory.load_state_dict(state["memory"])
        self.memory = memory
        if self.policy is None and "replay_batch" in state:
            self._policy(state["replay_batch"])
        for name in COUNTERS:
            setattr(self, name, state[name])

    # Parts.

    def _rows(self, x: Any) -> Tensor:
        """The batch as memory keeps it. Tensors stay as they are, also where our own training would convert them."""
        layout = self.layout = self.layout or layout_of(x)
        if not isinstance(x, Tensor):
            return layout.rows(x)
        if layout_of(x) != layout:
            raise BadInput(
                f"inputs must be {layout.parts[0]} for each example, as at first, got {layout_of(x).parts[0]}"
            )
        return x.detach()

    def _views(self) -> AnyViews:
        if self.layout is None:
            raise BadInput("nothing is known of the inputs after loading; train on a batch first")
        views = Plain(self.layout) if self.augment is None else Own(self.layout, self.augment)
        views.scales = False  # the network gets what it got
        return views

    def _policy(self, batch: int | None = None) -> Policy:
        """A number of examples becomes a policy whose replay minibatches are as large as the first batch."""
        if self.policy is None and batch is not None:
            self.policy = coreset_policy(self.capacity, batch)
        return self.policy or coreset_policy(self.capacity)

    def _plan(self, batch: int) -> DrawPlan:
        if batch not in self.plans:
            self.plans[batch] = draw_plan(self.method, self._policy(batch), Training(batch=batch))
        return self.plans[batch]

    def _draws(self, batch: int, device: torch.device) -> dict[str, Tensor]:
        """The uniforms of this step, a function of (seed, step)."""
        plan = self._plan(batch)
        fields = dict(plan.replay_fields())
        sizes = [math.prod(shape) for shape in fields.values()]
        drawn = generator((self.seed, self.steps), "replay").random(sum(sizes), dtype=np.float32)
        parts = torch.from_numpy(drawn).to(device).split(sizes)
        return {field: part.reshape(shape) for (field, shape), part in zip(fields.items(), parts, strict=True)}

    def _memory_on(self, device: torch.device) -> Buffer | None:
        memory = self.memory
        if memory is not None and memory.device != device:
            moved = Buffer(memory.capacity, memory.candidates, device=device)
            moved.load_state_dict(memory.state_dict())
            self.memory = moved
        return self.memory

    def _attached(self, net: nn.Module, example: Tensor, logits: Tensor) -> Network:
        """The network as methods see it. A head that grew or was replaced is found by its name."""
        if self.network is None or self.network[0] is not net:
            assert self.layout is not None
            self.network = (net, attach(net, example[:2], logits.shape[1], self.head, self.layout.call))
        return self.network[1]

    def _widen(self, memory: Buffer, logits: Tensor) -> None:
        known, now = memory.columns["logits"].shape[1], logits.shape[1]
        if now < known:
            raise BadInput(f"net must give at least {known} logits, as before, got {now}")
        if now > known:
            memory.widen_logits(now)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"network": None}  # the frameworks copy and save the network themselves


def coreset_policy(capacity: int, replay_batch: int = 32) -> Policy:
    """Memory by gradient coresets, with the settings of ``gcr.GCR``, which are those of the paper's released code."""
    selector = GradApprox(shares="task", negative="dropped", atoms="weighted")
    return Policy(
        buffer=capacity,
        selector=selector,
        replay_batch=replay_batch,
        sampling="split",
        admit="correct",
        pool_view="weak",
        pool_mode="class",
    )


def layout_of(x: Any) -> Layout:
    if not isinstance(x, Tensor):
        return Layout.of(x)
    return Layout("tensor", (Part("", str(x.dtype).removeprefix("torch."), tuple(x.shape[1:])),))


class PassedAlready:
    """A network for ``Method.loss`` that the new batch has gone through before."""

    def __init__(self, net: Network, logits: Tensor) -> None:
        self.net, self.output = net, Output(logits.new_empty(0), logits)

    def each(self, new: Tensor, *old: Tensor) -> tuple[Output, ...]:
        return (self.output, *self.net.each(*old)) if old else (self.output,)

    def __call__(self, images: Tensor) -> Tensor:
        raise BadInput(f"method must pass its batches by net.each(new, *old), as {ADDS_TERMS}")


def check_method(method: object) -> None:
    """Refuse a method that does more than add terms to the loss of new examples."""
    if not isinstance(method, Method):
        raise BadInput(f"method must be an object of gcr.methods, as {ADDS_TERMS}, got {method!r}")
    needs = ("choose", "project", "after_step", "end_stage", "extras")
    own = [name for name in needs if getattr(type(method), name) is not getattr(Method, name)]
    together = getattr(method, "forward", "separate") == "together"
    if own or together or not method.replays or isinstance(method, ErAce | Mir):
        kind = 'er with forward="together"' if together else method.name
        raise BadInput(
            f"method must add replay terms to a loss that another loop computes, as {ADDS_TERMS}, got {kind}"
        )


def _check_policy(policy: Policy) -> None:
    for name, usual in (("pool", "reservoir"), ("pool_network", "trained"), ("statistics", "training")):
        if getattr(policy, name) != usual:
            raise BadInput(f"{name} must be {usual} in the loop of another framework, got {getattr(policy, name)}")
