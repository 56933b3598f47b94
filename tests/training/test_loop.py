import pytest
import torch
from named import Training, train

from gcr.memory import Policy
from gcr.methods import Er, Gcr
from gcr.models import statistics
from gcr.select import GradApprox
from gcr.settings import BadInput
from gcr.training.evaluate import evaluate


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
    with pytest.raises(BadInput, match="net has none; leave it out"):
        train(scenario, "mlp", Er(), Policy(buffer=12, statistics="memory"), Training(), 0)
