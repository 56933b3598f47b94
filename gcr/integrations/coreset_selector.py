"""``CoresetSelector``: which rows of a training set to keep, by the rules of scikit-learn.

>>> import numpy as np
>>> x = np.random.default_rng(0).normal(size=(60, 4))
>>> selector = CoresetSelector(budget=10).fit(x, [0, 1] * 30)
>>> int(selector.get_support().sum()), selector.fit_resample(x, np.array([0, 1] * 30))[0].shape
(10, (10, 4))
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from gcr.select import LastLayerGradients, class_budgets, select_coreset
from gcr.select.checks import check_mapped, check_memory, is_whole
from gcr.select.k_centre import k_centre
from gcr.settings import BadInput

SELECTORS = ("matching", "k-centre", "random")


def _can(name: str) -> Any:
    return available_if(lambda self: self.estimator is not None and hasattr(self.estimator, name))


class CoresetSelector(BaseEstimator):  # type: ignore[misc]
    """Choose ``budget`` rows: a whole number of them, or a share of the training set (a float up to 1.0, all rows).

    ``selector="matching"`` matches the gradient of a linear softmax classifier before training, class by class;
    "k-centre" covers the features of each class; "random" draws. y are classes; without it there is one. Rows are best
    scaled.

    ``get_support()`` says which rows were chosen and ``weights_`` what each of them counts for. ``fit_resample`` gives
    the rows themselves, as a middle step of an imbalanced-learn pipeline does; scikit-learn's own takes no such step.

    With an ``estimator``, ``fit`` trains a copy on the chosen rows, with their weights where it takes any. ``predict``,
    ``predict_proba``, ``decision_function`` and ``score`` are then its, and so is its kind: around a classifier this is
    one, alone or as the last step of a scikit-learn pipeline, trained on a pruned set.
    """

    def __init__(
        self,
        budget: float = 0.1,
        *,
        selector: str = "matching",
        estimator: Any = None,
        ridge: float = 0.5,
        random_state: Any = None,
    ) -> None:
        self.budget = budget
        self.selector = selector
        self.estimator = estimator
        self.ridge = ridge
        self.random_state = random_state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        if self.estimator is not None:
            inner = get_tags(self.estimator)
            tags.estimator_type, tags.classifier_tags = inner.estimator_type, inner.classifier_tags
            tags.target_tags.required = inner.target_tags.required
        return tags

    def fit(self, X: Any, y: Any = None) -> Self:
        if self.selector not in SELECTORS:
            raise BadInput(f"The 'selector' parameter must be one of {', '.join(SELECTORS)}, got {self.selector!r}")
        if y is None and self.estimator is not None and get_tags(self.estimator).target_tags.required:
            name = type(self.estimator).__name__
            raise BadInput(f"{name} requires y to be passed, but the target y is None; call fit(X, y)")
        check_mapped("X", X)
        check_mapped("y", y)
        if isinstance(X, np.ndarray):
            remedy = "k-centre and matching of gcr itself read float32 and mapped files"
            check_memory("X in float64", 8 * X.size, torch.device("cpu"), remedy)
        if y is None:
            x, number = validate_data(self, X, dtype=np.float64), np.zeros(len(X), dtype=np.int64)
        else:
            x, y = validate_data(self, X, y, dtype=np.float64)
            check_classification_targets(y)
            number = np.unique(y, return_inverse=True)[1]
        budget = self._rows(len(x))
        self.support_, self.weights_ = self._choose(x, number, budget)
        classes, chosen = len(np.unique(number)), len(np.unique(number[self.support_]))
        if chosen < classes:
            warnings.warn(f"{classes - chosen} of {classes} classes have no row in a budget of {budget}", stacklevel=2)
        if self.estimator is not None:
            weights = {"sample_weight": self.weights_} if has_fit_parameter(self.estimator, "sample_weight") else {}
            labels = None if y is None else y[self.support_]
            self.estimator_ = clone(self.estimator).fit(x[self.support_], labels, **weights)
            if hasattr(self.estimator_, "classes_"):
                self.classes_ = self.estimator_.classes_
        self._n = len(x)
        return self

    def _rows(self, n: int) -> int:
        budget = self.budget
        share = isinstance(budget, float | np.floating) and 0 < budget <= 1
        if not share and not (is_whole(budget) and budget > 0):
            raise BadInput(
                "The 'budget' parameter must be a whole number of rows >= 1, or a share of them as a float above 0.0 "
                f"and up to 1.0, got {budget!r}"
            )
        return max(round(float(budget) * n), 1) if share else min(int(budget), n)

    def _choose(self, x: np.ndarray, number: np.ndarray, budget: int) -> tuple[np.ndarray, np.ndarray]:
        counts = np.bincount(number)
        if self.selector == "matching":
            residuals = counts / len(x) - np.eye(len(counts))[number] if len(counts) > 1 else np.ones((len(x), 1))
            factors = LastLayerGradients(x, residuals)  # type: ignore[arg-type]
            found = select_coreset(factors, budget, labels=number, ridge=self.ridge)
            return np.asarray(found.rows), np.asarray(found.weights)
        random, chosen = check_random_state(self.random_state), []
        for label, share in enumerate(class_budgets(counts.tolist(), budget)):
            rows = np.nonzero(number == label)[0]
            if share and self.selector == "k-centre":
                chosen.append(rows[np.asarray(k_centre(x[rows], share).rows)])
            else:
                chosen.append(random.permutation(rows)[:share])
        support = np.sort(np.concatenate(chosen))
        return support, np.ones(len(support))

    def get_support(self, indices: bool = False) -> np.ndarray:
        """Which rows of the training set were chosen: a mask, or their numbers."""
        check_is_fitted(self, "support_")
        if indices:
            return self.support_
        mask = np.zeros(self._n, dtype=bool)
        mask[self.support_] = True
        return mask

    def fit_resample(self, X: Any, y: Any) -> tuple[Any, Any]:
        """The chosen rows and their labels, as a step of an imbalanced-learn pipeline gives them."""
        rows = self.fit(X, y).support_
        return (X.iloc[rows] if hasattr(X, "iloc") else np.asarray(X)[rows]), np.asarray(y)[rows]

    @_can("predict")  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict(validate_data(self, X, dtype=np.float64, reset=False))

    @_can("predict_proba")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_proba(validate_data(self, X, dtype=np.float64, reset=False))

    @_can("decision_function")  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        check_is_fitted(self, "estimator_")
        return self.estimator_.decision_function(validate_data(self, X, dtype=np.float64, reset=False))

    @_can("score")  # type: ignore[untyped-decorator]
    def score(self, X: Any, y: Any) -> float:
        check_is_fitted(self, "estimator_")
        return float(self.estimator_.score(validate_data(self, X, dtype=np.float64, reset=False), y))
