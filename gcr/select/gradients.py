"""Gradients as factors: every gradient is an outer product, and the long vectors are never built.

The gradient of example i's loss by the weight and bias of the last linear layer is ``g_i = d_i (x) [f_i; 1]``: the
outer product of its residual (the loss by the logits) and its features. Hence ``<g_i, g_j> = <d_i, d_j> * (<f_i, f_j>
+ 1)``, and all that matching pursuit needs follows from the two small factors. An explicit matrix of gradients is the
case of one residual that is 1 and no bias.

>>> gradients = LastLayerGradients(features=torch.tensor([[1., 2.]]), residuals=torch.tensor([[3.]]))
>>> gradients.explicit().tolist()
[[3.0, 6.0, 3.0]]
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LastLayerGradients:
    """``g_i = residuals[i] (x) [features[i]; 1]``; without the 1 where ``bias`` is False."""

    features: Tensor  # [n, f]
    residuals: Tensor  # [n, c]
    bias: bool = True

    @classmethod
    def of_matrix(cls, gradients: Tensor) -> LastLayerGradients:
        """The same interface for an explicit [n, d] matrix."""
        return cls(gradients, gradients.new_ones(len(gradients), 1), bias=False)

    def __len__(self) -> int:
        return len(self.features)

    @property
    def is_matrix(self) -> bool:
        """Whether the rows are explicit."""
        return not self.bias and self.residuals.shape[1] == 1

    def left(self, rows: Tensor) -> Tensor:
        """The factor ``[f; 1]`` of some rows, in float64."""
        features = self.features[rows].double()
        if not self.bias:
            return features
        return torch.cat([features, features.new_ones(*features.shape[:-1], 1)], -1)

    def right(self, rows: Tensor) -> Tensor:
        """The factor ``d`` of some rows, in float64."""
        return self.residuals[rows].double()

    def squared_norms(self) -> Tensor:
        """[n] squared lengths of the gradients."""
        features = self.features.double().square().sum(1) + self.bias
        return features * self.residuals.double().square().sum(1)

    def weighted_sum(self, weights: Tensor) -> Tensor:
        """``sum_i w_i g_i`` as a [c, f (+ 1)] matrix."""
        total = (self.residuals.double() * weights.double().unsqueeze(1)).T
        product = total @ self.features.double()
        return torch.cat([product, total.sum(1, keepdim=True)], 1) if self.bias else product

    def explicit(self) -> Tensor:
        """[n, c * (f + 1)]: the vectors written out, for tests and small problems."""
        rows = torch.arange(len(self), device=self.features.device)
        return torch.einsum("nc,nf->ncf", self.right(rows), self.left(rows)).flatten(1)
