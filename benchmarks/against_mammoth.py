"""One training step of our methods against the same step of Mammoth, its authors' own code, from a checkout of yours.

    git clone https://github.com/aimagelab/mammoth
    python benchmarks/against_mammoth.py --mammoth mammoth

Both sides get equal weights, the same new batch and the same remembered examples, already augmented, and do one step.
What is compared: the loss, the gradients that the step goes along, and the weights after it. Only Mammoth's methods and
buffer are imported; its data sets and backbones, and packages of image transforms that are not installed, are replaced
by empty modules, since nothing here calls them. Its GEM needs the package quadprog. Writes ``against-mammoth``
(``benchmarks/measured.py``).
"""

from __future__ import annotations

import argparse
import copy
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import logging
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import measured
import numpy as np
import torch
from torch import Tensor, nn

from gcr.methods import METHODS, Batch, Extras, Method
from gcr.models import Network, build
from gcr.training.sgd import Sgd

TOLERANCE = 1e-4  # on the loss; on gradients and weights relative to the largest entry of all
SHAPE, CLASSES, TASKS = (3, 16, 16), 10, 5
NEW, REPLAYED, REMEMBERED, LR = 16, 12, 24, 0.1
STORED = {"image": "examples", "label": "labels", "logits": "logits", "task": "task_labels"}  # theirs by our names
NOT_NEEDED = ("datasets", "backbone")  # parts of Mammoth
TRANSFORMS = ("torchvision", "kornia", "yaml", "PIL", "tqdm", "requests")  # replaced where they are not installed


@dataclass
class Setup:
    """What both sides start from. The new batch is of the third task; memory holds the first two.

    New images look like those of old classes: the gradients of new and old are then at odds, and GEM has work to do.
    """

    net: Network
    teacher: Network  # the network at the end of the task before, for methods that keep it
    images: Tensor
    labels: Tensor
    memory: dict[str, Tensor]  # image, label, logits, task
    rows: list[Tensor]  # of memory, for each replay minibatch in turn

    @classmethod
    def make(cls, model: str, n_replays: int, whole: bool) -> Setup:
        g = torch.Generator().manual_seed(1)
        patterns = torch.randn(CLASSES, *SHAPE, generator=g)
        labels = 4 + torch.arange(NEW) % 2
        old = torch.arange(REMEMBERED) % 4
        memory = {
            "image": patterns[old] + torch.randn(REMEMBERED, *SHAPE, generator=g),
            "label": old,
            "logits": torch.randn(REMEMBERED, CLASSES, generator=g),
            "task": old // 2,
        }
        rows = [torch.randperm(REMEMBERED, generator=g)[:REPLAYED] for _ in range(n_replays)]
        images = patterns[labels - 4] + torch.randn(NEW, *SHAPE, generator=g)
        net, teacher = (learned(build(model, SHAPE, CLASSES, seed), memory) for seed in (0, 1))
        everything = [torch.arange(REMEMBERED)] * n_replays
        return cls(net, teacher.eval(), images, labels, memory, everything if whole else rows)

    def replay(self) -> tuple[Batch, ...]:
        columns = [{name: column[rows] for name, column in self.memory.items()} for rows in self.rows]
        ones = [torch.ones(len(rows)) for rows in self.rows]
        return tuple(
            Batch((c["image"],), c["label"], c["logits"], w, c["task"]) for c, w in zip(columns, ones, strict=True)
        )


def learned(net: Network, memory: dict[str, Tensor], steps: int = 5) -> Network:
    """The network after a few steps on memory."""
    parameters = list(net.train().parameters())
    optimizer = Sgd(parameters, LR)
    for _ in range(steps):
        value = nn.functional.cross_entropy(net(memory["image"]), memory["label"])
        optimizer.step(parameters, torch.autograd.grad(value, parameters))
    return net


@dataclass(frozen=True)
class Case:
    """One method on both sides, and what has to be put in place before the step."""

    name: str
    theirs: str  # module.class in Mammoth's models
    settings: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    stored: tuple[str, ...] = ("label",)  # what their buffer keeps of each image
    our_state: Callable[[Extras, Setup], None] = lambda extras, setup: None
    their_state: Callable[[Any, Setup], None] = lambda model, setup: None
    together: bool = False  # they expect remembered examples within the batch
    remark: str = ""


def seen_by_er_ace(extras: Extras, setup: Setup) -> None:
    extras["seen"][:4] = True


def seen_by_mammoth(model: Any, setup: Setup) -> None:
    model.seen_so_far = torch.arange(4)


