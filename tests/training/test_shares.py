"""One run in several processes equals the run in one: gradients, statistics, losses, memory, selections."""

import tempfile
from pathlib import Path

import pytest
import torch
from conftest import make_scenario
from torch import distributed, multiprocessing

from gcr import models
from gcr.experiments.experiment import compose
from gcr.methods import METHODS
from gcr.models.norm import BatchNorm
from gcr.models.shares import Shares
from gcr.settings import BadInput
from gcr.training import How, Run
from gcr.training.checkpoint import copy_from_first
from gcr.training.state import PLACE

STEPS = 18  # two epochs of three tasks with 46 examples each
# Small steps: where training amplifies rounding, runs in one process on two machines would differ as much.
USUAL = {"epochs": 2, "batch": 16, "lr": 0.003}


def train(method, world=1, rank=0, **settings):
    """The loss of each step, selections, and the state after the last step."""
    scenario = make_scenario(n_per_class=23)  # last minibatches of 14
    kept = {} if method in ("finetune", "joint") else {"buffer": 20, "replay_batch": 16}
    if method in ("gdumb", "gem"):
        kept.pop("replay_batch")
    if method == "gdumb":
        kept["fitting_epochs"] = 2
    overrides = USUAL | kept | settings
    if method == "gdumb":
        overrides.pop("lr")
    experiment = compose("seq-digits", method, seed=0, overrides=overrides)
    net = models.build("convnet", scenario.image_shape, scenario.n_classes, 0)
    for layer in net.modules():  # without kinks, at which a rounding error changes a gradient by far more
        if isinstance(layer, BatchNorm):
            layer.relu = False
    how = How("cpu", processes=world, rank=rank)
    optimizer = experiment.make_optimizer(net)
    run = Run(scenario, net, optimizer, experiment.method, experiment.memory, 0, experiment.training, how)
    losses, before = [], 0.0
    for _ in run.advance():
        total = float(run.state.loss_sum)
        losses.append((total if run.state.epoch_steps == 1 else total - before) / 16)
        before = total
    kept = {name: tensor.clone() for name, tensor in run.state.tensors()}
    return losses, run.state.selections, kept


def outputs_and_gradients(model, sizes, world=1, rank=0, ghosts=1):
    """Of several minibatches in float64."""
    net = models.build(model, (3, 6, 6), 6, 0).double().train()
    if world > 1 or ghosts > 1:
        net.share(Shares(rank, world, ghosts))
    generator = torch.Generator().manual_seed(0)
    batches = [3 * torch.rand(n, 3, 6, 6, generator=generator).double() for n in sizes]
    outputs = net.each(*batches)
    loss = sum((n + 1) * output.features.square().mean() for n, output in enumerate(outputs))
    gradients = net.gradients(loss, list(net.trunk.parameters()))
    if net.shares is not None:
        net.shares.average(models.statistics(net))
    return [output.features.detach() for output in outputs], gradients, models.statistics(net)


def take_over(world, rank):
    """The state of the first process, which has trained a little by itself; the other has not."""
    scenario = make_scenario()
    net = models.build("mlp", scenario.image_shape, scenario.n_classes, rank)
    experiment = compose("seq-digits", "er", overrides={"buffer": 20, "optimizer": "adamw"})
    optimizer = experiment.make_optimizer(net)
    run = Run(scenario, net, optimizer, experiment.method, experiment.memory, 0, experiment.training, How("cpu"))
    if rank == 0:
        advancing = run.advance()
        for _ in range(5):
            next(advancing)
    copy_from_first(run.state, Shares(rank, world))
    return dict(run.state.tensors()), {name: getattr(run.state, name) for name in PLACE}


def _in_process(rank, world, folder, cases):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
    results = {name: function(*arguments, world=world, rank=rank, **more) for name, function, arguments, more in cases}
    torch.save(results, f"{folder}/{rank}.pt")
    distributed.destroy_process_group()


def in_processes(world, cases):
    """What each of ``world`` processes returns for each case, by name. Forked: a new one imports torch for seconds."""
    import torch._dynamo  # once, before the forks: optimizers of torch ask for it

    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(_in_process, (world, folder, cases), world, start_method="fork")
        return [torch.load(Path(folder) / f"{rank}.pt", weights_only=False) for rank in range(world)]


TRAINED = {
    "er": ("er", {}),
    "der++": ("der++", {}),
    "gcr": ("gcr", {}),
    "gcr in ghost batches": ("gcr", {"ghost_batches": 2}),
}
PASSED = {
    "synchronised": ("resnet18", (6, 7), 1),
    "with a small minibatch": ("convnet", (8, 3), 1),
    "a ghost batch each": ("convnet", (16, 17, 3), 2),
    "two ghost batches each": ("convnet", (16, 9, 5), 4),
}


