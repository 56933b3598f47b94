"""What methods see of a network: ``image -> features -> logits``, with one linear head over all classes.

Our own models are ``Network``s. ``attach`` makes one of any other classifier, without changing it: its head is the
linear layer whose output is the network's output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm

from gcr.models.cast_weights import cast_weights
from gcr.models.norm import BatchNorm, Trunk, keeps_minibatches_apart
from gcr.models.shares import Shares
from gcr.settings import BadInput

ONE_PASS_ON = ("cuda",)  # devices on which several minibatches go through in one pass; on a CPU it is no faster


class Output(NamedTuple):
    features: Tensor  # [b, f]
    logits: Tensor  # [b, classes] float32


class Network(nn.Module):
    """A trunk that gives features, and a linear head."""

    trunk: nn.Module
    head: nn.Linear
    shares: Shares | None = None  # where minibatches do not pass whole: in several processes, or ghost batches

    def __init__(self, trunk: Trunk, n_features: int, n_classes: int) -> None:
        super().__init__()
        self.trunk = trunk
        self.head = nn.Linear(n_features, n_classes)
        self.apart = keeps_minibatches_apart(trunk)

    def train(self, mode: bool = True) -> Self:
        """As any module, but BatchNorm layers whose parameters are all frozen stay in evaluation mode: their statistics
        are part of what is frozen."""
        super().train(mode)
        for layer in self.modules() if mode else ():
            if isinstance(layer, _BatchNorm) and frozen_norm(layer):
                layer.training = False
        return self

    def features(self, images: Tensor) -> Tensor:
        """[b, c, h, w] -> [b, f]: the input of the head."""
        if self.shares is not None:
            return self.shares.spread(lambda own: [self._pass(own).features], [images])[0]
        features: Tensor = self.trunk(images)
        return features

    def forward(self, images: Tensor) -> Tensor:
        if self.shares is not None:
            return self.shares.spread(lambda own: [self._pass(own).logits], [images])[0]
        return self.each(images)[0].logits

    def each(self, *batches: Tensor) -> tuple[Output, ...]:
        """Features and logits of several minibatches, each with batch statistics of its own, as from passes in turn.

        A GPU takes them in one pass where every normalisation layer keeps minibatches apart.
        """
        if self.shares is not None:
            every = self.shares.spread(lambda *own: [torch.cat(o, 1) for o in self._each(*own)], batches)
            return tuple(Output(*said.tensor_split([self.head.in_features], 1)) for said in every)
        return self._each(*batches)

    def _each(self, *batches: Tensor) -> tuple[Output, ...]:
        at_once = batches[0].device.type in ONE_PASS_ON or self.shares is not None  # fewer messages
        if len(batches) > 1 and self.apart and at_once:
            sizes = tuple(len(images) for images in batches)
            both = self._pass(torch.cat(batches), sizes)
            return tuple(map(Output, both.features.split(sizes), both.logits.split(sizes)))
        return tuple(self._pass(images) for images in batches)

    def gradients(self, value: Tensor, parameters: Sequence[Tensor], retain_graph: bool = False) -> list[Tensor | None]:
        """Of ``value``, computed from outputs of this network, by parameters; None for those it does not depend on.

        Each lies in memory as its parameter does, which fused optimizers take for granted and autograd does not give.
        """
        made = torch.autograd.grad(value, parameters, retain_graph=retain_graph, allow_unused=True)
        found = made if self.shares is None else self.shares.sum(made)
        both = zip(found, parameters, strict=True)
        return [gradient if gradient is None else as_it_lies(gradient, like) for gradient, like in both]

    def unshared(self) -> AbstractContextManager[None]:
        """Inside, every process passes whole minibatches."""
        return nullcontext() if self.shares is None else self.shares.everything()

    def share(self, shares: Shares) -> None:
        """From now on, pass minibatches as ``shares`` says."""
        if not self.apart:
            raise BadInput("net has normalisation layers other than gcr.models.norm.BatchNorm; train it in one process")
        self.shares = shares
        for layer in self.modules():
            if isinstance(layer, BatchNorm):
                layer.shares = shares

    def _pass(self, images: Tensor, sizes: tuple[int, ...] | None = None) -> Output:
        given = (images, sizes) if isinstance(self.trunk, Trunk) else (images,)
        cast = cast_weights(self.trunk, images.device.type)
        features: Tensor = functional_call(self.trunk, cast, given) if cast else self.trunk(*given)
        return Output(features, self.head(features).float())


def as_it_lies(tensor: Tensor, like: Tensor) -> Tensor:
    """``tensor`` in the memory order of ``like``, which is of its shape; itself where it lies so."""
    if tensor.is_sparse or tensor.stride() == like.stride():
        return tensor
    steps = ((t, p) for t, p, n in zip(tensor.stride(), like.stride(), like.shape, strict=True) if n > 1)
    return tensor if all(t == p for t, p in steps) else torch.empty_like(like, dtype=tensor.dtype).copy_(tensor)


def frozen_norm(layer: _BatchNorm) -> bool:
    """Whether it has parameters, and none of them learns."""
    parameters = list(layer.parameters(recurse=False))
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)


def is_extra(name: str) -> bool:
    """Whether this name in a ``state_dict`` is that of what a module keeps by ``get_extra_state``."""
    return name.rpartition(".")[2] == "_extra_state"


def state_tensors(net: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers of ``state_dict``, by reference, without extra state."""
    return {name: value for name, value in net.state_dict().items() if not is_extra(name)}


