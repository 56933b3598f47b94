"""A callback for Lightning: replay memory and the replay loss for an ordinary ``LightningModule`` classifier.

.. code-block:: python

    from lightning import Trainer
    from gcr.integrations.lightning import ReplayCallback

    replay = ReplayCallback(memory=500)
    for loader in tasks:  # a fit is a task
        Trainer(max_epochs=5, callbacks=[replay]).fit(module, loader)

The module's ``training_step`` stays as it is. While a fit goes on, the callback adds the replay terms to the loss that
it returns. Memory is in the callback and in Lightning's checkpoints. Both packages work, ``lightning`` and
``pytorch_lightning``; import yours before this module. ``examples/lightning_module.py`` is a whole program.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from torch import Tensor, nn

from gcr.integrations.rehearsal import Augment, Rehearsal
from gcr.memory import Buffer, Policy
from gcr.methods import Method
from gcr.models.network import logits_of
from gcr.settings import BadInput

PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _package() -> Any:
    """The one in use, else the one that is installed."""
    installed = [name for name in PACKAGES if importlib.util.find_spec(name.split(".")[0]) is not None]
    if not installed:
        raise ImportError("gcr.integrations.lightning needs Lightning: pip install lightning")
    return importlib.import_module(next((name for name in installed if name in sys.modules), installed[0]))


Callback: Any = _package().Callback


class Passed(NamedTuple):
    """A pass of the classifier in a training step."""

    net: nn.Module
    inputs: Any  # a tensor, or a tuple or dict of arguments
    logits: Any


class ReplayCallback(Callback):  # type: ignore[misc]
    """Adds replay terms to the loss of ``training_step``, and chooses memory at the end of every ``fit``.

    ``memory`` is a number of examples, kept by gradient coresets, or a ``gcr.memory.Policy``. ``method`` is GCR's loss
    without contrast, or another of ``gcr.methods`` that adds terms. ``net`` names the submodule that gives the logits;
    None: the module itself, or the only child that does. ``labels`` takes them out of a batch; None: the second of a
    pair, or what is called ``labels``, ``label`` or ``y``. ``augment`` makes new views of replayed batches.
    """

    def __init__(
        self,
        memory: int | Policy = 500,
        method: Method | None = None,
        *,
        net: str | None = None,
        labels: Callable[[Any], Tensor] | None = None,
        augment: Augment | None = None,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        self.rehearsal = Rehearsal(memory, method, augment=augment, head=head, seed=seed)
        self.net, self.labels = net, labels or labels_of
        self.selections: list[dict[str, object]] = []  # what was said of each
        self.module: Any = None  # whose training_step is wrapped
        self.new: tuple[nn.Module, Any, Tensor, Tensor] | None = None  # the batch of this step

    @property
    def memory(self) -> Buffer | None:
        """None before the first step."""
        return self.rehearsal.memory

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if not pl_module.automatic_optimization:
            raise BadInput("automatic_optimization must be True, got False; add gcr.Buffer to your own steps instead")
        self._unwrap()
        training_step = pl_module.training_step

        @functools.wraps(training_step)
        def with_replay(*args: Any, **kwargs: Any) -> Any:
            self.new = None
            with passes(pl_module, self.net) as seen:
                output = training_step(*args, **kwargs)
            if output is None:  # the step is skipped
                return None
            batch = args[0] if args else kwargs["batch"]
            self.new = new = self._new_batch(pl_module, batch, seen)
            return _add(output, self.rehearsal.terms(*new))

        pl_module.training_step = with_replay
        self.module = pl_module

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any, **kwargs: Any) -> None:
        if self.new is not None:
            net, x, y, logits = self.new
            self.rehearsal.remember(net, x, y, logits)
            self.new = (net, x, y, logits.detach())

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        if self.new is not None and (about := self.rehearsal.end_task(self.new[0])) is not None:
            self.selections.append(about)
        self.new = None

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._unwrap()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._unwrap()

    def state_dict(self) -> dict[str, Any]:
        return self.rehearsal.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rehearsal.load_state_dict(state_dict)

    def _unwrap(self) -> None:
        if self.module is not None:
            self.module.__dict__.pop("training_step", None)
        self.module = None

    def _new_batch(self, module: Any, batch: Any, seen: list[Passed]) -> tuple[nn.Module, Any, Tensor, Tensor]:
        """The first pass of the classifier, with the labels of the batch."""
        y = self.labels(batch)
        fitting = [one for one in seen if _are_logits(one.logits, len(y))]
        whole = [one for one in fitting if one.net is module]
        nets = {id(one.net): one.net for one in whole or fitting}
        if len(nets) != 1:
            names = [name for name, child in module.named_children() if id(child) in nets]
            among = f"; these could be it: {', '.join(names)}" if names else ""
            raise BadInput(f'the classifier cannot be found in training_step; name it by net="NAME"{among}')
        net, inputs, logits = (whole or fitting)[0]
        return net, inputs, y.to(logits.device), logits


def labels_of(batch: Any) -> Tensor:
    found = batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None
    if isinstance(batch, dict):
        found = next((batch[name] for name in ("labels", "label", "y") if name in batch), None)
    if not isinstance(found, Tensor):
        raise BadInput("the labels of a batch cannot be found; give ReplayCallback(labels=lambda batch: …)")
    return found


@contextmanager
def passes(module: nn.Module, name: str | None) -> Iterator[list[Passed]]:
    """Passes of the submodule ``name``, or of the module and its children, while the context lasts."""
    watched = [module.get_submodule(name)] if name else [module, *module.children()]
    seen: list[Passed] = []

    def note(net: nn.Module, inputs: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        seen.append(Passed(net, _arguments(inputs, named), logits_of(output)))

    hooks = [net.register_forward_hook(note, with_kwargs=True) for net in watched]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _arguments(inputs: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """One tensor, or all positional ones, or all named ones."""
    named = {name: value for name, value in named.items() if value is not None}
    if named and not inputs:
        return named
    return inputs[0] if len(inputs) == 1 and not named else inputs if not named else (*inputs, named)


def _are_logits(output: Any, n: int) -> bool:
    return isinstance(output, Tensor) and output.dim() == 2 and len(output) == n and output.is_floating_point()


def _add(output: Any, terms: Tensor) -> Any:
    """To the loss that a training step returned, alone or in a dict."""
    if isinstance(output, Tensor):
        return output + terms
    return {**output, "loss": output["loss"] + terms}
