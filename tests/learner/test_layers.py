"""Layers that are frozen or unfrozen between steps, a network trained before, and the network that predicts."""

import pytest
import torch
from made_learners import A, B, C, blobs, mlp
from torch import nn

import gcr
from gcr.learner import Learner
from gcr.memory import BalancedReservoir, Policy
from gcr.methods import ClsEr, ErAce, GcrPlus
from gcr.settings import BadInput

METHODS = [GcrPlus(), ClsEr(), ErAce()]
by_name = pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
X, Y = blobs([A, B], n=40)


def net(seed=0, frozen=()):
    torch.manual_seed(seed)
    made = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2))
    for layer in frozen:
        made[layer].requires_grad_(False)
    return made


@by_name
@pytest.mark.parametrize(("saved", "loaded"), [((), (0, 1)), ((0,), ())], ids=["frozen later", "unfrozen later"])
def test_a_saved_learner_predicts_the_same_whatever_learns_in_the_network_given(method, saved, loaded, tmp_path):
    learner = Learner(net(frozen=saved), memory=12, method=method).fit(X, Y, epochs=4)
    learner.save(tmp_path)
    other = Learner.load(tmp_path, net(seed=3, frozen=loaded))
    torch.testing.assert_close(other.logits(X), learner.logits(X), rtol=0, atol=0)
    other.fit(X, Y, epochs=1)


@by_name
def test_a_layer_unfrozen_between_fits_learns(method, tmp_path):
    own = net(frozen=(0,))
    learner = Learner(own, memory=12, method=method).fit(X, Y, epochs=1)
    before = own[0].weight.clone()
    learner.fit(*blobs([B, C], n=40), epochs=1)
    assert torch.equal(own[0].weight, before)
    own[0].requires_grad_(True)
    learner.fit(X, Y, epochs=2)
    assert not torch.equal(own[0].weight, before)
    learner.save(tmp_path)
    again = Learner.load(tmp_path, net(seed=3))
    for one in (learner, again):
        one.fit(*blobs([A, C], n=40), epochs=1)
    torch.testing.assert_close(again.logits(X), learner.logits(X), rtol=0, atol=0)


@by_name
@pytest.mark.parametrize("whole", [True, False], ids=["all that learn", "the head alone"])
def test_a_layer_unfrozen_in_the_network_that_is_loaded_learns(method, whole, tmp_path):
    """As one that is unfrozen after loading does; not so what the optimizer's maker left out."""
    own = net(frozen=(0,))
    make = (lambda p: torch.optim.AdamW(p)) if whole else (lambda p: torch.optim.AdamW(list(p)[-2:]))
    Learner(own, memory=12, method=method, optimizer=make).fit(X, Y, epochs=2).save(tmp_path)
    before, after = net(frozen=()), net(frozen=(0,))
    learners = [Learner.load(tmp_path, one) for one in (before, after)]
    after[0].requires_grad_(True)
    for learner in learners:
        learner.fit(*blobs([B, C], n=40), epochs=1)
    assert not torch.equal(before[0].weight, own[0].weight)
    assert torch.equal(before[1].weight, own[1].weight) != whole
    torch.testing.assert_close(learners[0].logits(X), learners[1].logits(X), rtol=0, atol=0)


@by_name
def test_a_layer_unfrozen_when_a_class_is_new_learns(method):
    own = net(frozen=(0,))
    learner = Learner(own, memory=12, method=method).fit(X, Y, epochs=1)
    before = own[0].weight.clone()
    own[0].requires_grad_(True)
    learner.fit(*blobs([B, C], n=40), epochs=1)
    assert not torch.equal(own[0].weight, before)


@by_name
@pytest.mark.parametrize("make", [None, lambda p: gcr.Sgd(p, 0.1)], ids=["adamw", "ours"])
def test_a_layer_frozen_between_steps_stays(method, make):
    own = net()
    learner = Learner(own, memory=12, method=method, optimizer=make)
    learner.observe(X[:8], Y[:8])
    own[0].requires_grad_(False)
    before, head = own[0].weight.clone(), own[3].weight.clone()
    learner.observe(X[8:16], Y[8:16])
    assert torch.equal(own[0].weight, before)
    assert not torch.equal(own[3].weight, head)
    own.requires_grad_(False)
    with pytest.raises(BadInput, match="holds no parameter that wants a gradient; unfreeze some"):
        learner.observe(X[:8], Y[:8])


