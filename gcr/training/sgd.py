"""SGD without momentum: ``p <- p - lr * gradient`` for all parameters at once.

It keeps no state, so a checkpoint needs none of it, and the whole update is a few fused kernels. (``torch.optim``
would load the compiler on its first step, which takes longer than a run on digits.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass
class Sgd:
    parameters: list[nn.Parameter]
    lr: float

    def gradients(self, loss: Tensor) -> list[Tensor | None]:
        """None for a parameter that the loss does not reach."""
        return list(torch.autograd.grad(loss, self.parameters, allow_unused=True))

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """A parameter without a gradient stays as it is."""
        reached = [(p, g) for p, g in zip(self.parameters, gradients, strict=True) if g is not None]
        torch._foreach_add_([p for p, _ in reached], [g for _, g in reached], alpha=-self.lr)