def past_gradients(model: Any, setup: Setup) -> None:
    solve = importlib.import_module("models.gem").project2cone2
    solve.__defaults__ = (*solve.__defaults__[:-1], 1e-9)  # eps: what they add to the diagonal, else 1e-3
    model.grads_cs = [torch.zeros_like(model.grads_da) for _ in range(2)]


def our_teacher(extras: Extras, setup: Setup) -> None:
    extras["earlier"][:4] = True
    for name, tensor in setup.teacher.state_dict().items():
        extras[f"teacher.{name}"].copy_(tensor)


def their_teacher(model: Any, setup: Setup) -> None:
    model.old_net, model._current_task, model._n_past_classes = copy.deepcopy(setup.teacher), 2, 4


WEIGHTS = {"alpha": 0.3, "beta": 0.7}
CASES = (
    Case("er", "er.Er"),
    Case("der", "der.Der", {"alpha": 0.3}, {"alpha": 0.3}, ("logits",)),
    Case("der++", "derpp.Derpp", WEIGHTS, WEIGHTS, ("label", "logits")),
    Case("a-gem", "agem.AGem"),
    Case(
        "gem",
        "gem.Gem",
        {"margin": 0.5},
        {"gamma": 0.5},
        ("label", "task"),
        their_state=past_gradients,
        remark="their eps is 1e-9, not 1e-3",
    ),
    Case(
        "icarl",
        "icarl.ICarl",
        {"over_classes": "mean"},
        {"opt_wd": 0.0, "use_original_icarl_transform": 0, "compute_theoretical_best": 0},
        our_state=our_teacher,
        their_state=their_teacher,
        together=True,
        remark="without weight decay",
    ),
    Case(
        "er-ace",
        "er_ace.ErACE",
        {},
        {"task_free": True, "use_custom_classifier": False},
        our_state=seen_by_er_ace,
        their_state=seen_by_mammoth,
        remark="with a linear head on both sides",
    ),
)


class Step(NamedTuple):
    loss: float
    gradients: list[Tensor]
    net: Network
    plain: list[Tensor]  # gradients of the loss itself


def our_step(case: Case, method: Method, setup: Setup) -> Step:
    net = copy.deepcopy(setup.net).train()
    extras = method.extras(net, TASKS)
    case.our_state(extras, setup)
    new = Batch((setup.images,), setup.labels, torch.empty(0), torch.ones(NEW))
    replay = setup.replay()
    loss = method.loss(net, new, replay, extras)
    parameters = list(net.parameters())
    plain: list[Tensor | None] = list(torch.autograd.grad(loss.value, parameters, allow_unused=True))
    gradients = method.project(plain, parameters, net, replay, extras, stage=2)
    before = [p.detach().clone() for p in parameters]
    Sgd(parameters, LR).step(parameters, gradients)
    return Step(loss.value.item(), _or_zeros(gradients, before), net, _or_zeros(plain, before))


def their_model(case: Case, net: nn.Module, remembered: int, replayed: int) -> Any:
    module, name = case.theirs.split(".")
    cls = getattr(importlib.import_module(f"models.{module}"), name)
    arguments = {
        "lr": LR,
        "optimizer": "sgd",
        "optim_wd": 0.0,
        "optim_mom": 0.0,
        "optim_nesterov": False,
        "label_perc": 1,
        "buffer_size": remembered,
        "minibatch_size": replayed,
        "nowand": 1,
        "dataset": "made",
    }
    dataset = types.SimpleNamespace(
        N_CLASSES=CLASSES, N_TASKS=TASKS, N_CLASSES_PER_TASK=CLASSES // TASKS, SETTING="class-il"
    )
    return cls(net, nn.CrossEntropyLoss(), argparse.Namespace(**(arguments | case.arguments)), None, dataset)


def their_step(case: Case, setup: Setup) -> Step:
    net = copy.deepcopy(setup.net).train()
    model = their_model(case, net, REMEMBERED, REPLAYED)
    stored = {STORED[name]: setup.memory[name] for name in ("image", *case.stored)}
    model.buffer.add_data(**stored)  # as many as there is room for: each to its own row
    get_data, rows = model.buffer.get_data, iter(setup.rows)
    model.buffer.get_data = lambda size, **given: get_data(size, force_indexes=next(rows).numpy(), **given)
    case.their_state(model, setup)
    images, labels = setup.images, setup.labels
    if case.together:
        old = setup.replay()
        images, labels = torch.cat([images, *(o.images for o in old)]), torch.cat([labels, *(o.labels for o in old)])
    loss = model.observe(images, labels, images)
    gradients = _or_zeros([p.grad for p in net.parameters()], list(net.parameters()))
    return Step(loss, gradients, net, gradients)


