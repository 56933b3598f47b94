"""Any optimizer of torch, on any network: equal to plain training, resumed to the bit."""

import copy
import json
import warnings
from dataclasses import replace
from functools import partial

import pytest
import torch
from conftest import make_scenario
from made_learners import SmallViT
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD, AdamW, NAdam, RMSprop
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR, ReduceLROnPlateau, StepLR

from gcr.experiments.variants import GCR
from gcr.memory import Policy
from gcr.methods import Er, Finetune, Gcr
from gcr.models import build
from gcr.runs.local import set_kernels
from gcr.select import GradApprox
from gcr.settings import BadInput
from gcr.training import Checkpoints, How, Run, Sgd, Stopped, Training, train
from gcr.training.optimizer import (
    add_parameters,
    apply_gradients,
    check_group_numbers,
    drop_parameters,
    group_numbers,
    make_capturable,
    restore_group_numbers,
)
from gcr.training.randomness import EpochDraws
from gcr.training.schedule import make_schedule
from gcr.training.step import draw_plan

KINDS = {
    "momentum": lambda p: SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": lambda p: AdamW(p, lr=0.01),
    "fused": lambda p: AdamW(p, lr=0.01, fused=True),
    "nadam": lambda p: NAdam(p, lr=0.01),
    "rmsprop": lambda p: RMSprop(p, lr=0.01, momentum=0.5),
    "ours": lambda p: Sgd(p, lr=0.05, weight_decay=1e-3),
}
TRAINING = Training(epochs=2, batch=8)


def vit():
    torch.manual_seed(0)
    return SmallViT()


