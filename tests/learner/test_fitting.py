"""Learner.fit: what it takes, and what it does around the steps."""

import io
import threading

import numpy as np
import pytest
import torch
from made_learners import A, B, C, blobs, mlp, quick, same_weights
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

import gcr
from gcr.augment import Views
from gcr.learner import fitting
from gcr.methods import DerPlusPlus, Er, Finetune, GcrPlus
from gcr.settings import BadInput

X, Y = blobs([A, B])
NUMBERS = torch.tensor([0] * 40 + [1] * 40)


class Pairs(Dataset):
    def __len__(self):
        return 80

    def __getitem__(self, row):
        return X[row], int(NUMBERS[row])


class Stream(IterableDataset):
    def __iter__(self):
        order = torch.randperm(80, generator=torch.Generator().manual_seed(0)).tolist()
        return ((X[row], int(NUMBERS[row])) for row in order)


def dicts():
    return DataLoader([{"x": X[row], "labels": int(NUMBERS[row])} for row in range(80)], 16, shuffle=True)


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()

    def forward(self, x):
        return self.net(x)


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ((X, NUMBERS), {}),
        ((X.numpy(), NUMBERS.numpy()), {}),
        ((X.tolist(), NUMBERS.tolist()), {}),
        (([*X], NUMBERS), {}),
        ((TensorDataset(X, NUMBERS),), {}),
        ((Pairs(),), {}),
        ((Stream(),), {}),
        ((DataLoader(Pairs(), 16, shuffle=True),), {}),
        (([(X[:40], NUMBERS[:40]), (X[40:], NUMBERS[40:])],), {}),
        (((X, NUMBERS),), {}),
    ],
    ids=[
        "tensor",
        "array",
        "lists",
        "tensors",
        "TensorDataset",
        "Dataset",
        "Iterable",
        "DataLoader",
        "batches",
        "pair",
    ],
)
def test_what_fit_takes(given, options):
    torch.manual_seed(0)
    learner = gcr.Learner(mlp(), memory=10, optimizer=quick).fit(*given, epochs=6, **options)
    assert sorted(learner.classes) == [0, 1]
    assert learner.score(X, NUMBERS) > 0.9
    assert len(learner.memory) == 10


@pytest.mark.parametrize("image", [None, "x", ("x",)])
def test_loaders_of_dicts(image):
    net = mlp() if image == "x" else Named()
    learner = gcr.Learner(net, memory=10, optimizer=quick).fit(dicts(), image=image, label="labels", epochs=6)
    assert learner.score(X if image == "x" else {"x": X}, NUMBERS) > 0.9


def test_a_frozen_network_takes_a_loader_once():
    class Once:
        def __init__(self):
            self.times = 0

        def __iter__(self):
            self.times += 1
            yield X, NUMBERS

    source = Once()
    gcr.Learner(mlp(), memory=10, frozen=True).fit(source, epochs=5)
    assert source.times == 1


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        ((dicts(),), {}, 'as label="labels"'),
        ((dicts(),), {"label": "y"}, 'as label="labels"'),
        ((dicts(),), {"label": "labels", "image": "img"}, "image must name an entry"),
        ((DataLoader(X, 16),), {}, "batches \\(inputs, labels\\)"),
        (([],), {}, "empty dataset"),
        ((7,), {}, "y must be given with x"),
    ],
)
def test_what_fit_refuses(given, options, message):
    with pytest.raises(BadInput, match=message):
        gcr.Learner(mlp(), memory=10).fit(*given, epochs=1, **options)


def test_epochs_if_not_given_are_enough_steps():
    epochs = []
    learner = gcr.Learner(mlp(), memory=10)
    learner.fit(X, NUMBERS, on_epoch=lambda _, epoch: epochs.append(epoch))
    assert len(epochs) == epochs[0].epochs == 100  # of three batches
    assert learner.engine.state.steps == 300


def test_memory_takes_each_example_once_with_the_logits_of_the_end():
    learner = gcr.Learner(mlp(), memory=80, method=Er()).fit(X, NUMBERS, epochs=4)
    assert int(learner.engine.state.memory.seen) == 80
    examples = learner.memory.examples
    assert len(torch.unique(examples, dim=0)) == 80
    torch.testing.assert_close(learner.memory.logits, learner.net(examples))


