"""A learner in files: what ``save`` writes and ``load`` puts back."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict
from itertools import filterfalse, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from gcr.augment import Views
from gcr.files import under
from gcr.learner.checks import network_state
from gcr.learner.class_weights import ClassWeights
from gcr.learner.core import Core
from gcr.learner.engine import Engine
from gcr.learner.head import cut_or_grow
from gcr.learner.inputs import Layout
from gcr.learner.labels import from_json, to_json
from gcr.learner.state_folder import StateFolder
from gcr.memory import Policy
from gcr.memory.buffer_state import check_held
from gcr.methods import METHODS, Extras
from gcr.models.network import is_extra
from gcr.settings import LARGEST, MISFITS, BadInput, Misfit, brief_of, from_mapping, to_mapping
from gcr.training.optimizer import (
    AnyOptimizer,
    held_parameters,
    new_parameters,
    optimizer_tensors,
    restore_optimizer,
)
from gcr.training.sgd import Sgd

L = TypeVar("L", bound=Core)
NET, EXTRA, MEMORY, OPTIMIZER = "net.", "extra.", "memory.", "optimizer."
COMPILED = "_orig_mod."  # in the names of a network that torch.compile has wrapped


def save(learner: Core, path: str | Path) -> None:
    about, tensors = state(learner)
    folder = StateFolder(path)
    whole = str(folder.path.resolve())
    folder.write({"learner": about}, tensors, alone=learner.forgot and whole not in learner.cleared)
    if learner.forgot:
        learner.cleared.add(whole)


def state(learner: Core) -> tuple[dict[str, Any], dict[str, Tensor]]:
    if learner.engine is None or learner.layout is None:
        raise BadInput("a learner that has seen nothing cannot be saved; call fit or observe first")
    engine = learner.engine
    engine.refuse_diverged()
    weights, extra_state = network_state(learner.net)
    about = {
        "classes": [to_json(label) for label in learner.classes],
        "method": to_mapping(learner.method, named=True) | {"own": type(learner.method) not in METHODS},
        "memory": None if learner.policy is None else learner.policy.to_json(),
        "optimizer": _optimizer_about(engine.state.optimizer, learner.net, engine.own_values)
        | {"made": engine.made_optimizer, "left": _left_out(engine, learner.net)},
        "layout": asdict(learner.layout) | {"names": [to_json(name) for name in learner.layout.names]},
        "augment": _augment_about(learner.augment),
        "frozen": learner.frozen,
        "class_weights": learner.class_weights.to_json(),
        "clip": learner.clip,
        "precision": learner.precision,
        "head": getattr(learner.trunk, "head_name", None),  # of a network of ours: always the same
        "seed": learner.seed,
        "fits": learner.fits,
        "unfinished": learner.unfinished,
        "outputs": engine.n_outputs,
        "place": engine.place(),
        "extra_state": extra_state,
    }
    tensors = {NET + name: tensor for name, tensor in weights.items()}
    tensors |= {EXTRA + name: tensor for name, tensor in engine.state.extras.items()}
    tensors |= {OPTIMIZER + name: tensor for name, tensor in optimizer_tensors(engine.state.optimizer)}
    if engine.state.memory is not None:
        tensors |= {MEMORY + name: tensor for name, tensor in engine.state.memory.tensors()}
    return about, tensors


def load(kind: type[L], path: str | Path, net: nn.Module, version: int | None, given: dict[str, Any]) -> L:
    about, tensors = StateFolder(path).read(version)
    if not isinstance(about.get("learner"), dict):
        raise BadInput(f"{path} is not the state of a learner; give a folder that learner.save wrote")
    try:
        return from_state(kind, about["learner"], tensors, net, given)
    except MISFITS as error:
        if isinstance(error, BadInput) and not isinstance(error, Misfit):
            raise  # of what was given
        raise BadInput(
            f"{path} cannot be read by this gcr ({brief_of(error)}); load it with the gcr that made it"
        ) from None


def from_state(
    kind: type[L], about: Mapping[str, Any], tensors: Mapping[str, Tensor], net: nn.Module, given: dict[str, Any]
) -> L:
    if unknown := given.keys() - {"optimizer", "augment", "method", "device", "precision"}:
        raise BadInput(f"load takes optimizer, augment, method, device and precision, got {sorted(unknown)[0]}")
    layout = Layout.from_json(about["layout"])
    if not about["classes"]:
        raise Misfit("classes must not be empty")
    kept = tensors.get(f"{MEMORY}image")
    if kept is not None and not about["frozen"] and tuple(kept.shape[1:]) != layout.shape:  # frozen: it has features
        raise Misfit(f"layout.parts must be those of memory.image, {list(kept.shape[1:])}, got {list(layout.shape)}")
    policy = Policy.from_json(about["memory"]) if about["memory"] else None
    if policy is not None and (kept is None or len(kept) != policy.buffer + policy.pool_size):  # before it is allocated
        raise Misfit("memory.image is missing, or memory.buffer and memory.candidates are not its rows")
    learner = kind(
        net,
        policy or 1,
        method=_method(about["method"], given),
        optimizer=_optimizer(about["optimizer"], given, net),
        augment=_augment(about["augment"], given),
        frozen=about["frozen"],
        classes=[from_json(label) for label in about["classes"]],
        clip=about["clip"] or None,
        precision=given.get("precision", about["precision"]),
        device=given.get("device"),
        head=about["head"],
        seed=about["seed"],
    )
    learner.class_weights = ClassWeights.from_json(about["class_weights"])
    _load_net(learner, layout, about, tensors)
    engine = learner.engine
    assert engine is not None
    if "optimizer" not in given:
        engine.made_optimizer = about["optimizer"].get("made", True) is True  # earlier versions did not say
        _note_unfrozen(engine, about["optimizer"].get("left"), net)
    learner.fits = about["fits"]
    learner.unfinished = about.get("unfinished", False)  # earlier versions did not say
    with torch.no_grad():
        own = engine.state.net.state_dict()
        engine.state.extras = _restored_extras(engine.state.extras, under(EXTRA, tensors), own)
        if engine.state.memory is not None:
            held = under(MEMORY, tensors)
            check_held(engine.state.memory, held, engine.n_outputs)
            for name, tensor in engine.state.memory.tensors():
                tensor.copy_(held[name])
    try:
        remembered = _by_own_number(under(OPTIMIZER, tensors), about["optimizer"], engine.state.optimizer, learner.net)
        restore_optimizer(engine.state.optimizer, remembered)
    except ValueError as error:
        raise BadInput(f"optimizer does not fit the saved one ({error}); give one made as before") from None
    engine.restore(dict(about["place"]))
    return learner


def _restored_extras(fresh: Extras, saved: Mapping[str, Tensor], net: Mapping[str, Tensor]) -> Extras:
    """The method's own tensors as they were saved. Copies of a network are those of the layers that learned then,
    whether or not they learn in the network that was given."""
    copies = {name.partition(".")[0] for name in fresh if "." in name}  # as "ema" of ema.net.0.weight
    restored: Extras = {}
    for name, tensor in saved.items():
        copy, _, own = name.partition(".")
        like = fresh.get(name, net.get(own) if copy in copies else None)
        if like is None:
            continue
        if tensor.shape != like.shape:
            raise Misfit(f"{EXTRA}{name} must have shape {list(like.shape)}, got {list(tensor.shape)}")
        restored[name] = torch.empty_like(like, requires_grad=False).copy_(tensor)
    partly = copies & {name.partition(".")[0] for name in restored}
    for name in fresh:
        if name not in restored and name.partition(".")[0] not in partly:
            raise Misfit(f"{EXTRA}{name} is missing")
    return restored


def _load_net(learner: Core, layout: Layout, about: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Start the learner with the saved weights. An error names what does not fit. A network may refuse zeros, as
    lengths or masks: it makes a pass only if it has lazy layers, or if the state, of an older gcr, does not name its
    head."""
    weights: dict[str, Any] = under(NET, tensors)
    weights |= {name: value for name, value in about.get("extra_state", {}).items() if is_extra(name)}
    lazy = any(map(is_lazy, learner.net.state_dict().values()))
    named = about["head"] is not None
    example = _zeros(layout) if named and not lazy else _example(learner, layout, tensors)
    if lazy:
        learner.attach_head(layout, example)  # its pass gives every layer a shape
    _refuse_other(weights, learner.net, about["outputs"])
    trunk = learner.attach_head(layout, None if named else example)
    given = learner.optimizer if isinstance(learner.optimizer, AnyOptimizer) else None
    cut_or_grow(trunk.head, about["outputs"], learner.seed, given)
    _refuse_other(weights, learner.net)
    learner.net.load_state_dict(weights)
    learner.start(layout, example, about["outputs"], trunk)


