"""GSS-Greedy, Algorithm 2 of Aljundi et al., example by example, with gradients from automatic
differentiation. Examples of a batch decide by the scores from before it; a later one overwrites an earlier."""

from itertools import accumulate

import torch

from reference.gcr_algorithm import cross_entropy
from reference.plain_replay import PlainReplay


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
