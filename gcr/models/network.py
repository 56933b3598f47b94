"""What every model is: ``image -> features -> logits``, with one linear head over all classes."""

from __future__ import annotations

from torch import Tensor, nn


class Network(nn.Module):
    def __init__(self, trunk: nn.Module, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(n_features, n_classes)

    def features(self, images: Tensor) -> Tensor:
        """[b, c, h, w] -> [b, f]: the input of the head."""
        features: Tensor = self.trunk(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits
