"""``collect``: features and residuals of a user's own network over a data loader, in one pass, for selection.

>>> net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))
>>> loader = [(torch.rand(5, 2, 2), torch.tensor([0, 1, 2, 0, 1])), (torch.rand(2, 2, 2), torch.tensor([2, 0]))]
>>> pool = collect(net, loader)
>>> tuple(pool.features.shape), tuple(pool.residuals.shape)
((7, 8), (7, 3))
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, overload

import torch
from torch import Tensor, nn
from torch.utils.data import RandomSampler

from gcr.select import Pool
from gcr.select.checks import as_matrix, is_whole
from gcr.select.projected import ProjectedGradients, Projector, collect_projected
from gcr.settings import BadInput

Progress = Callable[[int, int], object]  # (batches done, of how many)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """One value per example."""
    return nn.functional.cross_entropy(logits, labels, reduction="none")


@overload
def collect(
    net: nn.Module,
    loader: Iterable[tuple[Any, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor] = ...,
    last_layer: nn.Linear | None = ...,
    *,
    gradients: Literal["last-layer"] = ...,
    progress: Progress | None = ...,
) -> Pool: ...


@overload
def collect(
    net: nn.Module,
    loader: Iterable[tuple[Any, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor] = ...,
    *,
    gradients: Literal["projected"],
    parameters: Any = ...,
    width: int = ...,
    seed: int = ...,
    to: str | Path | None = ...,
    progress: Progress | None = ...,
) -> ProjectedGradients: ...


def collect(
    net: nn.Module,
    loader: Iterable[tuple[Any, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy,
    last_layer: nn.Linear | None = None,
    *,
    gradients: str = "last-layer",
    parameters: Any = None,
    width: int | None = None,
    seed: int | None = None,
    to: str | Path | None = None,
    progress: Progress | None = None,
) -> Pool | ProjectedGradients:
    """Run ``net`` once over ``loader`` (batches of inputs and labels), in evaluation mode, and collect gradients.

    ``loss(logits, labels)`` gives one value per example; its derivative by the logits is the residual. Inputs are moved
    to the network's device. The network is left as it was.

    ``gradients="last-layer"`` gives a ``Pool`` there. Its features are what enters ``last_layer``, by default the
    network's last ``nn.Linear``, whose output must be the logits. Where the layer has no bias, give
    ``LastLayerGradients(…, bias=False)`` to selection and to ``explain``.

    ``gradients="projected"`` gives ``ProjectedGradients``: of all ``parameters``, of those whose names contain a text
    ("lora_"), or of those in a list, projected by ``seed`` (0) to ``width`` (8,192) numbers. With a file name ``to``,
    rows go to that file batch by batch, and a second call goes on where the first ended; of the rows there it computes
    the first and the last again and compares them, and trusts the others.

    Rows are in the order of ``loader``: give one that does not shuffle, and they are those of the data set.
    ``progress(done, batches)`` is called after each batch; ``batches`` is 0 where the loader has no length.
    """
    if progress is not None and not callable(progress):
        raise BadInput(f"progress must be a function of batches done and their number, got {progress!r}")
    if gradients not in ("last-layer", "projected"):
        raise BadInput(f"gradients must be 'last-layer' or 'projected', got {gradients!r}")
    if isinstance(getattr(loader, "sampler", None), RandomSampler):
        warnings.warn("loader shuffles: rows are in its order, not in that of the data set", stacklevel=2)
    modes, batches = {module: module.training for module in net.modules()}, _batches(loader, progress)
    try:
        net.eval()
        if gradients == "projected":
            if last_layer is not None:
                raise BadInput("last_layer goes with gradients='last-layer'; name parameters= for 'projected'")
            width, seed = 8192 if width is None else width, 0 if seed is None else seed
            if not is_whole(width) or width < 1:
                raise BadInput(f"width must be a whole number >= 1, got {width!r}")
            if not is_whole(seed) or seed < 0:
                raise BadInput(f"seed must be a whole number >= 0, got {seed!r}")
            return collect_projected(Projector(net, loss, parameters, int(width), int(seed)), batches, to)
        if not all(given is None for given in (parameters, width, seed, to)):
            raise BadInput("parameters, width, seed and to go with gradients='projected'")
        return _last_layer(net, batches, loss, last_layer)
    finally:
        for module, mode in modes.items():
            module.training = mode


def _batches(loader: Iterable[tuple[Any, Tensor]], progress: Progress | None) -> Iterator[tuple[Tensor, Tensor]]:
    try:
        number = len(loader)  # type: ignore[arg-type]
    except TypeError:  # also of a DataLoader over an IterableDataset
        number = 0
    for done, batch in enumerate(loader, 1):
        if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(b, Tensor) for b in batch):
            raise BadInput("loader must give pairs of tensors, (inputs, labels)")
        yield batch[0], batch[1]
        if progress is not None:
            progress(done, number)


def _last_layer(
    net: nn.Module,
    batches: Iterable[tuple[Tensor, Tensor]],
    loss: Callable[[Tensor, Tensor], Tensor],
    last_layer: nn.Linear | None,
) -> Pool:
    if last_layer is None:
        linear = [module for module in net.modules() if isinstance(module, nn.Linear)]
        if not linear:
            raise BadInput("net has no nn.Linear; name the layer that makes the logits with last_layer=")
        last_layer = linear[-1]
    device = next(net.parameters()).device
    seen: list[tuple[Tensor, Tensor]] = []
    hook = last_layer.register_forward_hook(
        lambda _, args, named, output: seen.append(([*args, *named.values()][0].detach(), output.detach())),
        with_kwargs=True,
    )
    columns: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        for given, known in batches:
            inputs, labels = given.to(device), known.to(device)
            seen.clear()
            with torch.no_grad():
                logits = net(inputs)
            if len(seen) != 1 or seen[0][0].dim() != 2 or not _same(seen[0][1], logits):
                raise BadInput(
                    "the output of last_layer must be the output of net; name the linear layer that makes the logits, "
                    "and move what comes after it into the loss"
                )
            columns.append((labels, seen[0][0], _residuals(loss, logits, labels)))
    finally:
        hook.remove()
    if not columns:
        raise BadInput("loader is empty; it must give batches of (inputs, labels)")
    labels, features, residuals = (torch.cat(column) for column in zip(*columns, strict=True))
    features, residuals = as_matrix("features", features, device), as_matrix("residuals", residuals, device)
    return Pool(labels, torch.ones(len(labels), device=device), features, residuals)


def _same(one: Tensor, other: Tensor) -> bool:
    """Equal, NaN to NaN: rows that are not finite are named later."""
    return torch.equal(one.nan_to_num(), other.nan_to_num())


def _residuals(loss: Callable[[Tensor, Tensor], Tensor], logits: Tensor, labels: Tensor) -> Tensor:
    with torch.enable_grad():
        variable = logits.detach().float().requires_grad_()
        values = loss(variable, labels)
        if values.shape != (len(labels),):
            raise BadInput(
                f"loss must give one value per example, [{len(labels)}], got shape {tuple(values.shape)}; "
                'use reduction="none"'
            )
        (residuals,) = torch.autograd.grad(values.sum(), variable)
    return residuals
