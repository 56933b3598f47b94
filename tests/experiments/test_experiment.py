"""Experiments: composed of names, read and written as JSON, with any optimizer of torch; those of earlier versions
load."""

import copy
import json
import statistics
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from conftest import make_scenario
from hypothesis import given
from hypothesis import strategies as st

from gcr import paper
from gcr.experiments.describe import differences, setting_lines
from gcr.experiments.experiment import Experiment, compose, settings_of
from gcr.experiments.optimizers import OptimizerSpec
from gcr.methods import METHODS, Er
from gcr.scenarios import Stream
from gcr.settings import BadInput, setting
from gcr.training.sgd import Sgd


def test_defaults_come_from_scenario_and_method():
    experiment = compose("seq-digits", "gcr")
    assert (experiment.model, experiment.memory.buffer, experiment.optimizer.lr) == ("convnet", 100, 0.1)
    assert experiment.memory.selector.name == "grad-approx"
    assert compose("seq-digits", "er").memory.selector.name == "reservoir"
    assert compose("seq-digits", "finetune").memory is None


def test_settings_find_their_home():
    given_values = {"lr": "0.03", "alpha": "0.2", "ridge": "2", "sampling": "split", "model": "mlp", "epochs": 3}
    experiment = compose("seq-digits", "gcr", overrides=given_values)
    assert experiment.optimizer.lr == 0.03
    assert experiment.training.epochs == 3
    assert experiment.method.alpha == 0.2
    assert experiment.memory.selector.ridge == 2.0
    assert experiment.memory.sampling == "split"
    assert experiment.model == "mlp"


def test_dotted_names_say_the_owner():
    dotted = {"optimizer.lr": "0.03", "method.alpha": "0.2", "selector.ridge": "2", "memory.sampling": "coin"}
    plain = {key.split(".")[1]: value for key, value in dotted.items()}
    assert compose("seq-digits", "gcr", overrides=dotted) == compose("seq-digits", "gcr", overrides=plain)
    for wrong, said in (
        ({"method.lr": 1}, 'unknown setting of gcr "method.lr"'),
        ({"memory.alpha": 1}, 'unknown setting of gcr "memory.alpha"'),
        ({"alpha": 1, "method.alpha": 1}, "method.alpha is given twice; give it once"),
    ):
        with pytest.raises(BadInput, match=said):
            compose("seq-digits", "gcr", overrides=wrong)


@dataclass(frozen=True)
class Batched(Er):
    """A method with a setting that training has too."""

    name: ClassVar[str] = "batched"

    batch: int = setting(4, "examples of a batch of its own", low=1)


def test_a_setting_of_two_owners_is_not_lost(monkeypatch):
    monkeypatch.setattr("gcr.experiments.plugins.METHODS", (*METHODS, Batched))
    both = {"method.batch": "3", "training.batch": "16"}
    made = compose("seq-digits", "batched", overrides=both)
    assert (made.method.batch, made.training.batch) == (3, 16)
    assert made.settings | {"method.batch": 3, "training.batch": 16} == made.settings
    assert "batch" not in made.by_name
    assert Experiment.from_json(made.to_json()) == made
    usual = compose("seq-digits", "batched")
    assert (usual.method.batch, usual.training.batch) == (4, 32)
    with pytest.raises(BadInput, match=r"batch is a setting of .*; write method.batch or training.batch"):
        compose("seq-digits", "batched", overrides={"batch": 3})
    lines = {name for name, _, _ in setting_lines("seq-digits", "batched")}
    assert {"method.batch", "training.batch"} <= lines


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.integers(10, 10_000), st.integers(0, 2**31))
def test_json_round_trip_keeps_every_bit(alpha, lr, buffer, seed):
    experiment = compose("seq-digits", "gcr", seed=seed, overrides={"alpha": alpha, "lr": lr, "buffer": buffer})
    assert Experiment.from_json(experiment.to_json()) == experiment
    assert hash(Experiment.from_json(experiment.to_json())) == hash(experiment)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sedd": 1}, 'unknown key of an experiment "sedd" (did you mean "seed"?)'),
        ({"method": {"name": "gcr", "alhpa": 1}}, 'unknown setting of gcr "alhpa" (did you mean "alpha"?)'),
        ({"method": {"name": "derpp"}}, 'unknown method "derpp" (did you mean "der++"?)'),
        ({"training": {"epochs": 0}}, "epochs must be >= 1, got 0"),
        ({"training": {"epochs": 1.5}}, "epochs must be a whole number"),
        ({"optimizer": {"lr": "fast"}}, 'lr must be a finite number, got "fast"'),
        ({"optimizer": {"lr": float("nan")}}, "lr must be a finite number"),
        ({"seed": -1}, "seed must be a whole number from 0 to 2^32 - 1, got -1"),
        ({"seed": True}, "seed must be a whole number"),
        ({"memory": None}, "method gcr needs a memory"),
        ({"method": {"name": "joint"}}, "method joint keeps no memory"),
        ({"scenario": "seq-digit"}, 'unknown scenario "seq-digit" (did you mean "seq-digits"?)'),
        ({"scenario": "cifar10"}, 'unknown scenario "cifar10"'),
        ({"scenario": "../birds"}, 'unknown scenario "../birds"'),
        ({"scenario": 3}, 'unknown scenario "3"'),
        ({"model": 18}, "model must be a name, got 18"),
    ],
)
def test_bad_json_is_refused_with_a_remedy(change, message):
    values = compose("seq-digits", "gcr").to_dict() | change
    with pytest.raises(BadInput) as caught:
        Experiment.from_json(json.dumps(values))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("method", "overrides", "message"),
    [
        ("gcr", {"alpha": -1}, "alpha must be >= 0.0, got -1"),
        ("gcr", {"buffer": 9}, "buffer must be >= 10, the number of classes of seq-digits, got 9"),
        ("gcr", {"buffer": 0}, 'buffer must be >= 1, got 0; use method "finetune"'),
        ("er", {"alpha": 1}, 'unknown setting of er "alpha"'),
        ("finetune", {"buffer": 100}, "finetune keeps no memory"),
        ("gcr", {"sampling": "dice"}, 'sampling must be one of coin, split, got "dice"'),
        ("er", {"candidates": 50}, "candidates needs a selector"),
        ("joint", {"replay_batch": 3}, 'unknown setting of joint "replay_batch"'),
        ("gcr", {"model": "cnn"}, 'unknown model "cnn"'),
    ],
)
def test_bad_settings_are_refused_with_a_remedy(method, overrides, message):
    with pytest.raises(BadInput) as caught:
        compose("seq-digits", method, overrides=overrides)
    assert message in str(caught.value)


