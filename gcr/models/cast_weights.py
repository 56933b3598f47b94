"""Weights in autocast's precision, by one kernel for all layers, and their gradients back by one.

Autocast itself casts each layer's weight when the layer is called: the same values, in two kernels per layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def cast_weights(net: nn.Module, device: str) -> dict[str, Tensor]:
    """By name, the weights of convolutions and linear layers as autocast on ``device`` has them; none without it."""
    compiled = net._compiled_call_impl is not None  # casts by itself
    if not torch.is_autocast_enabled(device) or compiled or torch._C._are_functorch_transforms_active():
        return {}
    layers = [(name, layer) for name, layer in net.named_modules() if isinstance(layer, nn.Conv2d | nn.Linear)]
    weights = {f"{name}.weight": layer.weight for name, layer in layers if layer.weight.dtype == torch.float32}
    if any(weight.requires_grad for weight in weights.values()):  # nobody asks for the gradients of frozen layers
        weights = {name: weight for name, weight in weights.items() if weight.requires_grad}
    if not weights:
        return {}
    cast: tuple[Tensor, ...] = _Cast.apply(torch.get_autocast_dtype(device), *weights.values())  # type: ignore[no-untyped-call]
    return dict(zip(weights, cast, strict=True))


class _Cast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        return tuple(_cast(weights, dtype))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        cast = iter(_cast([gradient for gradient in gradients if gradient is not None], torch.float32))
        return None, *(None if gradient is None else next(cast) for gradient in gradients)


def _cast(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))
    return copies
