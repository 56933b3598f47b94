"""iCaRL, Algorithms 1 to 5 of its paper, example by example and class by class."""

import copy
import math

import torch

from reference.plain_parts import PlainReplay


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
