"""``collect``: features and residuals of a user's own network over a data loader, in one pass, for selection.

>>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
>>> loader = [(torch.rand(5, 2, 2), torch.tensor([0, 1, 2, 0, 1])), (torch.rand(2, 2, 2), torch.tensor([2, 0]))]
>>> pool = collect(net, loader)
>>> tuple(pool.features.shape), tuple(pool.residuals.shape)
((7, 8), (7, 3))
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from gcr.select import Pool
from gcr.settings import BadInput


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """One value per example."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


def collect(
    net: nn.Module,
    loader: Iterable[tuple[Any, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    last_layer: nn.Linear | None = None,
) -> Pool:
    """Run ``net`` once over ``loader`` (batches of inputs and labels), in evaluation mode, and collect a ``Pool``.

    ``loss(logits, labels)`` gives one value per example; its derivative by the logits is the residual. Features are
    what enters ``last_layer``, by default the network's last ``nn.Linear``, whose output must be the logits. Inputs
    are moved to the network's device; the pool is there too. The network is left as it was. Where the layer has no
    bias, give ``LastLayerGradients(…, bias=False)`` to selection.
    """
    if last_layer is None:
        linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise BadInput("net has no nn.Linear; name the layer that makes the logits with last_layer=")
        last_layer = linear[-1]
    device = next(net.parameters()).device
    seen: list[tuple[Tensor, Tensor]] = []
    hook = last_layer.register_forward_hook(
        lambda _, inputs, output: seen.append((inputs[0].detach(), output.detach()))
    )
    modes = {module: module.training for module in net.modules()}
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        net.eval()
        for batch in loader:
            if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(b, Tensor) for b in batch):
                raise BadInput("loader must give pairs of tensors, (inputs, labels)")
            inputs, labels = batch[0].to(device), batch[1].to(device)
            seen.clear()
            with torch.no_grad():
                logits = net(inputs)
            if len(seen) != 1 or seen[0][0].dim() != 2 or not torch.equal(seen[0][1], logits):
                raise BadInput(
                    "the output of last_layer must be the output of net; name the linear layer that makes the logits, "
                    "and move what comes after it into the loss"
                )
            columns.append((labels, seen[0][0], _residuals(loss, logits, labels)))
    finally:
        hook.remove()
        for module, mode in modes.items():
            module.training = mode
    if not columns:
        raise BadInput("loader is empty; it must give batches of (inputs, labels)")
    labels, features, residuals = (torch.cat(column) for column in zip(*columns, strict=True))
    return Pool(labels, torch.ones(len(labels), device=device), features, residuals)


def _residuals(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    with torch.enable_grad():
        variable = logits.detach().float().requires_grad_()
        values = loss(variable, labels)
        if values.shape != (len(labels),):
            raise BadInput(
                f"loss must give one value per example, [{len(labels)}], got shape {tuple(values.shape)}; "
                'use reduction="none"'
            )
        (residuals,) = torch.autograd.grad(values.sum(), variable)
    return residuals