def _refuse_other(weights: Mapping[str, Any], net: nn.Module, outputs: int | None = None) -> None:
    """An error unless names and shapes are the same. With ``outputs``, a tensor of so many rows may have others in
    ``net``: that may be the head."""
    own = net.state_dict()
    wrong = [name for name in own if name not in weights] + [name for name in weights if name not in own]
    for name in filterfalse(is_extra, own.keys() & weights.keys()):
        saved, here = weights[name].shape, own[name].shape
        if saved != here and not (outputs and saved[:1] == (outputs,) and saved[1:] == here[1:]):
            wrong.append(name)
    if wrong:
        name = min(wrong, key=[*own, *weights].index)
        shapes = [_shape(held[name]) if name in held else "nothing" for held in (weights, own)]
        compiled = [any(COMPILED in one for one in held) for held in (weights, own)]
        remedy = "build the network as it was when it was saved"
        if compiled[0] != compiled[1]:
            remedy = f"give net {'as torch.compile makes it' if compiled[0] else 'without torch.compile'}, as then"
        raise BadInput(
            f"net does not fit the saved state: {name} is {shapes[0]} there, {shapes[1]} in net ({len(wrong)} "
            f"differences in all); {remedy}"
        )


def _shape(value: Any) -> Any:
    return tuple(value.shape) if isinstance(value, Tensor) else "extra state"


