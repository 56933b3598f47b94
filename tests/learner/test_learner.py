"""gcr.Learner as a user has it: any network, any data, new classes at any time."""

import pickle
import random
import time
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy

import numpy as np
import pytest
import torch
from conftest import HANG_SECONDS
from made_learners import A, B, C, SmallViT, blobs, mlp, quick, same_weights
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import gcr
from gcr.learner import StateFolder
from gcr.learner.head import grow_head
from gcr.memory import BalancedReservoir, GssGreedy, Policy, Reservoir
from gcr.methods import ClsEr, Der, DerPlusPlus, Er, ErAce, Finetune, Gcr, GcrPlus, Gem, Icarl
from gcr.select import GradApprox, ReducibleLoss, Typicality
from gcr.settings import BadInput


def test_digits_in_five_steps_are_kept_where_fine_tuning_forgets():
    x, y = load_digits(return_X_y=True)
    train, test = slice(0, 1200), slice(1200, None)
    scores = {}
    for method in (None, Finetune()):
        learner = gcr.Learner(mlp(64, 2, 64), memory=100, method=method, optimizer=lambda p: torch.optim.Adam(p, 3e-3))
        for step in range(5):
            chosen = np.isin(y[train], (2 * step, 2 * step + 1))
            learner.fit(x[train][chosen] / 16, y[train][chosen], epochs=4)
        scores[method] = learner.score(x[test] / 16, y[test])
    assert scores[None] > 0.75
    assert scores[method] < 0.35  # fine-tuning


def test_new_classes_may_come_at_any_time_and_old_ones_stay():
    net = mlp()
    learner = gcr.Learner(net, memory=30, optimizer=quick).fit(*blobs([A, B]), epochs=6)
    learner.fit(*blobs([C]), epochs=6)
    assert learner.classes == ["ant", "bee", "cow"]
    assert net[2].out_features == 3
    assert learner.memory.counts() == {"ant": 10, "bee": 10, "cow": 10}
    x, y = blobs([A, B, C], seed=1)
    assert learner.score(x, y) > 0.9
    assert learner.predict(x[:1]).tolist() == ["ant"]
    assert learner.predict_proba(x).shape == (120, 3)


