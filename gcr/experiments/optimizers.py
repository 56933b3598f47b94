"""Optimizers by name: ours for plain SGD, torch's for everything else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import nn

from gcr.settings import BadInput, Settings, setting, unknown
from gcr.training.sgd import Sgd

NAMES = ("sgd", "adam", "adamw")


@dataclass(frozen=True)
class OptimizerSpec(Settings):
    """
    >>> net = nn.Linear(2, 2)
    >>> type(OptimizerSpec(lr=0.1).make(net.parameters())).__name__
    'Sgd'
    >>> type(OptimizerSpec("adamw", lr=1e-3).make(net.parameters())).__name__
    'AdamW'
    """

    name: str = setting("sgd", f"one of {', '.join(NAMES)}")  # type: ignore[misc]
    lr: float = setting(0.03, "learning rate (no schedule)", low=0.0)
    momentum: float = setting(0.0, "momentum of SGD", low=0.0, high=0.9999, advanced=True)
    weight_decay: float = setting(
        0.0,
        "sgd, adam: adds weight_decay/2 * |weights|^2 to the loss; adamw: decoupled from the gradient",
        low=0.0,
        advanced=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.name not in NAMES:
            raise unknown("optimizer", self.name, NAMES)
        if self.momentum and self.name != "sgd":
            raise BadInput(f"momentum is for optimizer sgd, got optimizer {self.name}; leave out optimizer.momentum")

    @property
    def is_plain(self) -> bool:
        """SGD without momentum: the fast default."""
        return self.name == "sgd" and self.momentum == 0

    def make(self, parameters: Iterable[nn.Parameter]) -> Sgd | torch.optim.Optimizer:
        trained = [parameter for parameter in parameters if parameter.requires_grad]
        if self.is_plain:
            return Sgd(trained, self.lr, self.weight_decay)
        if self.name == "sgd":
            return torch.optim.SGD(trained, self.lr, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.AdamW if self.name == "adamw" else torch.optim.Adam
        return kind(trained, self.lr, weight_decay=self.weight_decay)
