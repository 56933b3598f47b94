"""Which examples deserve memory: tensors in, ``Coreset(rows, weights)`` out. Depends on torch alone."""

from gcr.select.api import select_coreset
from gcr.select.bilevel import Bilevel
from gcr.select.coreset import Coreset, Pool, Selector, class_budgets
from gcr.select.density import Density
from gcr.select.diagnostics import Explanation, explain
from gcr.select.grad_approx import GradApprox
from gcr.select.gradients import LastLayerGradients
from gcr.select.gss import Gss
from gcr.select.herding import Herding
from gcr.select.k_centre import KCentre
from gcr.select.ocs import Ocs
from gcr.select.reducible_loss import ReducibleLoss
from gcr.select.typicality import Typicality
from gcr.select.uniform import ClassBalanced, Uniform

SELECTORS: tuple[type[Selector], ...] = (
    GradApprox,
    ClassBalanced,
    Uniform,
    Herding,
    KCentre,
    Gss,
    Ocs,
    Bilevel,
    Density,
    Typicality,
    ReducibleLoss,
)

__all__ = [
    "SELECTORS",
    "Bilevel",
    "ClassBalanced",
    "Coreset",
    "Density",
    "Explanation",
    "GradApprox",
    "Gss",
    "Herding",
    "KCentre",
    "LastLayerGradients",
    "Ocs",
    "Pool",
    "ReducibleLoss",
    "Selector",
    "Typicality",
    "Uniform",
    "class_budgets",
    "explain",
    "select_coreset",
]
