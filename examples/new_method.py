"""A method in 20 lines: ER with an entropy bonus on new examples, against ER on equal seeds."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch.nn import functional as F

import gcr
from gcr import scenarios
from gcr.memory import Policy
from gcr.methods import Er
from gcr.methods.method import Loss, Method, Replay
from gcr.settings import setting


@dataclass(frozen=True)
class SoftEr(Method):
    name: ClassVar[str] = "soft-er"
    summary: ClassVar[str] = "experience replay with an entropy bonus on new examples"

    bonus: float = setting(0.1, "weight of the entropy of new examples", low=0.0)

    @property
    def replays(self):
        return (Replay(views=("weak",)),)  # one minibatch, one weak view of it

    def loss(self, net, new, replay, extras):
        outputs = net.each(new.images, *(old.images for old in replay))  # each minibatch has its own statistics
        logits = outputs[0].logits
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1).mean()
        value = F.cross_entropy(logits, new.labels) - self.bonus * entropy
        for old, output in zip(replay, outputs[1:], strict=True):
            value = value + F.cross_entropy(output.logits, old.labels)
        return Loss(value, logits.detach())


scenario = scenarios.load("seq-digits")
for method in (Er(), SoftEr()):
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10))
    optimizer, training = gcr.Sgd(net.parameters(), lr=0.1), gcr.Training(epochs=8)
    outcome = gcr.train(scenario, net, optimizer, method, Policy(buffer=100), seed=0, training=training)
    print(f"{method.name}: class-IL accuracy {outcome.class_il['accuracy']:.1f}")
