"""Which of how many processes this is, as torchrun says in the environment. Read before torch is, for all commands."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from gcr.settings import BadInput

NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")  # set by torchrun


@dataclass(frozen=True)
class Place:
    rank: int
    world: int
    on_machine: int  # its number among those of this machine

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> Place | None:
        """None: torchrun did not begin this process, or this one alone.

        >>> Place.of_environment({"RANK": "1"}), Place.of_environment(dict.fromkeys(NEEDED, "2"))
        (None, Place(rank=2, world=2, on_machine=2))
        """
        if not all(name in environment for name in NEEDED):
            return None
        values = [environment[name] for name in NEEDED[:3]]
        if not all(value.isdecimal() for value in values):
            raise BadInput(f"{', '.join(NEEDED[:3])} must be whole numbers, as torchrun sets them, got {values}")
        rank, world, on_machine = map(int, values)
        return cls(rank, world, on_machine) if world > 1 else None
