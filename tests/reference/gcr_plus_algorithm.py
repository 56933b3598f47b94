"""GCR+, example by example: one draw for all terms, a softmax among some classes, an old network, an EMA.

Views, sampling and the contrastive term are those of the reference of GCR. Both copies are dicts of tensors.
"""

import copy

import torch

from reference.gcr_algorithm import ReferenceGcr, cross_entropy


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
