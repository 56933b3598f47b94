"""Selection on its own: ``select_coreset`` for any matrix of gradients, in NumPy or torch, on CPU or GPU.

>>> chosen = select_coreset([[1., 0.], [0., 1.], [1., 0.]], budget=2, ridge=0.0)
>>> chosen.rows.tolist(), chosen.weights.tolist()
([0, 1], [2.0, 1.0])
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor

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
        rows = LastLayerGradients.of_matrix(_matrix("gradients", gradients, device))
    else:
        left, right = _matrix("features", factors.features, device), _matrix("residuals", factors.residuals, device)
        if len(left) != len(right):
            raise BadInput(f"features and residuals must have equally many rows, got {len(left)} and {len(right)}")
        rows = LastLayerGradients(left, right, factors.bias)
    n = len(rows)
    if not _whole(budget) or not 1 <= budget <= n:
        raise BadInput(f"budget must be a whole number from 1 to {n}, the number of rows, got {budget}")
    for name, value in (("ridge", ridge), ("tolerance", tolerance)):
        if not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise BadInput(f"{name} must be a number, >= 0 and finite, got {value}")
    if not _whole(replace) or replace < 0:
        raise BadInput(f"replace must be a whole number >= 0, got {replace}")
    groups = None if labels is None else _labels(labels, n, device)
    old = torch.ones(n, dtype=torch.float64, device=device) if weights is None else _weights(weights, n, device)
    chosen = match(rows, groups, old, int(budget), ridge, tolerance, int(replace))
    full = rows.features.dtype in (torch.float32, torch.float64)
    new_weights = chosen.weights.to(rows.features.dtype if full else torch.float32)
    if as_numpy:
        return Coreset(chosen.rows.numpy(), new_weights.numpy(), chosen.note)  # type: ignore[arg-type]
    return Coreset(chosen.rows, new_weights, chosen.note)


def _whole(value: Any) -> bool:
    """Whether this is a whole number, of Python's or NumPy's kinds."""
    try:
        return not isinstance(value, bool) and operator.index(value) == value
    except TypeError:
        return False


def _tensor(name: str, values: Any, device: torch.device) -> Tensor:
    try:
        return torch.as_tensor(values, device=device).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        if hasattr(values, "copy") and hasattr(values, "strides"):  # a NumPy view with steps that torch does not know
            return torch.as_tensor(values.copy(), device=device)
        raise BadInput(f"{name} must be an array of numbers ({error})") from None


def _matrix(name: str, values: Any, device: torch.device) -> Tensor:
    matrix = _tensor(name, values, device)
    if matrix.is_complex():
        raise BadInput(f"{name} must be real numbers, got {matrix.dtype}")
    if matrix.dim() != 2 or len(matrix) == 0:
        raise BadInput(f"{name} must be a matrix with at least one row, got shape {tuple(matrix.shape)}")
    if not matrix.is_floating_point():
        matrix = matrix.double()
    broken = torch.nonzero(~torch.isfinite(matrix).all(1)).flatten()
    if len(broken):
        shown = ", ".join(map(str, broken[:5].tolist())) + (", …" if len(broken) > 5 else "")
        raise BadInput(f"{name} must be finite, got NaN or infinity in {len(broken)} of {len(matrix)} rows: {shown}")
    return matrix


def _labels(values: Any, n: int, device: torch.device) -> Tensor:
    labels = _tensor("labels", values, device)
    if labels.shape != (n,):
        raise BadInput(f"labels must be one per row ({n}), got shape {tuple(labels.shape)}")
    if labels.is_floating_point() or labels.is_complex():
        raise BadInput(f"labels must be whole numbers, got {labels.dtype}")
    return labels.long()


def _weights(values: Any, n: int, device: torch.device) -> Tensor:
    weights = _tensor("weights", values, device).double()
    if weights.shape != (n,):
        raise BadInput(f"weights must be one per row ({n}), got shape {tuple(weights.shape)}")
    wrong = torch.nonzero(~((weights >= 0) & torch.isfinite(weights))).flatten()
    if len(wrong):
        raise BadInput(f"weights must be >= 0 and finite, got {weights[wrong[0]].item()} in row {int(wrong[0])}")
    return weights