@pytest.mark.parametrize("kind", KINDS)
def test_steps_equal_those_written_by_hand(kind, scenario):
    net, plain = vit(), vit()
    optimizer = KINDS[kind](plain.parameters()) if kind != "ours" else SGD(plain.parameters(), 0.05, weight_decay=1e-3)
    outcome = train(scenario, net, KINDS[kind](net.parameters()), Finetune(), None, 0, TRAINING)
    draws = EpochDraws(draw_plan(Finetune(), None, TRAINING), 3, torch.device("cpu"))
    steps = 0
    for stage, about in enumerate(make_schedule(scenario, Finetune(), TRAINING, 0).stages):
        for epoch in range(2):
            draws.fill((0, stage, epoch), about.rows, 3)
            for step in range(3):
                cut = draws.at(torch.tensor(step), 8, replaying=False)
                images = scenario.views.weak(scenario.train.pixels[cut.rows], cut.views)
                optimizer.zero_grad()
                F.cross_entropy(plain.train()(images), scenario.train.labels[cut.rows]).backward()
                optimizer.step()
                steps += 1
    assert outcome.steps == steps
    for a, b in zip(net.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def convnet():
    return build("convnet", (1, 6, 6), 6, seed=0)


ON_CONVNET = [pytest.param(convnet, kind, marks=[pytest.mark.slow] * (kind not in ("fused", "ours"))) for kind in KINDS]


@pytest.mark.parametrize(("make", "kind"), [*((vit, kind) for kind in KINDS), *ON_CONVNET])
def test_a_stopped_run_continues_to_the_bit(make, kind, tmp_path):
    def new_run(folder, stop=lambda: False):
        folder.mkdir(exist_ok=True)
        net = make()
        parts = KINDS[kind](net.parameters()), Gcr(), Policy(buffer=12, selector=GradApprox(), replay_batch=6), 0
        saved = Checkpoints(folder, {})
        return Run(make_scenario(), net, *parts, TRAINING, How(), checkpoints=saved, stop=stop)

    whole = new_run(tmp_path / "whole")
    list(whole.advance())
    steps = iter(range(7))
    stopped = new_run(tmp_path / "stopped", stop=lambda: next(steps, None) is None)
    with pytest.raises(Stopped):
        list(stopped.advance())
    again = new_run(tmp_path / "stopped")
    assert again.state.steps == stopped.state.steps > 0
    list(again.advance())
    assert whole.outcome().class_il == again.outcome().class_il
    for a, b in zip(whole.state.net.parameters(), again.state.net.parameters(), strict=True):
        assert torch.equal(a, b)


RATES = {
    "momentum": lambda epoch: {"lr": 0.05 / epoch, "momentum": 0.9 - 0.1 * epoch},
    "adamw": lambda epoch: {"lr": 0.01 / epoch, "betas": (1 - 0.1 * epoch, 0.99)},
    "ours": lambda epoch: {"lr": 0.05 / epoch},
}


@pytest.mark.parametrize("kind", RATES)
def test_a_run_under_a_schedule_continues_to_the_bit(kind, tmp_path):
    def new_run(folder, stop=lambda: False):
        folder.mkdir(exist_ok=True)
        net = vit()
        optimizer = KINDS[kind](net.parameters())

        def set_rates(epoch):
            group = optimizer.param_groups[0]
            group.update(RATES[kind](epoch.steps // 3))  # an epoch is 3 steps

        return Run(
            *(make_scenario(), net, optimizer, Er(), Policy(buffer=12), 0, TRAINING, How()),
            on_epoch=set_rates,
            checkpoints=Checkpoints(folder, {}),
            stop=stop,
        )

    whole = new_run(tmp_path / "whole")
    list(whole.advance())
    steps = iter(range(7))
    stopped = new_run(tmp_path / "stopped", stop=lambda: next(steps, None) is None)
    with pytest.raises(Stopped):
        list(stopped.advance())
    again = new_run(tmp_path / "stopped")
    list(again.advance())
    for a, b in zip(whole.state.net.parameters(), again.state.net.parameters(), strict=True):
        assert torch.equal(a, b)


SCHEDULES = {
    "cosine": lambda optimizer, steps: CosineAnnealingLR(optimizer, steps),
    "one cycle": lambda optimizer, steps: OneCycleLR(optimizer, 0.02, total_steps=steps),  # momentum, too
    "warm-up": lambda optimizer, steps: LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 3)),
}


def test_a_schedule_steps_after_every_batch_and_begins_again_with_every_task(scenario):
    net, asked, rates = vit(), [], []
    optimizer = SGD(net.parameters(), lr=1.0)

    def schedule(optimizer, steps):
        asked.append((steps, optimizer.param_groups[0]["lr"]))
        return LambdaLR(optimizer, lambda step: 1 - step / steps)

    train(
        *(scenario, net, optimizer, Finetune(), None, 0, TRAINING),
        on_epoch=lambda epoch: rates.append(optimizer.param_groups[0]["lr"]),
        schedule=schedule,
    )
    tasks = len(scenario.tasks)
    assert asked == [(6, 1.0)] * tasks  # 3 steps an epoch
    assert rates == [0.5, 0.0] * tasks
    assert optimizer.param_groups[0]["lr"] == 1.0
    assert "initial_lr" not in optimizer.param_groups[0]


def test_steps_under_a_schedule_equal_those_with_rates_set_by_hand(scenario):
    def trained(schedule, on_epoch):
        net = vit()
        optimizer = SGD(net.parameters(), lr=0.1, momentum=0.9)
        set_rate = partial(on_epoch, optimizer)
        train(scenario, net, optimizer, Er(), Policy(buffer=12), 0, TRAINING, on_epoch=set_rate, schedule=schedule)
        return torch.cat([p.detach().flatten() for p in net.parameters()])

    def halve(optimizer, epoch):
        optimizer.param_groups[0]["lr"] = 0.05 if epoch.epoch == 0 else 0.1

    under = trained(lambda optimizer, steps: StepLR(optimizer, steps // 2, 0.5), lambda optimizer, epoch: None)
    assert torch.equal(under, trained(None, halve))
    assert not torch.equal(under, trained(None, lambda optimizer, epoch: None))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_scheduled_run_continues_to_the_bit(schedule, tmp_path):
    """Stopped within an epoch, in another task, and at the end of an epoch."""

    def new_run(folder, stop=lambda: False):
        folder.mkdir(exist_ok=True)
        net = vit()
        parts = KINDS["adamw"](net.parameters()), Er(), Policy(buffer=12), 0, TRAINING, How()
        saved = Checkpoints(folder, {})
        return Run(make_scenario(), net, *parts, checkpoints=saved, stop=stop, schedule=SCHEDULES[schedule])

    whole = new_run(tmp_path / "whole")
    list(whole.advance())
    going = []
    for steps in (4, 7, 9):
        going.append(new_run(tmp_path / "stopped", stop=lambda steps=steps: going[-1].state.steps == steps))
        with pytest.raises(Stopped):
            list(going[-1].advance())
        assert going[-1].state.steps == steps
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again = new_run(tmp_path / "stopped")
    list(again.advance())
    for a, b in zip(whole.state.net.parameters(), again.state.net.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("schedule", "kind", "message"),
    [
        (3, "adamw", "schedule must be a function"),
        (lambda o, n: None, "adamw", "schedule must return a scheduler of torch, got NoneType"),
        (lambda o, n: ReduceLROnPlateau(o), "adamw", "ReduceLROnPlateau"),
        (lambda o, n: StepLR(KINDS["adamw"](vit().parameters()), 1), "adamw", "of the optimizer that it is given"),
        (SCHEDULES["cosine"], "ours", r"schedule needs an optimizer of torch\.optim, got Sgd"),
    ],
)
def test_schedules_that_cannot_be(schedule, kind, message, scenario):
    net = vit()
    with pytest.raises(BadInput, match=message):
        train(scenario, net, KINDS[kind](net.parameters()), Finetune(), None, 0, TRAINING, schedule=schedule)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_of_an_optimizer_are_put_back_or_refused(kind):
    def made():
        return KINDS[kind](vit().parameters())

    optimizer, fresh = made(), made()
    saved = group_numbers(optimizer)
    assert all(isinstance(value, int | float | tuple) for value in saved[0].values())
    read = json.loads(json.dumps([saved[0] | {"lr": 0.25}]))
    check_group_numbers(fresh, read)
    restore_group_numbers(fresh, read)
    assert group_numbers(fresh) == [saved[0] | {"lr": 0.25}]
    for wrong in ([], saved * 2, [{"lr": "0.25"}], [{"lr": -0.25}], [{"lr": [0.25]}], [{"lr": True}], [{"lr": 1e99}]):
        with pytest.raises(ValueError, match=r"groups|lr must be a number"):
            check_group_numbers(fresh, wrong)


def test_a_rate_that_is_a_tensor_is_saved_and_stays_where_it_is():
    """A captured step reads it there."""
    optimizer, fresh = (AdamW(vit().parameters(), lr=torch.tensor(0.5)) for _ in range(2))
    optimizer.param_groups[0]["lr"].fill_(0.25)
    rate = fresh.param_groups[0]["lr"]
    check_group_numbers(fresh, json.loads(json.dumps(group_numbers(optimizer))))
    restore_group_numbers(fresh, group_numbers(optimizer))
    assert fresh.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25


def test_betas_that_give_no_step_are_refused():
    optimizer = AdamW(vit().parameters())
    check_group_numbers(optimizer, [{"betas": [0.5, 0.999], "lr": 3.0}])
    with pytest.raises(ValueError, match="betas must be a number as"):
        check_group_numbers(optimizer, [{"betas": [0.5, 1.5]}])


def test_frozen_parameters_stay(scenario):
    net = vit()
    net.patches.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    train(scenario, net, AdamW(net.parameters(), lr=0.01), Er(), Policy(buffer=12), 0, TRAINING)
    assert torch.equal(net.patches.weight, before["patches.weight"])
    assert not torch.equal(net.classifier.weight, before["classifier.weight"])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda net: torch.optim.LBFGS(net.parameters()), "one of torch.optim that needs no closure, got LBFGS"),
        (lambda net: "sgd", "optimizer must be gcr.Sgd or one of torch.optim that needs no closure, got str"),
        (lambda net: AdamW(SmallViT().parameters()), "holds parameters that are not the network's"),
        (lambda net: AdamW(net.requires_grad_(False).parameters()), "no parameter that wants a gradient"),
    ],
)
def test_optimizers_that_cannot_be_used(make, message, scenario):
    net = vit()
    with pytest.raises(BadInput, match=message):
        train(scenario, net, make(net), Er(), Policy(buffer=12), 0, TRAINING)


