"""Data, labels and networks of usual kinds that look like others, and what is said of those that cannot be."""

import warnings
from enum import Enum, IntEnum, StrEnum
from typing import NamedTuple

import numpy as np
import pytest
import torch
from made_learners import A, B, blobs, mlp, quick, same_weights
from PIL import Image
from torch import nn
from torch.utils.data import Dataset, IterableDataset

import gcr
from gcr.augment import Views
from gcr.learner.inputs import as_rows
from gcr.learner.labels import Labels
from gcr.methods import ClsEr, Er, GcrPlus
from gcr.settings import BadInput

X, WORDS = blobs([A, B])
Y = [0] * 40 + [1] * 40
PICTURE = Image.new("RGB", (8, 8))


class Medical(Dataset):
    """Its labels are arrays of one number, as those of MedMNIST."""

    def __len__(self):
        return 80

    def __getitem__(self, row):
        return X[row][None], np.array([Y[row]])


class Iterated(Medical):
    def __iter__(self):
        return (self[row] for row in range(80))


class Stream(IterableDataset):
    def __len__(self):
        return 80

    def __iter__(self):
        return zip(X, Y, strict=True)


def flat():
    return nn.Sequential(nn.Flatten(), *mlp())


@pytest.mark.parametrize("data", [Medical(), Iterated()], ids=["by number", "iterated"])
def test_a_dataset_holds_examples_whatever_its_labels(data):
    learner, values = gcr.Learner(flat(), memory=20), []
    sizes, step = [], learner.step
    learner.step = lambda rows, labels, offers: (sizes.append(len(labels)), step(rows, labels, offers))
    learner.fit(data, epochs=1, batch=32, validation=data, on_epoch=lambda _, epoch: values.append(epoch.validation))
    assert sizes == [32, 32, 16]
    assert learner.layout.shape == (1, 8)
    assert set(learner.classes) == {0, 1}
    assert values == [learner.score(X[:, None], Y)]


COLOURED = torch.rand(16, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def coloured(**given):
    return gcr.Learner(nn.Sequential(nn.Flatten(), nn.Linear(192, 2)), memory=20, **given)


def test_images_of_another_scale_than_in_memory_are_told():
    learner = coloured().fit(COLOURED, Y[:16], epochs=1).fit(COLOURED * 2 - 1, Y[:16], epochs=1)
    with pytest.warns(UserWarning, match="x has values of up to 255, memory of up to 1; scale both alike"):
        learner.fit(255 * COLOURED, Y[:16], epochs=1)


@pytest.mark.parametrize("times", [1, 255])
def test_views_of_images_that_are_normalised_already_are_told(times):
    mean, std = (0.5,) * 3, (0.2,) * 3
    coloured(augment=Views(mean, std)).fit(COLOURED, Y[:16], epochs=1)
    with pytest.warns(UserWarning, match=r"augment=Views\(…\) makes values of .* for pixels in \[0, 1\]"):
        coloured(augment=Views(mean, std)).fit(times * (COLOURED - 0.5) / 0.2, Y[:16], epochs=1)
    coloured(augment=Views(mean, std)).observe(torch.zeros(2, 3, 8, 8), Y[:2])  # blank
    of_bytes = Views(tuple(255 * m for m in mean), tuple(255 * s for s in std))
    with pytest.warns(UserWarning, match=r"augment=Views\(…\)"):
        coloured(augment=of_bytes).fit((255 * COLOURED).byte(), Y[:16], epochs=1)


def test_what_score_cannot_take_is_named():
    with pytest.raises(BadInput, match=r"x must hold pairs \(inputs, label\)"):
        gcr.Learner(mlp(), memory=20).fit(X, Y, epochs=1).score([X, Y])


def test_a_list_with_labels_of_one_number_may_be_either():
    examples = [Medical()[row] for row in range(80)]
    with pytest.raises(BadInput, match=r"x must hold labels that are plain numbers, got array\(\[0\]\)"):
        gcr.Learner(flat(), memory=20).fit(examples, epochs=1)
    with pytest.raises(BadInput, match="validation must hold labels that are plain numbers"):
        gcr.Learner(flat(), memory=20).fit(X[:, None], Y, epochs=1, validation=examples)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([(PICTURE, 0)] * 8, "hold tensors or arrays, got pictures; give the data set a transform"),
        ([{"label": 0, "image": PICTURE}] * 8, "hold tensors or arrays, got pictures"),
        ([X, Y], r"hold pairs \(inputs, label\), got Tensor; .* a tuple, as \(inputs, labels\)"),
    ],
    ids=["pictures", "dicts of pictures", "two tensors"],
)
def test_what_a_list_must_hold(given, message):
    with pytest.raises(BadInput, match="x must " + message):
        gcr.Learner(mlp(), memory=20).fit(given, epochs=1)
    with pytest.raises(BadInput, match="validation must " + message):
        gcr.Learner(mlp(), memory=20).fit(X, Y, epochs=1, validation=given)