def test_batch_norm_that_a_network_keeps_in_evaluation_mode_stays_so():
    class KeepsStatistics(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    own = KeepsStatistics(*net())
    before = own[1].running_mean.clone()
    Learner(own, memory=12).fit(X, Y, epochs=1)
    assert torch.equal(own[1].running_mean, before)


def test_batch_norm_without_a_bias_is_frozen_by_its_weight():
    own = net(frozen=(1,))
    own[1].bias = None
    before = own[1].running_mean.clone()
    learner = Learner(own, memory=12).fit(X, Y, epochs=1)
    assert torch.equal(own[1].running_mean, before)
    learner.learn_one(X[0], Y[0])  # which needs no statistics of a batch
    with pytest.raises(BadInput, match="a batch of one example has no BatchNorm statistics"):
        Learner(net(), memory=12).learn_one(X[0], Y[0])


def test_examples_are_remembered_with_the_logits_of_a_head_put_in_just_before():
    own = mlp()
    learner = Learner(own, memory=20).fit(X, Y, epochs=1)
    own[2] = nn.Linear(16, 5)
    learner.remember(X[:20], Y[:20])
    assert learner.memory.logits.shape[1] == 5


def test_an_optimizer_of_the_user_is_left_as_it_is():
    own = net(frozen=(0,))
    optimizer = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=0.1)
    learner = Learner(own, memory=12, method=GcrPlus(), optimizer=optimizer).fit(X, Y, epochs=1)
    before = own[0].weight.clone()
    own[0].requires_grad_(True)
    learner.fit(X, Y, epochs=1)
    assert torch.equal(own[0].weight, before)
    assert len(optimizer.param_groups) == 1


def test_what_a_function_left_out_of_the_optimizer_stays_out():
    own = net()
    learner = Learner(own, memory=12, optimizer=lambda p: torch.optim.SGD(list(p)[-2:], lr=0.1)).fit(X, Y, epochs=1)
    before = own[0].weight.clone()
    learner.fit(*blobs([B, C], n=40), epochs=1)
    assert torch.equal(own[0].weight, before)


def test_the_average_of_an_unfrozen_layer_begins_with_its_weights():
    own = net(frozen=(0,))
    learner = Learner(own, memory=12, method=GcrPlus()).fit(X, Y, epochs=2)
    assert "ema.net.0.weight" not in learner.engine.state.extras
    own[0].requires_grad_(True)
    before = learner.logits(X)
    learner.engine._follow_layers()
    torch.testing.assert_close(learner.logits(X), before, rtol=0, atol=0)
    assert torch.equal(learner.engine.state.extras["ema.net.0.weight"], own[0].weight)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda held: held.pop("extra.steps"), "extra.steps is missing"),
        (lambda held: [held.pop(name) for name in list(held) if name.startswith("extra.ema")], "is missing"),
        (
            lambda held: held.update({"extra.seen": torch.zeros(1, dtype=torch.bool)}),
            r"must have shape \[2\], got \[1\]",
        ),
    ],
)
def test_tensors_of_a_method_that_do_not_fit_are_refused(change, why):
    learner = Learner(net(), memory=12, method=GcrPlus()).fit(X, Y, epochs=1)
    about, tensors = learner.state()
    change(tensors)
    with pytest.raises(BadInput, match=why):
        Learner.from_state(about, tensors, net())


@by_name
@pytest.mark.parametrize("frozen", [False, True])
def test_the_predictor_is_a_network_of_its_own(method, frozen):
    own = net()
    learner = Learner(own, memory=12, method=method, frozen=frozen).fit(X, Y, epochs=3)
    predictor, weights = learner.predictor(), {name: t.clone() for name, t in own.state_dict().items()}
    expected = learner.logits(X)
    torch.testing.assert_close(predictor(X), expected)
    assert torch.equal(own.eval()(X), expected) == (not method.predictor)
    with torch.no_grad():
        predictor[3].weight.zero_()
    assert torch.equal(learner.logits(X), expected)
    assert all(torch.equal(t, weights[name]) for name, t in own.state_dict().items())


@by_name
def test_the_predictor_has_an_output_per_class(method):
    torch.manual_seed(0)
    own = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 20))
    learner = Learner(own, memory=12, method=method).fit(X, Y, epochs=1)
    predictor = learner.predictor()
    torch.testing.assert_close(predictor(X).softmax(1), torch.from_numpy(learner.predict_proba(X)))
    assert (predictor[2].out_features, own[2].out_features) == (2, 20)
    assert learner.fit(*blobs([C], n=20), epochs=1).predictor()(X).shape == (80, 3)


class Keeping(nn.Module):
    """Keeps what its layers gave."""

    def __init__(self, keep):
        super().__init__()
        self.body, self.head, self.keep = nn.Linear(8, 16), nn.Linear(16, 2), keep

    def forward(self, x):
        self.last = self.keep(self.body(x))
        return self.head(self.last[0])


