"""ER, DER, DER++ and fine-tuning step by step against their formulas, with passes of their own for every minibatch."""

import pytest
import torch
from conftest import make_scenario
from named import Training, train
from reference.driving import side_by_side
from reference.gcr_algorithm import cross_entropy
from reference.plain_replay import PlainReplay, mean

from gcr.memory import Policy
from gcr.methods import Der, DerPlusPlus, Er, Finetune
from gcr.models import build


class PlainDer(PlainReplay):
    ALPHA, BETA = 0.4, None

    def loss_of(self, new, labels, replays):
        logits = self.net(new)
        value = mean(cross_entropy(h, y) for h, y in zip(logits, labels, strict=True))
        outputs = [self.net(old) for old, _, _ in replays]
        if replays:
            _, entries, weights = replays[0]
            terms = [((h - e[2]) ** 2).mean() for h, e in zip(outputs[0], entries, strict=True)]
            value = value + self.ALPHA * mean(terms, weights)
        if replays and self.BETA:
            _, entries, weights = replays[1]
            terms = [cross_entropy(h, e[1]) for h, e in zip(outputs[1], entries, strict=True)]
            value = value + self.BETA * mean(terms, weights)
        return value, logits


class PlainDerPlusPlus(PlainDer):
    BETA = 0.7


class PlainSeparateEr(PlainReplay):
    def loss(self, new, labels, old, old_labels, weights):
        logits = self.net(new)
        value = mean(cross_entropy(h, y) for h, y in zip(logits, labels, strict=True))
        if old is not None:
            terms = [cross_entropy(h, y) for h, y in zip(self.net(old), old_labels, strict=True)]
            value = value + mean(terms, weights)
        return value, logits


@pytest.mark.parametrize("model", ["mlp", "convnet"])
@pytest.mark.parametrize(
    ("method", "plain"),
    [
        (Er(), PlainReplay),
        (Er(forward="separate"), PlainSeparateEr),
        (Der(alpha=0.4), PlainDer),
        (DerPlusPlus(alpha=0.4, beta=0.7), PlainDerPlusPlus),
    ],
    ids=["er", "er separate", "der", "der++"],
)
def test_twenty_steps_equal_the_formulas(method, plain, model):
    side_by_side(method, plain, model)


def test_without_memory_all_that_is_left_is_cross_entropy_on_new_examples():
    """Fine-tuning is DER whose replay weighs nothing, on a network without batch statistics."""
    scenario, training = make_scenario(), Training(epochs=1, lr=0.05, batch=8)

    ours = train(scenario, "mlp", Finetune(), None, training, 0).state.net
    other = train(scenario, "mlp", Der(alpha=0.0), Policy(buffer=12, replay_batch=8), training, 0).state.net
    untrained = build("mlp", scenario.image_shape, 6, seed=0)
    for a, b, c in zip(ours.parameters(), other.parameters(), untrained.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
        assert not torch.equal(a, c)