Call = Callable[[nn.Module, Tensor], Any]  # a network and a batch as memory keeps it -> what the network returns


def call_plainly(net: nn.Module, batch: Tensor) -> Any:
    return net(batch.clone())  # it may change its input in place, and a batch is passed several times


class Attached(Network):
    """Any classifier as a ``Network``. Features are what enters its head in a pass."""

    def __init__(self, net: nn.Module, head: str, call: Call = call_plainly) -> None:
        nn.Module.__init__(self)
        self.net, self.head_name, self.call = net, head, call
        self.apart = keeps_minibatches_apart(net)

    @property
    def head(self) -> nn.Linear:  # type: ignore[override]
        layer = self.net.get_submodule(self.head_name)
        assert isinstance(layer, nn.Linear)
        return layer

    def features(self, images: Tensor) -> Tensor:
        return self._pass(images).features

    def _pass(self, images: Tensor, sizes: tuple[int, ...] | None = None) -> Output:
        entered: list[Tensor] = []
        hook = self.head.register_forward_pre_hook(
            lambda _, args, named: entered.append(entering(args, named)), with_kwargs=True
        )
        try:
            logits = logits_of(self.call(self.net, images))
        finally:
            hook.remove()
        if not entered:  # what torch.compile made before knows nothing of hooks
            raise BadInput(
                f'net gave logits without calling its head "{self.head_name}"; where torch.compile has compiled it, '
                "call torch.compiler.reset(), or give net before it is used"
            )
        if logits.dim() != 2:  # of one example, where the network squeezes its output
            shape, n = tuple(logits.shape), len(images)
            raise BadInput(f"net must give logits [batch, classes], got {shape} for a batch of {n}")
        return Output(entered[-1], logits.float())


def entering(args: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """What a linear layer is called with."""
    return [*args, *named.values()][0]


class HeadAlone(Network):
    """A head over features that are computed already."""

    def __init__(self, head: nn.Linear) -> None:
        nn.Module.__init__(self)
        self.trunk, self.head, self.apart = nn.Identity(), head, True

    def _pass(self, images: Tensor, sizes: tuple[int, ...] | None = None) -> Output:
        return super()._pass(images.to(self.head.weight.dtype), sizes)


def order_weights(network: Network, example: Tensor) -> None:
    """Channels last in memory: convolutions are faster so. A user's network only on a GPU, and only if it can take an
    ``example`` then: it may ``view`` activations as they lie by default."""
    theirs = isinstance(network, Attached)
    if not theirs or network.head.weight.is_cuda:
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        if theirs and not takes(network, example):
            network.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]


