"""What an attack counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

HARM = ("lost", "wrong", "left", "silent", "tracebacks", "hangs")


@dataclass
class Tally:
    """``tried`` attacks; ``survived``: nothing of what follows. One attack may count under several."""

    tried: int = 0
    survived: int = 0
    lost: int = 0  # what was there before is gone or cannot be read
    wrong: int = 0  # another number, and nobody said so
    left: int = 0  # files of dead processes after the next command
    silent: int = 0  # a failure without a word
    tracebacks: int = 0
    hangs: int = 0
    failures: list[str] = field(default_factory=list)  # in words
    measured: dict[str, float] = field(default_factory=dict)  # counts, and of what begins with "most" the most

    def count(self, what: str, *found: str) -> None:
        """One attack; ``found`` are names of the counts above."""
        self.tried += 1
        self.survived += not found
        for name in found:
            setattr(self, name, getattr(self, name) + 1)
        if found:
            self.failures.append(f"{what}: {', '.join(found)}")

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            if name == "measured":
                for what, number in value.items():
                    most = max if what.startswith("most ") else sum
                    self.measured[what] = most((self.measured.get(what, 0), number))
            else:
                setattr(self, name, getattr(self, name) + value)

    @property
    def harm(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in HARM}

    def to_dict(self) -> dict[str, Any]:
        counts = asdict(self)
        return counts | {"failures": sorted(set(self.failures))[:20]}