def test_the_predictor_of_a_network_that_keeps_activations():
    learner = Learner(Keeping(lambda given: given[None]), memory=12).fit(X, Y, epochs=1)
    learner.observe(X, Y)
    torch.testing.assert_close(learner.predictor()(X), learner.logits(X))
    learner = Learner(Keeping(lambda given: [given]), memory=12)
    learner.observe(X, Y)
    with pytest.raises(BadInput, match="net cannot be copied"):
        learner.predictor()


def test_a_rule_that_is_no_network_has_no_predictor():
    class Nearest(ErAce):
        def predict(self, net, images, extras):
            return -net(images)

    learner = Learner(net(), memory=12, method=Nearest()).fit(X, Y, epochs=1)
    with pytest.raises(BadInput, match="predicts by a rule of its own"):
        learner.predictor()
    with pytest.raises(BadInput, match="call fit or observe first"):
        Learner(net()).predictor()


@by_name
def test_bytes_of_memory_count_what_the_method_holds(method):
    learner = Learner(net(), memory=12, method=method)
    before = learner.memory_bytes(X)
    learner.fit(X, Y, epochs=1)
    held = sum(tensor.nbytes for tensor in learner.engine.state.extras.values())
    assert before == learner.memory_bytes(X) == learner.memory.nbytes + held


@pytest.mark.parametrize("method", [GcrPlus(), ErAce()], ids=lambda method: method.name)
def test_classes_that_are_remembered_are_seen(method):
    """New examples leave their logits alone from the first step on, and no replay makes them new."""
    learner = Learner(mlp(n_out=3), memory=30, method=method, classes=["ant", "bee", "cow"])
    x, y = blobs([A, B, C], n=10)
    learner.remember(x, y)
    extras = learner.engine.state.extras
    assert extras["seen"].tolist() == [True, True, True]
    if isinstance(method, GcrPlus):
        for number in range(60):  # the average begins again with each new class, and with no replayed one
            learner.observe(torch.rand(8, 8) + 5, ["new" if number < 30 else "newer"] * 8)
            extras = learner.engine.state.extras
            assert int(extras["steps"]) == number % 30 + 1
        assert extras["known"].tolist() == [True, True, True, True, False]


def test_the_order_of_herding_needs_a_network_that_has_not_diverged():
    policy = Policy(buffer=12, selector=BalancedReservoir(evict="herding"))
    learner = Learner(net(), memory=policy, method=ErAce(), optimizer=lambda p: gcr.Sgd(p, 1e30))
    for start in (0, 8, 16):
        learner.observe(X[start : start + 8], Y[start : start + 8])
    with pytest.raises(BadInput, match="the loss became NaN or inf"):
        learner.end_task()


class Adapter(nn.Module):
    """A frozen layer, and a low-rank one next to it that begins at 0."""

    def __init__(self, base):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down, self.up = nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


@by_name
@pytest.mark.parametrize("teach", ["fit", "observe"])
def test_an_adapter_that_is_put_in_learns_and_is_saved(method, teach, tmp_path):
    own = net()
    learner = Learner(own, memory=12, method=method).fit(X, Y, epochs=1)
    own[0] = Adapter(own[0])
    before = own[0].base.weight.clone()
    learner.fit(X, Y, epochs=1) if teach == "fit" else learner.observe(X, Y)
    assert own[0].up.weight.any()
    assert torch.equal(own[0].base.weight, before)
    learner.save(tmp_path)
    other = net(seed=3)
    other[0] = Adapter(other[0])
    torch.testing.assert_close(Learner.load(tmp_path, other).logits(X), learner.logits(X), rtol=0, atol=0)


@by_name
def test_a_head_that_is_replaced_learns_and_the_old_one_leaves_the_optimizer(method):
    own = net()
    learner = Learner(own, memory=12, method=method).fit(X, Y, epochs=1)
    old, own[3] = own[3], nn.Linear(16, 3)
    before = own[3].weight.clone()
    learner.fit(X, Y, epochs=1)
    assert not torch.equal(own[3].weight, before)
    held = [p for group in learner.engine.state.optimizer.param_groups for p in group["params"]]
    assert not any(p is q for p in held for q in old.parameters())
    assert learner.engine.state.memory.columns["logits"].shape[1] == 3
    learner.fit(*blobs([C], n=20), epochs=1)
    assert len(learner.classes) == 3


def test_tensors_that_a_method_adds_later_stay_when_the_head_grows():
    learner = Learner(net(), memory=12, method=GcrPlus()).fit(X, Y, epochs=1)
    learner.engine.state.extras |= {"count": torch.tensor(3), "my.sum": torch.ones(2)}
    learner.fit(*blobs([C], n=20), epochs=1)
    assert learner.engine.state.extras["count"] == 3
    assert learner.engine.state.extras["my.sum"].tolist() == [1, 1]


