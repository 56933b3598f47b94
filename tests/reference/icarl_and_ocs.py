"""iCaRL and OCS, the algorithms of their papers, example by example, and what both share with the reference of GCR."""

import copy
import math

import torch

from reference.gcr_algorithm import ReferenceGcr, cross_entropy


class PlainReplay(ReferenceGcr):
    """Weak views, reservoir and sampling are those of the reference of GCR; SGD and budgets per class are added."""

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


# --- iCaRL, Algorithms 1 to 5 of its paper, example by example and class by class


class PlainIcarl(PlainReplay):
    def __init__(self, net, scenario, *, decay, over_classes, lengths="unit", **rest):
        super().__init__(net, scenario, **rest)
        self.decay, self.over_classes, self.lengths = decay, over_classes, lengths
        self.teacher, self.known, self.met = None, set(), set()
        self.means = {}

    def step(self, rows, draws, replay):
        images, labels = self.examples(rows)
        self.met |= set(labels)
        new = [self.weak(x, u) for x, u in zip(images, draws.views, strict=True)]
        entries, old = self.drawn(draws, replay)
        self.net.train()
        logits = self.net(torch.stack(new + old))
        b, n_classes = len(new), logits.shape[1]
        values = []
        for view, label, h in zip(new + old, labels + [e[1] for e in entries], logits, strict=True):
            value = 0.0
            for c in range(n_classes):
                target = self.answer(view)[c] if c in self.known else float(c == label)
                share = 1 / (1 + torch.exp(-h[c]))
                value = value - target * torch.log(share) - (1 - target) * torch.log(1 - share)
            values.append(value / n_classes if self.over_classes == "mean" else value)
        loss = sum(values[:b]) / b
        exemplars = [(e[3], v) for e, v in zip(entries, values[b:], strict=True) if e[1] in self.known]
        if exemplars:
            m = len(exemplars)
            weighted = sum(w * v for w, v in exemplars) / sum(w for w, _ in exemplars)
            loss = (b * loss + m * weighted) / (b + m)
        self.descend(loss, self.decay)
        for x, y, z, u in zip(images, labels, logits[:b].detach(), draws.reservoir.tolist(), strict=True):
            self.reservoir((x, y, z, 1.0), u)
        return loss.item()

    @torch.no_grad()
    def answer(self, view):
        return [1 / (1 + math.exp(-float(h))) for h in self.teacher(view[None])[0]]

    @torch.no_grad()
    def feature(self, image):
        features = self.net.features(self.scenario.views.plain(image[None]))[0]
        return features / features.norm() if self.lengths == "unit" else features

    def herd(self):
        """Algorithms 4 and 5: lists of exemplars, of which earlier classes keep the beginning."""
        self.net.eval()
        classes = sorted({e[1] for e in self.kept + self.candidates})
        shares, left = dict.fromkeys(classes, 0), self.capacity
        while left and any(shares[c] < self.count(c) for c in classes):
            for c in classes:
                if left and shares[c] < self.count(c):
                    shares[c] += 1
                    left -= 1
        kept = []
        for c in classes:
            old = [e for e in self.kept if e[1] == c]
            kept += old[: shares[c]] or self.chosen([e for e in self.candidates if e[1] == c], shares[c])
        self.kept = [(*e[:3], 1.0) for e in kept]
        self.candidates, self.n_t = [], 0

    def count(self, c):
        return sum(e[1] == c for e in self.kept + self.candidates)

    def chosen(self, entries, share):
        features = [self.feature(e[0]).double() for e in entries]
        features = [f / f.norm() for f in features]
        mean = sum(features) / len(features)
        picked = []
        for k in range(1, share + 1):
            before = sum((features[i] for i in picked), torch.zeros_like(mean))
            open_rows = [i for i in range(len(entries)) if i not in picked]
            picked.append(min(open_rows, key=lambda i: float((mean - (features[i] + before) / k).norm())))
        return [entries[i] for i in picked]

    def end_stage(self):
        self.net.eval()
        self.teacher, self.known = copy.deepcopy(self.net), set(self.met)
        self.means = {}
        for c in sorted({e[1] for e in self.kept}):
            mean = sum(e[3] * self.feature(e[0]) for e in self.kept if e[1] == c)
            weight = sum(e[3] for e in self.kept if e[1] == c)
            self.means[c] = mean / (mean.norm() if self.lengths == "unit" else weight)

    def distance(self, image, c):
        return float((self.feature(image) - self.means[c]).norm())


