"""Which new examples enter memory, where that takes a look at their gradients."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from gcr.augment import AnyViews
from gcr.memory import Buffer, gss_greedy
from gcr.methods.losses import label_residual
from gcr.models import Network
from gcr.select import LastLayerGradients
from gcr.training.randomness import AdmissionDraws


@torch.no_grad()
def offer_by_gradients(
    net: Network,
    memory: Buffer,
    views: AnyViews,
    batch: dict[str, Tensor],
    draws: AdmissionDraws | None,
    admitted: Tensor | None,
    whole: bool = False,
) -> None:
    """GSS-Greedy: one pass of the network, in evaluation mode, over plain images of the batch and remembered ones.

    ``whole``: by gradients of all parameters, instead of the last layer's.
    """
    if draws is None:
        gss_greedy.offer_by_scores(memory, batch, None, None, admitted)
        return
    old = memory.read(gss_greedy.rows_to_compare(memory, draws.compared))
    net.eval()
    images, labels = torch.cat([batch["image"], old["image"]]), torch.cat([batch["label"], old["label"]])
    gradients = (_whole_gradients if whole else _last_layer_gradients)(net, views.plain(images), labels)
    net.train()
    b = len(batch["label"])
    new, compared = (
        replace(gradients, features=gradients.features[part], residuals=gradients.residuals[part])
        for part in (slice(b), slice(b, None))
    )
    gss_greedy.offer_by_scores(memory, batch, gss_greedy.scores(new, compared), draws.slots, admitted)


def _last_layer_gradients(net: Network, images: Tensor, labels: Tensor) -> LastLayerGradients:
    (output,) = net.each(images)
    return LastLayerGradients(output.features, label_residual(output.logits, labels))


def _whole_gradients(net: Network, images: Tensor, labels: Tensor) -> LastLayerGradients:
    """Of cross-entropy by all parameters, for each example: as many numbers as parameters times examples."""
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}

    def loss(parameters: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        logits: Tensor = functional_call(net, parameters, (image.unsqueeze(0),))
        return F.cross_entropy(logits, label.unsqueeze(0))

    with net.unshared():
        each = vmap(grad(loss), (None, 0, 0))(parameters, images, labels)
    return LastLayerGradients.of_matrix(torch.cat([part.flatten(1) for part in each.values()], 1))
