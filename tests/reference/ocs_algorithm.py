"""Online coreset selection, Algorithm 1 of its paper, with the gradient of every example taken alone."""

import torch

from reference.plain_parts import PlainReplay, cross_entropy


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
