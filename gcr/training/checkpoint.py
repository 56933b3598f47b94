"""Checkpoints: one safetensors file, the tensors of a ``RunState`` with its counters as JSON in the header.

Written under another name and renamed; the last two are kept. Restoring copies into the tensors that are there, so
captured steps stay valid.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gcr.settings import BadInput
from gcr.training.optimizer import restore_optimizer
from gcr.training.state import OPTIMIZER, PLACE, RunState

KEPT = 2


@dataclass(frozen=True)
class Checkpoints:
    folder: Path
    identity: Mapping[str, Any]  # plain values: what determines the run's numbers; a checkpoint must say the same

    def files(self) -> list[Path]:
        """Newest first."""
        return sorted(self.folder.glob("checkpoint-*.safetensors"), reverse=True)

    def save(self, state: RunState) -> None:
        from safetensors.torch import save

        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.tensors()}
        about = {
            "identity": dict(self.identity),
            "place": {name: getattr(state, name) for name in PLACE},
            "checksum": _checksum(tensors),
        }
        whole = self.folder / f"checkpoint-{state.steps:09d}.safetensors"
        part = self.folder / f".checkpoint-{os.getpid()}.part"
        part.write_bytes(save(tensors, {"gcr": json.dumps(about)}))  # save_file has a temporary file of its own
        os.replace(part, whole)
        for old in self.files()[KEPT:]:
            old.unlink(missing_ok=True)

    def restore(self, state: RunState) -> list[str]:
        """Put the newest readable checkpoint into ``state``, if there is one. Returns what the user should know."""
        remarks = []
        for file in self.files():
            try:
                about, tensors = _read(file)
                self._refuse_another(file, about["identity"])
                _check(about, tensors, state)
            except (OSError, ValueError, KeyError, TypeError) as error:
                if isinstance(error, BadInput):
                    raise
                remarks.append(f"{file} is not a complete checkpoint ({error}); going back to the one before it")
                continue
            for name, tensor in state.tensors():
                tensor.copy_(tensors[name])
            remembered = {name: tensor for name, tensor in tensors.items() if name.startswith(OPTIMIZER)}
            restore_optimizer(state.optimizer, {name.removeprefix(OPTIMIZER): t for name, t in remembered.items()})
            for name in PLACE:
                setattr(state, name, about["place"][name])
            break
        else:
            if remarks:
                remarks.append(f"no whole checkpoint in {self.folder}; starting from the beginning")
        return remarks

    def _refuse_another(self, file: Path, there: Mapping[str, Any]) -> None:
        differences = [
            f"{key} is {there.get(key, 'absent')} there, {self.identity.get(key, 'absent')} here"
            for key in dict.fromkeys([*there, *self.identity])
            if there.get(key) != self.identity.get(key)
        ]
        if differences:
            raise BadInput(
                f"{file} is of another run ({'; '.join(differences)}); use the options it was made with, "
                "another --out or --name, or --fresh to start from the beginning"
            )


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, "pt") as opened:
            header = (opened.metadata() or {}).get("gcr")
            about = json.loads(header) if header else None
            if not isinstance(about, dict) or not {"identity", "place", "checksum"} <= about.keys():
                raise ValueError("its header does not say what it is")
            return about, {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(str(error)) from None


def _check(about: dict[str, Any], tensors: dict[str, Tensor], state: RunState) -> None:
    """Before anything is overwritten: all is there, in the right shapes, as it was written."""
    for name, tensor in state.tensors():
        there = tensors.get(name)
        if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
            raise ValueError(f"{name} is missing or of another shape")
    if missing := set(PLACE) - about["place"].keys():
        raise ValueError(f"it lacks {', '.join(sorted(missing))}")
    if _checksum(tensors) != about["checksum"]:
        raise ValueError("its checksum is wrong")


def _checksum(tensors: dict[str, Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        data: Any = tensors[name].reshape(-1).view(torch.uint8).numpy()
        checksum = zlib.crc32(data, checksum)
    return checksum
