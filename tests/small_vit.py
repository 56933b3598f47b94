"""A small vision transformer, as a user would bring one: patches, one encoder layer, mean of tokens, linear head."""

import torch
from torch import nn


class SmallViT(nn.Module):
    def __init__(self, side=6, channels=1, n_classes=6, width=16, patch=2, norm=nn.LayerNorm):
        super().__init__()
        self.patches = nn.Conv2d(channels, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (side // patch) ** 2, width))
        self.attention_norm, self.mlp_norm, self.last_norm = norm(width), norm(width), norm(width)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.classifier = nn.Linear(width, n_classes)

    def forward(self, images):
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        normed = self.attention_norm(tokens)
        tokens = tokens + self.attention(normed, normed, normed, need_weights=False)[0]
        tokens = tokens + self.mlp(self.mlp_norm(tokens))
        return self.classifier(self.last_norm(tokens).mean(1))
