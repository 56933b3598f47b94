"""What the plain implementations of replay methods share: weak views, reservoir and sampling (those of the reference of
GCR), SGD, budgets per class, and the comparison of their memory, a list, with the package's."""

import pytest
import torch

from reference.driving import same_rows
from reference.gcr_algorithm import ReferenceGcr, cross_entropy

__all__ = ["PlainReplay", "cross_entropy", "same_memory"]


class PlainReplay(ReferenceGcr):
    def __init__(self, net, scenario, *, lr, capacity, replay_size):
        super().__init__(net, scenario, alpha=0, beta=0, gamma=0, lr=lr, capacity=capacity, replay_size=replay_size)
        self.stage = 0

    def examples(self, rows):
        """Images and labels of training rows."""
        return [self.scenario.train.pixels[r] for r in rows], [int(self.scenario.train.labels[r]) for r in rows]

    def drawn(self, draws, replay):
        """The replayed entries and their views."""
        if not replay:
            return [], []
        (asked,) = draws.replays
        entries = [self.sample(*u) for u in asked.rows.tolist()]
        return entries, [self.weak(e[0], u) for e, u in zip(entries, asked.views[0], strict=True)]

    def descend(self, loss, decay=0.0):
        parameters = list(self.net.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter -= self.lr * (gradient + decay * parameter)

    def task(self, label):
        return next(t for t, classes in enumerate(self.scenario.tasks) if label in classes)

    def keep_per_class(self, choose):
        """As many of every class as there is room for; ``choose(entries, share)`` gives positions among them."""
        pool = self.kept + self.candidates
        classes = sorted({entry[1] for entry in pool})
        shares, left = dict.fromkeys(classes, 0), min(self.capacity, len(pool))
        while left:
            for c in classes:
                if left and shares[c] < sum(entry[1] == c for entry in pool):
                    shares[c] += 1
                    left -= 1
        chosen = []
        for c in classes:
            rows = [i for i, entry in enumerate(pool) if entry[1] == c]
            chosen += [rows[k] for k in choose(rows, shares[c])]
        self.kept = [(*pool[i][:3], 1.0) for i in sorted(chosen)]
        self.candidates, self.n_t = [], 0


def same_memory(memory, plain):
    for start, filled, entries in ((0, memory.kept, plain.kept), (memory.capacity, memory.pooled, plain.candidates)):
        assert int(filled) == len(entries)
        same_rows(memory, entries, start)
        weights = memory.columns["weight"][start : start + len(entries)].tolist()
        assert weights == pytest.approx([entry[3] for entry in entries], abs=1e-5)
    assert int(memory.seen) == plain.n
    assert int(memory.seen_since) == plain.n_t
