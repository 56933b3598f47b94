"""Whole runs: what the loop promises, own arrays, the reference of GCR step by step, what replay minibatches hold."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from conftest import make_scenario
from named import Training, train
from reference.driving import drive, fresh, same_memory, same_network
from reference.gcr_algorithm import ReferenceGcr

import gcr
from gcr.memory import Buffer, Coin, Policy
from gcr.methods import Er, Finetune, Gcr
from gcr.methods.method import Loss
from gcr.models import statistics
from gcr.scenarios import from_arrays
from gcr.select import GradApprox
from gcr.settings import BadInput
from gcr.training.evaluate import evaluate
from gcr.training.randomness import ReplayDraws
from gcr.training.reselect import reselect
from gcr.training.step import draw_replays


def test_epochs_steps_and_matrix(scenario):
    epochs = []
    outcome = train(scenario, "mlp", Er(), Policy(buffer=12), Training(epochs=2, batch=10), 0, on_epoch=epochs.append)
    assert [(e.stage, e.epoch) for e in epochs] == [(s, e) for s in range(3) for e in range(2)]
    assert outcome.steps == epochs[-1].steps == epochs[-1].total_steps == 3 * 2 * 3  # 24 examples: 10, 10 and 4
    assert len(outcome.class_il["matrix"]) == 3
    assert all(len(row) == 3 for row in outcome.task_il["matrix"])
    assert int(outcome.state.memory.seen) == 2 * 72


def test_gcr_keeps_a_full_and_balanced_buffer(scenario):
    outcome = train(scenario, "mlp", Gcr(), Policy(buffer=18, selector=GradApprox()), Training(epochs=2, lr=0.1), 0)
    memory = outcome.state.memory
    assert int(memory.kept) == 18
    assert torch.bincount(memory.columns["label"][:18]).tolist() == [3] * 6
    assert bool((memory.columns["weight"][:18] > 0).all())
    assert torch.equal(memory.columns["task"][:18], memory.columns["label"][:18] // 2)


def test_only_correct_examples_are_admitted_on_request(scenario):
    correct = []
    policy = Policy(buffer=12, selector=GradApprox(), admit="correct")
    outcome = train(
        scenario,
        "mlp",
        Gcr(),
        policy,
        Training(epochs=3, lr=0.1),
        0,
        on_epoch=lambda e: correct.append(e.accuracy * 24 / 100),
    )
    first_batch = 24  # taken whole, so that there is something to replay
    assert int(outcome.state.memory.seen) == first_batch + round(sum(correct[1:])) < 3 * 72


def on_memory(outcome, scenario, batches):
    """The statistics of the first layer over batches of memory's rows, by hand."""
    net, columns = outcome.state.net, outcome.state.memory.columns
    with torch.no_grad():
        seen = [net.trunk[0](scenario.views.plain(columns["image"][rows])) for rows in batches]
    return sum(x.mean((0, 2, 3)) for x in seen) / len(seen), sum(x.var((0, 2, 3)) for x in seen) / len(seen)


@pytest.mark.parametrize("at_once", [1000, 7])
def test_a_network_predicts_with_statistics_of_memory_on_request(monkeypatch, scenario, at_once):
    monkeypatch.setattr("gcr.training.reselect.AT_ONCE", at_once)
    usual, fresh = (
        train(scenario, "convnet", Er(), Policy(buffer=12, statistics=of), Training(epochs=2, lr=0.1, batch=10), 0)
        for of in ("training", "memory")
    )
    for ours, theirs in zip(fresh.state.net.parameters(), usual.state.net.parameters(), strict=True):
        assert torch.equal(ours, theirs)  # training is the same
    rows = torch.arange(12)
    batches = [rows] if at_once == 1000 else [rows[::2], rows[1::2]]  # rows of a task lie together
    mean, variance = on_memory(fresh, scenario, batches)
    torch.testing.assert_close(statistics(fresh.state.net)[:2], [mean, variance])
    assert fresh.class_il["matrix"][-1] == evaluate(fresh.state.net, scenario, Er(), {})[0].tolist()
    assert fresh.class_il["matrix"] != usual.class_il["matrix"]


def test_statistics_to_predict_with_leave_training_alone(scenario):
    """Of GCR, too, which selects with the statistics of training."""
    policies = [Policy(buffer=12, selector=GradApprox(), statistics=of) for of in ("training", "memory")]
    usual, fresh = (train(scenario, "convnet", Gcr(), p, Training(epochs=2, lr=0.1, batch=10), 0) for p in policies)
    for ours, theirs in zip(fresh.state.net.parameters(), usual.state.net.parameters(), strict=True):
        assert torch.equal(ours, theirs)
    assert fresh.state.selections == usual.state.selections
    assert fresh.class_il["matrix"] != usual.class_il["matrix"]