def test_memory_is_asked_for(scenario):
    net = nn.Sequential(nn.Flatten(), nn.Linear(36, 6))
    with pytest.raises(BadInput, match="er replays from memory, got memory=None"):
        train(scenario, net, Sgd(net.parameters(), lr=0.1), Er(), None, 0)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"scenario": ([], [])}, "scenario must be a Scenario, got tuple; gcr.from_arrays"),
        ({"net": "resnet18"}, "net must be a Module, got str; gcr.models.build"),
        ({"method": "gcr"}, "method must be a Method, got str"),
        ({"method": GCR(20)}, r"method must be a Method, got GCR; as gcr.GCR\(\).method"),
        ({"memory": 20}, "memory must be a Policy or None, got int"),
        ({"how": "gpu"}, 'device "gpu" cannot be used .*; "cpu" always can'),
        ({"how": How("cuda:99")}, 'device "cuda:99" cannot be used'),
        ({"seed": -1}, "seed must be a whole number from 0 to 2.32 - 1, got -1"),
    ],
)
def test_objects_of_a_wrong_kind_are_refused(changed, message, scenario):
    net = vit()
    right = {"scenario": scenario, "net": net, "optimizer": Sgd(net.parameters(), lr=0.1), "method": Er()}
    with pytest.raises(BadInput, match=message):
        train(**right | {"memory": Policy(buffer=12), "seed": 0} | changed)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["momentum", "adamw", "nadam", "ours"])