@torch.no_grad()
def takes(network: Network, example: Tensor) -> bool:
    try:
        with evaluating(network):
            network(example)
    except RuntimeError:
        return False
    return True


@contextmanager
def modes_kept(net: nn.Module) -> Iterator[None]:
    """Afterwards every layer is in training or evaluation mode as it is now."""
    modes = [(module, module.training) for module in net.modules()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@contextmanager
def evaluating(net: nn.Module) -> Iterator[None]:
    """Evaluation mode; afterwards every layer has its own mode again."""
    with modes_kept(net):
        net.eval()
        yield


def logits_of(output: Any) -> Any:
    """Some libraries return an object with the logits in it."""
    return output if isinstance(output, Tensor) else getattr(output, "logits", output)


def attach(
    net: nn.Module,
    example: Tensor | None,
    n_classes: int | None = None,
    head: str | None = None,
    call: Call = call_plainly,
) -> Network:
    """``net`` as the training loop needs it. ``example`` is a batch of images as the network takes them, or as
    ``call`` does; None where ``head`` has been found before. Without ``n_classes`` any number of logits will do.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    >>> attach(net, torch.zeros(2, 1, 2, 2), n_classes=3).head
    Linear(in_features=8, out_features=3, bias=True)
    """
    if not isinstance(net, nn.Module):
        raise BadInput(
            f"net must be a torch.nn.Module, got {type(net).__name__}; build one by gcr.models.build(name, …)"
        )
    network = net if isinstance(net, Network) else Attached(net, find_head(net, example, head, call), call)
    if n_classes is not None and network.head.out_features != n_classes:
        raise BadInput(
            f"net must give a logit per class, {n_classes}, got {network.head.out_features}; "
            f"replace its last layer by nn.Linear({network.head.in_features}, {n_classes})"
        )
    return network


@torch.no_grad()
def find_head(net: nn.Module, example: Tensor | None, head: str | None = None, call: Call = call_plainly) -> str:
    """The name of the linear layer that makes the logits: given, or found by one pass in evaluation mode."""
    linear = {name: layer for name, layer in net.named_modules() if isinstance(layer, nn.Linear)}
    known = f"its linear layers: {', '.join(linear) or 'none'}"
    if head is not None and head not in linear:
        raise BadInput(f'head must name an nn.Linear of net, got "{head}"; {known}')
    if example is None:
        assert head is not None
        return head
    calls: dict[str, tuple[Any, Any, Any]] = {}  # the last of each layer, whose input is taken for the features
    hooks = [
        layer.register_forward_hook(
            lambda _, args, named, out, name=name: calls.update({name: (entering(args, named), out, _copied(out))}),
            with_kwargs=True,
        )
        for name, layer in linear.items()
    ]
    try:
        with evaluating(net):
            logits = logits_of(call(net, example))
    finally:
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.dim() != 2:
        shape = tuple(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise BadInput(f"net must give logits [batch, classes], got {shape}; wrap it in a module that returns them")
    equal = [name for name, (entered, _, output) in calls.items() if entered.dim() == 2 and _same(output, logits)]
    # others are behind a cast, a copy or a layer that does nothing in evaluation
    heads = [name for name in equal if calls[name][1] is logits] or equal
    if head is not None and head in heads:
        return head
    if head is None and len(heads) == 1:
        return heads[0]
    if head is not None:
        raise BadInput(f"net must return the output of {head}; move what follows it, as a softmax, into the loss")
    if heads:
        raise BadInput(f'net has several heads with equal outputs; name one by head="{heads[0]}"')
    raise BadInput(
        "the head of net cannot be found: net must return the output of an nn.Linear; move what follows it into the "
        f'loss, or name it by head="NAME" ({known})'
    )


def _copied(output: Any) -> Any:
    """As it is now: layers behind may work in place."""
    return output.clone() if isinstance(output, Tensor) else output


def _same(output: Any, logits: Tensor) -> bool:
    if not isinstance(output, Tensor) or output.shape != logits.shape:
        return False
    return torch.allclose(output.float(), logits.float(), rtol=0, atol=0, equal_nan=True)