def test_early_stopping_brings_the_best_weights_back():
    values, weights = iter([0.1, 0.5, 0.3, 0.2, 0.9]), []

    def keep(learner, epoch):
        weights.append({name: tensor.clone() for name, tensor in learner.net.state_dict().items()})

    net = mlp()
    gcr.Learner(net, memory=10).fit(
        X, NUMBERS, epochs=5, validation=lambda learner: next(values), patience=2, on_epoch=keep
    )
    assert len(weights) == 4
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in net.state_dict().items())


def test_validation_on_data_and_stopping_by_a_callback():
    epochs = []

    def stop(learner, epoch):
        epochs.append(epoch)
        return epoch.epoch == 2

    gcr.Learner(mlp(), memory=10, optimizer=quick).fit(X, NUMBERS, epochs=9, validation=(X, NUMBERS), on_epoch=stop)
    assert [epoch.epoch for epoch in epochs] == [1, 2]
    assert 0 <= epochs[0].validation <= 1
    assert 0 <= epochs[1].memory_accuracy <= 1
    assert epochs[1].loss < epochs[0].loss


def test_a_schedule_steps_after_every_batch():
    asked, rates = [], []

    def schedule(optimizer, steps):
        asked.append(steps)
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / steps)

    learner = gcr.Learner(mlp(), memory=10, optimizer=lambda p: torch.optim.SGD(p, lr=1.0))
    learner.fit(
        X,
        NUMBERS,
        epochs=2,
        batch=20,
        schedule=schedule,
        on_epoch=lambda own, _: rates.append(own.optimizer.param_groups[0]["lr"]),
    )
    assert asked == [8]
    assert rates == [0.5, 0.0]


def test_a_schedule_needs_an_optimizer_of_torch():
    with pytest.raises(BadInput, match=r"schedule needs an optimizer of torch\.optim"):
        gcr.Learner(mlp(), optimizer=lambda p: gcr.Sgd(p, 0.1)).fit(X, NUMBERS, schedule=lambda o, n: None, epochs=1)


def test_class_weights_are_those_of_cross_entropy():
    net, hand = mlp(), mlp()
    learner = gcr.Learner(net, method=Finetune(), class_weight={"bee": 3.0}, optimizer=lambda p: gcr.Sgd(p, 0.1))
    loss = learner.observe(X, Y)
    expected = nn.functional.cross_entropy(hand(X), NUMBERS, weight=torch.tensor([1.0, 3.0]))
    assert float(loss) == pytest.approx(float(expected.detach()), rel=1e-6)


def test_a_batch_whose_classes_all_have_weight_0_changes_nothing():
    net = mlp()
    learner = gcr.Learner(net, memory=10, class_weight={"bee": 0.0}, optimizer=lambda p: gcr.Sgd(p, 0.1))
    learner.observe(X, Y)
    before = mlp()
    before.load_state_dict(net.state_dict())
    learner.engine.state.memory.columns["weight"].zero_()
    assert float(learner.observe(X[40:], Y[40:])) == 0
    assert same_weights(net, before)


def test_class_weights_of_numpy_are_saved(tmp_path):
    labels, counts = np.unique(NUMBERS.numpy(), return_counts=True)
    weights = dict(zip(labels, counts.astype(np.float32), strict=True))
    gcr.Learner(mlp(), memory=10, class_weight=weights).fit(X, NUMBERS, epochs=1).save(tmp_path / "state")
    assert gcr.Learner.load(tmp_path / "state", mlp()).class_weights.given == {0: 40.0, 1: 40.0}


@pytest.mark.parametrize("weight", [float("inf"), float("nan"), -1.0, "1"])
def test_class_weights_must_be_finite(weight):
    with pytest.raises(BadInput, match=r"class_weight must have finite weights >= 0, got .* for 'bee'"):
        gcr.Learner(mlp(), class_weight={"ant": 1.0, "bee": weight})


