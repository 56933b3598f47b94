"""Replay from a reservoir, example by example: what the plain versions of several methods have in common.

Each method is a subclass with ``loss``; weak views, uniform sampling, SGD and the reservoir are written out here.
Shared with the package is the network's forward pass.
"""

import copy
from itertools import accumulate

import torch

from reference.gcr_algorithm import cross_entropy


def mean(terms, weights=None):
    terms = list(terms)
    weights = weights or [1.0] * len(terms)
    return sum(w * t for w, t in zip(weights, terms, strict=True)) / sum(weights)


class PlainReplay:
    def __init__(self, net, scenario, *, lr, capacity):
        self.net, self.scenario, self.lr, self.capacity = copy.deepcopy(net), scenario, lr, capacity
        self.kept = []  # (image, label, logits)
        self.weights = [1.0] * capacity  # of each slot
        self.n = 0

    def step(self, draws, replay):
        """One step on the draws' rows; returns the loss."""
        rows = draws.rows.tolist()
        images = [self.scenario.train.pixels[row] for row in rows]
        labels = [int(self.scenario.train.labels[row]) for row in rows]
        self.net.train()
        new = torch.stack([self.weak(x, u) for x, u in zip(images, draws.views, strict=True)])
        loss, logits = self.loss_of(new, labels, [self.drawn(asked) for asked in draws.replays] if replay else [])
        gradients = torch.autograd.grad(loss, list(self.net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.net.parameters(), gradients, strict=True):
                parameter -= self.lr * gradient
        self.after_step()
        self.remember(images, labels, logits.detach(), draws)
        return loss.item()

    def drawn(self, asked):
        """A replay minibatch: its views, its entries and their weights."""
        slots = [min(int(u * len(self.kept)), len(self.kept) - 1) for u in asked.rows[:, 1].tolist()]
        entries = [self.kept[slot] for slot in slots]
        views = torch.stack([self.weak(e[0], u) for e, u in zip(entries, asked.views[0], strict=True)])
        return views, entries, [self.weights[slot] for slot in slots]

    def loss_of(self, new, labels, replays):
        """Of methods with one replay minibatch of which they need views, labels and weights."""
        for old, entries, weights in replays:
            return self.loss(new, labels, old, [entry[1] for entry in entries], weights)
        return self.loss(new, labels, None, [], [])

    def loss(self, new, labels, old, old_labels, weights):
        """ER: one pass over all, new and replayed examples in proportion to their numbers."""
        logits = self.net(new if old is None else torch.cat([new, old]))
        terms = [cross_entropy(h, y) for h, y in zip(logits, labels + old_labels, strict=True)]
        b, r = len(labels), len(old_labels)
        value = mean(terms[:b])
        if r:
            value = (b * value + r * mean(terms[b:], weights)) / (b + r)
        return value, logits[:b]

    def after_step(self):
        pass

    def remember(self, images, labels, logits, draws):
        for x, y, z, u in zip(images, labels, logits, draws.reservoir.tolist(), strict=True):
            self.n += 1
            if len(self.kept) < self.capacity:
                self.kept.append((x, y, z))
            elif (slot := int(u * self.n)) < self.capacity:
                self.kept[slot] = (x, y, z)

    def weak(self, image, u):
        views = self.scenario.views
        c, h, w = image.shape
        padded = torch.zeros(c, h + 2 * views.pad, w + 2 * views.pad)
        padded[:, views.pad : views.pad + h, views.pad : views.pad + w] = image.float()
        top, left = (int(v * (2 * views.pad + 1)) for v in u[:2])
        crop = padded[:, top : top + h, left : left + w]
        if views.flip and u[2] >= 0.5:
            crop = crop.flip(2)
        return self.normalised(crop)

    def normalised(self, image):
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.scenario.views.mean, self.scenario.views.std))
        return (image.float() / 255 - mean) / std


# GSS-Greedy, Algorithm 2 of Aljundi et al., example by example, with gradients from automatic differentiation.
# Examples of a batch decide by the scores from before it; a later one overwrites an earlier.


class PlainGss(PlainReplay):
    """Entries of ``kept`` are (image, label, logits, score)."""

    whole = False  # gradients of the whole network, or of the head

    def __init__(self, net, scenario, **settings):
        super().__init__(net, scenario, **settings)
        self.refused_batches = self.replaced = self.refused = 0

    def remember(self, images, labels, logits, draws):
        if draws.admission is None:
            for entry in zip(images, labels, logits, strict=True):
                self.append((*entry, 0.1))
            return
        compared = [self.kept[int(u * len(self.kept))] for u in draws.admission.compared.tolist()]
        self.net.eval()
        others = [self.gradient([entry[0]], [entry[1]]) for entry in compared]
        batch_score = self.score(self.gradient(images, labels), others)
        before = [entry[3] for entry in self.kept]
        self.refused_batches += batch_score >= 1
        for x, y, z, (slot, coin) in zip(images, labels, logits, draws.admission.slots.tolist(), strict=True):
            c = self.score(self.gradient([x], [y]), others)
            if self.append((x, y, z, c)) or batch_score >= 1:
                continue
            i = next(i for i, below in enumerate(accumulate(before)) if slot * sum(before) < below)
            s = before[i]
            if coin < s / (s + c):
                self.kept[i] = (x, y, z, c)
                self.replaced += 1
            else:
                self.refused += 1

    def append(self, entry):
        room = len(self.kept) < self.capacity
        if room:
            self.kept.append(entry)
        return room

    def gradient(self, images, labels):
        """Of the mean cross-entropy."""
        logits = self.net(torch.stack([self.normalised(x) for x in images]))
        loss = sum(cross_entropy(h, y) for h, y in zip(logits, labels, strict=True)) / len(labels)
        gradients = torch.autograd.grad(loss, list((self.net if self.whole else self.net.head).parameters()))
        return torch.cat([g.flatten() for g in gradients]).double()

    def score(self, gradient, others):
        return 1 + max(float(gradient @ other / (gradient.norm() * other.norm())) for other in others)
