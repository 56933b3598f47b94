"""Scenarios by name: those that are known, and a data set of one's own under its own name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from gcr.augment import Views
from gcr.data import described, find, is_cached, is_own_name, open_cached, own_names, stratified
from gcr.scenarios.corruption import cut_short, mislabelled, unbalanced
from gcr.scenarios.datasets import load_cached, load_digits
from gcr.scenarios.scenario import Images, Scenario, equal_tasks
from gcr.scenarios.stream import Stream
from gcr.settings import BadInput, unknown

log = logging.getLogger(__name__)

OWN_TASKS = 5
VALIDATION_SEED = 0  # one split for all runs, so that what is tuned on it is comparable


@dataclass(frozen=True)
class Entry:
    """A scenario by name: what can be said without loading it, and values that work when the user gives none."""

    name: str
    summary: str
    read: Callable[[], tuple[Images, Images]]  # training and test images
    n_classes: int
    n_tasks: int
    views: Views
    model: str = "resnet18"
    epochs: int = 50
    buffer: int = 500
    lr: float = 0.03
    stream: int = 6250  # online: examples of each stream, and of a batch; learning rate
    stream_batch: int = 32
    stream_lr: float = 0.01
    data: str = ""  # the cached data set it is made of; empty: embedded
    needs: tuple[str, ...] = ()  # libraries beyond torch and NumPy

    def check_present(self) -> None:
        """An error with the commands that get the data, if it is not here or files of it are damaged."""
        if self.data:
            open_cached(self.data)

    @property
    def fingerprint(self) -> str:
        """Which data these are: 16 hexadecimal digits of a hash of the cached set's files; empty: embedded."""
        return described(self.data).about.fingerprint if self.data else ""

    @property
    def class_names(self) -> tuple[str, ...]:
        if self.data and is_cached(self.data):
            return described(self.data).about.class_names
        known = find(self.data)
        return (known.folder_names if known else ()) or tuple(str(label) for label in range(self.n_classes))


def _cached(
    name: str, data: str, tasks: int, views: Views, model: str = "resnet18", epochs: int = 50, buffer: int = 500
) -> Entry:
    known = find(data)
    assert known is not None, data
    summary = f"{known.summary}; {tasks} tasks of {known.n_classes // tasks} classes"
    read = partial(load_cached, data)
    return Entry(name, summary, read, known.n_classes, tasks, views, model, epochs, buffer, data=data)


# The means and deviations that papers use, so that figures compare; `gcr data check` prints the measured ones.
CIFAR10 = Views(mean=(0.4914, 0.4822, 0.4465), std=(0.2470, 0.2435, 0.2615))
CIFAR100 = Views(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761))
TINY_IMAGENET = Views(mean=(0.4802, 0.4480, 0.3975), std=(0.2770, 0.2691, 0.2821))
IMAGENET = Views(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), pad=28)
# No mirroring (a mirrored digit is another sign, a mirrored shoe stands the other way) and mild strong views.
DIGITS = Views(mean=(0.3053,), std=(0.3760,), pad=1, flip=False, crop=(0.5, 1.0))
MNIST = Views(mean=(0.1307,), std=(0.3081,), pad=2, flip=False, crop=(0.5, 1.0))
FASHION = Views(mean=(0.2860,), std=(0.3530,), pad=2, flip=False, crop=(0.5, 1.0))

