"""How much each class counts in the loss: as given, or by how seldom it came."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from gcr.learner.labels import from_json, plain_label, to_json
from gcr.settings import BadInput, Misfit

Given = str | Mapping[Any, float] | None


class ClassWeights:
    """``given`` is None, "balanced" or a weight per label.

    Balanced as in scikit-learn: examples / (classes * examples of the class), of all that was trained on so far.
    """

    def __init__(self, given: Given, counts: Sequence[int] = (), before: Sequence[int] = ()) -> None:
        if isinstance(given, Mapping):
            for label, weight in given.items():
                if not isinstance(weight, Real) or not 0 <= float(weight) < math.inf:
                    raise BadInput(f"class_weight must have finite weights >= 0, got {weight!r} for {label!r}")
            given = {plain_label(label): float(weight) for label, weight in given.items()}
        elif given is not None and given != "balanced":
            raise BadInput(f'class_weight must be None, "balanced" or a weight per label, got {given!r}')
        self.given = given
        self.counts = list(counts)  # examples seen of each class, where that matters
        self.before = list(before)  # the same when the last fit began

    def refuse_other(self, labels: Sequence[Hashable]) -> None:
        """Keys of another type than that of the labels: their weights would never count."""
        for key in self.given if labels and isinstance(self.given, Mapping) else ():
            if type(key) is not type(labels[0]) and not (isinstance(key, Real) and isinstance(labels[0], Real)):
                kind = f"{type(labels[0]).__name__} as {labels[0]!r}"
                raise BadInput(
                    f"class_weight must have labels as keys, {kind}, got {key!r} ({type(key).__name__}); convert it"
                )

    def begin_fit(self, again: bool) -> None:
        """What came in a fit that was broken off and is begun ``again`` counts once."""
        if again:
            self.counts = list(self.before)
        self.before = list(self.counts)

    def update(self, weights: Tensor, labels: Tensor, classes: Sequence[Hashable]) -> None:
        """Put the weights that go with a new batch into ``weights`` [outputs]. Outputs without a class have 1."""
        if isinstance(self.given, Mapping):
            values = [float(self.given.get(label, 1.0)) for label in classes]
        else:
            self.counts += [0] * (len(classes) - len(self.counts))
            for number in labels.tolist():
                self.counts[number] += 1
            seen = [count for count in self.counts if count]
            values = [sum(seen) / (len(seen) * count) if count else 1.0 for count in self.counts]
        weights[: len(values)] = torch.tensor(values)

    def to_json(self) -> Any:
        given: Any = self.given
        if isinstance(given, Mapping):
            given = [[to_json(label), weight] for label, weight in given.items()]
        return {"given": given, "counts": self.counts, "before": self.before}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> ClassWeights:
        given = value["given"]
        if isinstance(given, list):
            given = {from_json(label): weight for label, weight in given}
        try:
            return cls(given, value["counts"], value.get("before", ()))  # earlier versions had none
        except BadInput as error:
            raise Misfit(f"class_weights.given is wrong: {error}") from None
