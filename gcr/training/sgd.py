"""SGD without momentum, ``p <- p - lr * (gradient + weight_decay * p)``, for all parameters at once: our fast default.

It keeps no state, so a checkpoint needs none of it, and the whole update is a few fused kernels. (``torch.optim``
would load the compiler on its first step, which takes longer than a run on digits.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from gcr.settings import BadInput


class Sgd:
    """
    >>> net = nn.Linear(2, 1)
    >>> optimizer = Sgd(net.parameters(), lr=0.1)
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        if lr < 0 or weight_decay < 0:
            raise BadInput(f"lr and weight_decay must be >= 0, got {lr} and {weight_decay}")
        self.parameters, self.lr, self.weight_decay = list(parameters), lr, weight_decay

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None]) -> None:
        """One gradient per parameter. A parameter without a gradient stays as it is."""
        reached = [(p, g) for p, g in zip(self.parameters, gradients, strict=True) if g is not None]
        moved: list[Tensor] = [p for p, _ in reached]
        along = [g for _, g in reached]
        if self.weight_decay and reached:
            decay = torch._foreach_mul(moved, self.weight_decay)
            torch._foreach_add_(decay, along)
            along = list(decay)
        torch._foreach_add_(moved, along, alpha=-self.lr)
