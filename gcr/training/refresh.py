"""Replace stored logits by those of now: examples came when the network knew less of their classes."""

from __future__ import annotations

import torch
from torch import Tensor

from gcr.augment import AnyViews
from gcr.memory import Buffer
from gcr.methods import Extras, Method
from gcr.models import Network

AT_ONCE = 256  # examples of a pass


@torch.no_grad()
def refresh_logits(memory: Buffer, rows: Tensor, method: Method, net: Network, extras: Extras, views: AnyViews) -> None:
    """Store what the method predicts for the plain images of these rows."""
    for part in rows.split(AT_ONCE):
        images = views.plain(memory.columns["image"][part])
        memory.columns["logits"][part] = method.predict(net.eval(), images, extras).float()
