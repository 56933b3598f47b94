"""Training on a GPU is that on a CPU; captured, compiled and packed steps compute what eager ones do: pytest -m gpu."""

from copy import deepcopy
from dataclasses import replace

import pytest
import torch
from conftest import make_scenario
from named import Training, new_run, train

from gcr.experiments.experiment import compose
from gcr.memory import POLICIES, BalancedReservoir, Policy
from gcr.methods import METHODS, DerPlusPlus, Gcr, GcrPlus, gcr_plus
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.runs.local import set_kernels
from gcr.select import GradApprox, ReducibleLoss, Typicality
from gcr.training import Checkpoints, Diverged, How, Stopped
from gcr.training.pack import run_pack

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
every_method = pytest.mark.parametrize("method", METHODS, ids=[m.name for m in METHODS])
same_bits = pytest.mark.usefixtures("same_bits_every_time")


@pytest.fixture
def same_bits_every_time():
    set_kernels(deterministic=True)
    yield
    set_kernels(deterministic=False)


@pytest.fixture(autouse=True)
def an_old_network(monkeypatch):
    """That of gcr+, after stages as short as these."""
    monkeypatch.setattr(gcr_plus, "FEW_STEPS", 2)


def parts(method, precision="fp32", model="convnet", lr=0.05):
    """20 examples a stage in batches of 8: a tail of 4, and two epochs, so that both batch sizes are captured."""
    selector = next(p for p in POLICIES if p.name == method.default_selector)()
    policy = Policy(buffer=12, selector=selector, replay_batch=8)
    scenario = make_scenario(n_per_class=10, channels=3)
    return scenario, model, method(), policy, Training(epochs=3, lr=lr, batch=8, precision=precision), 0


def weights(outcome):
    return [p.detach().clone() for p in outcome.state.net.parameters()]


@same_bits
@every_method
@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16"])
def test_captured_equals_eager_to_the_bit(method, precision):
    eager = train(*parts(method, precision), How("cuda", "eager"))
    captured = train(*parts(method, precision), How("cuda", "captured"))
    assert eager.class_il == captured.class_il
    for (name, ours), (_, theirs) in zip(eager.state.tensors(), captured.state.tensors(), strict=True):
        assert torch.equal(ours, theirs), name


OTHER_MEMORIES = [
    {"selector": BalancedReservoir(evict="loss")},
    {"selector": BalancedReservoir(evict="herding")},
    {"selector": GradApprox(power=0.3, shrink=0.5), "pool_network": "predictor", "candidates": 4},
    {"selector": Typicality(), "pool_view": "weak", "pool_views": 3},
    {"selector": ReducibleLoss()},
]


@same_bits
@pytest.mark.parametrize("memory", OTHER_MEMORIES, ids=lambda memory: memory["selector"].name)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_captured_equals_eager_under_other_memories(memory, precision):
    scenario, model, method, _, training, seed = parts(GcrPlus, precision)
    policy = Policy(buffer=12, replay_batch=8, **memory)
    eager, captured = (
        train(scenario, model, method, policy, training, seed, How("cuda", mode)) for mode in ("eager", "captured")
    )
    assert eager.class_il == captured.class_il
    for (name, ours), (_, theirs) in zip(eager.state.tensors(), captured.state.tensors(), strict=True):
        assert torch.equal(ours, theirs), name


@same_bits
@pytest.mark.parametrize("method", [DerPlusPlus, Gcr])
def test_compiled_equals_eager_up_to_rounding(method):
    eager = train(*parts(method), How("cuda", "eager"))
    compiled = train(*parts(method), How("cuda", "compiled"))
    for ours, theirs in zip(weights(eager), weights(compiled), strict=True):
        torch.testing.assert_close(ours, theirs, atol=5e-3, rtol=5e-2)


@same_bits
@every_method
def test_a_step_never_waits_for_the_device(method):
    third_step_without_host_reads(*parts(method))


@same_bits
def test_a_step_that_evicts_by_loss_never_waits_for_the_device():
    scenario, model, method, _, *rest = parts(GcrPlus)
    policy = Policy(buffer=12, selector=BalancedReservoir(evict="loss"), replay_batch=8)
    third_step_without_host_reads(scenario, model, method, policy, *rest)


