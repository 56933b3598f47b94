"""GEM, A-GEM and MIR example by example: loops, copies of the network and lists for memory.

Shared with the package are the network's forward pass, normalisation and the draws.
"""

import copy
import itertools

import numpy as np
import torch

from reference.gcr_algorithm import ReferenceGcr, cross_entropy


class Plain:
    """Training with a reservoir for memory; what a method does with its gradient is in ``direction``."""

    weak, views = ReferenceGcr.weak, ReferenceGcr.views

    def __init__(self, net, scenario, *, lr, capacity):
        self.net, self.scenario, self.lr, self.capacity = copy.deepcopy(net), scenario, lr, capacity
        self.kept = []  # (image, label, logits, task)
        self.n = 0

    def step(self, rows, draws, replay, stage):
        images = [self.scenario.train.pixels[row] for row in rows]
        labels = [int(self.scenario.train.labels[row]) for row in rows]
        self.net.train()
        logits = self.net(torch.stack([self.weak(x, u) for x, u in zip(images, draws.views, strict=True)]))
        loss = mean_cross_entropy(logits, labels)
        gradient = self.gradient(loss)
        self.loss = loss.item()
        if replay:
            gradient = self.direction(gradient, draws.replays[0], stage)
        start = 0
        with torch.no_grad():
            for p in self.net.parameters():
                p -= self.lr * gradient[start : start + p.numel()].reshape(p.shape)
                start += p.numel()
        for x, y, z, u in zip(images, labels, logits.detach(), draws.reservoir.tolist(), strict=True):
            self.offer((x, y, z, int(self.scenario.task_of_class[y])), u)
        return self.loss

    def gradient(self, loss):
        parameters = list(self.net.parameters())
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, retain_graph=True)])

    def offer(self, entry, u):
        self.n += 1
        if len(self.kept) < self.capacity:
            self.kept.append(entry)
        elif (slot := int(u * self.n)) < self.capacity:
            self.kept[slot] = entry

    def draw(self, asked):
        return [self.kept[min(int(index * len(self.kept)), len(self.kept) - 1)] for _, index in asked.rows.tolist()]

    def end_stage(self, draws):
        pass


class PlainAGem(Plain):
    def direction(self, gradient, asked, stage):
        drawn = self.draw(asked)
        outputs = self.net(self.views(drawn, asked.views[0], self.weak))
        reference = self.gradient(mean_cross_entropy(outputs, [entry[1] for entry in drawn]))
        slope = gradient.double() @ reference.double()
        if slope >= 0:
            return gradient
        return (gradient.double() - slope / (reference.double() @ reference.double()) * reference.double()).float()


class PlainGem(Plain):
    """Candidates go to a reservoir of their own; at a task's end classes share the buffer, by smallest draw."""

    def __init__(self, net, scenario, *, lr, capacity, margin):
        super().__init__(net, scenario, lr=lr, capacity=capacity)
        self.margin, self.candidates, self.projected = margin, [], 0

    def offer(self, entry, u):
        self.n += 1
        if len(self.candidates) < self.capacity:
            self.candidates.append(entry)
        elif (slot := int(u * self.n)) < self.capacity:
            self.candidates[slot] = entry

    def direction(self, gradient, asked, stage):
        past = []
        for task in range(stage):
            rows = [row for row, entry in enumerate(self.kept) if entry[3] == task]
            images = [self.weak(self.kept[row][0], asked.views[0][row]) for row in rows]
            outputs = self.net(torch.stack(images))
            past.append(self.gradient(mean_cross_entropy(outputs, [self.kept[row][1] for row in rows])))
        if not past:
            return gradient
        g, past = gradient.double().numpy(), torch.stack(past).double().numpy()
        if (past @ g >= 0).all():
            return gradient
        self.projected += 1
        return torch.from_numpy(g + past.T @ bounded_qp(past @ past.T, past @ g, self.margin)).float()

    def end_stage(self, draws):
        pool = self.kept + self.candidates
        classes = sorted({entry[1] for entry in pool})
        rows = {
            c: sorted((i for i, entry in enumerate(pool) if entry[1] == c), key=lambda i: draws[i]) for c in classes
        }
        shares, left = dict.fromkeys(classes, 0), min(self.capacity, len(pool))
        while left:
            for c in classes:
                if left and shares[c] < len(rows[c]):
                    shares[c] += 1
                    left -= 1
        self.kept = [pool[i] for i in sorted(i for c in classes for i in rows[c][: shares[c]])]
        self.candidates, self.n = [], 0


class PlainMir(Plain):
    def __init__(self, net, scenario, *, lr, capacity, virtual_lr, retrieved, criterion):
        super().__init__(net, scenario, lr=lr, capacity=capacity)
        self.virtual_lr, self.retrieved, self.criterion = virtual_lr, retrieved, criterion

    def direction(self, gradient, asked, stage):
        order = sorted(range(len(self.kept)), key=lambda row: asked.rows[row])  # all of memory, in random order
        drawn = [self.kept[order[place % len(order)]] for place in range(len(asked.views[0]))]
        images, labels = self.views(drawn, asked.views[0], self.weak), [entry[1] for entry in drawn]
        now, then = copy.deepcopy(self.net), copy.deepcopy(self.net)
        start = 0
        with torch.no_grad():
            for p in then.parameters():
                p -= self.virtual_lr * gradient[start : start + p.numel()].reshape(p.shape)
                start += p.numel()
            before, after = now(images), then(images)
        if self.criterion == "loss":
            score = [
                float(cross_entropy(a, y) - cross_entropy(b, y)) for a, b, y in zip(after, before, labels, strict=True)
            ]
        else:
            score = [float(((a - b) ** 2).sum()) for a, b in zip(after, before, strict=True)]
        different = range(min(len(score), len(self.kept)))
        best = sorted(different, key=lambda i: -score[i])[: self.retrieved]
        loss = mean_cross_entropy(self.net(images[best]), [labels[i] for i in best])
        self.loss += loss.item()
        return gradient + self.gradient(loss)


def mean_cross_entropy(outputs, labels):
    return sum(cross_entropy(h, y) for h, y in zip(outputs, labels, strict=True)) / len(labels)


def bounded_qp(products, slopes, low):
    """``min_v 1/2 v^T P v + q^T v`` with ``v >= low``: every set of entries that lie at the bound is tried."""
    t = len(slopes)
    best, best_value = None, np.inf
    for size in range(t + 1):
        for free in map(list, itertools.combinations(range(t), size)):
            v = np.full(t, float(low))
            if free:
                fixed = [i for i in range(t) if i not in free]
                right = -slopes[free] - products[np.ix_(free, fixed)] @ v[fixed]
                v[free] = np.linalg.lstsq(products[np.ix_(free, free)], right, rcond=None)[0]
            value = 0.5 * v @ products @ v + slopes @ v
            if (v >= low - 1e-9).all() and value < best_value:
                best, best_value = v, value
    return best
