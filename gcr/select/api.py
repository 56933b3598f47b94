"""Selection on its own: ``select_coreset`` for any matrix of gradients, in NumPy or torch, on CPU or GPU.

>>> chosen = select_coreset([[1., 0.], [0., 1.], [1., 0.]], budget=2, ridge=0.0)
>>> chosen.rows.tolist(), chosen.weights.tolist()
([0, 1], [2.0, 1.0])
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gcr.select.checks import as_labels, as_matrix, as_weights, check_budget, is_whole
from gcr.select.coreset import Coreset
from gcr.select.gradients import LastLayerGradients
from gcr.select.matching import match
from gcr.settings import BadInput


def select_coreset(
    gradients: Any,
    budget: int,
    *,
    labels: Any = None,
    weights: Any = None,
    ridge: float = 0.5,
    tolerance: float = 0.0,
    replace: int = 0,
) -> Coreset:
    """Choose ``budget`` rows and weights whose weighted sum of gradients comes nearest to that of all rows.

    ``gradients`` is an [n, d] matrix or ``LastLayerGradients(features, residuals)``. With ``labels`` [n] the budget
    is shared equally among classes and each is matched alone. ``weights`` [n] say what each row counts for in the
    target (1 if not given). ``ridge`` penalises squared weights, ``tolerance`` ends matching early, ``replace``
    passes of exchange lower the error further. Rows and weights come back as the kind of array that came in, on its
    device; ``note`` says what was out of the ordinary. Half-precision input is computed in float64 and its weights
    come back as float32.
    """
    factors = gradients if isinstance(gradients, LastLayerGradients) else None
    first = factors.features if factors else gradients
    as_numpy = not isinstance(first, Tensor)
    device = torch.device("cpu") if as_numpy else first.device
    if factors is None:
        rows = LastLayerGradients.of_matrix(as_matrix("gradients", gradients, device))
    else:
        left, right = as_matrix("features", factors.features, device), as_matrix("residuals", factors.residuals, device)
        if len(left) != len(right):
            raise BadInput(f"features and residuals must have equally many rows, got {len(left)} and {len(right)}")
        rows = LastLayerGradients(left, right, factors.bias)
    n = len(rows)
    check_budget(budget, n)
    for name, value in (("ridge", ridge), ("tolerance", tolerance)):
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise BadInput(f"{name} must be a number, >= 0 and finite, got {value}")
    if not is_whole(replace) or replace < 0:
        raise BadInput(f"replace must be a whole number >= 0, got {replace}")
    groups = None if labels is None else as_labels("labels", labels, n, device)
    old = (
        torch.ones(n, dtype=torch.float64, device=device)
        if weights is None
        else as_weights("weights", weights, n, device)
    )
    chosen = match(rows, groups, old, int(budget), ridge, tolerance, int(replace))
    full = rows.features.dtype in (torch.float32, torch.float64)
    new_weights = chosen.weights.to(rows.features.dtype if full else torch.float32)
    if as_numpy:
        return Coreset(chosen.rows.numpy(), new_weights.numpy(), chosen.note)  # type: ignore[arg-type]
    return Coreset(chosen.rows, new_weights, chosen.note)
