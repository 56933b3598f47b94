from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from conftest import make_scenario
from named import Training, train
from torch.optim import SGD, Adagrad, AdamW

from gcr.memory import Policy
from gcr.methods import Er, Gcr
from gcr.scenarios import from_arrays
from gcr.select import GradApprox
from gcr.settings import BadInput
from gcr.training import How, step_runner
from gcr.training.numerics import computing, resolved
from gcr.training.optimizer import numbers_of
from gcr.training.sgd import Sgd
from gcr.training.step_runner import StepRunner, pick_mode

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def optimizer(kind, **settings):
    return kind([torch.nn.Parameter(torch.zeros(2))], lr=0.1, **settings)


def test_auto_is_the_fastest_that_the_optimizer_allows():
    assert pick_mode("auto", CPU, optimizer(Adagrad)) == ("eager", "")
    assert pick_mode("auto", GPU, optimizer(Sgd)) == ("captured", "")
    assert pick_mode("auto", GPU, optimizer(SGD, momentum=0.9)) == ("captured", "")
    adamw = optimizer(AdamW)
    assert pick_mode("auto", GPU, adamw) == ("captured", "")
    assert adamw.param_groups[0]["capturable"]


def test_an_optimizer_that_cannot_be_captured_says_so():
    mode, remark = pick_mode("captured", GPU, optimizer(Adagrad))
    assert mode == "eager"
    assert remark == "the step cannot be captured (Adagrad has no capturable form); it runs eagerly"


def test_a_capture_without_memory_is_no_reason_to_run_eagerly(monkeypatch):
    """Eager steps would take ten times as long, and as much memory."""

    def capture(launch, device, graph_pool):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(step_runner, "capture", capture)
    runner = object.__new__(StepRunner)
    runner.graphs, runner.graph_pool, runner.insists = {}, None, False
    runner.state = SimpleNamespace(step=torch.zeros(()))
    with pytest.raises(torch.OutOfMemoryError):
        runner._captured((8, True, True, 0), lambda: pytest.fail("it ran eagerly"))


@pytest.mark.parametrize("made", [Sgd, SGD, AdamW])
def test_steps_are_captured_again_when_the_learning_rate_changes(made, monkeypatch):
    """A graph has it as a number. What stands for one here replays its step, and says when it was captured."""
    captured, ran, pools = [], [], []

    def capture(launch, device, graph_pool):
        assert graph_pool not in pools  # torch opens none again whose graphs are gone
        pools.append(graph_pool)
        captured.append(len(ran))
        return SimpleNamespace(replay=launch)

    monkeypatch.setattr(step_runner, "capture", capture)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", object)
    runner = object.__new__(StepRunner)
    rate = optimizer(made)
    runner.state = SimpleNamespace(optimizer=rate, step=torch.zeros(()), stage=0, steps=0, epoch_steps=0, offered=True)
    runner.graphs, runner.graph_pool, runner.insists, runner.captures = {}, None, False, True
    runner.captured_with, runner.method = numbers_of(rate), Er()
    runner._launch = lambda *phase: ran.append(phase)
    for step in range(12):
        if step in (5, 6, 7):
            for group in rate.param_groups:
                group.update(lr=step)
        runner(8)
    assert captured == [1, 8]  # each after a step that warms up: once more where the rate stays as it is
    assert len(ran) == 12


def test_modes_that_cannot_be():
    with pytest.raises(BadInput, match="mode captured needs a GPU; use --mode auto"):
        pick_mode("captured", CPU)
    with pytest.raises(BadInput, match='mode must be one of auto, eager, compiled, captured, got "fast"'):
        pick_mode("fast", CPU)


def as_floats(scenario):
    parts = [(part.pixels / 255, part.labels) for part in (scenario.train, scenario.test)]
    return from_arrays(*parts, tasks=3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_that_stay_on_the_host_train_the_same(dtype):
    made = make_scenario(n_per_class=15)
    scenario = made if dtype == torch.uint8 else as_floats(made)
    assert scenario.train.pixels.dtype == dtype
    streamed = replace(
        scenario, train=replace(scenario.train, resident=False), test=replace(scenario.test, resident=False)
    )
    policy, training = Policy(buffer=12, selector=GradApprox()), Training(epochs=2, lr=0.1, batch=8)
    ours, theirs = (train(s, "mlp", Gcr(), policy, training, 0) for s in (scenario, streamed))
    assert ours.class_il == theirs.class_il
    for a, b in zip(ours.state.net.parameters(), theirs.state.net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_bf16_trains_on_a_cpu_too_and_nearly_the_same():
    outcomes = [
        train(make_scenario(), "convnet", Er(), Policy(buffer=12), Training(epochs=1, lr=0.05, precision=p), 0)
        for p in ("fp32", "bf16")
    ]
    a, b = (outcome.state.net.head.weight for outcome in outcomes)
    assert not torch.equal(a, b)
    torch.testing.assert_close(a, b, atol=0.02, rtol=0.1)
    assert b.dtype == torch.float32


def test_in_bfloat16_weights_count_as_updated():
    """An autocast that kept its copies of the weights would compute with those of before an update."""
    layer, ones = torch.nn.Linear(2, 1), torch.ones(1, 2)
    with computing("bf16", CPU):
        before = layer(ones)
        layer.weight.data += 1
        after = layer(ones)
    torch.testing.assert_close(after, before + 2, atol=0.05, rtol=0)


@pytest.mark.parametrize(("capability", "auto"), [((9, 0), "bf16"), ((8, 0), "bf16"), ((7, 5), "tf32")])
def test_a_gpu_computes_in_bfloat16_if_it_can(monkeypatch, capability, auto):
    monkeypatch.setattr(torch.cuda, "get_device_capability", {GPU: capability}.get)
    assert resolved("auto", GPU) == auto
    assert resolved("fp32", GPU) == "fp32"
    assert resolved("auto", CPU) == "fp32"


@pytest.mark.slow  # the compiler takes half a minute
@pytest.mark.parametrize("size", [6, 8])
def test_compiled_equals_eager_up_to_rounding(size):
    """To the size of 6: torch's compiler has had a wrong gradient for pooling over windows that stick out."""
    outcomes = [
        train(
            make_scenario(size=size), "convnet", Gcr(), Policy(buffer=12), Training(epochs=1, lr=0.05), 0, How(mode=m)
        )
        for m in ("eager", "compiled")
    ]
    for a, b in zip(*(outcome.state.net.parameters() for outcome in outcomes), strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)
