"""Small networks and vectors for tests of learners."""

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