def test_class_weights_of_labels_of_another_type_are_refused():
    learner = gcr.Learner(mlp(), class_weight={"0": 100.0})
    with pytest.raises(BadInput, match=r"class_weight must have labels as keys, int as 0, got '0' \(str\)"):
        learner.fit(X, NUMBERS)
    assert not learner.classes
    with pytest.raises(BadInput, match="class_weight must have labels as keys"):
        gcr.Learner(mlp(), class_weight={"0": 100.0}, classes=[0, 1])
    gcr.Learner(mlp(), class_weight={0: 2.0}).fit(X, NUMBERS == 1, epochs=1)  # false is 0


def test_balanced_class_weights_follow_what_was_seen():
    learner = gcr.Learner(mlp(), memory=10, class_weight="balanced")
    learner.observe(X[:10], Y[:10])
    learner.observe(X[10:70], Y[10:70])  # 40 ants, 30 bees
    assert learner.engine.state.class_weights.tolist() == pytest.approx([70 / 80, 70 / 60])
    learner.observe(*blobs([C], n=10))
    assert learner.engine.state.class_weights.tolist() == pytest.approx([80 / 120, 80 / 90, 80 / 30])


def test_gradients_are_clipped():
    net = mlp()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    gcr.Learner(net, memory=10, clip=0.01, optimizer=lambda p: gcr.Sgd(p, 1.0)).observe(100 * X, Y)
    moved = sum(float((net.state_dict()[name] - old).square().sum()) for name, old in before.items()) ** 0.5
    assert moved == pytest.approx(0.01, rel=1e-3)


def test_mixed_precision():
    learner = gcr.Learner(mlp(), memory=10, precision="bf16", optimizer=quick).fit(X, NUMBERS, epochs=6)
    assert learner.score(X, NUMBERS) > 0.9
    assert learner.net[0].weight.dtype == torch.float32


def test_a_loss_that_is_not_a_number_is_an_error():
    learner = gcr.Learner(mlp(), memory=10, optimizer=lambda p: gcr.Sgd(p, 1e30))
    with pytest.raises(BadInput, match="NaN or inf"):
        learner.fit(X, NUMBERS, epochs=20)
    with pytest.raises(BadInput, match="NaN or inf"):
        learner.save("never")


