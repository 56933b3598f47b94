"""GSS-Greedy: replay from memory of diverse gradients (Aljundi, Lin, Goujaud and Bengio 2019).

``loss``: cross-entropy on new and remembered examples as in ``er.py``. What is remembered is decided batch by batch by
the policy ``gss-greedy``: an example enters the more likely the less its gradient looks like those of remembered ones,
``c = 1 + max_j cos(g, g_j)``. One update a batch, where the authors' code may take several.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gcr.methods.er import Er


@dataclass(frozen=True)
class Gss(Er):
    name: ClassVar[str] = "gss"
    summary: ClassVar[str] = "experience replay of examples admitted for gradients that look like no other"
    default_selector: ClassVar[str] = "gss-greedy"
