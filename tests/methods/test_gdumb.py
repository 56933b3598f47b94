"""GDumb: nothing is learnt from the stream, and the fit to memory equals torch's own optimizer and schedule."""

import zlib

import numpy as np
import pytest
import torch
from conftest import make_scenario
from named import Training, fresh_state, one_step, train
from torch.nn import functional as F

import gcr
from gcr.experiments.experiment import compose
from gcr.memory import Policy
from gcr.methods import Gdumb
from gcr.methods.gdumb import minibatches
from gcr.models import build
from gcr.select import ClassBalanced, GradApprox
from gcr.training import Diverged
from gcr.training.randomness import EpochDraws
from gcr.training.reselect import reselect
from gcr.training.schedule import make_schedule
from gcr.training.step import draw_plan


def filled_state(method, model, selector):
    """A state after 10 steps of one stage and its selection."""
    scenario = make_scenario(n_per_class=20)
    policy, training = Policy(buffer=13, selector=selector, replay_batch=6), Training(epochs=2, lr=0.05, batch=8)
    state = fresh_state(scenario, model, method, policy, training, seed=3, device=torch.device("cpu"))
    draws = EpochDraws(draw_plan(method, policy, training), most_steps=5, device=torch.device("cpu"))
    for epoch in range(2):
        draws.fill((3, 0, epoch), make_schedule(scenario, method, training, seed=3).stages[0].rows, n_batches=5)
        for step in range(5):
            one_step(state, scenario, method, policy, draws.at(torch.tensor(step), 8, replaying=epoch + step > 0))
    untouched = [tensor.clone() for tensor in state.net.state_dict().values()]
    reselect(state.memory, policy, method, state.net, scenario.views, (3, 0))
    return scenario, state, untouched


def plain_fit(method, scenario, memory, model, key):
    """The authors' recipe, with torch's optimizer, schedule and clipping; examples one by one where they are mixed."""
    net = build(model, scenario.image_shape, 6, seed=key[0]).train()
    generator = np.random.default_rng(np.random.SeedSequence((*key, zlib.crc32(b"fitting"))))
    entries = [
        tuple(memory.columns[name][row] for name in ("image", "label", "weight")) for row in range(int(memory.kept))
    ]
    optimizer = torch.optim.SGD(
        net.parameters(), lr=method.max_lr, momentum=method.fitting_momentum, weight_decay=method.fitting_decay
    )
    schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 1, 2, eta_min=method.min_lr)
    for epoch in range(method.fitting_epochs):
        if epoch >= 2:
            schedule.step()
        for group in optimizer.param_groups:
            group["lr"] = [0.1 * method.max_lr, method.max_lr][epoch] if epoch < 2 else group["lr"]
        order, uniforms = generator.permutation(len(entries)), generator.random((len(entries), 3), dtype=np.float32)
        for start in range(0, len(order), method.fitting_batch):
            batch = [entries[i] for i in order[start : start + method.fitting_batch]]
            if len(batch) == 1:
                continue
            draws = torch.from_numpy(uniforms[start : start + method.fitting_batch])
            views = [scenario.views.weak(e[0][None], u[None])[0] for e, u in zip(batch, draws, strict=True)]
            own, other = 1.0, list(range(len(batch)))
            if generator.random() < method.cutmix:
                other = generator.permutation(len(batch)).tolist()
                views, own = mix(views, other, *generator.random(3))
            logits = net(torch.stack(views))
            loss, weights = 0.0, sum(float(e[2]) for e in batch)
            for h, mine, i in zip(logits, batch, other, strict=True):
                loss = loss + own * float(mine[2]) * F.cross_entropy(h, mine[1]) / weights
                loss = loss + (1 - own) * float(batch[i][2]) * F.cross_entropy(h, batch[i][1]) / weights
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), method.clip)
            optimizer.step()
    return net