def test_a_network_without_batch_normalisation_has_no_statistics_to_take(scenario):
    with pytest.raises(BadInput, match="net has none that learn; leave it out"):
        train(scenario, "mlp", Er(), Policy(buffer=12, statistics="memory"), Training(), 0)


# --- Own data from end to end: float images, HWC arrays and text labels train as well as bytes do

NAMES = np.array(["owl", "cat", "rat", "dog", "hen", "ape"])


def trained(scenario, method=None, memory=None, **changes):
    memory, training = memory or Policy(buffer=30), {"epochs": 6, "batch": 16, "lr": 0.1} | changes
    return train(scenario, "mlp", method or Er(), memory, Training(**training), 0)


def arrays():
    """Train and test pairs of uint8 HWC images with text labels."""
    made = make_scenario(n_per_class=40, channels=3)
    parts = (made.train, made.test)
    return [(part.pixels.permute(0, 2, 3, 1).numpy(), NAMES[part.labels.numpy()]) for part in parts]


def as_floats(pairs, low=0.0, high=1.0):
    return [((low + (high - low) * images / 255.0).astype(np.float32), labels) for images, labels in pairs]


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 5.0)])
def test_float_images_learn_what_their_bytes_learn(low, high):
    by_bytes = trained(from_arrays(*arrays(), tasks=3))
    by_floats = trained(from_arrays(*as_floats(arrays(), low, high), tasks=3))
    assert by_floats.state.memory.images.dtype == torch.float32
    assert by_bytes.class_il["accuracy"] > 60  # chance is 17
    assert by_floats.class_il["accuracy"] == pytest.approx(by_bytes.class_il["accuracy"], abs=7)


def test_strong_views_and_selection_take_float_images():
    """GCR has strong views and a selector; geometric ones where values leave [0, 1]."""
    memory = Policy(buffer=30, selector=GradApprox())
    for low, high in ((0.0, 1.0), (-3.0, 5.0)):
        scenario = from_arrays(*as_floats(arrays(), low, high), tasks=3)
        outcome = trained(scenario, Gcr(), memory)
        assert outcome.class_il["accuracy"] > 40
        held = outcome.state.memory
        assert held.nbytes == memory.nbytes(scenario.image_shape, scenario.n_classes, torch.float32)
        stored = {image.numpy().tobytes() for image in held.images}
        assert stored <= {image.numpy().tobytes() for image in scenario.train.pixels}


def test_text_labels_and_hwc_arrays_train_in_a_stream():
    scenario = from_arrays(*arrays(), tasks=(("owl", "ape"), ("cat", "rat"), ("dog", "hen")), stream=40)
    outcome = trained(scenario, epochs=1, repeats=6)
    assert scenario.class_names == tuple(sorted(NAMES))
    assert outcome.class_il["accuracy"] > 50
    assert set(outcome.state.memory.labels.tolist()) <= set(range(6))


def test_a_stream_passes_once():
    scenario = from_arrays(*arrays(), tasks=3, stream=40)
    with pytest.raises(BadInput, match="epochs must be 1 online, got 6"):
        trained(scenario)
    with pytest.raises(BadInput, match="stream must be >= batch, which is 41, got 40"):
        trained(scenario, epochs=1, batch=41)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(scenario.train.pixels[0].numel(), 6))
    sgd = torch.optim.SGD(net.parameters(), lr=0.1)
    outcome = gcr.train(scenario, net, sgd, Er(), Policy(buffer=30), 0)  # training is not given
    assert outcome.steps == sum(-(-len(part) // 32) for part in torch.arange(len(scenario.train.labels)).split(40))


@dataclass(frozen=True)
class Returns(Er):
    """ER whose loss returns something else."""

    what: str = "tensor"

    def loss(self, net, new, replay, extras):
        value, logits, _ = super().loss(net, new, replay, extras)
        return {
            "tensor": value,
            "values": Loss(value.expand(2), logits),
            "all logits": Loss(value, torch.cat([logits, logits])),
        }[self.what]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("tensor", r"loss of er must return a Loss\(value, logits\), got Tensor"),
        ("values", r"loss of er must be one number, shape \[\], got \[2\]; take the mean"),
        ("all logits", r"must be those of the 16 new examples, \[16, classes\], got \[32, 6\]"),
    ],
)
def test_what_a_loss_returns_is_checked(what, message, scenario):
    with pytest.raises(BadInput, match=message):
        trained(scenario, Returns(what=what))


# --- The whole of GCR against the loop-by-loop reference: same draws, same weights, same memory