def _example(learner: Core, layout: Layout, tensors: Mapping[str, Tensor]) -> Any:
    """Remembered examples; zeros where memory holds none, or features."""
    image = tensors.get(f"{MEMORY}image")
    if learner.policy is None or learner.frozen or image is None or image.dtype != layout.dtype:
        return _zeros(layout)
    kept, pooled = (int(tensors[f"{MEMORY}{name}"]) for name in ("kept", "pooled"))
    first, n = (0, kept) if kept > 0 else (learner.policy.buffer, pooled)
    rows = image[first : first + min(n, 2)]
    return layout.inputs(rows) if len(rows) else _zeros(layout)


def _zeros(layout: Layout) -> Any:
    parts = {part.name: torch.zeros((2, *part.shape), dtype=getattr(torch, part.dtype)) for part in layout.parts}
    return parts if layout.kind == "dict" else tuple(parts.values()) if layout.kind == "tuple" else parts[""]


def _optimizer_about(optimizer: AnyOptimizer, net: nn.Module, own_values: list[dict[str, Any]]) -> dict[str, Any]:
    """Class and groups, with the names of their parameters; inside a schedule, with the values from before it."""
    names = {parameter: name for name, parameter in net.named_parameters()}
    both = zip_longest(optimizer.param_groups, own_values)
    groups = [(own or group) | {"params": [names[p] for p in group["params"]]} for group, own in both]
    groups = [group | {"capturable": False} if "capturable" in group else group for group in groups]  # a GPU sets it
    plain = all(_is_plain(value) for group in groups for value in group.values())
    kind = type(optimizer)
    known = kind in (Sgd, getattr(torch.optim, kind.__name__, None))
    name = "gcr.Sgd" if kind is Sgd else kind.__name__
    return {
        "name": name,
        "own": not (plain and known),
        "groups": groups if plain else [],
        "parameters": [names[parameter] for parameter in held_parameters(optimizer)],
    }


def _left_out(engine: Engine, net: nn.Module) -> list[str]:
    """Names of layers that wanted a gradient and that the optimizer does not hold: whoever made it left them out."""
    names = {parameter: name for name, parameter in net.named_parameters()}
    learned = [layer for layer, (learns, _) in zip(engine.layers, engine.noted, strict=True) if learns]
    return [names[layer] for layer in new_parameters(engine.state.optimizer, learned) if layer in names]


def _note_unfrozen(engine: Engine, left: Any, net: nn.Module) -> None:
    """Layers that were frozen when the learner was saved, and are not so in ``net``, learn from now on."""
    if not isinstance(left, list):
        return  # earlier versions did not say
    names = {parameter: name for name, parameter in net.named_parameters()}
    new = {p for p in new_parameters(engine.state.optimizer, engine.layers) if names.get(p) not in left}
    engine.noted = [
        (learns and layer not in new, stride)
        for layer, (learns, stride) in zip(engine.layers, engine.noted, strict=True)
    ]


