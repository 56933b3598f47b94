"""Checkpoints: one safetensors file, the tensors of a ``RunState`` with its counters as JSON in the header.

The last two are kept: where the newest is damaged, the one before it is used. Restoring copies into the tensors that
are there, so captured steps stay valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gcr.files import Damaged, brief, read_tensors, tensor_bytes, write_whole
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
        about = {"identity": dict(self.identity), "place": {name: getattr(state, name) for name in PLACE}}
        content = tensor_bytes(dict(state.tensors()), about)
        write_whole(self.folder / f"checkpoint-{state.steps:09d}.safetensors", content)
        for old in self.files()[KEPT:]:
            old.unlink(missing_ok=True)

    def restore(self, state: RunState) -> list[str]:
        """Put the newest readable checkpoint into ``state``, if there is one. Returns what the user should know."""
        remarks = []
        for file in self.files():
            try:
                about, tensors = read_tensors(file)
                if not all(isinstance(about.get(part), dict) for part in ("identity", "place")):
                    raise Damaged(file, "its header does not say what it is")
                self._refuse_another(file, about["identity"])
                _check(file, about, tensors, state)
            except (OSError, Damaged) as error:
                remarks.append(f"{file} is not a complete checkpoint ({brief(error)}); going back to the one before it")
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


def _check(file: Path, about: dict[str, Any], tensors: dict[str, Tensor], state: RunState) -> None:
    """Before anything is overwritten: all is there, in the right shapes."""
    for name, tensor in state.tensors():
        there = tensors.get(name)
        if there is None or there.shape != tensor.shape or there.dtype != tensor.dtype:
            raise Damaged(file, f"{name} is missing or of another shape")
    if missing := set(PLACE) - about["place"].keys():
        raise Damaged(file, f"it lacks {', '.join(sorted(missing))}")