IMAGES = torch.randint(0, 256, (12, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
KINDS = [0, 1] * 6


class Seen(nn.Module):
    """Remembers what came in."""

    def __init__(self, size=3 * 16 * 16):
        super().__init__()
        self.head, self.batches = nn.Linear(size, 2), []

    def forward(self, x):
        self.batches.append(x.detach().clone())
        return self.head(x.flatten(1))


def test_bytes_come_as_floats_from_0_to_1_and_are_shifted_and_mirrored():
    net = Seen()
    learner = gcr.Learner(net, memory=4)
    learner.observe(IMAGES, KINDS)
    plain, new = net.batches[0], net.batches[1]
    assert torch.equal(plain, IMAGES[:2].float() / 255)
    assert new.shape == (12, 3, 16, 16)
    assert not torch.equal(new, IMAGES.float() / 255)
    learner.predict(IMAGES)
    assert torch.equal(net.batches[-1], IMAGES.float() / 255)


def test_text_and_signs_are_shifted_but_not_mirrored():
    net = Seen()
    views = gcr.Learner(net, memory=4, augment="shift").fit(IMAGES, KINDS, epochs=1).engine.views
    assert views.pad == 2
    assert not views.flip


def test_without_augmentation_examples_come_as_they_are():
    net = Seen()
    gcr.Learner(net, memory=4, augment=None).observe(IMAGES, KINDS)
    assert torch.equal(net.batches[1], IMAGES.float() / 255)


def test_small_images_are_not_shifted():
    net = Seen(64)
    gcr.Learner(net, memory=4).observe(IMAGES[:, :1, :8, :8], KINDS)
    assert torch.equal(net.batches[1], IMAGES[:, :1, :8, :8].float() / 255)


def test_an_augmentation_of_ones_own_batched_or_per_sample():
    for augment in (lambda batch: batch.flip(-1), gcr.per_sample(lambda image: image.flip(-1))):
        net = Seen()
        learner = gcr.Learner(net, memory=4, augment=augment)
        learner.observe(IMAGES, KINDS)
        assert torch.equal(net.batches[1], IMAGES.float().div(255).flip(-1))
        assert any(torch.equal(learner.memory.examples[0], image) for image in IMAGES)  # memory has them plain


def test_views_normalise_too():
    net = Seen()
    views = Views((0.5,) * 3, (0.25,) * 3, pad=0, flip=False)
    gcr.Learner(net, memory=4, augment=views).observe(IMAGES, KINDS)
    torch.testing.assert_close(net.batches[1], (IMAGES.float() / 255 - 0.5) / 0.25)


def test_random_augmentation_repeats_with_the_seed():
    nets = [mlp(), mlp()]
    for net in nets:
        gcr.Learner(net, memory=10, augment=lambda x: x + 0.1 * torch.randn_like(x), seed=1).fit(X, Y, epochs=2)
    assert same_weights(*nets)


def test_an_augmentation_must_return_as_many_views():
    with pytest.raises(BadInput, match=r"gcr\.per_sample"):
        gcr.Learner(mlp(), memory=4, augment=lambda batch: batch[0]).observe(X, Y)


def test_progress_names_loss_and_accuracy_on_memory(monkeypatch):
    console = io.StringIO()
    monkeypatch.setattr("sys.stderr", console)
    gcr.Learner(mlp(), memory=10).fit(X, NUMBERS, epochs=2, progress=True)
    assert "epoch 2/2, loss" in console.getvalue()
    assert "memory" in console.getvalue()


def test_words_of_an_epoch():
    epoch = fitting.FitEpoch(1, 3, 0.5, 0.25, 0.75, None)
    assert fitting.words(epoch) == "epoch 1/3, loss 0.500, new 25.0%, memory 75.0%"


def test_arrays_of_numpy_types_as_labels():
    learner = gcr.Learner(mlp(), memory=10).fit(X, np.array(Y), epochs=1)
    assert learner.classes == ["ant", "bee"]
    assert type(learner.classes[0]) is str


def test_a_schedule_ends_with_its_fit():
    rates = []
    learner = gcr.Learner(mlp(), memory=10)
    for _ in range(2):
        learner.fit(X, NUMBERS, epochs=2, schedule=lambda o, n: torch.optim.lr_scheduler.CosineAnnealingLR(o, n))
        rates.append(learner.optimizer.param_groups[0]["lr"])
    assert rates == [1e-3, 1e-3]


def test_what_a_schedule_writes_into_is_as_it_was_after_its_fit():
    """A learning rate that is a tensor is written into, and OneCycleLR changes the momentum, too."""
    for schedule in (torch.optim.lr_scheduler.CosineAnnealingLR, one_cycle):
        learner = gcr.Learner(mlp(), memory=20, optimizer=lambda p: torch.optim.AdamW(p, lr=torch.tensor(0.01)))
        for _ in range(2):
            learner.fit(X, NUMBERS, epochs=2, schedule=schedule)
            (group,) = learner.engine.state.optimizer.param_groups
            assert float(group["lr"]) == pytest.approx(0.01)
            assert group["betas"] == (0.9, 0.999)


def test_a_rate_that_is_changed_between_two_schedules_counts():
    net, rates = mlp(), []
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    learner = gcr.Learner(net, memory=10, optimizer=optimizer)
    for rate in (0.1, 0.01):
        optimizer.param_groups[0]["lr"] = rate
        before = dict(optimizer.param_groups[0])
        learner.fit(
            *(X, NUMBERS),
            epochs=1,
            schedule=lambda o, n: torch.optim.lr_scheduler.LambdaLR(o, lambda step: 0.5),
            on_epoch=lambda learner, epoch: rates.append(optimizer.param_groups[0]["lr"]),
        )
        assert optimizer.param_groups[0] == before
    assert rates == [0.05, 0.005]


def one_cycle(optimizer, steps):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)


def test_a_step_that_fails_leaves_no_class_that_was_never_learned():
    def fails(x):
        raise ValueError("augment")

    learner = gcr.Learner(mlp(), memory=10, augment=fails, classes=[0, 1], class_weight="balanced")
    for learn in (learner.observe, learner.fit):
        with pytest.raises(ValueError, match="augment"):
            learn(X, [7] * len(X))
        assert learner.classes == [0, 1]
        assert learner.class_weights.counts == []


@pytest.mark.parametrize("bad", [{"schedule": 3}, {"validation": (X[:, :3], NUMBERS)}], ids=["schedule", "validation"])
def test_a_fit_that_is_refused_leaves_no_class_that_was_never_learned(bad):
    learner = gcr.Learner(mlp(), memory=10).fit(X, NUMBERS, epochs=1)
    before = learner.predict_proba(X)
    with pytest.raises(BadInput):
        learner.fit(X + 2, [7] * len(X), epochs=1, **bad)
    assert learner.classes == [0, 1]
    assert not learner.unfinished
    assert np.allclose(learner.predict_proba(X), before, atol=1e-6)
    assert learner.fit(X + 2, [9] * len(X), epochs=1).classes == [0, 1, 9]
    assert learner.net[2].out_features == 3


def test_a_learner_whose_first_fit_is_refused_has_seen_nothing(tmp_path):
    learner = gcr.Learner(mlp(), memory=10)
    for learn, given in ((learner.fit, {"schedule": 3}), (learner.fit, {"validation": (X[:, :3], NUMBERS)})):
        with pytest.raises(BadInput):
            learn(X, NUMBERS, epochs=1, **given)
        with pytest.raises(BadInput, match="has seen nothing"):
            learner.save(tmp_path / "state")  # could not be loaded
        assert learner.predict_one(X[0]) is None
    once = gcr.Learner(mlp(), memory=10).fit(X, NUMBERS, epochs=1)
    assert np.array_equal(learner.fit(X, NUMBERS, epochs=1).predict_proba(X), once.predict_proba(X))


def test_a_refused_fit_leaves_labels_that_another_thread_learns_meanwhile():
    learner = gcr.Learner(mlp(), memory=10, optimizer=quick)
    begun, known = threading.Event(), threading.Event()

    def late():
        begun.set()
        known.wait(60)
        yield from ()  # refused: no batches

    def refused():
        with pytest.raises(BadInput, match="x gave no batches"):
            learner.fit(late(), epochs=1)

    def while_it_fails(optimizer, steps):
        known.set()
        other.join()
        return one_cycle(optimizer, steps)

    other = threading.Thread(target=refused)
    other.start()
    begun.wait(60)
    learner.fit(X, NUMBERS, epochs=1, schedule=while_it_fails)
    assert learner.classes == [0, 1]


def test_memory_stays_of_one_size_while_a_fit_runs():
    learner = gcr.Learner(mlp(), memory=10)
    with pytest.raises(BadInput, match="resize cannot be called while fit runs"):
        learner.fit(X, NUMBERS, epochs=2, on_epoch=lambda learner, epoch: learner.resize(20))
    learner.resize(20)
    assert learner.memory.capacity == 20


@pytest.mark.parametrize(
    ("schedule", "data", "message"),
    [
        (3, (X, NUMBERS), "schedule must be a function"),
        (lambda o, n: None, (Stream(),), "number of steps"),
        (lambda o, n: torch.optim.lr_scheduler.ReduceLROnPlateau(o), (X, NUMBERS), "ReduceLROnPlateau"),
    ],
)
def test_schedules_that_cannot_be(schedule, data, message):
    with pytest.raises(BadInput, match=message):
        gcr.Learner(mlp(), memory=10).fit(*data, epochs=1, schedule=schedule)


def test_batches_of_one_are_trained_on():
    learner = gcr.Learner(mlp(), memory=80).fit(DataLoader(Pairs(), 1), epochs=1)
    assert learner.engine.state.steps == len(learner.memory) == 80


def test_a_last_example_alone_is_remembered_where_it_cannot_be_trained_on():
    normed = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    learner = gcr.Learner(normed, memory=80).fit(X[:33], NUMBERS[:33], epochs=2)
    assert learner.engine.state.steps == 2
    assert len(learner.memory) == 33
    with pytest.raises(BadInput, match="no BatchNorm statistics"):
        gcr.Learner(normed, memory=80).fit(DataLoader(Pairs(), 1), epochs=1)


def test_a_class_that_a_loader_brings_late_is_remembered():
    class Late:
        times = 0

        def __iter__(self):
            self.times += 1
            yield X, Y
            if self.times > 1:
                yield blobs([C])

    learner = gcr.Learner(mlp(), memory=30).fit(Late(), epochs=3)
    assert learner.memory.counts()["cow"] == 10
    assert int(learner.engine.state.memory.seen) == 80 + 40


@pytest.mark.parametrize("data", [DataLoader(Pairs(), 16), Pairs(), (X, NUMBERS)], ids=["loader", "dataset", "pair"])
def test_validation_takes_what_fit_takes(data):
    epochs = []
    learner = gcr.Learner(mlp(), memory=10, optimizer=quick)
    learner.fit(X, NUMBERS, epochs=4, validation=data, on_epoch=lambda _, epoch: epochs.append(epoch.validation))
    assert epochs[-1] == pytest.approx(learner.score(X, NUMBERS), abs=0.05)


@pytest.mark.parametrize("data", [X, [], lambda learner: None], ids=["tensor", "empty", "nothing"])
def test_validation_that_cannot_be(data):
    with pytest.raises(BadInput, match="validation must"):
        gcr.Learner(mlp(), memory=10).fit(X, NUMBERS, epochs=1, validation=data)


def test_validation_of_nan_is_never_better():
    learner = gcr.Learner(mlp(), memory=10)
    learner.fit(X, NUMBERS, epochs=9, validation=lambda _: float("nan"), patience=2)
    assert learner.engine.state.steps == 9


def test_per_sample_augmentation_of_several_tensors():
    flip = gcr.per_sample(lambda example: {name: value.flip(0) for name, value in example.items()})
    made = flip({"a": torch.arange(4).reshape(2, 2), "b": torch.ones(2, 1)})
    assert made["a"].tolist() == [[1, 0], [3, 2]]
    both = gcr.per_sample(lambda example: (example[0] + 1, example[1]))((torch.zeros(2, 2), torch.ones(2, 1)))
    assert both[0].tolist() == [[1, 1], [1, 1]]


def test_fit_stores_what_is_predicted():
    """By the EMA, where that predicts."""
    learner = gcr.Learner(mlp(), memory=12, method=GcrPlus(decay=0.9)).fit(*blobs([A, B]), epochs=3)
    state, views = learner.engine.state, learner.engine.views
    rows = state.memory.filled_rows()
    predicted = learner.method.predict(state.net.eval(), views.plain(state.memory.columns["image"][rows]), state.extras)
    torch.testing.assert_close(state.memory.columns["logits"][rows], predicted.detach(), atol=1e-5, rtol=0)
    assert not torch.equal(state.extras["ema.net.2.weight"], learner.net[2].weight)


def test_a_first_epoch_whose_validation_is_nan_is_not_the_best():
    values = iter([float("nan"), 0.5, 0.6, 0.7, 0.6, 0.6])
    learner = gcr.Learner(mlp(), memory=20)
    learner.fit(X, NUMBERS, epochs=6, validation=lambda _: next(values), patience=2)
    assert next(values, None) is None


@pytest.mark.parametrize("method", [None, GcrPlus()], ids=["er-ace", "gcr+"])
def test_the_precision_is_the_learners_own_inside_an_autocast_of_others(method):
    def taught():
        learner = gcr.Learner(mlp(), memory=10, method=method).fit(X, NUMBERS, epochs=2)
        return learner.net, learner.logits(X), learner.memory.logits

    plain = taught()
    with torch.autocast("cpu", torch.bfloat16):
        inside = taught()
        assert torch.is_autocast_enabled("cpu")
    assert same_weights(plain[0], inside[0])
    assert all(map(torch.equal, plain[1:], inside[1:]))


def test_what_can_be_gone_through_once_is_refused_before_training():
    learner = gcr.Learner(mlp(), memory=10)
    for epochs in (None, 2):
        with pytest.raises(BadInput, match="x is gone through once per epoch, got an iterator"):
            learner.fit(iter([(X, NUMBERS)]), epochs=epochs)
    assert learner.engine is None
    learner.fit(iter([(X, NUMBERS)]), epochs=1)
    gcr.Learner(mlp(), memory=10, frozen=True).fit(iter([(X, NUMBERS)]), epochs=2)  # features are computed once


def test_one_example_without_batch_statistics_is_refused_before_it_is_learned():
    learner = gcr.Learner(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)), memory=10)
    for given in ((X, NUMBERS), (TensorDataset(X, NUMBERS),), (Stream(),), (DataLoader(Pairs(), 1),)):
        with pytest.raises(BadInput, match="a batch of one example"):
            learner.fit(*given, batch=1)
    with pytest.raises(BadInput, match="a batch of one example"):
        learner.fit(X[:1], [99])
    assert learner.engine is None
    assert not learner.classes