def test_a_missing_key_is_named():
    values = compose("seq-digits", "gcr").to_dict()
    del values["seed"]
    with pytest.raises(BadInput, match="lacks seed"):
        Experiment.from_dict(values)


def test_differences_are_named():
    ours = compose("seq-digits", "gcr", overrides={"alpha": 0.2})
    theirs = compose("seq-digits", "gcr", overrides={"lr": 0.5})
    assert differences(theirs, ours) == ["method.alpha is 0.1 there, 0.2 here", "optimizer.lr is 0.5 there, 0.1 here"]
    assert differences(ours, ours) == []


def test_run_names():
    assert compose("seq-digits", "der++").run_name == "seq-digits-derpp-k100"
    assert compose("seq-digits", "er", selector="grad-approx").run_name == "seq-digits-er-grad-approx-k100"
    assert compose("seq-digits", "er", selector="grad-approx").label == "er + grad-approx"
    assert compose("seq-digits", "joint").run_name == "seq-digits-joint"


def test_setting_lines_tell_everything_that_can_be_set():
    lines = setting_lines("seq-digits", "gcr")
    shown = {"method.alpha", "method.gamma", "optimizer.lr", "memory.buffer", "selector.ridge"}
    assert shown <= {name for name, _, _ in lines}
    assert shown <= {name for name, _, _ in setting_lines("seq-digits", "gcr", advanced=False)}
    assert all(help for _, help, _ in lines)
    defaults = {name: default for name, _, default in lines}
    assert defaults["optimizer.lr"] == "0.1"  # the scenario's
    assert defaults["training.epochs"] == "10; online 1"
    assert defaults["method.beta"] == "1.0; online 3.0"
    assert defaults["method.contrast"] == "logits; online features"
    assert defaults["stream.online"] == "false"
    assert not any("online" in default for _, _, default in setting_lines("seq-digits", "joint"))


@pytest.mark.parametrize(("method", "default"), [("gcr+", "0.0005"), ("icarl", "1e-05"), ("er", None)])
def test_defaults_of_a_methods_own_are_shown_among_the_settings_changed_most(method, default):
    shown = {name: default for name, _, default in setting_lines("seq-digits", method, advanced=False)}
    assert shown.get("optimizer.weight_decay") == default
    assert "memory.sampling" not in shown


def test_help_says_that_memory_without_a_selector_has_no_candidates():
    (help,) = (text for name, text, _ in setting_lines("seq-digits", "gcr+") if name == "memory.candidates")
    assert "which only a selector has" in help


