"""A plugin for Avalanche (avalanche-lib): our memory, selection and loss in any of its supervised strategies.

.. code-block:: python

    from avalanche.training import Naive
    from gcr.integrations.avalanche import CoresetReplayPlugin

    strategy = Naive(model=net, optimizer=optimizer, train_mb_size=32, plugins=[CoresetReplayPlugin(memory=500)])

The strategy keeps its dataloader, its loss and its optimizer. ``benchmarks/against_avalanche.py`` compares the plugin
with Avalanche's own ``ReplayPlugin``.
"""

from __future__ import annotations

from typing import Any

from avalanche.core import SupervisedPlugin
from avalanche.models.utils import is_multi_task_module

from gcr.integrations.rehearsal import Augment, Rehearsal
from gcr.memory import Buffer, Policy
from gcr.methods import Method
from gcr.settings import BadInput


class CoresetReplayPlugin(SupervisedPlugin):  # type: ignore[misc]
    """Adds replay terms to the strategy's loss, and chooses memory after every experience.

    ``memory`` is a number of examples, kept by gradient coresets, or a ``gcr.memory.Policy``. ``method`` is GCR's loss
    without contrast, or another of ``gcr.methods`` that adds terms. ``augment`` makes new views of replayed batches.
    """

    def __init__(
        self,
        memory: int | Policy = 500,
        method: Method | None = None,
        *,
        augment: Augment | None = None,
        head: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.rehearsal = Rehearsal(memory, method, augment=augment, head=head, seed=seed)
        self.selections: list[dict[str, object]] = []  # what was said of each

    @property
    def memory(self) -> Buffer | None:
        """None before the first step."""
        return self.rehearsal.memory

    def before_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        if is_multi_task_module(strategy.model):
            raise BadInput("model must have one head for all tasks, got a MultiTaskModule; use a plain nn.Module")

    def before_backward(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        strategy.loss += self.rehearsal.terms(strategy.model, strategy.mb_x, strategy.mb_y, strategy.mb_output)

    def after_update(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        self.rehearsal.remember(strategy.model, strategy.mb_x, strategy.mb_y, strategy.mb_output)

    def after_training_exp(self, strategy: Any, *args: Any, **kwargs: Any) -> None:
        about = self.rehearsal.end_task(strategy.model)
        if about is not None:
            self.selections.append({"experience": strategy.clock.train_exp_counter} | about)
