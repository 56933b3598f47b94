"""``model.safetensors``: the network of a finished run, with what its method predicts by.

Tensors of the network are under ``net.``, the method's own under ``extra.``. The header says, as JSON, what turns
images into classes: model, scenario, class names, shape and type of images, views.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gcr.files import Damaged, brief, read_tensors, tensor_bytes, under
from gcr.settings import BadInput

MODEL_FILE = "model.safetensors"
NET, EXTRA = "net.", "extra."
KEYS = frozenset({"model", "scenario", "class_names", "image_shape", "pixels", "views"})


@dataclass(frozen=True)
class SavedModel:
    about: Mapping[str, Any]  # under ``KEYS``
    net: dict[str, Tensor]  # a state_dict
    extras: dict[str, Tensor]

    def to_bytes(self) -> bytes:
        parts = ((NET, self.net), (EXTRA, self.extras))
        tensors = {prefix + name: tensor.clone() for prefix, part in parts for name, tensor in part.items()}
        return tensor_bytes(tensors, self.about)


def read_model(file: Path) -> SavedModel:
    try:
        about, tensors = read_tensors(file)
        if not about.keys() >= KEYS:
            raise Damaged(file, "its header does not say what it is")
        if about.get("checksum", 0) != (_checksum(tensors) if "checksum" in about else 0):
            raise Damaged(file, "its checksum is wrong")
    except (OSError, Damaged) as error:
        raise BadInput(f"{file} cannot be read ({brief(error)}); get it again, or train the run again") from None
    return SavedModel(about, under(NET, tensors), under(EXTRA, tensors))


def _checksum(tensors: Mapping[str, Tensor]) -> int:
    """Of gcr 0.2.0, whose files carry no digest."""
    total = 0
    for name in sorted(tensors):
        total = zlib.crc32(tensors[name].numpy().tobytes(), zlib.crc32(name.encode(), total))
    return total
