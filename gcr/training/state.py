"""RunState: all that changes while a run goes on, in one object."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gcr.memory import Memory, Policy
from gcr.models import Network, build
from gcr.scenarios import Scenario
from gcr.training.settings import Training
from gcr.training.sgd import Sgd


@dataclass
class RunState:
    net: Network
    optimizer: Sgd
    memory: Memory | None
    loss_sum: Tensor  # () float64 on the device: over the examples of this epoch
    correct: Tensor  # () int64 on the device: new examples of this epoch classified right
    steps: int = 0
    class_il: list[list[float]] = field(default_factory=list)  # accuracy in percent: [stage][task]
    task_il: list[list[float]] = field(default_factory=list)
    selections: list[dict[str, object]] = field(default_factory=list)  # what was said of each selection

    @classmethod
    def fresh(
        cls, scenario: Scenario, model: str, policy: Policy | None, training: Training, seed: int, device: torch.device
    ) -> RunState:
        net = build(model, scenario.image_shape, scenario.n_classes, seed).to(device)
        memory = None
        if policy is not None:
            memory = Memory.empty(policy.buffer, policy.pool_size, scenario.image_shape, scenario.n_classes, device)
        return cls(
            net=net,
            optimizer=Sgd(list(net.parameters()), training.lr),
            memory=memory,
            loss_sum=torch.zeros((), dtype=torch.float64, device=device),
            correct=torch.zeros((), dtype=torch.int64, device=device),
        )