@pytest.mark.parametrize("given", [(X, NUMBERS), (TensorDataset(X, NUMBERS),)], ids=["tensors", "dataset"])
@pytest.mark.parametrize(
    ("validation", "message"),
    [((X, Y), "labels must be of one type"), ((X, Y[:3]), "a label per example"), ((X[:, :3], NUMBERS), "x must be")],
)
def test_validation_that_cannot_be_scored_is_refused_before_training(given, validation, message):
    learner = gcr.Learner(mlp(), memory=10)
    with pytest.raises(BadInput, match=message):
        learner.fit(*given, epochs=1, validation=validation)
    assert learner.engine is None


@pytest.mark.parametrize(("said", "epochs"), [(np.True_, 1), (True, 1), (np.False_, 3), (1, 3), (None, 3)])
def test_a_callback_stops_training_by_true_of_python_or_numpy(said, epochs):
    seen = []
    gcr.Learner(mlp(), memory=10).fit(X, NUMBERS, epochs=3, on_epoch=lambda *_: (seen.append(1), said)[1])
    assert len(seen) == epochs


def test_of_a_batch_with_a_late_class_memory_takes_that_class_alone():
    class Loader:
        epochs = 0

        def __iter__(self):
            Loader.epochs += 1
            labels = ["a", "b"] * 8
            yield X[:16], labels
            yield X[16:32], labels if Loader.epochs == 1 else [*labels[:14], "c", "c"]

        def __len__(self):
            return 2

    learner = gcr.Learner(mlp(), memory=100, class_weight="balanced").fit(Loader(), epochs=3)
    assert learner.memory.labels.tolist().count("c") == 2
    assert len(learner.memory) == 34  # the two come under their old labels, too
    assert learner.class_weights.counts == [16, 16, 2]