@pytest.fixture(scope="module")
def in_two():
    cases = [(name, train, (method,), settings) for name, (method, settings) in TRAINED.items()]
    cases += [
        (name, outputs_and_gradients, (model, sizes), {"ghosts": ghosts})
        for name, (model, sizes, ghosts) in PASSED.items()
    ]
    return in_processes(2, [*cases, ("taken over", take_over, (), {})])


def check_equal(one, two, tolerance=1e-5):
    (losses, selections, state), (losses_of_two, selections_of_two, state_of_two) = one, two
    assert len(losses) == len(losses_of_two) >= STEPS
    assert losses_of_two == pytest.approx(losses, abs=tolerance)
    assert [about["from"] for about in selections_of_two] == [about["from"] for about in selections]
    for name, tensor in state.items():
        if tensor.is_floating_point():
            torch.testing.assert_close(state_of_two[name], tensor, rtol=1e-4, atol=1e-4, equal_nan=True)
        else:
            assert torch.equal(state_of_two[name], tensor), name


@pytest.mark.parametrize("name", TRAINED)
def test_a_run_in_two_processes_has_the_losses_and_the_memory_of_one(in_two, name):
    method, settings = TRAINED[name]
    one = train(method, **settings)
    assert len(one[1]) == (3 if method == "gcr" else 0)  # a selection after each task
    check_equal(one, in_two[0][name])


@pytest.mark.parametrize("name", TRAINED)
def test_processes_stay_equal_to_the_bit(in_two, name):
    (losses, selections, state), (others, other_selections, other_state) = (each[name] for each in in_two)
    assert losses == others
    assert selections == other_selections
    assert all(torch.equal(tensor, other_state[key]) for key, tensor in state.items() if not tensor.isnan().any())


@pytest.mark.parametrize("name", PASSED)
def test_gradients_and_statistics_of_two_processes_are_those_of_one(in_two, name):
    model, sizes, ghosts = PASSED[name]
    one = outputs_and_gradients(model, sizes, ghosts=ghosts)
    for part, part_of_two in zip(one, in_two[0][name], strict=True):
        for tensor, of_two in zip(part, part_of_two, strict=True):
            torch.testing.assert_close(of_two, tensor, rtol=1e-9, atol=1e-12)


def test_a_process_takes_over_the_whole_state_of_the_first(in_two):
    (tensors, place), (taken, other_place) = (each["taken over"] for each in in_two)
    assert place["steps"] == 5
    assert other_place == place
    assert taken.keys() == tensors.keys()
    assert any(name.startswith("optimizer.") for name in taken)
    assert all(torch.equal(taken[name], tensor) for name, tensor in tensors.items())


def test_ghost_batches_have_statistics_of_their_own():
    """Each part of a minibatch comes out as it does alone; running statistics move by the mean over parts."""
    batch = torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    plain, ghost = (models.build("convnet", (1, 8, 8), 4, 0).train() for _ in range(2))
    ghost.share(Shares(ghosts=3))
    together = ghost.features(batch)
    layer = ghost.trunk[1]
    first_means = []
    for part in range(3):
        alone = models.build("convnet", (1, 8, 8), 4, 0).train()
        torch.testing.assert_close(together[part::3], alone.features(batch[part::3]))
        first_means.append(alone.trunk[1].running_mean)
    torch.testing.assert_close(layer.running_mean, torch.stack(first_means).mean(0))
    assert not torch.allclose(together, plain.features(batch), atol=1e-3)


def test_shares_that_do_not_fit_are_refused():
    with pytest.raises(BadInput, match="ghost_batches must be 1 or a multiple of the 2 processes, got 3"):
        Shares(0, 2, 3)
    with pytest.raises(BadInput, match="ghost_batches must be <= 8, two examples of a batch of 16 each, got 9"):
        train("er", ghost_batches=9)
    net = models.attach(
        torch.nn.Sequential(
            torch.nn.Conv2d(1, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.Flatten(), torch.nn.Linear(16, 3)
        ),
        torch.zeros(2, 1, 4, 4),
    )
    with pytest.raises(BadInput, match="net has normalisation layers other than"):
        net.share(Shares(0, 2))


@pytest.mark.slow
def test_every_method_in_three_processes_has_the_losses_of_one():
    names = [method.name for method in METHODS]
    for ghosts in (1, 3):
        settings = {"ghost_batches": ghosts, "epochs": 6}
        in_three = in_processes(3, [(name, train, (name,), settings) for name in names])
        for name in names:
            one, three = train(name, **settings), in_three[0][name]
            assert three[0] == pytest.approx(one[0], abs=1e-5), name
