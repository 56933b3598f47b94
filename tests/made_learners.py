"""Small networks and vectors for tests."""

import torch
from torch import nn


def mlp(n_in=8, n_out=2, width=16, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(n_in, width), nn.ReLU(), nn.Linear(width, n_out))


def blobs(labels, n=40, d=8, seed=0):
    """Vectors around a corner of their own for each label."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.randn(26, d, generator=torch.Generator().manual_seed(7)) * 3
    x = torch.cat([corners[place] + torch.randn(n, d, generator=generator) for place, _ in labels])
    return x, [label for _, label in labels for _ in range(n)]


def quick(parameters):
    return torch.optim.Adam(parameters, lr=0.02)


A, B, C = (0, "ant"), (1, "bee"), (2, "cow")


def same_weights(one, other):
    mine, theirs = one.state_dict(), other.state_dict()
    return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)


class SmallViT(nn.Module):
    """A vision transformer, as a user would bring one: patches, one encoder layer, mean of tokens, linear head."""

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
