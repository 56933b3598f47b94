"""RunState: all that changes while a run goes on, in one object."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcr.memory import Buffer, Policy
from gcr.methods import Extras, Method
from gcr.models import Network, build
from gcr.scenarios import Scenario
from gcr.training.settings import Training
from gcr.training.sgd import Sgd

# What a checkpoint says in JSON beside the tensors.
PLACE = (
    *("stage", "epoch", "epoch_steps", "steps", "offered", "arrived", "seconds"),
    *("untrained", "class_il", "task_il", "selections"),
)


@dataclass
class RunState:
    net: Network
    optimizer: Sgd
    memory: Buffer | None
    extras: Extras  # what the method keeps of its own
    step: Tensor  # () int64 on the device: steps done in this epoch
    loss_sum: Tensor  # () float64 on the device: over the examples of this epoch
    correct: Tensor  # () int64 on the device: new examples of this epoch classified right
    diverged_at: Tensor  # () int64 on the device: the first step of this epoch whose loss was no number; -1: none
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
        scenario: Scenario,
        model: str,
        method: Method,
        policy: Policy | None,
        training: Training,
        seed: int,
        device: torch.device,
    ) -> RunState:
        net = build(model, scenario.image_shape, scenario.n_classes, seed).to(device)
        if device.type == "cuda":
            net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        memory = None
        if policy is not None:
            dtype = scenario.train.pixels.dtype
            memory = policy.make_buffer(scenario.image_shape, scenario.n_classes, device, dtype)
        return cls(
            net=net,
            optimizer=Sgd(list(net.parameters()), training.lr),
            memory=memory,
            extras=method.extras(net, len(scenario.tasks)),
            step=torch.zeros((), dtype=torch.int64, device=device),
            loss_sum=torch.zeros((), dtype=torch.float64, device=device),
            correct=torch.zeros((), dtype=torch.int64, device=device),
            diverged_at=torch.full((), -1, dtype=torch.int64, device=device),
        )

    def begin_epoch(self) -> None:
        for counter in (self.step, self.loss_sum, self.correct):
            counter.zero_()
        self.diverged_at.fill_(-1)
        self.epoch_steps = 0

    def tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Every tensor that changes, by name; memory without its spare row. A checkpoint saves and restores these."""
        for name, tensor in self.net.state_dict().items():
            yield f"net.{name}", tensor
        for name in ("step", "loss_sum", "correct", "diverged_at"):
            yield name, getattr(self, name)
        for name, tensor in self.extras.items():
            yield f"extra.{name}", tensor
        if self.memory is not None:
            for name, tensor in self.memory.tensors():
                yield f"memory.{name}", tensor