def breaks_off(after):
    def on_epoch(learner, epoch):
        if epoch.epoch == after:
            raise KeyboardInterrupt

    return on_epoch


def raises_late():
    yield X[:40], NUMBERS[:40]
    raise OSError("the loader fails")


def held(learner):
    return sorted(map(tuple, learner.memory.examples.tolist()))


@pytest.mark.parametrize("broken_off", ["epoch", "loader"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_fit_that_was_broken_off_and_begun_again_remembers_each_example_once(broken_off, saved, tmp_path):
    learner = gcr.Learner(mlp(), memory=200, optimizer=quick, class_weight="balanced")
    if broken_off == "epoch":
        with pytest.raises(KeyboardInterrupt):
            learner.fit(X, NUMBERS, epochs=3, on_epoch=breaks_off(2))
    else:
        with pytest.raises(OSError, match="the loader fails"):
            learner.fit(raises_late(), epochs=1)
    assert len(learner.memory) == (80 if broken_off == "epoch" else 40)
    if saved:
        learner.save(tmp_path)
        learner = gcr.Learner.load(tmp_path, mlp(), optimizer=quick)
    learner.fit(X, NUMBERS, epochs=2)
    assert held(learner) == sorted(map(tuple, X.tolist()))
    assert learner.class_weights.counts == [40, 40]


def test_a_state_that_a_callback_saved_begins_its_fit_again(tmp_path):
    def on_epoch(learner, epoch):
        learner.save(tmp_path)

    gcr.Learner(mlp(), memory=200, optimizer=quick).fit(X, NUMBERS, epochs=2, on_epoch=on_epoch)
    learner = gcr.Learner.load(tmp_path, mlp(), optimizer=quick).fit(X, NUMBERS, epochs=2)
    assert held(learner) == sorted(map(tuple, X.tolist()))


@pytest.mark.parametrize("given", ["remember", "observe"])
def test_a_fit_leaves_logits_that_were_stored_before_it(given):
    """They are what the network said before it learned anything else."""
    (x, y), (later, labels) = blobs([A, B]), blobs([C])
    learner = gcr.Learner(mlp(n_out=3), 40, method=DerPlusPlus(), classes=["ant", "bee"])
    getattr(learner, given)(x, y)
    before = logits_of_examples(learner)
    learner.fit(later, labels, epochs=2)
    after = logits_of_examples(learner)
    there = before.keys() & after.keys()
    assert there
    for row in there:
        assert torch.equal(before[row], after[row])
    assert after.keys() - there  # examples of the fit have what is said after it
    for row in after.keys() - there:
        said = learner.engine.logits(torch.tensor([row]))[0]
        assert torch.allclose(after[row], said, atol=1e-6)


def logits_of_examples(learner):
    memory = learner.memory
    return dict(zip(map(tuple, memory.examples.tolist()), memory.logits, strict=True))


def test_accuracy_on_memory_is_that_of_predictions():
    """Which spare outputs of the head are not among."""
    learner, told = gcr.Learner(mlp(n_out=50), 40), []

    def on_epoch(learner, epoch):
        told.append((epoch.memory_accuracy, learner.score(learner.memory.examples, learner.memory.labels)))

    learner.fit(*blobs([A, B]), epochs=2, on_epoch=on_epoch)
    assert [memory for memory, _ in told] == [score for _, score in told]


def break_off(learner, epoch):
    raise KeyboardInterrupt


def test_a_fit_that_is_begun_again_leaves_equal_inputs_of_others():
    """With few different inputs, those of other labels and tasks are the same."""
    x = torch.eye(8).repeat(5, 1)
    learner = gcr.Learner(mlp(), 60).fit(x, ["ant", "bee"] * 20, epochs=1)
    assert learner.memory.counts() == {"ant": 20, "bee": 20}
    with pytest.raises(KeyboardInterrupt):
        learner.fit(x, ["cow"] * 40, epochs=2, on_epoch=break_off)
    learner.fit(x, ["cow"] * 40, epochs=2)
    assert learner.memory.counts() == {"ant": 20, "bee": 20, "cow": 20}


def test_a_fit_that_is_begun_again_stores_what_comes_often_often():
    x = torch.eye(8).repeat(5, 1)
    learner = gcr.Learner(mlp(), 60)
    with pytest.raises(KeyboardInterrupt):
        learner.fit(x, ["ant", "bee"] * 20, epochs=2, on_epoch=break_off, batch=4)
    learner.fit(x, ["ant", "bee"] * 20, epochs=2, batch=4)
    assert learner.memory.counts() == {"ant": 20, "bee": 20}
    assert learner.memory.examples.sum(0).tolist() == [5.0] * 8


def test_validation_labels_that_are_all_unknown_are_warned_of():
    words = ["ant"] * 40 + ["bee"] * 40
    with pytest.warns(UserWarning, match="validation has none of the labels that were learned"):
        gcr.Learner(mlp(), memory=10).fit(X, words, epochs=1, validation=(X, [word.upper() for word in words]))


def test_score_takes_what_fit_takes():
    learner = gcr.Learner(mlp(), memory=10, optimizer=quick).fit(X, NUMBERS, epochs=4)
    for data in (TensorDataset(X, NUMBERS), DataLoader(Pairs(), 16), Stream(), (X, NUMBERS)):
        assert learner.score(data) == learner.score(X, NUMBERS)
    with pytest.raises(BadInput, match="x must be"):
        learner.score(X)