SCENARIOS: tuple[Entry, ...] = (
    Entry(
        name="seq-digits",
        summary="scikit-learn's 8x8 digits, 5 tasks of 2 classes; nothing to download",
        read=load_digits,
        n_classes=10,
        n_tasks=5,
        views=DIGITS,
        model="convnet",
        epochs=10,
        buffer=100,
        lr=0.1,
        stream=300,
        stream_batch=10,  # one pass over 1,438 examples is few steps
        stream_lr=0.1,
        needs=("sklearn",),
    ),
    _cached("seq-cifar10", "cifar10", 5, CIFAR10),
    _cached("seq-cifar100", "cifar100", 5, CIFAR100),
    _cached("seq-cifar100-20", "cifar100", 20, CIFAR100),
    _cached("seq-tinyimagenet", "tinyimagenet", 10, TINY_IMAGENET, epochs=100),
    _cached("seq-imagenet1k", "imagenet1k", 5, IMAGENET, buffer=10_000),
    _cached("seq-mnist", "mnist", 5, MNIST, model="convnet", epochs=5, buffer=200),
    _cached("seq-fashion-mnist", "fashion-mnist", 5, FASHION, model="convnet", epochs=5, buffer=200),
)


def entry(name: str) -> Entry:
    """The scenario of that name; a data set of one's own, once imported, is one."""
    for known in SCENARIOS:
        if known.name == name:
            return known
    own = own_names()
    if name in own:
        return _own_entry(name)
    raise _unknown(name, own)


def recorded(name: str) -> Entry:
    """The scenario that a result names. Data of one's own is not looked up, as results are read without it: its entry
    has 0 classes and the defaults of all own data."""
    for known in SCENARIOS:
        if known.name == name:
            return known
    if not isinstance(name, str) or not is_own_name(name):
        raise _unknown(name, own_names())
    return Entry(name, "data of one's own", partial(load_cached, name), 0, 0, Views(mean=(), std=()), data=name)


def _unknown(name: str, own: list[str]) -> BadInput:
    error = unknown("scenario", name, [*(known.name for known in SCENARIOS), *own])
    return BadInput(f"{error}; data of your own becomes a scenario with: gcr data import NAME PATH")


def entries() -> list[Entry]:
    """All scenarios, data sets of one's own last. A damaged one is left out with a remark in the log (on stderr)."""
    own: list[Entry] = []
    for name in own_names():
        try:
            own.append(_own_entry(name))
        except BadInput as error:
            log.warning("%s is left out: %s", name, error)
    return [*SCENARIOS, *own]


def load(name: str, stream: Stream | None = None) -> Scenario:
    """The scenario with its images. ``stream`` changes its tasks or tests on held-out training images."""
    stream = stream or Stream()
    about = entry(name)
    stream.check_classes(about.n_classes, name)
    train, test = about.read()
    if stream.validation:
        train, test = held_out(train, stream.validation)
    tasks = equal_tasks(about.n_classes, stream.tasks or about.n_tasks, stream.class_order)
    if stream.imbalance < 1:
        train = unbalanced(train, tasks, stream.imbalance)
    if stream.last_task < 1:
        train = cut_short(train, tasks, stream.last_task)
    if stream.label_noise:
        train = mislabelled(train, tasks, stream.label_noise)
    length = stream.stream if stream.online else 0
    return Scenario(name, train, test, tasks, about.views, about.class_names, length)


def held_out(train: Images, share: float) -> tuple[Images, Images]:
    """Training images without ``share`` of each class, and that share."""
    out = torch.from_numpy(stratified(train.labels.numpy(), share, VALIDATION_SEED))
    return train.part(torch.nonzero(~out).flatten()), train.part(torch.nonzero(out).flatten())


def _own_entry(name: str) -> Entry:
    about = open_cached(name).about
    n_classes = len(about.class_names)
    n_tasks = min(OWN_TASKS, n_classes)
    std = tuple(max(value, 1e-3) for value in about.std)  # a channel without contrast must not blow up
    moves = Views.moves(about.shape) | ({} if about.mirrored else {"flip": False})
    return replace(
        recorded(name),
        summary=f"your own: {sum(about.train)} + {sum(about.test)} images, {n_classes} classes in {n_tasks} tasks",
        n_classes=n_classes,
        n_tasks=n_tasks,
        views=Views(mean=about.mean, std=std, **moves),
        buffer=max(500, 10 * n_classes),
    )