@pytest.mark.parametrize("labels", [(3, 7), ("x", "y"), ((1, "a"), (2, "b")), (True, False), (1.5, 2.5)])
def test_labels_are_text_numbers_or_tuples(labels):
    x, _ = blobs([A, B])
    y = [labels[row // 40] for row in range(80)]
    learner = gcr.Learner(mlp(), memory=10).fit(x, y, epochs=2)
    assert learner.classes == list(labels)
    assert set(learner.predict(x)) <= set(labels)
    assert learner.predict_one(x[0]) in labels
    assert set(learner.memory.labels) == set(labels)


def test_stored_logits_are_compared_on_the_classes_they_knew():
    learner = gcr.Learner(mlp(), memory=30, method=Der()).fit(*blobs([A, B]), epochs=2)
    learner.observe(*blobs([C], n=4))
    stored = learner.memory.logits
    old = torch.from_numpy(learner.memory.labels != "cow")
    assert stored.shape[1] == 3
    assert stored[old, 2].isnan().all()
    assert stored[old, :2].isfinite().all()
    loss = learner.observe(*blobs([C], n=4))
    assert loss.isfinite()
    assert all(parameter.isfinite().all() for parameter in learner.net.parameters())


def test_spare_outputs_of_the_head_are_used_first():
    net = mlp(n_out=5)
    learner = gcr.Learner(net, memory=10).fit(*blobs([A, B]), epochs=1)
    assert net[2].out_features == 5
    assert learner.predict_proba(blobs([A])[0]).shape == (40, 2)


def test_known_classes_of_a_trained_network_keep_their_outputs():
    x, y = blobs([A, B])
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    for _ in range(100):
        optimizer.zero_grad()
        F.cross_entropy(net(x), torch.tensor([0] * 40 + [1] * 40)).backward()
        optimizer.step()
    learner = gcr.Learner(net, memory=20, classes=["ant", "bee"], optimizer=quick)
    learner.remember(x, y)
    assert learner.score(x, y) > 0.95  # nothing was trained
    learner.fit(*blobs([C]), epochs=20)
    assert learner.score(*blobs([A, B, C], seed=2)) > 0.9


@pytest.mark.parametrize(
    ("optimizer", "name", "value"),
    [
        (lambda p: torch.optim.Rprop(p, 0.01), "step_size", 0.01),
        (lambda p: torch.optim.Adagrad(p, 0.01, initial_accumulator_value=0.5), "sum", 0.5),
        (lambda p: torch.optim.AdamW(p, 0.01, amsgrad=True), "max_exp_avg_sq", 0.0),
    ],
    ids=["rprop", "adagrad", "amsgrad"],
)
def test_an_optimizer_begins_new_rows_as_its_first_ones(optimizer, name, value):
    x, y = blobs([A, B])
    learner = gcr.Learner(mlp(), 20, optimizer=optimizer)
    learner.observe(x, y)
    learner.learn_labels(["cow"], 1)
    remembered = learner.engine.state.optimizer.state[learner.net[2].weight][name]
    assert remembered[2:].tolist() == torch.full((1, 16), value).tolist()


def test_an_optimizer_goes_on_when_the_head_grows():
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    learner = gcr.Learner(net, memory=10, optimizer=optimizer).fit(*blobs([A, B]), epochs=1)
    before = optimizer.state[net[2].weight]["exp_avg"].clone()
    learner.learn_labels(["cow"], 1)
    assert net[2].weight is optimizer.param_groups[0]["params"][2]
    after = optimizer.state[net[2].weight]["exp_avg"]
    assert torch.equal(after[:2], before)
    assert after[2].eq(0).all()
    learner.fit(*blobs([C]), epochs=1)


@pytest.mark.parametrize("method", [ErAce(), ClsEr(), GcrPlus()], ids=lambda method: method.name)
def test_tensors_of_a_method_grow_with_the_head(method):
    learner = gcr.Learner(mlp(), memory=10, method=method).fit(*blobs([A, B]), epochs=1)
    before = {name: tensor.clone() for name, tensor in learner.engine.state.extras.items()}
    learner.fit(*blobs([C]), epochs=2)
    after = learner.engine.state.extras
    assert before.keys() == after.keys()
    wider = [name for name in after if after[name].shape != before[name].shape]
    assert wider
    assert all(len(after[name]) == 3 for name in wider)


def test_a_step_without_memory_is_the_step_written_by_hand():
    x, y = blobs([A, B], n=16)
    net, hand = mlp(seed=1), mlp(seed=1)
    learner = gcr.Learner(net, method=Finetune(), optimizer=lambda p: torch.optim.AdamW(p, 0.01), clip=0.5)
    optimizer = torch.optim.AdamW(hand.parameters(), 0.01)
    numbers = torch.tensor([0] * 16 + [1] * 16)
    for _ in range(5):
        loss = learner.observe(x, y)
        optimizer.zero_grad()
        expected = F.cross_entropy(hand(x), numbers)
        expected.backward()
        nn.utils.clip_grad_norm_(hand.parameters(), 0.5)
        optimizer.step()
        assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    for mine, theirs in zip(net.parameters(), hand.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)


class Tokens(nn.Module):
    """A classifier of token ids with a mask, as transformers take them."""

    def __init__(self):
        super().__init__()
        self.embed, self.score = nn.Embedding(30, 12), nn.Linear(12, 2)
        self.drop = nn.Dropout(0.2)

    def forward(self, input_ids, attention_mask):
        mask = attention_mask.unsqueeze(-1).float()
        logits = self.score(self.drop((self.embed(input_ids) * mask).sum(1) / mask.sum(1)))
        return Answer(logits)


class Answer:
    def __init__(self, logits):
        self.logits = logits


def sentences(low, high, label, n=40, seed=0):
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(low, high, (n, 6), generator=generator)
    return {"input_ids": ids, "attention_mask": torch.ones(n, 6, dtype=torch.bool)}, [label] * n


def test_dicts_of_tensors_and_outputs_with_logits():
    torch.manual_seed(0)
    learner = gcr.Learner(Tokens(), memory=20, optimizer=quick)
    for low, label in ((0, "first"), (10, "second"), (20, "third")):
        learner.fit(*sentences(low, low + 10, label), epochs=15)
    for low, label in ((0, "first"), (10, "second"), (20, "third")):
        assert learner.score(*sentences(low, low + 10, label, seed=1)) > 0.8
    examples = learner.memory.examples
    assert examples["input_ids"].dtype == torch.int64
    assert examples["attention_mask"].dtype == torch.bool
    assert examples["input_ids"].shape == (20, 6)


class Two(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 2)

    def forward(self, left, right):
        return self.head(torch.cat([left, right], 1))


def test_tuples_of_tensors():
    x, y = blobs([A, B])
    learner = gcr.Learner(Two(), memory=10, optimizer=quick).fit((x[:, :4], x[:, 4:]), y, epochs=8)
    assert learner.score((x[:, :4], x[:, 4:]), y) > 0.9
    left, right = learner.memory.examples
    assert left.shape == right.shape == (10, 4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.uint8, torch.int64, torch.float16])
def test_numbers_of_any_type(dtype):
    x, y = blobs([A, B], n=10)
    x = ((x - x.min()) * 10).to(dtype)

    class Cast(nn.Sequential):
        def forward(self, x):
            return super().forward(x.float())

    learner = gcr.Learner(Cast(nn.Linear(8, 2)), memory=5).fit(x, y, epochs=1)
    stored = learner.memory.examples
    assert stored.dtype == (torch.float32 if dtype == torch.float64 else dtype)
    assert all(any(torch.equal(row, old) for old in x.to(stored.dtype)) for row in stored)


def test_a_vision_transformer_learns_images():
    torch.manual_seed(0)
    x = (load_digits().images[:300] * 15).astype(np.uint8)[:, None]
    y = load_digits().target[:300]
    learner = gcr.Learner(SmallViT(side=8, n_classes=2), memory=40, optimizer=lambda p: torch.optim.Adam(p, 5e-3))
    for step in range(2):
        chosen = np.isin(y, (2 * step, 2 * step + 1))
        learner.fit(x[chosen], y[chosen], epochs=20)
    chosen = y < 4
    assert learner.score(x[chosen], y[chosen]) > 0.75


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.examples = nn.Linear(8, 16), nn.Linear(16, 2), 0

    def forward(self, x):
        self.examples += len(x)
        return self.head(self.body(x).relu())


def test_a_frozen_backbone_is_computed_once_and_memory_holds_features():
    torch.manual_seed(0)
    net = Counting()
    body = net.body.weight.clone()
    x, y = blobs([A, B])
    learner = gcr.Learner(net, memory=10, frozen=True, optimizer=quick)
    before = net.examples
    learner.fit(x, y, epochs=20)
    assert net.examples - before == len(x) + 2  # two to find the head
    assert torch.equal(net.body.weight, body)
    assert learner.memory.examples.shape == (10, 16)
    learner.fit(*blobs([C]), epochs=20)
    assert learner.score(*blobs([A, B, C], seed=3)) > 0.9


class LowRank(nn.Module):
    """A frozen layer with a trained low-rank update, as LoRA has it."""

    def __init__(self, layer, rank=2):
        super().__init__()
        self.layer = layer.requires_grad_(False)
        self.down = nn.Linear(layer.in_features, rank, bias=False)
        self.up = nn.Linear(rank, layer.out_features, bias=False)

    def forward(self, x):
        return self.layer(x) + self.up(self.down(x))


def test_only_some_parameters_have_gradients():
    net = mlp(width=32)
    net[0] = LowRank(net[0])
    frozen, down = net[0].layer.weight.clone(), net[0].down.weight.clone()
    learner = gcr.Learner(net, memory=20).fit(*blobs([A, B]), epochs=5).fit(*blobs([C]), epochs=5)
    assert torch.equal(net[0].layer.weight, frozen)
    assert not torch.equal(net[0].down.weight, down)
    assert learner.score(*blobs([A, B, C], seed=3)) > 0.8


def test_a_timm_model():
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    net = timm.create_model("resnet10t", pretrained=False, num_classes=2)
    x = torch.rand(8, 3, 64, 64)
    learner = gcr.Learner(net, memory=4, frozen=True).fit(x, list("aabbccdd"), epochs=1)
    assert learner.predict_proba(x).shape == (8, 4)


def test_selection_by_gradients_at_the_end_of_a_task_and_explain():
    recipe = gcr.GCR.paper(memory=12)
    learner = gcr.Learner(mlp(), memory=recipe.memory, method=Gcr(gamma=0.0)).fit(*blobs([A, B]), epochs=2)
    assert len(learner.memory) == 12  # the pool of candidates is empty again
    assert learner.engine.state.selections[0]["kept"] == 12
    pool = learner.memory.pool()
    found = gcr.explain(GradApprox()(pool, 6, torch.rand(len(pool))), pool)
    assert found.gradient_error < found.gradient_length


def test_selection_after_every_so_many_examples():
    policy = Policy(buffer=10, selector=GradApprox(), every=32)
    learner = gcr.Learner(mlp(), memory=policy)
    x, y = blobs([A, B], n=64)
    for part in range(0, 128, 16):
        learner.observe(x[part : part + 16], y[part : part + 16])
    assert len(learner.engine.state.selections) == 4


@pytest.mark.parametrize("method", [Er(), Finetune(), Gcr()], ids=lambda method: method.name)
def test_bytes_are_known_before_training(method):
    x, y = blobs([A, B])
    learner = gcr.Learner(mlp(), memory=Policy(buffer=10, selector=Reservoir()), method=method)
    expected = learner.memory_bytes(x)
    learner.fit(x, y, epochs=1)
    assert expected == (learner.memory.nbytes if method.replays else 0)


def test_random_numbers_of_others_are_left_alone():
    learner = gcr.Learner(mlp(), memory=10, augment=lambda x: x + torch.rand_like(x) + random.random())
    learner.observe(*blobs([A, B]))
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    learner.observe(*blobs([A, B]))
    after = torch.rand(1), np.random.rand(), random.random()
    torch.manual_seed(5)
    np.random.seed(5)
    random.seed(5)
    assert after == (torch.rand(1), np.random.rand(), random.random())


def test_equal_seeds_give_equal_weights():
    nets = []
    for seed in (3, 3, 4):
        net = mlp()
        gcr.Learner(net, memory=10, seed=seed).fit(*blobs([A, B]), epochs=2)
        nets.append(net)
    assert same_weights(nets[0], nets[1])
    assert not same_weights(nets[0], nets[2])


def test_a_grown_head_starts_new_rows_as_torch_would():
    head = nn.Linear(100, 2)
    grow_head(head, 400, seed=0)
    new = head.weight[2:]
    assert float(new.abs().max()) <= 0.1
    assert float(new.std()) == pytest.approx(0.1 / 3**0.5, rel=0.02)


class Squeezed(nn.Sequential):
    def forward(self, x):
        return super().forward(x).squeeze()


def softmaxed():
    return nn.Sequential(nn.Linear(8, 2), nn.Softmax(1))


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda x, y: gcr.Learner("net"), "net must be a torch.nn.Module"),
        (lambda x, y: gcr.Learner(nn.ReLU()), "net must have parameters"),
        (lambda x, y: gcr.Learner(mlp(), memory=0), "memory must be a whole number >= 1"),
        (lambda x, y: gcr.Learner(mlp(), method="gcr+"), "method must be a Method, as gcr.methods.GcrPlus("),
        (lambda x, y: gcr.Learner(mlp(), method="gcrplus"), "method must be a Method, as gcr.methods.GcrPlus("),
        (lambda x, y: gcr.Learner(mlp(), method=GcrPlus), "method must be a Method, as gcr.methods.GcrPlus("),
        (lambda x, y: gcr.Learner(mlp(), method="svm"), "method must be a Method, as gcr.methods.ErAce("),
        (lambda x, y: gcr.Learner(mlp(), method=Icarl()), "use gcr.train"),
        (lambda x, y: gcr.Learner(mlp(), method=Gem()), "use gcr.train"),
        (lambda x, y: gcr.Learner(mlp(), optimizer=3), "optimizer must be one of torch.optim"),
        (lambda x, y: gcr.Learner(mlp(), clip=-1), "clip must be a number > 0"),
        (lambda x, y: gcr.Learner(mlp(), class_weight="even"), "class_weight must be None"),
        (lambda x, y: gcr.Learner(mlp(), precision="fp8"), "precision must be one of"),
        (lambda x, y: gcr.Learner(mlp(), augment="strong").observe(x, y), "augment must be"),
        (lambda x, y: gcr.Learner(softmaxed()).observe(x, y), 'name it by head="NAME"'),
        (lambda x, y: gcr.Learner(nn.Conv1d(8, 2, 1)).observe(x[..., None], y), "logits"),
        (lambda x, y: gcr.Learner(mlp()).predict(x), "call fit or observe first"),
        (lambda x, y: gcr.Learner(mlp()).memory, "call fit or observe first"),
        (lambda x, y: gcr.Learner(mlp()).fit(x), "y must be given with x"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, y[:-1]), "a label per example"),
        (lambda x, y: gcr.Learner(mlp()).fit(x[:0], []), "at least one example"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, [*y[:-1], 3]), "labels must be of one type"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, torch.eye(80)), "argmax"),
        (lambda x, y: gcr.Learner(mlp()).fit(x * float("nan"), y), "must be finite"),
        (lambda x, y: gcr.Learner(mlp()).fit([["a"] * 8] * 80, y), "must be numbers"),
        (lambda x, y: gcr.Learner(mlp()).fit(np.ma.masked_greater(x.numpy(), 1), y), "x must not have masked entries"),
        (lambda x, y: gcr.Learner(Squeezed(*mlp()), 9).fit(x, y, epochs=1).predict(x[:1]), "for a batch of 1"),
        (lambda x, y: gcr.Learner(mlp()).fit({"a": x, "b": x[:3]}, y), "same number of examples"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, y, epochs=0), "epochs must be"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, y, patience=2), "patience needs validation"),
        (lambda x, y: gcr.Learner(mlp(), memory=2).fit(*blobs([A, B, C])), "memory must hold an example of each class"),
        (lambda x, y: gcr.Learner(mlp(), method=Finetune()).fit(x, y, epochs=1).memory, "keeps no memory"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, y, epochs=1).observe(x[:, :4], y), "as in the first batch"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, y, epochs=1).observe(x.double().long(), y), "as in the first batch"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, y, epochs=1).predict_proba(x, ["dog"]), "known to the learner"),
        (lambda x, y: gcr.Learner(mlp()).fit(x, "ant" * 27), "y must be a sequence"),
        (lambda x, y: gcr.Learner(mlp()).observe(x[0], 1), "y must be a sequence of labels"),
        (lambda x, y: gcr.Learner(mlp()).observe(x[:1], torch.tensor(1)), "y must have one dimension"),
    ],
)  # fmt: skip
def test_bad_input(act, message):
    with pytest.raises(BadInput, match=message.replace("(", r"\(").replace("…", ".")):
        act(*blobs([A, B]))


