"""``ReplayClassifier``: a scikit-learn classifier that learns new classes by ``partial_fit`` and keeps the old ones.

>>> import numpy as np
>>> x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
>>> x[20:40] += 6
>>> x[40:] -= 6
>>> classifier = ReplayClassifier(memory=20, random_state=0)
>>> classifier = classifier.partial_fit(x[:40], ["b"] * 20 + ["c"] * 20)
>>> classifier = classifier.partial_fit(x[40:], ["a"] * 20)  # a new class; the old examples are not needed
>>> classifier.classes_.tolist(), classifier.predict(x[[0, 20, 40]]).tolist()
(['a', 'b', 'c'], ['b', 'c', 'a'])
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from gcr.learner import Learner
from gcr.learner.checks import adamw
from gcr.learner.views import Augment
from gcr.memory import Policy
from gcr.memory.examples import as_count
from gcr.methods import Method
from gcr.settings import BadInput

MakeNet = Callable[[Any, int], nn.Module]  # (features of an example, classes) -> a network
FITTED = "learner_"
OF_A_CALL = ("epochs", "batch_size")  # parameters that may change between calls of partial_fit


class ReplayClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A neural network with a replay memory, by the rules of scikit-learn.

    ``fit`` starts afresh; ``partial_fit`` goes on, and labels that it has not seen become new classes. Both make
    ``epochs`` passes over what they are given: 10 if not given, or as many as give 300 steps. For a stream of small
    batches, ``epochs=1``.

    ``memory`` is the number of examples kept, or a ``Policy``. The network has ReLU layers of ``hidden_layer_sizes``,
    or is ``net``: a module, which is copied, or a function of (features, classes) that makes one. It is trained by
    AdamW with ``learning_rate``, and by ``method`` (ER-ACE by default). Other parameters are those of ``gcr.Learner``.

    Without ``net``, rows are vectors of numbers, best scaled (``StandardScaler``). With ``net`` they may have any
    shape and number type, and a function gets that shape where it is no vector.

    Fitted: ``classes_`` (sorted), ``n_features_in_``, and ``learner_``, the ``gcr.Learner``.
    """

    learner_: Learner
    classes_: np.ndarray

    def __init__(
        self,
        memory: int | Policy = 500,
        *,
        hidden_layer_sizes: tuple[int, ...] = (100,),
        epochs: int | None = None,
        batch_size: int = 32,
        learning_rate: float = 1e-3,
        method: Method | None = None,
        net: nn.Module | MakeNet | None = None,
        augment: Augment = "auto",
        class_weight: str | Mapping[Any, float] | None = None,
        device: torch.device | str | None = None,
        random_state: int | np.random.RandomState | None = None,
    ) -> None:
        self.memory = memory
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epochs = epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.method = method
        self.net = net
        self.augment = augment
        self.class_weight = class_weight
        self.device = device
        self.random_state = random_state

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from nothing: what was learned before is dropped."""
        if hasattr(self, FITTED):
            del self.learner_
        return self._learn(X, y, whole=True)

    def partial_fit(self, X: Any, y: Any, classes: Any = None) -> Self:
        """Learn what has come, and keep what was learned. ``classes`` are more labels that have a column."""
        return self._learn(X, y, classes)

    def _learn(self, X: Any, y: Any, classes: Any = None, whole: bool = False) -> Self:
        """``whole``: all classes are there, so that none of ``class_weight`` comes later."""
        first = not hasattr(self, FITTED)
        epochs = None if self.epochs is None else as_count("epochs", self.epochs, 1)
        batch = as_count("batch_size", self.batch_size, 1)
        X, y = validate_data(self, X, y, reset=first, **self._rules())
        check_classification_targets(y)
        found = np.unique(y) if classes is None else _union(classes, y)
        if whole and isinstance(self.class_weight, Mapping):
            _check_weighted(self.class_weight, found.tolist())
        if first:
            learner = self._new_learner(X.shape[1:], len(found))
            self._made_with = {
                name: value for name, value in self.get_params(deep=False).items() if name not in OF_A_CALL
            }
        else:
            self._refuse_others()
            learner, found = self.learner_, _union(self.classes_, _as_type(found, self.classes_))
            learner.labels.checked(_as_type(y, self.classes_), len(X))  # raises if they are of another type
        learner.learn_labels(found, len(found))
        if not first:
            self.classes_ = found  # columns of what the learner predicts, also where its fit is broken off
        learner.fit(X, _as_type(y, found), epochs=epochs, batch=batch, progress=False)
        self.learner_, self.classes_ = learner, found
        return self

    def predict(self, X: Any) -> np.ndarray:
        """[n] labels."""
        columns = self.predict_proba(X).argmax(1)
        chosen: np.ndarray = self.classes_[columns]
        return chosen

    def predict_proba(self, X: Any) -> np.ndarray:
        """[n, classes], in the order of ``classes_``."""
        check_is_fitted(self, FITTED)
        X = validate_data(self, X, reset=False, **self._rules())
        return self.learner_.predict_proba(X, labels=self.classes_.tolist())

    def _refuse_others(self) -> None:
        """Parameters of which the learner was made: another value would have no effect."""
        for name, made in getattr(self, "_made_with", {}).items():  # pickles of earlier versions do not say
            now = getattr(self, name)
            if now is not made and not np.array_equal(now, made):
                raise BadInput(
                    f"{name} cannot change between calls of partial_fit, got {now!r}; call fit to begin anew"
                )

    def _rules(self) -> dict[str, Any]:
        """What rows may be."""
        return {"dtype": np.float32} if self.net is None else {"dtype": "numeric", "allow_nd": True}

    def _new_learner(self, shape: tuple[int, ...], n_classes: int) -> Learner:
        rate = self.learning_rate
        if isinstance(rate, bool) or not isinstance(rate, int | float | np.number) or not rate > 0:
            raise BadInput(f"learning_rate must be a number > 0, got {rate!r}")
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            net = self._make_net(shape, n_classes)
        return Learner(
            net.to(self.device) if self.device is not None else net,
            self.memory,
            method=self.method,
            optimizer=partial(adamw, lr=float(rate)),
            augment=self.augment,
            class_weight=self.class_weight,
            seed=seed,
        )

    def _make_net(self, shape: tuple[int, ...], n_classes: int) -> nn.Module:
        if isinstance(self.net, nn.Module):
            return copy.deepcopy(self.net)
        if self.net is not None:
            net = self.net(shape[0] if len(shape) == 1 else shape, n_classes)
            if not isinstance(net, nn.Module):
                raise BadInput(f"net must return a torch.nn.Module, got {type(net).__name__}")
            return net
        sizes = [*shape, *(as_count("hidden_layer_sizes", size, 1) for size in np.ravel(self.hidden_layer_sizes))]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [nn.Linear(inputs, outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Linear(sizes[-1], n_classes))

    # Pickled by value, whatever device and streams the learner has.

    def __getstate__(self) -> dict[str, Any]:
        state: dict[str, Any] = dict(super().__getstate__())
        if learner := state.pop(FITTED, None):
            about, tensors = learner.state()
            net = copy.deepcopy(learner.net).cpu()
            state["saved_learner"] = about, {name: tensor.cpu().clone() for name, tensor in tensors.items()}, net
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        saved = state.pop("saved_learner", None)
        super().__setstate__(state)
        if saved:
            about, tensors, net = saved
            given: dict[str, Any] = {"augment": self.augment, "device": self.device}
            if self.method is not None:
                given["method"] = self.method
            self.learner_ = Learner.from_state(about, tensors, net, **given)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.three_d_array = self.net is not None
        return tags


def _check_weighted(weights: Mapping[Any, float], labels: list[Any]) -> None:
    """As in scikit-learn: a weight may be of no class only where every class has one."""
    strange, bare = [key for key in weights if key not in labels], [label for label in labels if label not in weights]
    if strange and bare:
        raise BadInput(
            f"class_weight must have labels of y as keys, got {strange[0]!r}, while {bare[0]!r} has no weight; correct "
            "it, or give every class a weight"
        )


def _union(some: Any, others: Any) -> np.ndarray:
    """Sorted. NumPy makes text of numbers next to text, or cannot compare them."""
    firsts = [first for labels in (some, others) for first in np.ravel(labels).tolist()[:1]]
    if len({isinstance(first, str) for first in firsts}) > 1:
        raise BadInput(f"labels must be of one type, got {firsts[0]!r} and {firsts[1]!r}; convert them")
    return np.union1d(some, others)


def _as_type(labels: np.ndarray, like: np.ndarray) -> np.ndarray:
    """Numbers as the type of those before them, where they stay the same numbers; other labels as they are."""
    if labels.dtype.kind in "biuf" and like.dtype.kind in "biuf":
        cast = labels.astype(like.dtype)
        return cast if (cast == labels).all() else labels
    return labels