def test_a_stream_of_digits_is_short_unless_told_otherwise():
    online = compose("seq-digits", "er", overrides={"online": True})
    assert (online.stream.stream, online.training.batch, online.training.epochs) == (300, 10, 1)
    given = compose("seq-digits", "er", overrides={"online": True, "stream": 500, "batch": 20})
    assert (given.stream.stream, given.training.batch) == (500, 20)
    joint = compose("seq-digits", "joint", overrides={"online": True})
    assert (joint.training.batch, joint.training.epochs) == (32, 10)
    assert compose("seq-cifar10", "er", overrides={"online": True}).stream.stream == 6250


def test_defaults_on_a_stream_are_what_the_papers_search_chose_there():
    """Medians over its nine online cells: data sets and buffer sizes."""
    cells = [cell for cell in paper.cells("online-accuracy") if cell.method in ("der++", "gcr")]
    assert len(cells) == 2 * 9
    for method in ("der++", "gcr"):
        chosen = [paper.chosen(*cell.place).overrides for cell in cells if cell.method == method]
        medians = {key: statistics.median(values[key] for values in chosen) for key in chosen[0]}
        made = compose("seq-cifar10", method, overrides={"online": True})
        assert {"lr": made.optimizer.lr} | {k: getattr(made.method, k) for k in medians if k != "lr"} == medians
    given = compose("seq-cifar10", "gcr", overrides={"online": True, "beta": 0.25, "lr": 0.5})
    assert (given.method.alpha, given.method.beta, given.optimizer.lr) == (1.0, 0.25, 0.5)
    offline = compose("seq-cifar10", "gcr").method
    assert (offline.beta, offline.contrast, given.method.contrast) == (1.0, "logits", "features")


@pytest.mark.parametrize(("method", "buffer"), [("der++", 500), ("gcr", 2000)])
def test_offline_defaults_are_values_that_the_papers_search_chose_too(method, buffer):
    """With S-CIFAR-10; its medians have a smaller beta, and on digits they do worse (docs/methods.md)."""
    chosen = next(
        paper.chosen(*cell.place).overrides
        for cell in paper.cells("offline-accuracy")
        if (cell.method, cell.scenario, cell.buffer, cell.protocol) == (method, "seq-cifar10", buffer, "class-il")
    )
    made = compose("seq-cifar10", method)
    assert {"lr": made.optimizer.lr} | {k: getattr(made.method, k) for k in chosen if k != "lr"} == chosen


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("gem", {"replay_batch": 7}, "gem ignores replay_batch; leave it out"),
        ("gdumb", {"lr": 0.5}, "gdumb ignores lr"),
        ("mir", {"sampling": "split"}, "mir ignores sampling"),
        ("gdumb", {"statistics": "memory"}, "gdumb ignores statistics"),
        ("cls-er", {"statistics": "memory"}, "cls-er ignores statistics"),
        ("gcr+", {"statistics": "memory"}, r"gcr\+ ignores statistics"),
        ("icarl", {"online": True, "stream": 100}, "icarl ignores stream: each task is one"),
        ("er", {"stream": 300}, "add --online"),
        ("er", {"pool": "selector"}, "pool needs a selector, but memory is a reservoir"),
        ("er", {"pool_mode": "training"}, "pool_mode needs a selector"),
        ("gcr", {"pool_network": "predictor"}, "gcr ignores pool_network, as the trained network predicts"),
        ("icarl", {"pool_network": "predictor"}, "icarl ignores pool_network"),
        ("gcr+", {"pool_network": "predictor"}, "pool_network needs a selector, but memory is balanced-reservoir"),
        ("gcr+", {"pool_network": "predictor", "evict": "herding", "decay": 0}, "as the trained network predicts, got"),
        ("gcr+", {"window": 0.5, "decay": 0}, "window is of the EMA, which decay=0 leaves out, got 0.5"),
        ("gcr", {"pool_views": 4, "variant": "paper"}, "pool_views averages weak views, got 4 with pool_view=plain"),
        ("gcr", {"power": 0.5}, "power is not part of the released matching"),
        ("gcr", {"variant": "paper", "shrink": 0.5, "weights": "unit"}, "leave out one of them"),
        ("gcr", {"variant": "paper", "power": 1.5}, "power must be <= 1"),
        ("er", {"kept_weights": "relative"}, "kept_weights needs a selector"),
        ("gcr", {"pool": "selector", "admit": "correct"}, "add --set memory.admit=all"),
        ("gdumb", {"optimizer.momentum": 0.9}, "gdumb ignores optimizer.momentum"),
        ("gcr", {"variant": "paper", "pool": "selector", "every": 50}, "leave out every"),
        ("er", {"tasks": 10, "label_noise": 0.5}, "some have one class only; use fewer tasks"),
        ("ocs", {"keep": 0.0}, "keep must be >= 0.01"),
        ("cls-er", {"stable_rate": 0.0}, "stable_rate must be >= 0.001"),
    ],
)
def test_settings_that_would_do_nothing_are_refused(method, given, said):
    with pytest.raises(BadInput, match=said):
        compose("seq-digits", method, overrides=given)