def test_a_validation_that_ends_is_refused_before_training():
    learner = gcr.Learner(mlp(), memory=20)
    with pytest.raises(BadInput, match="validation is looked at after every epoch, got an iterator"):
        learner.fit(X, Y, epochs=2, validation=iter([(X, Y)]))
    assert learner.engine is None
    learner.fit(X, Y, epochs=1, validation=iter([(X, Y)]))


def test_validation_takes_a_stream_of_examples():
    values = []
    learner = gcr.Learner(mlp(), memory=20)
    learner.fit(X, Y, epochs=1, validation=Stream(), on_epoch=lambda _, epoch: values.append(epoch.validation))
    assert values == [learner.score(X, Y)]


def test_numbers_of_numpy_are_numbers():
    options = {name: np.int64(2) for name in ("epochs", "patience")}
    learner = gcr.Learner(mlp(), memory=20).fit(X, Y, batch=np.int64(40), validation=(X, Y), **options)
    assert learner.engine.state.steps == 4


def test_sparse_tensors_are_refused():
    with pytest.raises(BadInput, match=r"x must be dense, got a tensor of layout torch.sparse_coo; give its to_dense"):
        gcr.Learner(mlp(), memory=20).fit(X.to_sparse(), Y, epochs=1)


def test_a_network_of_64_bits():
    with pytest.raises(BadInput, match=r"float64 numbers reach net as float32, .* net\.float\(\)"):
        gcr.Learner(mlp().double(), memory=20).fit(X.double(), Y, epochs=1)


@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_nothing_is_learned_without_gradients(off):
    learner = gcr.Learner(mlp(), memory=20)
    for act in (lambda: learner.fit(X, Y, epochs=1), lambda: learner.observe(X, Y)):
        with off(), pytest.raises(BadInput, match=r"learning needs gradients, .* outside of torch\.no_grad\(\)"):
            act()
    assert learner.engine is None


class Named(nn.Module):
    """Calls its head by keyword."""

    def __init__(self, net):
        super().__init__()
        self.body, self.head = net[:2], net[2]

    def forward(self, x):
        return self.head(input=self.body(x))


def test_a_head_that_is_called_by_keyword():
    one, other = (gcr.Learner(net, memory=20).fit(X, Y, epochs=2) for net in (Named(mlp()), mlp()))
    assert torch.equal(one.logits(X), other.logits(X))
    assert torch.equal(one.memory.pool().features, other.memory.pool().features)


# --- Labels


class Number(IntEnum):
    CAT = 1
    DOG = 2


class Word(StrEnum):
    CAT = "cat"
    DOG = "dog"


class Mixed(str, Enum):  # noqa: UP042
    CAT = "cat"
    DOG = "dog"


class Place(NamedTuple):
    row: int
    column: Number


def test_equal_class_names_are_refused_with_their_places():
    """They would shift all later outputs, so that a perfect network is wrong."""
    with pytest.raises(BadInput, match=r"classes must be distinct, .* got 'crane' at outputs 1, 3; rename"):
        gcr.Learner(nn.Linear(5, 5), classes=["ant", "crane", "bee", "crane", "cat"])
    with pytest.raises(BadInput, match="got 1 at outputs 0, 1; rename"):
        gcr.Learner(mlp(), classes=[1, True])
    with pytest.raises(BadInput, match="'e' at outputs 4, 14; and 5 more"):
        gcr.Learner(nn.Linear(20, 20), classes=list("abcdefghij" * 2))


@pytest.mark.parametrize("classes", ["cat", b"cat"])
def test_a_text_is_not_a_list_of_classes(classes):
    with pytest.raises(BadInput, match=r"classes must be a sequence of labels, got the text b?'cat'"):
        gcr.Learner(mlp(), classes=classes)


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (list(Number), [1, 2]),
        (list(Word), ["cat", "dog"]),
        (list(Mixed), ["cat", "dog"]),
        ([Place(0, Number.CAT), Place(0, Number.DOG)], [(0, 1), (0, 2)]),
    ],
    ids=["IntEnum", "StrEnum", "str, Enum", "NamedTuple"],
)
def test_a_loaded_learner_takes_the_same_labels(given, plain, tmp_path):
    y = [given[0]] * 40 + [given[1]] * 40
    learner = gcr.Learner(mlp(), memory=10).fit(X, y, epochs=1)
    assert learner.classes == plain
    assert [type(label) for label in learner.classes] == [type(label) for label in plain]
    learner.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", mlp())
    assert loaded.score(X, y) == learner.score(X, y)
    loaded.fit(X, y, epochs=1)
    assert loaded.predict_proba(X, labels=given).shape == (80, 2)