@pytest.mark.parametrize("make", [vit, convnet])
@pytest.mark.parametrize("schedule", [None, lambda o, n: StepLR(o, n // 3), SCHEDULES["cosine"]])
def test_captured_steps_equal_eager_ones(kind, make, schedule):
    if kind == "ours":
        schedule = None

    def trained(mode):
        net = make()
        optimizer = KINDS[kind](net.parameters())
        make_capturable(optimizer)  # eager steps by the same formula
        parts = optimizer, Gcr(), Policy(buffer=12, selector=GradApprox(), replay_batch=6), 0
        training = Training(epochs=4, batch=8, precision="fp32")
        scenario, how = make_scenario(n_per_class=24), How("cuda", mode)
        return train(scenario, net, *parts, training, how, schedule=schedule).state.net

    set_kernels(deterministic=True)
    try:
        for a, b in zip(trained("eager").parameters(), trained("captured").parameters(), strict=True):
            assert torch.equal(a, b)
    finally:
        set_kernels(deterministic=False)


@pytest.mark.gpu
def test_a_step_that_reads_on_the_host_runs_eagerly():
    class Reads(SmallViT):
        def forward(self, images):
            assert float(images.sum()) == float(images.sum())
            return super().forward(images)

    net = Reads()
    with pytest.warns(UserWarning, match="the step cannot be captured"):
        outcome = train(make_scenario(), net, Sgd(net.parameters(), 0.1), Er(), Policy(buffer=12), 0, TRAINING, "cuda")
    assert outcome.steps == 18


def test_our_rates_are_in_groups_as_those_of_torch():
    after = []
    for made in (Sgd, torch.optim.SGD):
        first, second = (torch.nn.Parameter(torch.tensor([value])) for value in (1.0, 2.0))
        optimizer = made([first], lr=0.1, weight_decay=0.5)
        optimizer.add_param_group({"params": [second], "lr": 0.2, "weight_decay": 0.0})
        optimizer.param_groups[0]["lr"] = 0.3
        apply_gradients(optimizer, [second, first], [torch.ones(1), torch.ones(1)])
        after.append((first.item(), second.item()))
    assert after[0] == pytest.approx((1 - 0.3 * 1.5, 2 - 0.2))
    assert after[0] == pytest.approx(after[1])
    with pytest.raises(AttributeError):  # not silently without effect
        Sgd([first], lr=0.1).lr = 0.2


def test_groups_of_ours_are_as_those_of_torch():
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    optimizer = Sgd(net[0].parameters(), lr=0.1)
    optimizer.add_param_group({"params": net[1].parameters()})
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]
    before = net[1].weight.clone()
    apply_gradients(optimizer, [*net[0].parameters()], [torch.ones(2, 2), torch.ones(2)])  # none for a whole group
    assert torch.equal(net[1].weight, before)
    with pytest.raises(BadInput, match="params must be of one group"):
        optimizer.add_param_group({"params": net[1].weight})
    with pytest.raises(BadInput, match="lr and weight_decay must be >= 0, got -1"):
        optimizer.add_param_group({"params": torch.nn.Parameter(before), "lr": -1.0})
    drop_parameters(optimizer, {*net.parameters()})
    add_parameters(optimizer, [*net[0].parameters()])  # its rates are those of the first group, though that is empty
    assert optimizer.param_groups[-1]["lr"] == 0.1


def checkpointed(folder, *, lr=0.05, method=None, memory=12, seed=0, training=TRAINING, schedule=None, **options):
    net = vit()
    optimizer = SGD(net.parameters(), lr=lr, momentum=0.9)
    parts = (make_scenario(), net, optimizer, method or Er(), Policy(buffer=memory), seed, training)
    return train(*parts, checkpoints=folder, schedule=schedule, **options)


def fails_at(number):
    def on_epoch(epoch):
        if epoch.steps >= 3 * number:
            raise OSError("the machine fails")

    return on_epoch


def test_train_called_again_continues_from_a_folder(tmp_path):
    whole = checkpointed(None)
    folder = tmp_path / "new" / "folder"
    epochs = []
    with pytest.raises(OSError, match="the machine fails"):
        checkpointed(folder, on_epoch=fails_at(4))
    continued = checkpointed(str(folder), on_epoch=epochs.append)
    assert 0 < len(epochs) < 6
    finished = checkpointed(folder, on_epoch=epochs.clear)  # nothing is left to train
    for outcome in (continued, finished):
        assert outcome.class_il == whole.class_il
        for a, b in zip(whole.state.net.parameters(), outcome.state.net.parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"seed": 1}, "seed is 0 there, 1 here"),
        ({"lr": 0.1}, "optimizer is "),
        ({"method": Gcr(alpha=0.3)}, "method is "),
        ({"memory": 13}, "memory is "),
        ({"training": Training(epochs=3, batch=8)}, "training is "),
        ({"schedule": SCHEDULES["cosine"]}, "schedule is False there, True here"),
    ],
    ids=lambda value: "" if isinstance(value, str) else next(iter(value)),
)
def test_train_does_not_continue_another_run(other, field, tmp_path):
    with pytest.raises(OSError, match="the machine fails"):
        checkpointed(tmp_path, on_epoch=fails_at(2))
    with pytest.raises(BadInput, match=f"is of another run .*{field}.*; give what it was made with, or another folder"):
        checkpointed(tmp_path, **other)