def compare(case: Case, model: str) -> dict[str, Any]:
    method = next((m for m in METHODS if m.name == case.name), None)
    about: dict[str, Any] = {"method": case.name, "model": model}
    if method is None:
        return about | {"skipped": "not among our methods"}
    if case.name == "gem" and importlib.util.find_spec("quadprog") is None:
        return about | {"skipped": "Mammoth's GEM needs quadprog, which is not installed"}
    ours_made = method(**case.settings)
    setup = Setup.make(model, len(ours_made.replays), any(r.kind == "whole" for r in ours_made.replays))
    ours, theirs = our_step(case, ours_made, setup), their_step(case, setup)
    found = {
        "loss": abs(ours.loss - theirs.loss),
        "gradients": _apart(ours.gradients, theirs.gradients),
        "weights": _apart(list(ours.net.parameters()), list(theirs.net.parameters())),
    }
    about |= {"our_loss": ours.loss, "their_loss": theirs.loss, "apart": found}
    if type(ours_made).project is not Method.project:
        about["moved_by_projection"] = _apart(ours.gradients, ours.plain)
    about["agrees"] = all(value <= TOLERANCE for value in found.values())
    return about | ({"remark": case.remark} if case.remark else {})


def _or_zeros(gradients: Sequence[Tensor | None], like: Sequence[Tensor]) -> list[Tensor]:
    pairs = zip(gradients, like, strict=True)
    return [torch.zeros_like(p) if g is None else g.detach().clone() for g, p in pairs]


def _apart(ours: list[Any], theirs: list[Any]) -> float:
    """The largest difference, relative to the largest entry."""
    largest = max(float(t.detach().abs().max()) for t in theirs)
    return max(float((a - b).detach().abs().max()) for a, b in zip(ours, theirs, strict=True)) / largest


class Nothing(type):
    """A class with whatever attribute is asked for."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Empty


class Empty(metaclass=Nothing):
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...


class EmptyModule(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        return getattr(Empty, name)


class EmptyModules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: set[str]) -> None:
        self.names = names

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        known = name.split(".")[0] in self.names
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return EmptyModule(spec.name)

    def exec_module(self, module: types.ModuleType) -> None: ...


def open_mammoth(folder: Path) -> set[str]:
    """Make ``models`` and ``utils`` of the checkout importable. Returns the packages that were replaced."""
    if not (folder / "models" / "er.py").is_file():
        raise SystemExit(f"--mammoth must be a checkout of Mammoth, but {folder} has no models/er.py")
    absent = {name for name in TRANSFORMS if importlib.util.find_spec(name) is None}
    sys.path.insert(0, str(folder.resolve()))
    sys.meta_path.insert(0, EmptyModules(absent | set(NOT_NEEDED)))
    logging.disable(logging.ERROR)
    here = Path.cwd()
    importlib.import_module("models")  # changes the working directory
    os.chdir(here)
    return absent


def commit_of(folder: Path) -> str:
    asked = subprocess.run(["git", "-C", str(folder), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    top = subprocess.run(
        ["git", "-C", str(folder), "rev-parse", "--show-prefix"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() if asked.returncode == 0 and not top.stdout.strip() else "unknown"


def lines(results: list[dict[str, Any]]) -> Iterator[str]:
    for result in results:
        name = f"{result['method']:8} {result['model']:9}"
        if "skipped" in result:
            yield f"{name} skipped: {result['skipped']}"
        else:
            apart = "  ".join(f"{what} {value:.1e}" for what, value in result["apart"].items())
            yield f"{name} {'agrees' if result['agrees'] else 'DIFFERS':8} {apart}"


def main() -> None:
    parser = argparse.ArgumentParser(description="One step of our methods against Mammoth's.")
    parser.add_argument("--mammoth", type=Path, required=True, help="folder of a Mammoth checkout")
    parser.add_argument("--models", nargs="+", default=["convnet", "resnet18"])
    options = parser.parse_args()
    replaced = open_mammoth(options.mammoth)
    results = [compare(case, model) for case in CASES for model in options.models]
    print("\n".join(lines(results)))
    report = {
        "mammoth": commit_of(options.mammoth),
        "replaced_by_empty_modules": sorted(replaced | set(NOT_NEEDED)),
        "versions": {"torch": torch.__version__, "numpy": np.__version__},
        "tolerance": TOLERANCE,
        "results": results,
    }
    measured.write("against-mammoth", report)
    if not all(result.get("agrees", True) for result in results):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