# --- Online coreset selection, Algorithm 1 of its paper, with the gradient of every example taken alone


def cosine(a, b):
    lengths = float(a.norm() * b.norm())
    return float(a @ b) / lengths if lengths > 0 else 0.0


class PlainOcs(PlainReplay):
    def __init__(self, net, scenario, *, number, replay_weight, multipliers, **rest):
        super().__init__(net, scenario, **rest)
        self.number, self.replay_weight, self.multipliers = number, replay_weight, multipliers
        self.chosen = []

    def step(self, rows, draws, replay):
        images, labels = self.examples(rows)
        new = [self.weak(x, u) for x, u in zip(images, draws.views, strict=True)]
        entries, old = self.drawn(draws, replay)
        earlier = [self.task(e[1]) < self.stage for e in entries]
        remembered = [
            e[3] * self.gradient(view, e[1]) for e, view, is_old in zip(entries, old, earlier, strict=True) if is_old
        ]
        scores = self.scores([self.gradient(view, y) for view, y in zip(new, labels, strict=True)], remembered)
        self.chosen = sorted(sorted(range(len(new)), key=lambda i: -scores[i])[: self.number])
        self.net.train()
        logits = self.net(torch.stack([new[i] for i in self.chosen]))
        terms = [cross_entropy(h, labels[i]) for h, i in zip(logits, self.chosen, strict=True)]
        loss = sum(terms) / len(terms)
        if replay:
            outputs = self.net(torch.stack(old))
            kept = [(e[3], cross_entropy(h, e[1])) for h, e, o in zip(outputs, entries, earlier, strict=True) if o]
            if kept:
                loss = loss + self.replay_weight * sum(w * v for w, v in kept) / sum(w for w, _ in kept)
        self.descend(loss)
        for z, i in zip(logits.detach(), self.chosen, strict=True):
            self.reservoir((images[i], labels[i], z, 1.0), float(draws.reservoir[i]))
        return loss.item()

    def gradient(self, view, label):
        """Of one example's cross-entropy by the last layer, in evaluation mode."""
        self.net.eval()
        loss = cross_entropy(self.net(view[None])[0], label)
        by_weight, by_bias = torch.autograd.grad(loss, [self.net.head.weight, self.net.head.bias])
        return torch.cat([by_weight, by_bias[:, None]], 1).flatten().double()

    def scores(self, gradients, remembered):
        mean, n = sum(gradients) / len(gradients), len(gradients)
        by_similarity, by_diversity, by_affinity = self.multipliers
        scores = []
        for i, g in enumerate(gradients):
            diversity = -sum(cosine(g, other) for j, other in enumerate(gradients) if j != i) / max(n - 1, 1)
            affinity = cosine(g, sum(remembered)) if remembered else 0.0
            scores.append(by_similarity * cosine(g, mean) + by_diversity * diversity + by_affinity * affinity)
        return scores

    def select(self):
        pool = self.kept + self.candidates
        gradients = [self.gradient(self.scenario.views.plain(e[0][None])[0], e[1]) for e in pool]
        scores = self.scores(gradients, gradients[: len(self.kept)])

        def choose(rows, share):
            return sorted(range(len(rows)), key=lambda k: -scores[rows[k]])[:share]

        self.keep_per_class(choose)
