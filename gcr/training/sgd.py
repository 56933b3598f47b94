"""SGD without momentum: ``p <- p - lr * gradient`` for all parameters at once.

It keeps no state, so a checkpoint needs none of it, and the whole update is a few fused kernels. (``torch.optim``
would load the compiler on its first step, which takes longer than a run on digits.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Sgd:
    parameters: list[nn.Parameter]
    lr: float

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """A parameter that the loss did not reach stays as it is."""
        reached: list[Tensor] = [p for p in self.parameters if p.grad is not None]
        gradients = [p.grad for p in reached if p.grad is not None]
        torch._foreach_add_(reached, gradients, alpha=-self.lr)
