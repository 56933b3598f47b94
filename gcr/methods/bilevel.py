"""Replay from a bilevel coreset (Borsos, Mutny and Krause 2020).

``loss``: cross-entropy on new and remembered examples as in ``er.py``, the latter weighted as the coreset says. At
every boundary the selector ``bilevel`` chooses rows and weights by ``min_w L(theta*(w))``: those on which a kernel
proxy, once fitted, has least error over old buffer and candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gcr.methods.er import Er


@dataclass(frozen=True)
class Bilevel(Er):
    name: ClassVar[str] = "bilevel"
    summary: ClassVar[str] = "experience replay from a weighted buffer chosen by bilevel optimisation"
    default_selector: ClassVar[str] = "bilevel"