def test_unknown_labels_count_as_errors():
    x, y = blobs([A, B])
    learner = gcr.Learner(mlp(), memory=10).fit(x, y, epochs=5)
    assert learner.score(x, ["never"] * 80) == 0


def test_a_live_graph_does_not_keep_the_head_from_growing():
    net = mlp()
    learner = gcr.Learner(net, memory=12).fit(*blobs([A, B]), epochs=1)
    mine = net(blobs([A, B])[0]).sum()  # a loss of the user's own
    learner.observe(*blobs([B, C]))
    assert net[2].out_features == 3
    assert mine.requires_grad


@pytest.mark.parametrize("norm", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_a_computed_head_cannot_grow_and_stays_whole(norm):
    net = mlp()
    net[2] = norm(net[2])
    learner = gcr.Learner(net, memory=12).fit(*blobs([A, B]), epochs=1)
    with pytest.raises(BadInput, match="the head cannot grow"):
        learner.observe(*blobs([B, C]))
    assert learner.classes == ["ant", "bee"]
    learner.observe(*blobs([A, B]))


def test_nothing_is_learned_of_what_is_refused():
    net = mlp()
    learner = gcr.Learner(net, memory=2)
    with pytest.raises(BadInput, match="3 with 'cow', got memory=2"):
        learner.fit(*blobs([A, B, C]))
    assert net[2].out_features == 2
    assert learner.classes == []
    normed = gcr.Learner(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), memory=5)
    with pytest.raises(BadInput, match="no BatchNorm statistics"):
        normed.learn_one(torch.rand(8), "ant")
    assert normed.classes == []
    normed.observe(*blobs([A, B]))
    with pytest.raises(BadInput, match="no BatchNorm statistics"):
        normed.observe(blobs([C])[0][:1], ["cow"])
    assert normed.classes == ["ant", "bee"]