def mix(views, other, share, row, column):
    """CutMix pixel by pixel."""
    _, height, width = views[0].shape
    half_h, half_w = (int(length * (1 - share) ** 0.5) // 2 for length in (height, width))
    mixed, moved = [view.clone() for view in views], 0
    for y in range(height):
        for x in range(width):
            if -half_h <= y - int(row * height) < half_h and -half_w <= x - int(column * width) < half_w:
                moved += 1
                for view, i in zip(mixed, other, strict=True):
                    view[:, y, x] = views[i][:, y, x]
    return mixed, 1 - moved / (height * width)


@pytest.mark.parametrize(
    ("model", "selector", "settings"),
    [
        ("mlp", ClassBalanced(), {"cutmix": 0.0}),
        ("mlp", GradApprox(), {"cutmix": 1.0, "clip": 0.5}),
        ("convnet", ClassBalanced(), {"fitting_decay": 0.01}),
    ],
)
def test_the_fit_to_memory_is_the_authors_recipe(model, selector, settings):
    method = Gdumb(fitting_epochs=8, fitting_batch=4, **settings)
    scenario, state, _ = filled_state(method, model, selector)
    expected = plain_fit(method, scenario, state.memory, model, (3, 0))
    method.end_stage(state.net, state.memory, scenario.views, state.extras, (3, 0))
    for ours, theirs in zip(state.net.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_nothing_is_learnt_while_examples_arrive():
    scenario, state, untouched = filled_state(Gdumb(), "convnet", ClassBalanced())
    fresh = build("convnet", scenario.image_shape, 6, seed=3).state_dict()
    for found, expected in zip(untouched, fresh.values(), strict=True):
        assert torch.equal(found, expected)
    assert float(state.loss_sum) == 0.0


def test_every_fit_begins_with_a_new_network():
    method = Gdumb(fitting_epochs=2)
    scenario, state, _ = filled_state(method, "convnet", ClassBalanced())
    results = []
    for _ in range(2):
        method.end_stage(state.net, state.memory, scenario.views, state.extras, (3, 1))
        results.append([tensor.clone() for tensor in state.net.state_dict().values()])
    assert all(map(torch.equal, *results))


def test_memory_is_balanced_and_enough_to_learn_from():
    policy, training = Policy(buffer=12, selector=ClassBalanced()), Training(epochs=1, batch=8)
    outcome = train(make_scenario(flip=False), "convnet", Gdumb(), policy, training, 0)
    assert torch.bincount(outcome.state.memory.columns["label"][:12], minlength=6).tolist() == [2] * 6
    assert outcome.class_il["accuracy"] > 80


def test_its_usual_memory_keeps_small_classes():
    """Of classes with 300 and 3 images in turn, which a reservoir of candidates would lose."""
    labels = torch.tensor([0, 1] * 2).repeat_interleave(torch.tensor([300, 3] * 2)) + torch.tensor(
        [0, 2]
    ).repeat_interleave(303)
    images = torch.rand(len(labels), 1, 8, 8, generator=torch.Generator().manual_seed(0))
    scenario = gcr.from_arrays((images, labels), (images, labels), 2)
    usual = compose("seq-digits", "gdumb", overrides={"buffer": 40})
    net = build("mlp", scenario.image_shape, 4, seed=0)
    method = Gdumb(fitting_epochs=1)
    outcome = gcr.train(scenario, net, usual.make_optimizer(net), method, usual.memory, 0, gcr.Training(epochs=1))
    kept = outcome.state.memory.labels.bincount(minlength=4).tolist()
    assert kept == [17, 3, 17, 3]


@pytest.mark.parametrize(("n", "sizes"), [(1, [1]), (2, [2]), (5, [4]), (6, [4, 2]), (8, [4, 4])])
def test_minibatches_cover_memory_and_leave_out_a_lone_last_row(n, sizes):
    made = list(minibatches(np.random.default_rng(0), n, 4))
    assert [len(rows) for rows, _ in made] == sizes
    assert [uniforms.shape for _, uniforms in made] == [(size, 3) for size in sizes]
    rows = np.concatenate([rows for rows, _ in made]).tolist()
    assert len(set(rows)) == len(rows)
    assert set(rows) <= set(range(n))


def test_a_fit_that_diverges_is_reported():
    method, policy = Gdumb(fitting_epochs=2, max_lr=1e30), Policy(buffer=12, selector=ClassBalanced())
    with pytest.raises(Diverged, match="weights are NaN or inf at the end of task 1; try a smaller lr"):
        train(make_scenario(), "mlp", method, policy, Training(epochs=1, lr=0.05, batch=8), 0)
