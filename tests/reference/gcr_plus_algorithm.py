"""GCR+, example by example: GCR's terms with a softmax among some classes, a balanced memory, an EMA of all tensors.

Views, sampling and the contrastive term are those of the reference of GCR. The EMA is a dict of tensors.
"""

import copy

import torch

from reference.gcr_algorithm import ReferenceGcr, cross_entropy


class ReferenceGcrPlus(ReferenceGcr):
    def __init__(self, net, scenario, method, **settings):
        weights = {name: getattr(method, name) for name in ("alpha", "beta", "gamma")}
        super().__init__(net, scenario, **weights, **settings)
        self.method = method
        self.ema = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        self.seen, self.steps, self.restarts = set(), 0, 0

    def step(self, rows, draws, replay):
        images = [self.scenario.train.pixels[row] for row in rows]
        labels = [int(self.scenario.train.labels[row]) for row in rows]
        replays = [[self.sample(*u) for u in asked.rows.tolist()] for asked in draws.replays] if replay else []
        met = set(labels) | {entry[1] for drawn in replays for entry in drawn}
        if met - self.seen and self.method.restart == "new classes":
            self.steps = 0
            self.restarts += 1
        self.seen |= met
        self.net.train()
        logits = self.net(torch.stack([self.weak(x, u) for x, u in zip(images, draws.views, strict=True)]))
        unseen = set(range(logits.shape[1])) - self.seen
        rivals = sorted(set(labels) | unseen) if self.method.softmax == "own" else list(range(logits.shape[1]))
        terms = [cross_entropy(h[rivals], rivals.index(y)) for h, y in zip(logits, labels, strict=True)]
        loss = sum(terms) / len(terms)
        if replay:
            loss = loss + self.replay_loss(*replays, draws)
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

    def replay_loss(self, distil, label, contrast, draws):
        of_distil, of_label, of_contrast = (asked.views for asked in draws.replays)
        views = self.views(distil, of_distil[0], self.weak)
        outputs = self.net(views)
        value = self.alpha * sum(((h - d[2]) ** 2).mean() for h, d in zip(outputs, distil, strict=True)) / len(distil)
        if self.method.teacher:
            by_ema = self.averaged_net()(views).detach()
            distances = [((h - z) ** 2).mean() for h, z in zip(outputs, by_ema, strict=True)]
            value = value + self.method.teacher * sum(distances) / len(distances)
        make = self.weak if self.method.label_view == "weak" else self.strong
        outputs = self.net(self.views(label, of_label[0], make))
        terms = [cross_entropy(h, d[1]) for h, d in zip(outputs, label, strict=True)]
        value = value + self.beta * sum(terms) / len(terms)
        both = torch.cat([self.views(contrast, u, self.strong) for u in of_contrast])
        terms = self.contrast_terms(self.net.features(both), [d[1] for d in contrast])
        return value + self.gamma * sum(terms) / len(terms)

    def averaged_net(self):
        net = copy.deepcopy(self.net)
        net.load_state_dict(self.ema)
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
