"""Which new examples enter memory, where that takes a look at their gradients."""

from __future__ import annotations

import torch
from torch import Tensor

from gcr.augment import Views
from gcr.memory import Memory, gss_greedy
from gcr.methods.losses import label_residual
from gcr.models import Network
from gcr.select import LastLayerGradients
from gcr.training.draws import AdmissionDraws


@torch.no_grad()
def offer_by_gradients(
    net: Network,
    memory: Memory,
    views: Views,
    batch: dict[str, Tensor],
    draws: AdmissionDraws | None,
    admitted: Tensor | None,
) -> None:
    """GSS-Greedy: one pass of the network, in evaluation mode, over plain images of the batch and remembered ones."""
    if draws is None:
        gss_greedy.offer_by_scores(memory, batch, None, None, admitted)
        return
    old = memory.read(gss_greedy.rows_to_compare(memory, draws.compared))
    net.eval()
    (output,) = net.each(views.plain(torch.cat([batch["image"], old["image"]])))
    net.train()
    residuals = label_residual(output.logits, torch.cat([batch["label"], old["label"]]))
    sizes = [len(batch["label"]), len(old["label"])]
    new, compared = map(LastLayerGradients, output.features.split(sizes), residuals.split(sizes))
    gss_greedy.offer_by_scores(memory, batch, gss_greedy.scores(new, compared), draws.slots, admitted)
