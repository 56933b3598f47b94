"""RunState: all that changes while a run goes on, in one object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from gcr.memory import Buffer, Policy
from gcr.methods import Extras, Method
from gcr.models import Network, attach, order_weights, state_tensors
from gcr.scenarios import Scenario
from gcr.training.optimizer import AnyOptimizer, optimizer_tensors, trained_parameters

OPTIMIZER, MEMORY = "optimizer.", "memory."  # prefixes of what the optimizer remembers and memory holds

# The JSON part of a checkpoint.
PLACE = (
    *("stage", "epoch", "epoch_steps", "steps", "offered", "arrived", "seconds"),
    *("untrained", "class_il", "task_il", "selections"),
)


@dataclass
class RunState:
    net: Network
    optimizer: AnyOptimizer
    parameters: list[nn.Parameter]  # that a step moves
    memory: Buffer | None
    extras: Extras  # what the method keeps of its own
    step: Tensor  # () int64 on the device: steps done in this epoch
    loss_sum: Tensor  # () float64 on the device: over the examples of this epoch
    correct: Tensor  # () int64 on the device: new examples of this epoch classified right
    diverged_at: Tensor  # () int64 on the device: the first step of this epoch whose loss was NaN or inf; -1: none
    clip: float = 0.0  # the most that the norm of all gradients may be; 0: any
    class_weights: Tensor | None = None  # [classes], where classes do not count alike
    stage: int = 0
    epoch: int = 0  # of this stage
    epoch_steps: int = 0  # launched in this epoch
    steps: int = 0  # launched in the whole run
    offered: bool = False  # whether memory has been offered anything
    arrived: int = 0  # examples since the last selection, where the policy counts them
    seconds: float = 0.0
    untrained: list[list[float]] = field(default_factory=list)  # class-IL and task-IL accuracy before the first step
    class_il: list[list[float]] = field(default_factory=list)  # accuracy in percent: [stage][task]
    task_il: list[list[float]] = field(default_factory=list)
    selections: list[dict[str, object]] = field(default_factory=list)  # what was said of each selection

    @classmethod
    def fresh(
        cls,
        network: Network,
        optimizer: AnyOptimizer,
        method: Method,
        memory: Buffer | None,
        n_tasks: int,
        device: torch.device,
    ) -> RunState:
        """Before the first step. ``network`` and ``optimizer`` are trained in place."""
        return cls(
            net=network,
            optimizer=optimizer,
            parameters=trained_parameters(optimizer, network),
            memory=memory,
            extras=method.extras(network, n_tasks),
            step=torch.zeros((), dtype=torch.int64, device=device),
            loss_sum=torch.zeros((), dtype=torch.float64, device=device),
            correct=torch.zeros((), dtype=torch.int64, device=device),
            diverged_at=torch.full((), -1, dtype=torch.int64, device=device),
        )

    @classmethod
    def of_scenario(
        cls,
        scenario: Scenario,
        net: nn.Module,
        optimizer: AnyOptimizer,
        method: Method,
        policy: Policy | None,
        device: torch.device,
        head: str | None = None,
    ) -> RunState:
        """The state before a run over ``scenario``; the network moves to ``device``."""
        example = scenario.views.plain(scenario.train.pixels_of(slice(2)).to(device))
        network = attach(net.to(device), example, scenario.n_classes, head)
        order_weights(network, example)
        memory = None
        if policy is not None:
            dtype = scenario.train.pixels.dtype
            memory = policy.make_buffer(scenario.image_shape, scenario.n_classes, device, dtype)
        return cls.fresh(network, optimizer, method, memory, len(scenario.tasks), device)

    def begin_epoch(self) -> None:
        for counter in (self.step, self.loss_sum, self.correct):
            counter.zero_()
        self.diverged_at.fill_(-1)
        self.epoch_steps = 0

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that changes, by name; memory without its spare row. A checkpoint saves and restores these."""
        for name, tensor in state_tensors(self.net).items():
            yield f"net.{name}", tensor
        for name in ("step", "loss_sum", "correct", "diverged_at"):
            yield name, getattr(self, name)
        for name, tensor in optimizer_tensors(self.optimizer):
            yield f"{OPTIMIZER}{name}", tensor
        for name, tensor in self.extras.items():
            yield f"extra.{name}", tensor
        if self.memory is not None:
            for name, tensor in self.memory.tensors():
                yield f"{MEMORY}{name}", tensor