def test_a_head_with_fewer_outputs_is_refused():
    own = net()
    learner = Learner(own, memory=12, class_weight="balanced").fit(X, Y, epochs=1)
    own[3] = nn.Linear(16, 1)
    for _ in range(2):
        with pytest.raises(BadInput, match="must keep its 2 outputs or more, got 1"):
            learner.fit(X, Y, epochs=1)


def test_a_layer_replaced_under_the_users_own_optimizer_is_refused():
    own = net()
    learner = Learner(own, memory=12, optimizer=torch.optim.Adam(own.parameters())).fit(X, Y, epochs=1)
    own[0] = nn.Linear(8, 16)
    for _ in range(2):
        with pytest.raises(BadInput, match="optimizer holds parameters that are not the network's"):
            learner.fit(X, Y, epochs=1)


def test_frozen_features_do_not_follow_another_head():
    own = net()
    learner = Learner(own, memory=12, frozen=True).fit(X, Y, epochs=1)
    own[3] = nn.Linear(16, 2)
    with pytest.raises(BadInput, match="make a new Learner"):
        learner.fit(X, Y, epochs=1)


def test_statistics_of_frozen_batchnorm_stay():
    own = net(frozen=(0, 1))
    own[1].eval()
    before = own[1].running_mean.clone()
    Learner(own, memory=12).fit(X + 5, Y, epochs=1)
    assert torch.equal(own[1].running_mean, before)
    free = net(frozen=(0,))
    before = free[1].running_mean.clone()
    Learner(free, memory=12).fit(X + 5, Y, epochs=1)
    assert not torch.equal(free[1].running_mean, before)


def test_a_head_that_shares_its_weight_does_not_grow():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.codes, self.head = nn.Embedding(2, 8), nn.Linear(8, 2, bias=False)
            self.head.weight = self.codes.weight

        def forward(self, x):
            return self.head(x + self.codes((x[:, 0] > 0).long()))

    learner = Learner(Tied(), memory=12).fit(X, Y, epochs=1)
    with pytest.raises(BadInput, match="codes has the same weight"):
        learner.fit(*blobs([C], n=20))


def test_a_network_that_diverged_does_not_predict():
    own = net()
    learner = Learner(own, memory=12).fit(X, Y, epochs=1)
    own[3].bias.data.fill_(torch.nan)
    learner.observe(X[:8], Y[:8])
    for use in (lambda: learner.predict(X), learner.predictor):
        with pytest.raises(BadInput, match="NaN or inf"):
            use()


@pytest.mark.parametrize("method", [ErAce(), GcrPlus()], ids=lambda method: method.name)
def test_classes_that_the_network_knows_are_seen(method):
    learner = Learner(net(), memory=12, method=method, classes=sorted(set(Y))).fit(*blobs([C], n=20), epochs=1)
    assert learner.engine.state.extras["seen"].tolist() == [True, True, True]


def test_balanced_weights_count_examples_not_passes():
    learner = Learner(net(), memory=12, class_weight="balanced").fit(X, Y, epochs=4)
    learner.fit(*blobs([C], n=20), epochs=2)
    assert learner.class_weights.counts == [Y.count(label) for label in learner.classes[:2]] + [20]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, gcr.Sgd], ids=["torch", "ours"])
def test_gradients_from_before_do_not_move_frozen_layers(optimizer):
    own = net()
    nn.functional.cross_entropy(own(X), torch.tensor([0, 1] * 40)).backward()
    own[0].requires_grad_(False)
    before = own[0].weight.clone()
    Learner(own, memory=12, optimizer=optimizer([*own.parameters()], lr=0.5)).observe(X, Y)
    assert torch.equal(own[0].weight, before)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda optimizer, steps: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps),
        lambda optimizer, steps: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps),
        lambda optimizer, steps: torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps),
    ],
    ids=["one-cycle", "cosine", "lambda"],
)
def test_layers_are_unfrozen_between_fits_and_not_under_a_schedule(schedule):
    own = net(frozen=(0,))
    learner = Learner(own, memory=12)
    with pytest.raises(BadInput, match="unfreeze or add them between fits"):
        learner.fit(X, Y, epochs=2, schedule=schedule, on_epoch=lambda *_: own[0].requires_grad_(True))
    before = own[0].weight.clone()
    learner.fit(X, Y, epochs=2, schedule=schedule)
    assert not torch.equal(own[0].weight, before)
    assert {group["lr"] for group in learner.optimizer.param_groups} == {0.001}
