"""The learner's captured step on a GPU."""

import pytest
import torch
from made_learners import A, B, C, blobs, mlp, quick
from torch import nn

import gcr
from gcr.methods import DerPlusPlus, ErAce, GcrPlus
from gcr.models import build

pytestmark = pytest.mark.gpu


def stream(steps):
    for number in range(steps):
        yield blobs((A, B) if number < steps // 2 else (B, C), n=8 if number % 5 else 6, seed=number)


def run_eagerly(learner):
    learner.engine.mode = "eager"
    learner.engine._make_runner()


@pytest.mark.parametrize("method", [ErAce(), DerPlusPlus(), GcrPlus()], ids=lambda method: method.name)
def test_captured_steps_are_the_eager_ones(method):
    learners = []
    for mode in ("eager", "auto"):
        learner = gcr.Learner(mlp().cuda(), memory=12, method=method, optimizer=quick, precision="fp32")
        for number, (x, y) in enumerate(stream(120)):
            learner.observe(x, y)
            if number == 0 and mode == "eager":
                run_eagerly(learner)
        learners.append(learner)
    eager, captured = learners
    assert any(captured.engine.runner.graphs.values())
    for mine, theirs in zip(eager.net.parameters(), captured.net.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, atol=2e-4, rtol=2e-3)
    assert torch.equal(eager.memory.examples, captured.memory.examples)
    assert eager.memory.labels.tolist() == captured.memory.labels.tolist()


@pytest.mark.parametrize("optimizer", [torch.optim.AdamW, torch.optim.SGD])
def test_captured_steps_follow_a_learning_rate_that_changes(optimizer):
    learners = []
    for mode in ("eager", "auto"):
        learner = gcr.Learner(
            mlp().cuda(), memory=12, optimizer=lambda parameters: optimizer(parameters, lr=0.01), precision="fp32"
        )
        for number, (x, y) in enumerate(stream(60)):
            learner.observe(x, y)
            if number == 0 and mode == "eager":
                run_eagerly(learner)
            if number == 30:
                learner.optimizer.param_groups[0]["lr"] = 0.0
                before = learner.net[0].weight.detach().clone()  # no graph of it: none could be captured then
        learners.append(learner)
        assert torch.equal(learner.net[0].weight, before)
    eager, captured = learners
    assert any(captured.engine.runner.graphs.values())
    torch.testing.assert_close(captured.logits(x), eager.logits(x), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("method", [ErAce(), GcrPlus()], ids=lambda method: method.name)
def test_a_layer_unfrozen_between_captured_steps_learns(method):
    learners = []
    for mode in ("eager", "auto"):
        net = mlp().cuda()
        net[0].requires_grad_(False)
        learner = gcr.Learner(net, memory=12, method=method, optimizer=quick, precision="fp32")
        for number, (x, y) in enumerate(stream(60)):
            learner.observe(x, y)
            if number == 0 and mode == "eager":
                run_eagerly(learner)
            if number == 20:
                before = net[0].weight.detach().clone()
                net[0].requires_grad_(True)
            if number == 40:
                net[0].requires_grad_(False)
        learners.append(learner)
        assert not torch.equal(net[0].weight, before)
    eager, captured = learners
    assert any(captured.engine.runner.graphs.values())
    torch.testing.assert_close(captured.logits(x), eager.logits(x), atol=2e-3, rtol=2e-3)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_images_on_the_host_and_on_the_device(dtype):
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (64, 3, 32, 32), dtype=torch.uint8, generator=generator)
    images = images if dtype == torch.uint8 else images.float() / 255
    labels = [0, 1] * 32
    learner = gcr.Learner(build("resnet18", (3, 32, 32), 2, 0), memory=20, device="cuda")
    learner.fit(images, labels, epochs=2)
    learner.fit(images.cuda(), [2] * 64, epochs=2)
    assert learner.predict_proba(images).shape == (64, 3)
    assert learner.memory.examples.dtype == dtype


def test_a_state_moves_between_devices(tmp_path):
    learner = gcr.Learner(mlp(), memory=12, device="cuda")
    for x, y in stream(30):
        learner.observe(x, y)
    learner.save(tmp_path / "state")
    x, _ = blobs([A, B, C])
    for device in ("cpu", "cuda"):
        loaded = gcr.Learner.load(tmp_path / "state", mlp(seed=3).to(device))
        assert (loaded.predict(x) == learner.predict(x)).all()
        for more, labels in stream(10):
            loaded.observe(more, labels)


def test_a_schedule_and_a_frozen_backbone():
    learner = gcr.Learner(mlp().cuda(), memory=12, frozen=True)
    rates = []
    learner.fit(
        *blobs([A, B]),
        epochs=5,
        schedule=lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n),
        on_epoch=lambda learner, _: rates.append(learner.optimizer.param_groups[0]["lr"]),
    )
    assert not any(learner.engine.runner.graphs.values())  # a new rate every step
    assert rates[-1] < 1e-6
    assert learner.optimizer.param_groups[0]["lr"] == 1e-3  # the next fit begins with it


def test_an_augmentation_that_reads_on_the_host_is_run_eagerly():
    learner = gcr.Learner(mlp().cuda(), memory=12, augment=lambda x: x + torch.randn_like(x))
    for x, y in stream(10):
        learner.observe(x, y)
    assert learner.engine.mode == "eager"


def test_dicts_of_tensors():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.head = nn.Linear(8, 2)

        def forward(self, left, right):
            return self.head(torch.cat([left, right.float()], 1))

    learner = gcr.Learner(Two(), memory=12, device="cuda")
    for x, y in stream(12):
        learner.observe({"left": x[:, :4], "right": x[:, 4:].half()}, y)
    assert learner.memory.examples["right"].dtype == torch.float16
