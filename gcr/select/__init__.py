"""Which examples deserve memory: tensors in, ``Coreset(rows, weights)`` out. Depends on torch alone."""

from gcr.select.coreset import Coreset, Pool, Selector, class_budgets
from gcr.select.grad_approx import GradApprox
from gcr.select.uniform import ClassBalanced, Uniform

SELECTORS: tuple[type[Selector], ...] = (GradApprox, ClassBalanced, Uniform)

__all__ = ["SELECTORS", "ClassBalanced", "Coreset", "GradApprox", "Pool", "Selector", "Uniform", "class_budgets"]