def _by_own_number(
    remembered: Mapping[str, Tensor], about: Mapping[str, Any], optimizer: AnyOptimizer, net: nn.Module
) -> dict[str, Tensor]:
    """What the saved optimizer remembers, by the numbers that its parameters have in this one, which may hold them in
    another order."""
    names = about.get("parameters")
    if names is None:  # earlier versions named them in the groups, if these could be written
        names = [name for group in about["groups"] for name in group["params"]]
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Misfit("optimizer.parameters must be a list of names")
    if not names:
        return dict(remembered)
    name_of = {parameter: name for name, parameter in net.named_parameters()}
    place = {name_of[parameter]: number for number, parameter in enumerate(held_parameters(optimizer))}
    renumbered = {}
    for key, tensor in remembered.items():
        number, _, what = key.partition(".")
        if not number.isdecimal() or int(number) >= len(names):
            raise ValueError(f"{key} is of no parameter")
        if names[int(number)] not in place:
            raise ValueError(f"it held {names[int(number)]}, which this one does not")
        renumbered[f"{place[names[int(number)]]}.{what}"] = tensor
    return renumbered


def _is_plain(value: Any) -> bool:
    return (
        value is None
        or isinstance(value, int | float | str | bool)
        or (isinstance(value, list | tuple) and all(map(_is_plain, value)))
    )


def _optimizer(about: Mapping[str, Any], given: dict[str, Any], net: nn.Module) -> Any:
    if "optimizer" in given:
        return given["optimizer"]
    if about["own"]:
        raise BadInput(f"optimizer must be given to load: {about['name']} cannot be made from the file")

    def make(_: Any) -> AnyOptimizer:
        held = dict(net.named_parameters())
        groups = [group | {"params": [held[name] for name in group["params"]]} for group in about["groups"]]
        if about["name"] == "gcr.Sgd":
            ours = Sgd((), groups[0]["lr"], groups[0]["weight_decay"])
            ours.param_groups[:] = groups
            return ours
        made: list[Optimizer] = [_optimizer_of(about["name"], group) for group in groups]
        made[0].param_groups[:] = groups
        return made[0]

    return make


def _optimizer_of(name: str, group: dict[str, Any]) -> Optimizer:
    """One of ``torch.optim`` with the values of a group, which it checks; those that it does not are checked here."""
    kind = getattr(torch.optim, name)
    if "betas" in group:
        group["betas"] = tuple(group["betas"])
    taken = inspect.signature(kind).parameters
    if missing := taken.keys() - group.keys():
        raise Misfit(f"optimizer lacks {min(missing)}")
    for key, value in group.items():
        default = taken[key].default if key in taken else None
        may_be_none = key in ("foreach", "fused")  # torch decides
        if (isinstance(default, bool) or may_be_none) and not isinstance(value, bool | None if may_be_none else bool):
            raise Misfit(f"optimizer.{key} must be true or false, got {value!r:.40}")
        if type(default) in (int, float) and not (type(value) in (int, float) and abs(value) < LARGEST):
            raise Misfit(f"optimizer.{key} must be a number, got {value!r:.40}")
    if group.get("capturable") or group.get("differentiable"):
        raise Misfit("optimizer.capturable and optimizer.differentiable must be false in a saved state")
    optimizer: Optimizer = kind(**{key: value for key, value in group.items() if key in taken})
    return optimizer


def _method(about: Mapping[str, Any], given: dict[str, Any]) -> Any:
    values = {name: value for name, value in about.items() if name != "own"}
    if "method" in given:
        return given["method"]
    if about["own"]:
        raise BadInput(f"method must be given to load: {about['name']} is not one of gcr's own")
    return from_mapping(values, "method", METHODS)


def _augment_about(augment: Any) -> Any:
    if isinstance(augment, Views):
        return {"views": asdict(augment)}
    return (
        augment if augment is None or isinstance(augment, str) else {"own": getattr(augment, "__name__", repr(augment))}
    )


def _augment(about: Any, given: dict[str, Any]) -> Any:
    if "augment" in given:
        return given["augment"]
    if isinstance(about, Mapping) and "own" in about:
        raise BadInput(f"augment must be given to load: the learner was saved with a function, {about['own']}")
    if isinstance(about, Mapping):
        return Views.from_json(about["views"])
    return about
