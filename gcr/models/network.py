"""What every model is: ``image -> features -> logits``, with one linear head over all classes."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from gcr.models.norm import Trunk


class Output(NamedTuple):
    features: Tensor  # [b, f]
    logits: Tensor  # [b, classes] float32


class Network(nn.Module):
    def __init__(self, trunk: Trunk, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(n_features, n_classes)

    def features(self, images: Tensor) -> Tensor:
        """[b, c, h, w] -> [b, f]: the input of the head."""
        features: Tensor = self.trunk(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        return self.each(images)[0].logits

    def each(self, *batches: Tensor) -> tuple[Output, ...]:
        """Features and logits of several minibatches, each with batch statistics of its own, as from passes in turn.

        A GPU takes them in one pass. On a CPU passes in turn are as fast.
        """
        if batches[0].is_cuda and len(batches) > 1:
            sizes = tuple(len(images) for images in batches)
            features: Tensor = self.trunk(torch.cat(batches), sizes)
            logits = self.head(features).float()
            return tuple(map(Output, features.split(sizes), logits.split(sizes)))
        separate = [self.features(images) for images in batches]
        return tuple(Output(features, self.head(features).float()) for features in separate)