@pytest.mark.parametrize("label", [frozenset({1}), b"cat", (1, frozenset())])
def test_labels_that_cannot_be_saved_are_refused_before_training(label):
    learner = gcr.Learner(mlp(), memory=5)
    with pytest.raises(BadInput, match="so that they can be saved, got "):
        learner.fit(X, [label] * 80, epochs=1)
    assert learner.engine is None


def test_a_column_of_labels():
    labels = Labels()
    assert labels.checked(torch.tensor([[3], [5]]), 2) == [3, 5]
    assert labels.checked(torch.tensor([[3], [5]]).numpy(), 2) == [3, 5]
    with pytest.raises(BadInput, match="argmax"):
        labels.checked(torch.eye(2), 2)


class Frame:
    """What counts of a DataFrame: it iterates over names, and is an array without them."""

    def __init__(self, values, columns):
        self.values, self.columns = np.asarray(values), list(columns)

    def __len__(self):
        return len(self.values)

    def __iter__(self):
        return iter(self.columns)

    def __getitem__(self, names):
        return Frame(self.values[:, [self.columns.index(name) for name in names]], names)

    def to_numpy(self, dtype=None, copy=None):
        return self.values.astype(dtype or self.values.dtype)

    __array__ = to_numpy


def test_columns_of_a_data_frame_go_by_name(tmp_path):
    frame, turned = Frame(X, "abcdefgh"), Frame(X.flip(1), "hgfedcba")
    learner = gcr.Learner(mlp(), memory=20).fit(frame, Frame(np.array(Y)[:, None], ["label"]), epochs=2)
    learner.save(tmp_path)
    for one in (learner, gcr.Learner.load(tmp_path, mlp())):
        assert np.array_equal(one.predict_proba(turned), one.predict_proba(X))
        named = dict(zip(turned.columns, turned.values[3].tolist(), strict=True))
        assert one.predict_proba_one(named) == one.predict_proba_one(X[3])
        with pytest.raises(BadInput, match="columns of the first batch, 8, got one that lacks 'a'"):
            one.predict(Frame(X, "zbcdefgh"))
    learner.observe(turned, Y)
    assert set(map(tuple, learner.memory.examples.tolist())) <= set(map(tuple, X.tolist()))
    for columns in (range(8), "aaaaaaaa"):  # no names
        plain = gcr.Learner(mlp(), memory=20).fit(Frame(X, columns), Y, epochs=1)
        assert plain.layout.names == ()


def test_a_data_frame_alone_has_no_labels():
    frame = Frame(X, "abcdefgh")
    with pytest.raises(BadInput, match="y must be given with x"):
        gcr.Learner(mlp(), memory=20).fit(frame)
    with pytest.raises(BadInput, match="got str"):
        gcr.Learner(mlp(), memory=20).fit(frame, Y, epochs=1).score(frame)
    with pytest.raises(BadInput, match="one dimension, got shape"):
        gcr.Learner(mlp(), memory=20).fit(frame, Frame(X, "abcdefgh"))


def test_labels_of_another_type_are_refused_in_score():
    learner = gcr.Learner(mlp(), memory=5).fit(X, [0, 1] * 40, epochs=1)
    with pytest.raises(BadInput, match="labels must be of one type, int as the first, got '0'"):
        learner.score(X, ["0", "1"] * 40)


class Centred(nn.Module):
    """Subtracts what it has learned from its input in place."""

    def __init__(self, net):
        super().__init__()
        self.net, self.mean = net, nn.Parameter(torch.ones(8))

    def forward(self, x):
        return self.net(x.sub_(self.mean))


class CentredInCopies(Centred):
    def forward(self, x):
        return super().forward(x.clone())


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("method", [None, GcrPlus(), ClsEr()], ids=["er-ace", "gcr+", "cls-er"])
def test_a_network_that_changes_its_input_in_place(method, frozen):
    one, other = (
        gcr.Learner(make(mlp()), memory=20, method=method, frozen=frozen) for make in (Centred, CentredInCopies)
    )
    given = X.clone()
    for learner in (one, other):
        learner.remember(given[:8], WORDS[:8])
        learner.fit(given, WORDS, epochs=2, validation=(given, WORDS))
        learner.observe(given, WORDS)
        learner.learn_one(given[0], "ant")
    assert torch.equal(one.logits(given), other.logits(given))
    assert torch.equal(one.memory.pool().features, other.memory.pool().features)
    assert torch.equal(given, X)


