"""GCR, Algorithms 1 to 3 of the paper, and GCR+, example by example and loop by loop.

Weak views, sampling, losses, SGD, reservoir and GradApprox are written out again, in the plainest way. Shared with
the package are the network's forward pass, normalisation, and the strong views of one image at a time, which
tests/augment checks alone.
"""

import copy
import math

import numpy as np
import torch
from scipy.optimize import nnls


class ReferenceGcr:
    def __init__(self, net, scenario, *, alpha, beta, gamma, lr, capacity, replay_size, contrast="features", ridge=0.5):
        self.net, self.scenario, self.contrast = copy.deepcopy(net), scenario, contrast
        self.alpha, self.beta, self.gamma, self.lr = alpha, beta, gamma, lr
        self.capacity, self.replay_size, self.temperature, self.ridge = capacity, replay_size, 0.07, ridge
        self.kept = []  # (image, label, logits, weight)
        self.candidates = []
        self.n = self.n_t = 0

    def step(self, rows, draws, replay):
        images = [self.scenario.train.pixels[row] for row in rows]
        labels = [int(self.scenario.train.labels[row]) for row in rows]
        self.net.train()
        logits = self.net(torch.stack([self.weak(x, u) for x, u in zip(images, draws.views, strict=True)]))
        loss = sum(cross_entropy(h, y) for h, y in zip(logits, labels, strict=True)) / len(labels)
        if replay:
            distil, label, contrast = ([self.sample(*u) for u in asked.rows.tolist()] for asked in draws.replays)
            outputs = self.net(self.views(distil, draws.replays[0].views[0], self.weak))
            terms = [float(d[3]) * ((h - d[2]) ** 2).mean() for h, d in zip(outputs, distil, strict=True)]
            loss = loss + self.alpha * sum(terms) / sum(d[3] for d in distil)
            outputs = self.net(self.views(label, draws.replays[1].views[0], self.weak))
            terms = [float(d[3]) * cross_entropy(h, d[1]) for h, d in zip(outputs, label, strict=True)]
            loss = loss + self.beta * sum(terms) / sum(d[3] for d in label)
            both = torch.cat([self.views(contrast, u, self.strong) for u in draws.replays[2].views])
            outputs = self.net(both) if self.contrast == "logits" else self.net.features(both)
            terms = self.contrast_terms(outputs, [d[1] for d in contrast])
            weights = [d[3] for d in contrast]
            loss = loss + self.gamma * sum(w * t for w, t in zip(weights, terms, strict=True)) / sum(weights)
        gradients = torch.autograd.grad(loss, list(self.net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.net.parameters(), gradients, strict=True):
                parameter -= self.lr * gradient
        for x, y, z, u in zip(images, labels, logits.detach(), draws.reservoir.tolist(), strict=True):
            self.reservoir((x, y, z, 1.0), u)
        return loss.item()

    def sample(self, coin, index):
        """Algorithm 3."""
        from_candidates = (coin < self.n_t / self.n and self.candidates) or not self.kept
        source = self.candidates if from_candidates else self.kept
        return source[min(int(index * len(source)), len(source) - 1)]

    def reservoir(self, entry, u):
        self.n += 1
        self.n_t += 1
        if len(self.candidates) < self.capacity:
            self.candidates.append(entry)
        elif (slot := int(u * self.n_t)) < self.capacity:
            self.candidates[slot] = entry

    def grad_approx(self):
        """Algorithm 2 on explicit last-layer gradients; classes share the buffer equally."""
        pool = self.kept + self.candidates
        self.net.eval()
        gradients = []
        with torch.no_grad():
            for x, y, z, _ in pool:
                features = self.net.features(self.scenario.views.plain(x[None]))[0]
                h = self.net.head(features)
                by_label = torch.softmax(h, 0)
                by_label[y] -= 1
                residual = self.alpha * 2 / len(h) * (h - z) + self.beta * by_label
                gradients.append(torch.outer(residual, torch.cat([features, torch.ones(1)])).flatten().double().numpy())
        classes = sorted({y for _, y, _, _ in pool})
        shares, left = dict.fromkeys(classes, 0), min(self.capacity, len(pool))
        while left:  # one place at a time, to every class that has examples left
            for c in classes:
                if left and shares[c] < sum(entry[1] == c for entry in pool):
                    shares[c] += 1
                    left -= 1
        kept = {}
        for c in classes:
            rows = [i for i, entry in enumerate(pool) if entry[1] == c]
            share = shares[c]
            if len(rows) <= share:
                kept |= {i: pool[i][3] for i in rows}
                continue
            g = np.stack([gradients[i] for i in rows])
            old = np.array([pool[i][3] for i in rows])
            support, weights = matching_pursuit(g, g.T @ old, share, self.ridge)
            assert len(support) == share, "pick a case without top-up"
            kept |= {rows[i]: float(weights[i]) for i in support}
        self.kept = [(*pool[i][:3], kept[i]) for i in sorted(kept)]
        self.candidates, self.n_t = [], 0

    def views(self, drawn, uniforms, make):
        return torch.stack([make(d[0], u) for d, u in zip(drawn, uniforms, strict=True)])

    def weak(self, image, u):
        pad = self.scenario.views.pad
        c, h, w = image.shape
        padded = torch.zeros(c, h + 2 * pad, w + 2 * pad)
        padded[:, pad : pad + h, pad : pad + w] = image.float()
        top, left = (int(v * (2 * pad + 1)) for v in u[:2])
        crop = padded[:, top : top + h, left : left + w]
        if self.scenario.views.flip and u[2] >= 0.5:
            crop = crop.flip(2)
        mean, std = (torch.tensor(v)[:, None, None] for v in (self.scenario.views.mean, self.scenario.views.std))
        return (crop / 255 - mean) / std

    def strong(self, image, u):
        return self.scenario.views.strong(image[None], u[None])[0]  # compared with plain code in tests/augment

    def contrast_terms(self, outputs, labels):
        z = [h / h.norm() for h in outputs]
        b, both = len(labels), labels + labels
        anchors = []
        for i in range(2 * b):
            others = [j for j in range(2 * b) if j != i]
            total = sum(torch.exp(z[i] @ z[j] / self.temperature) for j in others)
            positives = [j for j in others if both[j] == both[i]]
            shares = [torch.log(torch.exp(z[i] @ z[j] / self.temperature) / total) for j in positives]
            anchors.append(-sum(shares) / len(positives))
        return [anchors[i] + anchors[i + b] for i in range(b)]


def cross_entropy(h, y):
    top = h.max()
    return top + torch.log(sum(torch.exp(v - top) for v in h)) - h[y]


def hand_supcon(first, second, labels, temperature):
    """The same loss with numbers only, for hand-made vectors."""
    z = [np.asarray(v, float) / np.linalg.norm(v) for v in [*first, *second]]
    both, b = [*labels, *labels], len(labels)
    values = [0.0] * b
    for i in range(2 * b):
        others = [j for j in range(2 * b) if j != i]
        total = sum(math.exp(z[i] @ z[j] / temperature) for j in others)
        positives = [j for j in others if both[j] == both[i]]
        values[i % b] -= sum(math.log(math.exp(z[i] @ z[j] / temperature) / total) for j in positives) / len(positives)
    return values


# GCR+, example by example: one draw for all terms, a softmax among some classes, an old network, an EMA. Views,
# sampling and the contrastive term are those of the reference of GCR. Both copies are dicts of tensors.


class ReferenceGcrPlus(ReferenceGcr):
    def __init__(self, net, scenario, method, few_steps, **settings):
        weights = {name: getattr(method, name) for name in ("alpha", "beta", "gamma")}
        super().__init__(net, scenario, **weights, **settings)
        self.method, self.few_steps = method, few_steps
        self.ema = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        self.old, self.known = None, []
        self.seen, self.steps, self.restarts = set(), 0, 0

    def step(self, rows, draws, replay):
        images = [self.scenario.train.pixels[row] for row in rows]
        labels = [int(self.scenario.train.labels[row]) for row in rows]
        drawn = [self.sample(*u) for u in draws.replays[0].rows.tolist()] if replay else []
        met = set(labels) | {entry[1] for entry in drawn}
        if met - self.seen:
            if self.steps >= self.few_steps:
                self.old, self.known = self.ema, sorted(self.seen)
            self.steps = 0
            self.restarts += 1
        self.seen |= met
        self.net.train()
        views = torch.stack([self.weak(x, u) for x, u in zip(images, draws.views, strict=True)])
        logits = self.net(views)
        unseen = set(range(logits.shape[1])) - self.seen
        rivals = sorted(set(labels) | unseen) if self.method.softmax == "own" else list(range(logits.shape[1]))
        terms = [cross_entropy(h[rivals], rivals.index(y)) for h, y in zip(logits, labels, strict=True)]
        loss = sum(terms) / len(terms)
        if replay:
            loss = loss + self.replay_loss(drawn, *draws.replays[0].views)
        if replay and self.known:
            old = self.copy_of(self.old)(views).detach()
            distances = [((h - t)[self.known] ** 2).sum() for h, t in zip(logits, old, strict=True)]
            loss = loss + self.method.keep * sum(distances) / len(distances)
        gradients = torch.autograd.grad(loss, list(self.net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(self.net.parameters(), gradients, strict=True):
                parameter -= self.lr * gradient
        self.steps += 1
        a = min(max(1 - 1 / (self.method.window * self.steps), 0), self.method.decay)
        self.ema = {name: a * self.ema[name] + (1 - a) * now for name, now in self.net.state_dict().items()}
        priorities = draws.reservoir.float().tolist()
        self.take(list(zip(images, labels, logits.detach(), [1.0] * len(labels), priorities, strict=True)))
        return loss.item()

    def replay_loss(self, drawn, of_weak, of_mild):
        weak, mild = self.views(drawn, of_weak, self.weak), self.views(drawn, of_mild, self.mild)
        labels, features = [d[1] for d in drawn], [self.net.features(weak), self.net.features(mild)]
        h_weak, h_mild = map(self.net.head, features)
        distances = [((h - d[2]) ** 2).sum() for h, d in zip(h_weak, drawn, strict=True)]
        terms = [cross_entropy(h, y) for outputs in (h_weak, h_mild) for h, y in zip(outputs, labels, strict=True)]
        contrast = self.contrast_terms(torch.cat(features), labels)
        return (self.alpha * sum(distances) + self.beta * sum(terms) / 2 + self.gamma * sum(contrast)) / len(drawn)

    def mild(self, image, u):
        return self.scenario.views.mild(image[None], u[None])[0]

    def averaged_net(self):
        return self.copy_of(self.ema)

    def copy_of(self, tensors):
        net = copy.deepcopy(self.net)
        net.load_state_dict(tensors)
        return net.eval()

    def take(self, entries):
        """Of remembered and new entries those of lowest (rank in their class, priority) stay; free slots are filled in
        turn."""
        everything, order = self.kept + entries, []
        for c in {entry[1] for entry in everything}:
            members = sorted((entry[4], place) for place, entry in enumerate(everything) if entry[1] == c)
            order += [(rank, priority, place) for rank, (priority, place) in enumerate(members)]
        stays = {place for _, _, place in sorted(order)[: self.capacity]}
        entering = [everything[place] for place in range(len(self.kept), len(everything)) if place in stays]
        for slot in range(self.capacity):
            if slot < len(self.kept) and slot in stays:
                continue
            if entering and slot < len(self.kept):
                self.kept[slot] = entering.pop(0)
            elif entering:
                self.kept.append(entering.pop(0))
        self.n += len(entries)


# --- Textbook non-negative matching pursuit on explicit gradient vectors, with scipy's NNLS inside


def matching_pursuit(gradients, target, budget, ridge, tolerance=0.0):
    """[n, d] gradients, [d] target -> (support in order of entry, weights [n]) before any top-up."""
    n = len(gradients)
    weights, support = np.zeros(n), []
    while len(support) < min(budget, n):
        if objective(gradients, target, weights, ridge) <= tolerance:
            break
        correlation = gradients @ (target - gradients.T @ weights)
        correlation[support] = -np.inf
        best = int(np.argmax(correlation))
        if correlation[best] <= 1e-12 * np.abs(gradients @ target).max():
            break
        support = [*support, best]
        stacked = np.vstack([gradients[support].T, np.sqrt(ridge) * np.eye(len(support))])
        solved, _ = nnls(stacked, np.concatenate([target, np.zeros(len(support))]))
        weights = np.zeros(n)
        weights[support] = solved
        support = [row for row in support if weights[row] > 0]
        if best not in support:
            break
    return support, weights


def objective(gradients, target, weights, ridge):
    """L_sub of the paper."""
    return float(np.sum((target - gradients.T @ weights) ** 2) + ridge * np.sum(weights**2))