def test_of_several_methods_each_takes_what_it_uses():
    given = {"online": True, "stream": 200, "lr": 0.05, "replay_batch": 16}
    for method in METHODS:
        made = compose("seq-digits", method.name, overrides=settings_of(method.name, given, several=True))
        assert made.optimizer.lr == (0.1 if method.name == "gdumb" else 0.05)
    lines = [name for name, _, _ in setting_lines("seq-digits", "gem")]
    assert "method.margin" in lines
    assert "memory.replay_batch" not in lines


def test_the_virtual_step_of_mir_is_as_long_as_the_real_one():
    assert compose("seq-digits", "mir", overrides={"lr": 0.02}).method.virtual_lr == 0.02
    assert compose("seq-digits", "mir", overrides={"lr": 0.02, "virtual_lr": 0.3}).method.virtual_lr == 0.3


@pytest.mark.parametrize("odd", [None, 5, [1], {}], ids=str)
@pytest.mark.parametrize(
    ("part", "name", "word"),
    [("method", "name", "method"), ("memory", "selector", "selector"), ("stream", "online", "online")],
)
def test_an_odd_value_in_a_file_is_named(part, name, word, odd):
    values = compose("seq-digits", "gcr").to_dict()
    with pytest.raises(BadInput, match=word):
        Experiment.from_dict(values | {part: values[part] | {name: odd}})
    if odd is not None and odd != {}:
        with pytest.raises(BadInput, match=f"{part} must be a JSON object"):
            Experiment.from_dict(values | {part: odd})


# --- Optimizers by name


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, Sgd),
        ({"momentum": 0.9}, torch.optim.SGD),
        ({"optimizer": "adamw", "lr": 0.001, "weight_decay": 0.01}, torch.optim.AdamW),
        ({"optimizer.name": "adam", "optimizer.lr": "0.001"}, torch.optim.Adam),
    ],
)
def test_an_experiment_makes_its_network_and_optimizer(given, kind):
    experiment = compose("seq-digits", "gcr", seed=5, overrides={"model": "mlp"} | given)
    net = experiment.make_net(make_scenario())
    again = experiment.make_net(make_scenario())
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), again.parameters(), strict=True))
    optimizer = experiment.make_optimizer(net)
    assert type(optimizer) is kind
    if isinstance(optimizer, torch.optim.Optimizer):
        group = optimizer.param_groups[0]
        assert [group["lr"], group["weight_decay"]] == [experiment.optimizer.lr, experiment.optimizer.weight_decay]
        assert len(group["params"]) == len(list(net.parameters()))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"name": "adamm"}, 'unknown optimizer "adamm" .did you mean "adam'),
        ({"lr": -1}, "lr must be >= 0.0, got -1"),
        ({"name": "adam", "momentum": 0.9}, "momentum is for optimizer sgd, got optimizer adam; leave out"),
        ({"momentum": 1.0}, "momentum must be <= 0.9999"),
    ],
)
def test_bad_optimizers_are_refused(given, said):
    with pytest.raises(BadInput, match=said):
        OptimizerSpec(**given)


# --- Experiments of earlier versions load; the dicts below were written by version 0.1

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


@pytest.mark.parametrize(("given", "value"), [(True, True), (False, False), ("true", True), ("false", False)])
def test_true_or_false(given, value):
    assert Stream(online=given).online is value


@pytest.mark.parametrize("given", ["True", "yes", "1", "", 1, 0, 1.0, None, ["true"]])
def test_neither_true_nor_false(given):
    with pytest.raises(BadInput, match="online must be true or false, got"):
        Stream(online=given)


@pytest.mark.parametrize(
    ("given", "meant"),
    [("GCR+", "gcr+"), ("gcr-plus", "gcr+"), ("gcrplus", "gcr+"), ("derpp", "der++"), ("ERACE", "er-ace"), ("svm", "")],
)
def test_a_method_by_the_name_of_its_folder_or_nearly_its_own(given, meant):
    with pytest.raises(BadInput, match="unknown method") as error:
        compose("seq-digits", given)
    assert ("did you mean" in str(error.value)) == bool(meant)
    assert f'(did you mean "{meant}"?)' in str(error.value) or not meant


def test_a_replay_minibatch_that_no_machine_has_room_for():
    with pytest.raises(BadInput, match="replay_batch must be"):
        compose("seq-digits", "er", overrides={"replay_batch": 2**31})


def test_a_whole_number_that_is_too_large():
    with pytest.raises(BadInput, match="batch must be a whole number"):
        compose("seq-digits", "er", overrides={"batch": 10**400})