def test_labels_that_can_be_looked_at_once():
    learner = gcr.Learner(mlp(), memory=20)
    learner.remember(X, iter(WORDS))
    learner.observe(X, iter(WORDS))
    assert learner.fit(X, iter(WORDS), epochs=2).classes == ["ant", "bee"]


def test_memory_of_inference_mode_is_refused():
    learner = gcr.Learner(mlp(), memory=20)
    for _ in range(2):
        with torch.inference_mode(), pytest.raises(BadInput, match=r"cannot be trained later; use torch\.no_grad\(\)"):
            learner.remember(X, WORDS)
        with torch.no_grad():
            learner.remember(X, WORDS)
    assert learner.fit(X, WORDS, epochs=1).score(X, WORDS) > 0


def test_a_file_mapped_for_reading_is_not_copied(tmp_path):
    np.save(tmp_path / "x.npy", X.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows = as_rows("x", mapped)
        learner = gcr.Learner(Centred(mlp()), memory=20).fit(mapped, WORDS, epochs=1, validation=(mapped, WORDS))
        assert len(learner.predict(mapped)) == 80
    assert rows.data_ptr() == mapped.ctypes.data


def test_clipping_needs_dense_gradients():
    net = nn.Sequential(nn.EmbeddingBag(20, 8, sparse=True), nn.Linear(8, 2))
    learner = gcr.Learner(net, memory=20, clip=1.0, optimizer=lambda p: torch.optim.SGD(p, lr=0.1))
    with pytest.raises(BadInput, match="clip must be None with sparse gradients"):
        learner.observe(torch.arange(14).reshape(2, 7), ["ant", "bee"])


def test_what_an_engine_was_made_of_cannot_be_replaced():
    learner = gcr.Learner(mlp(), memory=10)
    learner.optimizer = quick  # before the first batch it counts
    learner.fit(*blobs([A, B]), epochs=1)
    with pytest.raises(BadInput, match=r"optimizer cannot be replaced .*, or change its param_groups"):
        learner.optimizer = torch.optim.SGD(learner.net.parameters(), lr=0.1)
    with pytest.raises(BadInput, match="class_weight is given to Learner"):
        learner.class_weight = "balanced"
    with pytest.raises(BadInput, match=r"method cannot be replaced after the first batch; make a new Learner$"):
        learner.method = Er()


def test_a_data_set_of_several_inputs_says_how_they_are_given():
    x, y = torch.rand(8, 2), torch.zeros(8).long()
    with pytest.raises(BadInput, match=r"got 3 parts; put inputs together, as \(\(x1, x2\), y\)"):
        gcr.Learner(mlp(), memory=10).fit(torch.utils.data.TensorDataset(x, x, y))


@pytest.mark.filterwarnings("ignore")  # of torch, on how it compiles
def test_a_compiled_network_learns_as_it_would_without_and_says_when_it_cannot(tmp_path):
    torch.compiler.reset()
    x, y = blobs([A, B])
    plain, compiled = mlp(), torch.compile(mlp(), backend="eager")
    compiled.load_state_dict({f"_orig_mod.{name}": value for name, value in plain.state_dict().items()})
    learners = [gcr.Learner(net, memory=10).fit(x, y, epochs=2) for net in (plain, compiled)]
    assert same_weights(plain, compiled._orig_mod)
    learners[1].save(tmp_path)
    with pytest.raises(BadInput, match=r"give net as torch\.compile makes it, as then"):
        gcr.Learner.load(tmp_path, mlp())
    assert gcr.Learner.load(tmp_path, torch.compile(mlp(), backend="eager")).score(x, y) == learners[1].score(x, y)
    torch.compiler.reset()
    used = torch.compile(mlp(), backend="eager")
    for training in (True, False):
        used.train(training)
        for n in (1, 2, 16, 32, 64, 80):
            used(x[:n])
    with pytest.raises(BadInput, match=r"without calling its head .* call torch.compiler.reset\(\)"):
        gcr.Learner(used, memory=10, head="_orig_mod.2").fit(x, y, epochs=1)
    torch.compiler.reset()
    gcr.Learner(used, memory=10).fit(x, y, epochs=1)
