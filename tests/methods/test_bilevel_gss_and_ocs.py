"""The methods ``bilevel``, ``gss`` and ``ocs`` as wholes. Their selectors have their own tests."""

import pytest
import torch
from conftest import make_scenario
from named import Training, fresh_state, one_step, train
from reference.driving import drive, fresh, same_memory, same_network, side_by_side
from reference.icarl_and_ocs import PlainOcs, cosine
from reference.plain_replay import PlainGss, PlainReplay

from gcr.experiments.experiment import compose
from gcr.memory import GssGreedy, Policy
from gcr.methods import Batch, Bilevel, Er, Gss, Ocs
from gcr.models import build
from gcr.select import SELECTORS
from gcr.select import Ocs as OcsSelector
from gcr.training.randomness import EpochDraws
from gcr.training.reselect import reselect
from gcr.training.step import draw_plan

# --- Bilevel: ER's loss with the selector `bilevel`

BilevelSelector = next(selector for selector in SELECTORS if selector.name == "bilevel")


@pytest.mark.parametrize("model", ["mlp", "convnet"])
def test_the_loss_is_that_of_plain_weighted_replay(model):
    side_by_side(Bilevel(), PlainReplay, model)


def test_its_own_selector_is_bilevel():
    experiment = compose("seq-digits", "bilevel")
    assert isinstance(experiment.memory.selector, BilevelSelector)
    assert experiment.label == "bilevel"


def test_it_is_er_with_the_selector():
    memory = Policy(buffer=12, selector=BilevelSelector(), replay_batch=8)
    ours, er = (
        train(make_scenario(), "mlp", method(), memory, Training(epochs=1, lr=0.05, batch=8), 0)
        for method in (Bilevel, Er)
    )
    assert len(ours.state.selections) == 3
    for (name, a), (_, b) in zip(ours.state.tensors(), er.state.tensors(), strict=True):
        assert torch.equal(a, b), name


# --- GSS-Greedy as a whole against Algorithm 2 written out, example by example


class PlainWholeGss(PlainGss):
    whole = True


@pytest.mark.parametrize("gradients", ["last-layer", "whole"])
@pytest.mark.parametrize(("model", "capacity"), [("mlp", 12), ("convnet", 12), ("mlp", 5)])
def test_twenty_steps_equal_the_plain_version(model, capacity, gradients):
    def same_scores(state, plain):
        scores = torch.tensor([entry[3] for entry in plain.kept])
        torch.testing.assert_close(state.memory.columns["score"][: len(scores)], scores, atol=1e-5, rtol=1e-5)

    policy = {"capacity": capacity, "selector": GssGreedy(compared=2, gradients=gradients)}
    _, plain = side_by_side(
        Gss(), PlainGss if gradients == "last-layer" else PlainWholeGss, model, same_scores, **policy
    )
    assert plain.refused_batches > 0
    assert plain.replaced > 0
    assert plain.refused > 0


def test_its_own_policy_is_gss_greedy():
    experiment = compose("seq-digits", "gss", overrides={"compared": "10"})
    assert experiment.memory.selector == GssGreedy(compared=10)
    assert experiment.label == "gss"
    assert compose("seq-digits", "er", selector="gss-greedy").label == "er + gss-greedy"


# --- OCS against its algorithm with every example's gradient taken alone, and its choice under single criteria


@pytest.mark.parametrize(("model", "tau"), [("mlp", 2.0), ("convnet", 1000.0)])
def test_two_tasks_equal_the_algorithm_of_the_paper(model, tau):
    scenario = make_scenario(n_per_class=20)
    method = Ocs(keep=0.6, replay_weight=0.7, batch_affinity=tau)  # 5 of 8
    policy = Policy(buffer=12, selector=OcsSelector(affinity=tau), replay_batch=6)
    state = fresh(scenario, model, method, policy)
    plain = PlainOcs(
        state.net,
        scenario,
        number=5,
        replay_weight=0.7,
        multipliers=(1.0, 1.0, tau),
        lr=0.05,
        capacity=12,
        replay_size=6,
    )

    def check():
        same_network(state.net, plain.net)
        same_memory(state.memory, plain)

    def end_stage(stage):
        reselect(state.memory, policy, method, state.net, scenario.views, (3, stage))
        plain.select()
        same_memory(state.memory, plain)
        method.end_stage(state.net, state.memory, scenario.views, state.extras, (3, stage))
        plain.stage += 1

    def step(draws, replay, stage):
        return plain.step(draws.rows.tolist(), draws, replay)

    drive(state, scenario, method, policy, step, check, end_stage)


