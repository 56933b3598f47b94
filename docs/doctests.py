"""For mkdocstrings: doctests of docstrings become code blocks."""

from __future__ import annotations

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")


class Doctests(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = DOCTEST.sub(lambda block: f"```pycon\n{block[0]}\n```", obj.docstring.value)