def test_what_the_network_cannot_take_is_said():
    images = torch.rand(4, 20, 20, 3)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(4 * 18 * 18, 2))
    with pytest.raises(BadInput, match=r"net cannot take x .* channels come first"):
        gcr.Learner(net).observe(images, list("abab"))
    with pytest.raises(BadInput, match=r"net cannot take x"):
        gcr.Learner(mlp()).observe(torch.ones(4, 8, dtype=torch.int64), list("abab"))


def test_devices_and_frozen_networks_that_cannot_be():
    with pytest.raises(BadInput, match='device "banana" cannot be used'):
        gcr.Learner(mlp(), device="banana")
    net = mlp().requires_grad_(False)
    with pytest.raises(BadInput, match="net has no parameter that wants a gradient"):
        gcr.Learner(net).observe(*blobs([A, B]))
    net = mlp()
    with pytest.raises(BadInput, match=r"with frozen=True the optimizer must hold the head"):
        gcr.Learner(net, frozen=True, optimizer=torch.optim.SGD(net.parameters(), 0.1)).observe(*blobs([A, B]))
    with pytest.raises(BadInput, match=r"features are computed once"):
        gcr.Learner(mlp(), frozen=True, augment=lambda x: x).observe(*blobs([A, B]))


@pytest.mark.parametrize("labels", [(1, 2**63 + 5), ("a\0", "a")])
def test_odd_labels_come_back_as_they_are(labels):
    x, _ = blobs([A, B])
    learner = gcr.Learner(mlp(), memory=10, optimizer=quick).fit(x, [labels[row // 40] for row in range(80)], epochs=6)
    assert set(learner.predict(x)) == set(labels)


def test_a_single_example_of_several_tensors():
    class Masked(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(9, 4), nn.Linear(4, 2)

        def forward(self, mask, ids):
            return self.head((self.embed(ids) * mask.unsqueeze(-1)).sum(1))

    learner = gcr.Learner(Masked(), memory=4)
    learner.observe(
        {"mask": torch.ones(4, 3, dtype=torch.bool), "ids": torch.ones(4, 3, dtype=torch.int64)}, [0, 1, 0, 1]
    )
    one = {"mask": torch.ones(3, dtype=torch.bool), "ids": torch.ones(3, dtype=torch.int64)}
    learner.learn_one(one, 1)
    assert learner.predict_one(one) in (0, 1)


@pytest.mark.parametrize(
    "policy",
    [
        Policy(buffer=12, selector=GradApprox(power=0.5), pool_network="predictor"),
        Policy(buffer=12, selector=ReducibleLoss(), pool_network="predictor"),
        Policy(buffer=12, selector=Typicality()),
        Policy(buffer=12, selector=BalancedReservoir(evict="loss")),
        Policy(buffer=12, selector=BalancedReservoir(evict="herding"), pool_network="predictor"),
    ],
    ids=lambda policy: str(policy.selector),
)
def test_memory_under_the_method_with_an_average(policy):
    """A head that grows: stored logits do not know the third class."""
    method = GcrPlus(decay=0.9)
    learner = gcr.Learner(mlp(), memory=policy, method=method, optimizer=quick)
    for labels in ([A, B], [C]):
        learner.fit(*blobs(labels), epochs=6)
        learner.end_task()
    assert learner.memory.counts() == {"ant": 4, "bee": 4, "cow": 4}
    x, y = blobs([A, B, C], seed=1)
    assert learner.score(x, y) > 0.6


@pytest.mark.parametrize("method", [Er(), GcrPlus(decay=0)])
def test_a_method_without_an_average_cannot_select_on_it(method):
    policy = Policy(buffer=12, selector=GradApprox(), pool_network="predictor")
    with pytest.raises(BadInput, match=r"pool_network must be trained with (er|gcr.) here"):
        gcr.Learner(mlp(), memory=policy, method=method)


POLICIES = [20, Policy(20, Reservoir()), Policy(20, GssGreedy()), Policy(20, GradApprox(), candidates=10)]


@pytest.mark.parametrize("memory", POLICIES, ids=["balanced", "reservoir", "gss-greedy", "selector"])
@pytest.mark.parametrize("method", [ErAce(), DerPlusPlus(), GcrPlus()], ids=lambda method: method.name)
def test_forgotten_examples_are_replayed_no_more(method, memory, tmp_path):
    learner = gcr.Learner(mlp(), memory, method=method).fit(*blobs([A, B]), epochs=2)
    learner.save(tmp_path / "state")
    ours = learner.memory.labels == A[1]
    erased = learner.memory.examples[torch.from_numpy(ours)]
    assert learner.forget(ours) == len(erased) > 0
    assert learner.memory.counts()[A[1]] == 0
    assert set(learner.memory.labels) == {B[1]}
    for column in learner.engine.state.memory.columns.values():  # not in rows that are free either
        assert not any(torch.equal(row, one) for row in column for one in erased if row.shape == one.shape)
    for versions in ([2], [3, 2]):
        learner.save(tmp_path / "state")
        assert StateFolder(tmp_path / "state").versions() == versions
    other = gcr.Learner.load(tmp_path / "state", mlp(seed=5))
    for each in (learner, other):
        each.fit(*blobs([C], seed=3), epochs=2)
    same_weights(learner.net, other.net)
    assert set(learner.memory.labels) == {B[1], C[1]}


def test_forgotten_examples_are_in_no_folder_that_is_saved_to(tmp_path):
    learner = gcr.Learner(mlp(), 20).fit(*blobs([A, B]), epochs=1)
    for row in range(2):
        learner.save(tmp_path / "state")
        learner.forget([row])
        for folder in ("elsewhere", "state"):
            learner.save(tmp_path / folder)
            assert len(StateFolder(tmp_path / folder).versions()) == 1


def test_a_memory_that_forgot_everything_is_filled_again():
    learner = gcr.Learner(mlp(), 20).fit(*blobs([A, B]), epochs=1)
    assert learner.forget(lambda memory: range(len(memory))) == 20
    assert len(learner.memory) == 0
    with pytest.raises(BadInput, match="memory holds nothing to look at"):
        learner.memory.pool()
    learner.fit(*blobs([C], seed=3), epochs=1)
    assert set(learner.memory.labels) == {C[1]}
    assert bool(learner.memory.examples.any(1).all())  # no free row was replayed or kept
    with pytest.raises(BadInput, match="rows must have row numbers from 0 to 19, got 20"):
        learner.forget([20])
    for label in ("cat", ["cat", "dog"]):
        with pytest.raises(BadInput, match="all of a class are: "):
            learner.forget(label)
    with pytest.raises(BadInput, match="finetune keeps no memory"):
        gcr.Learner(mlp(), method=Finetune()).fit(*blobs([A, B]), epochs=1).forget([0])


@pytest.mark.parametrize("method", [None, Gcr()], ids=["default", "gcr"])
def test_examples_of_new_classes_enter_a_memory_that_would_admit_only_what_is_classified_right(method):
    """They are offered once, in the first epoch."""
    learner = gcr.Learner(mlp(), memory=gcr.GCR(memory=60).memory, method=method, optimizer=quick)
    for labels in ([A, B], [C]):
        learner.fit(*blobs(labels), epochs=3)
    assert all(n > 10 for n in learner.memory.counts().values())


class Watched(nn.Module):
    """Counts passes at a time, and those in the mode of others: training has gradients, prediction has none."""

    def __init__(self):
        super().__init__()
        self.net, self.inside, self.most, self.odd = mlp(), 0, 0, 0

    def forward(self, x):
        self.inside += 1
        time.sleep(0.001)  # for others to come
        self.most, self.odd = max(self.most, self.inside), self.odd + (self.training != torch.is_grad_enabled())
        self.inside -= 1
        return self.net(x)


def test_calls_of_several_threads_take_turns():
    x, y = blobs([A, B])
    net = Watched()
    learner = gcr.Learner(net, memory=12, method=GcrPlus()).fit(x, y, epochs=1)
    expected = learner.predict_proba(x)
    with ThreadPoolExecutor(4) as pool:
        assert all(np.array_equal(found, expected) for found in pool.map(learner.predict_proba, [x] * 12))
        calls = [lambda: learner.fit(x, y, epochs=1), lambda: learner.observe(x, y), learner.memory.pool]
        done = [pool.submit(call) for call in [*calls, *[lambda: learner.predict(x)] * 12, *calls]]
        assert not [error for one in done if (error := one.exception())]
    assert (net.most, net.odd) == (1, 0)
    assert all(isinstance(parameter, nn.Parameter) for parameter in net.parameters())


@pytest.mark.parametrize("copied", [deepcopy, lambda learner: pickle.loads(pickle.dumps(learner))])
def test_a_copy_does_not_wait_for_the_learner(copied):
    x, y = blobs([A, B])
    learner = gcr.Learner(mlp(), memory=12).fit(x, y, epochs=1)
    copy = copied(learner)
    with learner.turn, ThreadPoolExecutor(1) as pool:
        assert pool.submit(copy.predict, x).result(HANG_SECONDS).tolist() == learner.predict(x).tolist()


def test_probabilities_of_labels_that_can_be_looked_at_once():
    x, y = blobs([A, B])
    learner = gcr.Learner(mlp(), memory=12).fit(x, y, epochs=1)
    assert np.array_equal(
        learner.predict_proba(x, (label for label in ["bee", "ant"])), learner.predict_proba(x)[:, ::-1]
    )


def test_class_weights_where_torch_has_another_default_type():
    x, y = blobs([A, B])
    torch.set_default_dtype(torch.float64)
    try:
        learner = gcr.Learner(mlp().float(), memory=12, class_weight="balanced").fit(x.float(), y, epochs=1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert learner.engine.state.class_weights.dtype == torch.float32


X, Y = blobs([A, B])


def nhwc(n=240):
    """Pictures of four colours as they come from a camera, and their classes."""
    colours, y = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 1, 0]]), torch.arange(n) % 4
    noise = torch.rand(n, 12, 12, 3, generator=torch.Generator().manual_seed(0))
    return ((colours[y][:, None, None] + noise) * 127).to(torch.uint8), y


def test_the_memory_order_of_pictures_does_not_matter():
    """torch's fused AdamW takes for granted that gradients lie in memory as their parameters do."""
    pictures, y = nhwc()
    permuted = pictures.permute(0, 3, 1, 2)
    learned = []
    for x in (permuted, permuted.contiguous()):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        net.append(nn.Linear(16, 4))
        learner = gcr.Learner(net, memory=20)
        for part in torch.arange(len(y)).split(32):
            learner.observe(x[part], y[part])
        learned.append(torch.cat([p.flatten() for p in net.parameters()]))
    torch.testing.assert_close(*learned, atol=1e-5, rtol=1e-3)


class Stacked(nn.Module):
    """Autograd gives both parameters gradients that are spread in memory, and ``shared`` ones the same tensor."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(8, 4)), nn.Parameter(torch.randn(8, 4))
        self.head = nn.Linear(8, 2)

    def forward(self, x):
        return self.head(x @ torch.stack([self.a, self.b], -1).flatten(1))


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad], ids=lambda m: m.__name__)
def test_fused_optimizers_of_a_cpu_take_gradients_as_they_are(make):
    after = []
    for fused in (True, False):
        torch.manual_seed(0)
        net = Stacked()
        learner = gcr.Learner(net, memory=10, optimizer=lambda p, f=fused: make(p, lr=0.01, fused=f))
        learner.observe(X, Y)
        after.append(torch.cat([p.flatten() for p in net.parameters()]))
    torch.testing.assert_close(*after)


def test_clip_counts_a_gradient_of_two_parameters_once_each():
    from gcr.training.optimizer import clipped

    gradient = torch.tensor([3.0, 4.0])
    torch.testing.assert_close(clipped([gradient, None, gradient], 1.0)[2], gradient / 50**0.5)
    assert gradient.tolist() == [3, 4]


def test_copies_of_a_network_with_a_shared_layer():
    twice = nn.Linear(8, 8)
    net = nn.Sequential(twice, nn.ReLU(), twice, nn.Linear(8, 3))
    learner = gcr.Learner(net, memory=20, method=ClsEr()).fit(X, Y, epochs=2)
    assert learner.logits(X).isfinite().all()


def test_what_could_not_be_saved_is_refused_before_it_is_learned():
    class Graph(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("edges", torch.eye(8).to_sparse())
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            return self.head(torch.sparse.mm(self.edges, x.T).T)

    with pytest.raises(gcr.BadInput, match=r'got "edges" \(torch.sparse_coo, torch.float32\); register it as a buffer'):
        gcr.Learner(Graph(), memory=10).observe(X, Y)


def test_a_state_does_not_share_what_the_optimizer_remembers(tmp_path):
    learner = gcr.Learner(mlp(), memory=10).fit(X, Y, epochs=1)
    about, tensors = learner.state()
    kept = {name: tensor.clone() for name, tensor in tensors.items()}
    first, second = (gcr.Learner.from_state(about, own, mlp()) for own in (tensors, kept))
    learner.fit(X + 5, Y, epochs=2)
    first.observe(X, Y)
    second.observe(X, Y)
    assert torch.equal(first.logits(X), second.logits(X))


def test_frozen_features_for_a_head_in_bfloat16():
    net = nn.Sequential(nn.Embedding(50, 8), nn.Flatten(), nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 3)).bfloat16()
    words = torch.randint(0, 50, (len(Y), 4), generator=torch.Generator().manual_seed(0))
    learner = gcr.Learner(net, memory=20, frozen=True).fit(words, Y, epochs=2)
    assert learner.logits(words).isfinite().all()


def test_statistics_of_memory_leave_frozen_layers_alone():
    policy = gcr.memory.Policy(buffer=20, statistics="memory")
    net = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    net[1].requires_grad_(False)
    before = [layer.running_mean.clone() for layer in (net[1], net[3])]
    gcr.Learner(net, policy).fit(X + 5, Y, epochs=1)
    assert torch.equal(net[1].running_mean, before[0])
    assert not torch.equal(net[3].running_mean, before[1])
    for given, frozen in ((mlp(), False), (net, True), (net.requires_grad_(False), False)):
        with pytest.raises(gcr.BadInput, match="statistics=memory recomputes BatchNorm statistics, but net has none"):
            gcr.Learner(given, policy, frozen=frozen).fit(X, Y)


def test_layers_frozen_again_stay_under_our_optimizer():
    net = mlp()
    net[0].requires_grad_(False)
    learner = gcr.Learner(net, memory=20, optimizer=lambda parameters: gcr.Sgd(parameters, 0.1))
    for learns in (False, True, False):
        net[0].requires_grad_(learns)
        before = net[0].weight.clone()
        learner.observe(X, Y)
        assert torch.equal(net[0].weight, before) == (not learns)


def test_passes_take_fewer_examples_where_they_are_large():
    from gcr.learner.engine import at_once

    assert [len(part) for part in at_once(torch.zeros(300, 2))] == [256, 44]
    assert len(at_once(torch.zeros(1, dtype=torch.uint8).expand(5, 3, 2048, 2048))) == 5


def test_draws_ahead_are_bounded(monkeypatch):
    from gcr.learner import engine

    learner = gcr.Learner(mlp(), memory=10)
    learner.observe(X[:32], Y[:32])
    assert learner.engine.ahead == 64
    n = 4096
    learner.observe(X[:1].expand(n, 8), ["ant", "bee"] * (n // 2))
    assert learner.engine.ahead == 16
    monkeypatch.setattr(engine, "MOST_ROWS", 5000)
    with pytest.raises(gcr.BadInput, match="a batch must have at most 5,000 examples, got 5,001; give smaller ones"):
        learner.observe(X[:1].expand(5001, 8), ["ant"] * 5001)


def test_gss_admits_what_is_remembered_into_a_full_memory():
    learner = gcr.Learner(mlp(), memory=12, method=gcr.methods.Gss())
    learner.observe(X, Y)
    assert len(learner.memory) == 12
    before = learner.memory.examples.clone()
    for _ in range(5):
        learner.remember(X + 9, Y)
    assert not torch.equal(learner.memory.examples, before)


def test_tasks_are_those_of_the_learner_where_memory_is_selected_within_them():
    policy = Policy(buffer=20, selector=GradApprox(), every=16)
    learner = gcr.Learner(mlp(), policy, method=DerPlusPlus())
    for number in range(2):
        learner.fit(X + number, Y, epochs=4)
        assert learner.memory.tasks.max() == number
        own = learner.memory.tasks == number
        assert own.any()
        now = learner.logits(learner.memory.examples[own])
        torch.testing.assert_close(learner.memory.logits[own][:, : now.shape[1]], now, atol=1e-5, rtol=1e-4)


def test_a_step_that_cannot_be_captured_is_a_warning(monkeypatch):
    monkeypatch.setattr("gcr.learner.engine.pick_mode", lambda *given: ("eager", "the step cannot be captured"))
    with pytest.warns(UserWarning, match="the step cannot be captured"):
        gcr.Learner(mlp(), memory=10).fit(*blobs([A, B]), epochs=1)