def stepped(start):
    def go(scenario=None, nesterov=False, changed=lambda net: net):
        net = changed(vit())
        optimizer = SGD(net.parameters(), lr=0.05, momentum=0.9, nesterov=nesterov)
        parts = (scenario or make_scenario(), net, optimizer, Er(), Policy(buffer=12), 0, TRAINING)
        return train(*parts, checkpoints=start)

    return go


def other_pixels():
    scenario = make_scenario()
    return replace(scenario, train=replace(scenario.train, pixels=scenario.train.pixels.flip(3)))


def in_other_views():
    scenario = make_scenario()
    return replace(scenario, views=replace(scenario.views, flip=not scenario.views.flip))


def frozen(net):
    next(net.parameters()).requires_grad_(False)
    return net


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"scenario": other_pixels()}, "images"),
        ({"scenario": in_other_views()}, "views"),
        ({"nesterov": True}, "flags"),
        ({"changed": lambda net: nn.Sequential(net)}, "net"),
        ({"changed": frozen}, "net"),
    ],
    ids=["images", "views", "nesterov", "net", "frozen"],
)
def test_train_does_not_take_the_result_of_another_run(other, field, tmp_path):
    go = stepped(tmp_path)
    assert go().class_il == go().class_il  # the second only reads it
    with pytest.raises(BadInput, match=rf"is of another run \((.*; )?{field} is "):
        go(**other)


def test_checkpoints_must_be_a_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match=r"checkpoints must be a folder, got .*file"):
        checkpointed(tmp_path / "file")
