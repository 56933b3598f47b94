"""SGD without momentum, ``p <- p - lr * (gradient + weight_decay * p)``, for all parameters at once: our fast default.

It keeps no state, so a checkpoint needs none of it, and the whole update is a few fused kernels. (``torch.optim``
would load the compiler on its first step, which takes longer than a run on digits.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from gcr.settings import BadInput


class Sgd:
    """Rates are in ``param_groups``, as in ``torch.optim``.

    >>> net = nn.Linear(2, 1)
    >>> optimizer = Sgd(net.parameters(), lr=0.1)
    >>> optimizer.param_groups[0]["lr"] = 0.05
    """

    __slots__ = ("param_groups",)

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, weight_decay: float = 0.0) -> None:
        self.param_groups: list[dict[str, Any]] = []
        self.add_param_group({"params": parameters, "lr": lr, "weight_decay": weight_decay})

    def add_param_group(self, group: dict[str, Any]) -> None:
        """What it lacks is taken from the first."""
        given, held = group["params"], {p for other in self.param_groups for p in other["params"]}
        params = [given] if isinstance(given, Tensor) else list(given)
        group = {**(self.param_groups or [{}])[0], **group, "params": params}
        if group["lr"] < 0 or group["weight_decay"] < 0:
            raise BadInput(f"lr and weight_decay must be >= 0, got {group['lr']} and {group['weight_decay']}")
        if not held.isdisjoint(params):
            raise BadInput("params must be of one group, got some that another group has; leave them out")
        self.param_groups.append(group)

    @torch.no_grad()
    def step(self, parameters: Sequence[nn.Parameter], gradients: Sequence[Tensor | None]) -> None:
        """One gradient per parameter. A parameter without a gradient stays as it is."""
        reached = {p: g for p, g in zip(parameters, gradients, strict=True) if g is not None}
        for group in self.param_groups:
            moved = [p for p in group["params"] if p in reached]
            along = [reached[p] for p in moved]
            if not moved:
                continue
            if group["weight_decay"]:
                decay = torch._foreach_mul(moved, group["weight_decay"])
                torch._foreach_add_(decay, along)
                along = list(decay)
            torch._foreach_add_(moved, along, alpha=-group["lr"])