@pytest.mark.parametrize(("model", "contrast"), [("mlp", "features"), ("convnet", "features"), ("convnet", "logits")])
def test_three_tasks_of_gcr_equal_the_algorithms_of_the_paper(model, contrast):
    scenario = make_scenario(n_per_class=20)
    method = Gcr(alpha=0.3, beta=0.7, gamma=0.2, contrast=contrast)
    policy = Policy(buffer=12, selector=GradApprox(ridge=0.5), replay_batch=6)
    state = fresh(scenario, model, method, policy)
    size = {"lr": 0.05, "capacity": 12, "replay_size": 6}
    plain = ReferenceGcr(state.net, scenario, alpha=0.3, beta=0.7, gamma=0.2, contrast=contrast, **size)

    def check():
        same_network(state.net, plain.net)
        same_memory(state.memory, plain)

    distinct = []

    def end_stage(stage):
        reselect(state.memory, policy, method, state.net, scenario.views, (3, stage))
        plain.grad_approx()
        same_memory(state.memory, plain)
        distinct.append(len({round(float(w), 3) for w in state.memory.columns["weight"][:12]}))

    def step(draws, replay, stage):
        return plain.step(draws.rows.tolist(), draws, replay)

    drive(state, scenario, method, policy, step, check, end_stage, n_stages=3)
    assert distinct[0] == 1  # all were kept
    assert distinct[1] > 6  # so the third task is replayed with weights that were really chosen


# --- What a replay minibatch holds of memory


@pytest.fixture
def memory():
    """Four kept examples of weights 1, 2, 3 and 6, where six had been kept before, and three candidates."""
    memory = Buffer.empty(8, 8, (1, 2, 2), 3)

    def offer(labels):
        images = torch.zeros(len(labels), 1, 2, 2, dtype=torch.uint8)
        memory.offer({"image": images, "label": torch.tensor(labels)}, torch.zeros(len(labels)).double())

    offer([0, 1, 2, 3, 4, 5])
    memory.keep(memory.filled_rows(), torch.full((6,), 100.0))
    memory.keep(memory.filled_rows()[:4], torch.tensor([1.0, 2.0, 3.0, 6.0]))
    offer([10, 11, 12])
    return memory


def weights_of(memory, relative):
    """Weights of each example, by label, in two minibatches of 40."""
    draws = torch.rand(2, 40, 2, generator=torch.Generator().manual_seed(0))
    asked = tuple(ReplayDraws(rows, (torch.zeros(40, 3),)) for rows in draws)
    drawn = draw_replays(memory, Coin, asked, relative)
    assert [len(columns["weight"]) for columns in drawn] == [40, 40]
    seen = {}
    for columns in drawn:
        for label, weight in zip(columns["label"].tolist(), columns["weight"].tolist(), strict=True):
            seen.setdefault(label, set()).add(round(weight, 5))
    return {label: weights.pop() for label, weights in sorted(seen.items()) if len(weights) == 1}


def test_weights_as_chosen(memory):
    assert weights_of(memory, relative=False) == {0: 1.0, 1: 2.0, 2: 3.0, 3: 6.0, 10: 1.0, 11: 1.0, 12: 1.0}


def test_relative_weights_of_the_kept_have_a_mean_of_one(memory):
    expected = {0: 0.33333, 1: 0.66667, 2: 1.0, 3: 2.0, 10: 1.0, 11: 1.0, 12: 1.0}
    assert weights_of(memory, relative=True) == expected
    assert float(memory.mean_weight()) == 3.0


def test_relative_weights_before_anything_is_kept():
    memory = Buffer.empty(8, 8, (1, 2, 2), 3)
    batch = {"image": torch.zeros(2, 1, 2, 2, dtype=torch.uint8), "label": torch.tensor([7, 8])}
    memory.offer(batch, torch.zeros(2).double())
    assert weights_of(memory, relative=True) == {7: 1.0, 8: 1.0}


def test_the_setting_reaches_the_step(scenario):
    """From the third task on, when weights have been chosen."""
    heads = []
    for kept_weights in ("chosen", "relative"):
        policy = Policy(buffer=12, selector=GradApprox(), kept_weights=kept_weights)
        outcome = train(scenario, "mlp", Gcr(), policy, Training(epochs=1, batch=8, lr=0.1), 0)
        heads.append(outcome.state.net.head.weight)
    assert not torch.equal(*heads)


def test_an_example_that_is_left_out_does_not_count_in_an_epochs_accuracy():
    """17 new examples in batches of 8: the last one alone has no batch statistics."""
    images, labels = torch.eye(17).reshape(17, 1, 1, 17), torch.tensor([0, 1] * 8 + [0])
    scenario = from_arrays((images, labels), (images, labels), tasks=1)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(17, 2))
    with torch.no_grad():
        net[1].weight.copy_(10 * torch.nn.functional.one_hot(labels, 2).T)
    epochs = []
    training = gcr.Training(epochs=1, batch=8)
    gcr.train(scenario, net, gcr.Sgd(net.parameters(), 0.0), Finetune(), None, 0, training, on_epoch=epochs.append)
    assert epochs[0].accuracy == 100
