import torch

from gcr.memory import Policy
from gcr.methods import Er, Gcr
from gcr.select import GradApprox
from gcr.training import Training, train


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