def made_batches(seed):
    generator = torch.Generator().manual_seed(seed)

    def batch(size, classes, tasks=None):
        images = torch.randn(size, 1, 6, 6, generator=generator)
        labels = classes[torch.randint(len(classes), (size,), generator=generator)]
        weights = 0.5 + torch.rand(size, generator=generator)
        return Batch((images,), labels, torch.empty(0), weights, tasks)

    old = batch(9, torch.arange(4), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2]))
    return build("convnet", (1, 6, 6), 6, seed), batch(10, torch.tensor([4, 5])), old


@pytest.mark.parametrize("criterion", ["similarity", "diversity", "affinity"])
@pytest.mark.parametrize("seed", range(4))
def test_one_criterion_alone_is_the_ranking_by_it(criterion, seed):
    net, new, old = made_batches(seed)
    names = ("similarity", "diversity", "affinity")
    method = Ocs(keep=0.4, **{f"batch_{name}": float(name == criterion) for name in names})
    extras = {"ended": torch.tensor(2)}  # tasks 0 and 1 are earlier ones
    found = method.choose(net.train(), new, (old,), extras)
    plain = PlainOcs.__new__(PlainOcs)
    plain.net = net
    g = [plain.gradient(x, int(y)) for x, y in zip(new.images, new.labels, strict=True)]
    memory = [plain.gradient(x, int(y)) for x, y in zip(old.images, old.labels, strict=True)]
    direction = sum(float(old.weights[i]) * memory[i] for i in range(6))
    value = {
        "similarity": [cosine(v, sum(g)) for v in g],
        "diversity": [-sum(cosine(v, u) for u in g if u is not v) for v in g],
        "affinity": [cosine(v, direction) for v in g],
    }[criterion]
    assert found.tolist() == sorted(sorted(range(10), key=lambda i: -value[i])[:4])


def test_choosing_leaves_the_network_as_it_was():
    net, new, old = made_batches(0)
    before = [tensor.clone() for tensor in net.train().state_dict().values()]
    Ocs().choose(net, new, (old,), {"ended": torch.tensor(1)})
    assert net.training
    assert all(map(torch.equal, before, net.state_dict().values()))


def test_nothing_of_earlier_tasks_means_no_affinity_and_no_replay_term():
    net, new, old = made_batches(1)
    extras = {"ended": torch.tensor(0)}
    method, without = Ocs(), Ocs(batch_affinity=0.0)
    assert torch.equal(method.choose(net, new, (old,), extras), without.choose(net, new, (), extras))
    torch.testing.assert_close(method.loss(net, new, (old,), extras).value, method.loss(net, new, (), extras).value)


@pytest.mark.parametrize(
    ("keep", "batch", "number"), [(0.5, 32, 16), (0.5, 9, 5), (0.01, 8, 2), (1.0, 8, 8), (0.1, 1, 1)]
)
def test_the_number_chosen_follows_from_the_size_of_the_batch(keep, batch, number):
    assert Ocs(keep=keep).number(batch) == number


def test_memory_is_offered_the_chosen_only_and_they_speak_for_the_batch():
    scenario, method, training = make_scenario(), Ocs(keep=0.6), Training(batch=8)
    policy = Policy(buffer=12, selector=OcsSelector(), replay_batch=6)
    state = fresh_state(scenario, "mlp", method, policy, training, seed=0, device=torch.device("cpu"))
    with torch.no_grad():
        state.net.head.bias[0] = 100.0  # says class 0 of everything
    draws = EpochDraws(draw_plan(method, policy, training), most_steps=1, device=torch.device("cpu"))
    draws.fill((0, 0, 0), torch.arange(8), n_batches=1)  # rows of class 0
    one_step(state, scenario, method, policy, draws.at(torch.tensor(0), 8, replaying=False))
    assert int(state.memory.seen) == 5
    assert int(state.correct) == 8
