"""Experiments of earlier versions load; the dicts below were written by version 0.1."""

import copy

import pytest

from gcr.experiments.experiment import Experiment, compose

MEMORY = {
    "buffer": 100,
    "replay_batch": 32,
    "candidates": 0,
    "every": 0,
    "pool": "reservoir",
    "pool_view": "plain",
    "pool_mode": "evaluation",
    "sampling": "coin",
    "kept_weights": "chosen",
    "admit": "all",
    "statistics": "training",
}
STREAM = {
    "setting": "offline",
    "stream": 6250,
    "tasks": 0,
    "class_order": 0,
    "validation": 0.0,
    "label_noise": 0.0,
    "imbalance": 1.0,
    "last_task": 1.0,
}
RELEASED = {"pool_view": "weak", "pool_mode": "class", "sampling": "split", "admit": "correct"}
GRAD_APPROX = {
    "name": "grad-approx",
    "ridge": 0.5,
    "tolerance": 0.0,
    "shares": "task",
    "negative": "dropped",
    "atoms": "weighted",
    "replace": 0,
    "trim": 0.0,
    "rows": "matched",
    "weights": "fitted",
}
OLD_GCR = {
    "scenario": "seq-digits",
    "stream": STREAM,
    "model": "convnet",
    "method": {
        "name": "gcr",
        "alpha": 0.1,
        "beta": 1.0,
        "gamma": 0.1,
        "temperature": 0.07,
        "normalise": "weights",
        "contrast": "logits",
    },
    "memory": MEMORY | RELEASED | {"selector": GRAD_APPROX},
    "training": {"epochs": 8, "lr": 0.05, "batch": 32, "repeats": 1, "precision": "auto"},
    "seed": 3,
}
OLD_ICARL = {
    "scenario": "seq-cifar10",
    "stream": STREAM | {"setting": "online"},
    "model": "resnet18",
    "method": {"name": "icarl", "weight_decay": 5e-5, "over_classes": "mean", "means": "weighted", "lengths": "unit"},
    "memory": MEMORY | {"buffer": 500, "selector": {"name": "herding"}},
    "training": {"epochs": 1, "lr": 0.1, "batch": 10, "repeats": 1, "precision": "auto"},
    "seed": 0,
}
OLD_JOINT = {  # from before there were streams
    "scenario": "seq-digits",
    "model": "mlp",
    "method": {"name": "joint"},
    "memory": None,
    "training": {"epochs": 10, "lr": 0.1, "batch": 32},
    "seed": 1,
}
ONLINE = {"online": True, "buffer": 500, "lr": 0.1, "batch": 10}
SAME = {
    "gcr": (OLD_GCR, ("seq-digits", "gcr", 3, {"epochs": 8, "lr": 0.05})),
    "icarl": (
        OLD_ICARL,
        ("seq-cifar10", "icarl", 0, ONLINE | {"weight_decay": 5e-5, "over_classes": "mean"}),
    ),
    "joint": (OLD_JOINT, ("seq-digits", "joint", 1, {"model": "mlp", "lr": 0.1})),
}


@pytest.mark.parametrize("name", SAME)
def test_an_old_experiment_is_todays(name):
    old, (scenario, method, seed, given) = SAME[name]
    before = copy.deepcopy(old)
    assert Experiment.from_dict(old) == compose(scenario, method, seed=seed, overrides=given)
    assert old == before  # the caller's dict is left as it was


def test_icarls_old_default_decay_is_kept():
    old = copy.deepcopy(OLD_ICARL)
    del old["method"]["weight_decay"]
    assert Experiment.from_dict(old).optimizer.weight_decay == 1e-5
    assert compose("seq-digits", "icarl").optimizer.weight_decay == 1e-5
    assert compose("seq-digits", "er").optimizer.weight_decay == 0.0


def test_the_optimizer_has_a_key_of_its_own():
    made = compose("seq-digits", "gcr").to_dict()
    assert made["optimizer"] == {"name": "sgd", "lr": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    assert "lr" not in made["training"]


@pytest.mark.parametrize("setting", ["offline", "online"])
def test_the_old_setting_of_a_stream_is_true_or_false_today(setting):
    old = copy.deepcopy(OLD_GCR)
    old["stream"]["setting"] = setting
    old["training"]["epochs"] = 1
    assert Experiment.from_dict(old).stream.online is (setting == "online")
