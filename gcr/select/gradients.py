"""Last-layer gradients without ever building them.

The gradient of example i's loss by the weight and bias of the last linear layer is ``g_i = d_i (x) [f_i; 1]``: the
outer product of its residual (loss by logits) and its features. Hence ``<g_i, g_j> = <d_i, d_j> * (<f_i, f_j> + 1)``,
and all that matching pursuit needs follows from the two small factors.
"""

from __future__ import annotations

from torch import Tensor


def gram(features: Tensor, residuals: Tensor) -> Tensor:
    """All inner products of last-layer gradients: [n, f], [n, c] -> [n, n]."""
    return (residuals @ residuals.T) * (features @ features.T + 1)