def third_step_without_host_reads(*parts):
    """They raise in this mode. A run before it: layers keep lists of each batch size on the device."""
    train(*deepcopy(parts), How("cuda", "eager"))
    run = new_run(*parts, How("cuda", "eager"))
    steps = run.advance()
    while run.state.steps < 2:
        next(steps)
    torch.cuda.set_sync_debug_mode("error")
    try:
        next(steps)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def digits(out, **how):
    methods = ("gcr", "der++", "er", "gcr")
    experiments = [compose("seq-digits", m, seed=s, overrides={"epochs": 2}) for s, m in enumerate(methods)]
    jobs = [Job(experiment, RunFolder.of(out, experiment)) for experiment in experiments]
    events = []
    run_all(jobs, events.append, Execution("cuda", deterministic=True, **how))
    assert not [event.error for event in events if event.error]
    return [job.folder for job in jobs]


@same_bits
@pytest.mark.parametrize("pack", [4, 0])
def test_a_run_does_not_depend_on_its_pack(tmp_path, pack):
    """A pack of one, of four different methods and seeds, and of whatever size pays."""
    alone, together = digits(tmp_path / "alone", pack=1), digits(tmp_path / "together", pack=pack)
    for ours, theirs in zip(alone, together, strict=True):
        measured = {"seconds": 0, "finished": "", "peak_bytes": 0, "files": {}}
        assert ours.result() | measured == theirs.result() | measured
        ours_kept, theirs_kept = ours.memory(), theirs.memory()
        assert all(torch.equal(ours_kept[name], theirs_kept[name]) for name in ours_kept)


@same_bits
@pytest.mark.parametrize("stop_after", [4, 13])
def test_a_resumed_run_ends_with_the_same_bits(tmp_path, stop_after):
    whole = train(*parts(Gcr, "tf32"), How("cuda"))

    def part(stop):
        return new_run(*parts(Gcr, "tf32"), How("cuda"), checkpoints=Checkpoints(tmp_path, {}), stop=stop)

    def drive(run):
        run_pack([run.advance()], 1, torch.device("cuda"))

    first = part(lambda: first.state.steps == stop_after)
    with pytest.raises(Stopped):
        drive(first)
    second = part(lambda: False)
    assert second.state.steps == stop_after
    drive(second)
    assert second.outcome().class_il == whole.class_il
    for (name, ours), (_, theirs) in zip(second.state.tensors(), whole.state.tensors(), strict=True):
        assert torch.equal(ours, theirs), name


@same_bits
def test_images_that_stay_on_the_host_train_the_same(tmp_path):
    scenario, *rest = parts(Gcr)
    streamed = replace(scenario, train=replace(scenario.train, resident=False))
    ours, theirs = (train(s, *rest, How("cuda", "captured")) for s in (scenario, streamed))
    assert all(torch.equal(a, b) for a, b in zip(weights(ours), weights(theirs), strict=True))


@same_bits
def test_a_loss_that_is_no_number_is_remembered_by_a_captured_step():
    with pytest.raises(Diverged, match="task 1, epoch"):
        train(*parts(Gcr, lr=1e30), How("cuda", "captured"))


@same_bits
def test_too_little_memory_ends_with_a_remedy(tmp_path):
    experiment = compose("seq-digits", "gcr", overrides={"epochs": 1, "model": "resnet18", "buffer": 5000})
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(0).total_memory
    used = torch.cuda.memory_reserved()
    torch.cuda.set_per_process_memory_fraction((used + 60e6) / total)
    try:
        events = []
        run_all([Job(experiment, RunFolder.of(tmp_path, experiment))], events.append, Execution("cuda", pack=4))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    (error,) = [event.error for event in events if event.error]
    assert error == "out of GPU memory with one run at a time; try a smaller batch, buffer or model"


@pytest.mark.parametrize("method", METHODS, ids=[m.name for m in METHODS])
@pytest.mark.parametrize("sampling", ["coin", "split"])
def test_cpu_and_gpu_train_alike(method, sampling):
    """The same draws on both: after a few steps the networks differ by rounding only."""
    selector = next(p for p in POLICIES if p.name == method.default_selector)()
    policy = Policy(buffer=12, selector=selector, sampling=sampling, replay_batch=8)
    training = Training(epochs=1, lr=0.05, batch=8, precision="fp32")
    ours, theirs = (
        train(make_scenario(channels=3), "convnet", method(), policy, training, 0, device) for device in ("cpu", "cuda")
    )
    for a, b in zip(ours.state.net.parameters(), theirs.state.net.parameters(), strict=True):
        torch.testing.assert_close(a, b.cpu(), atol=2e-3, rtol=2e-2)
    if ours.state.memory is not None:
        assert torch.equal(ours.state.memory.columns["label"][:12], theirs.state.memory.columns["label"][:12].cpu())
