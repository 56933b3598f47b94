"""Documented, validated settings: the fields of the frozen dataclasses that make up an experiment.

A class declares each of its settings once, with its default, one line of help and its bounds. JSON, the command
line's ``--set`` and the list of ``gcr settings`` all read that declaration.

>>> @dataclass(frozen=True)
... class Shrink(Settings):
...     rate: float = setting(0.5, "share that goes each time", low=0.0, high=1.0)
>>> Shrink(rate=2.0)
Traceback (most recent call last):
    ...
gcr.settings.BadInput: rate must be <= 1.0, got 2.0
"""

from __future__ import annotations

import contextlib
import difflib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Self

LARGEST = 1e15  # of a number in a file: what is averaged and squared has room
LONGEST_WORD = 300  # characters of a message; the names of files are shorter
# What values of another kind or size lead to, in a file that is whole but was not written by this gcr.
MISFITS = (
    *(LookupError, TypeError, ValueError, AttributeError, RuntimeError),
    *(ArithmeticError, AssertionError, MemoryError),
)


class BadInput(ValueError):
    """Something the user can fix: the message names the field, the rule, the value and the remedy.

    >>> BadInput(f"steps must be <= 9, got {10**400}")
    BadInput('steps must be <= 9, got 100000000000000000000000000000… (401 characters)')
    """

    def __init__(self, message: str) -> None:
        short = _LONG_WORD.sub(lambda word: f"{word[0][:30]}… ({len(word[0])} characters)", message)
        super().__init__(printable(short))


class Misfit(BadInput):
    """A value in a file that is whole and yet not right. The reader adds the file and the remedy."""


_LONG_WORD = re.compile(rf"[^\s/\\]{{{LONGEST_WORD},}}")


def printable(text: str, lines: bool = False) -> str:
    """With escapes for what a terminal would obey, reorder or refuse: control characters, lone surrogates; unless it
    may have several ``lines``, their ends, too.

    >>> print(printable("bees\\x1b[31m, ants"))
    bees\\x1b[31m, ants
    """
    if text.isprintable():
        return text
    kept = "\n\t" if lines else ""
    return "".join(c if c.isprintable() or c in kept else ascii(c)[1:-1] for c in text)


def brief_of(error: Exception) -> str:
    """One line of bounded length, with the kind of an error that is not ours."""
    kind = "" if isinstance(error, BadInput) else f"{type(error).__name__}: "
    return f"{kind}{' '.join(str(error).split())[:200]}"


def setting(
    default: Any,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    remedy: str = "",
    advanced: bool = False,
) -> Any:
    """A dataclass field with help and bounds. ``remedy`` is added to the error for a value out of bounds. An
    ``advanced`` setting is for ablations and special cases: ``gcr settings METHOD --all`` lists it."""
    metadata = {"help": help, "low": low, "high": high, "choices": choices, "remedy": remedy, "advanced": advanced}
    return field(default=default, metadata=metadata)


def setting_names(part: type[Any]) -> list[str]:
    """The declared settings of a class, in order."""
    return [declared.name for declared in fields(part) if "help" in declared.metadata]


def in_paths(name: str) -> str:
    """A name as folders of runs have it.

    >>> in_paths("der++"), in_paths("gcr+")
    ('derpp', 'gcr-plus')
    """
    return name.replace("++", "pp").replace("+", "-plus")


def nearest(name: str, known: Iterable[str]) -> str:
    """The one of some names that is meant: the same but for case, marks and what stands for "+", or spelled nearly so.
    Empty: none.

    >>> names = ["der", "der++", "er-ace", "gcr", "gcr+"]
    >>> [nearest(name, names) for name in ("gcrplus", "GcrPlus", "gcr-plus", "derpp", "er_ace", "grc", "svm")]
    ['gcr+', 'gcr+', 'gcr+', 'der++', 'er-ace', 'gcr', '']
    """
    names = list(known)
    same = [one for one in names if _letters(one) == _letters(name)]
    near = [] if name.isdigit() else same or difflib.get_close_matches(name, names, n=1)
    return near[0] if near else ""


def _letters(name: str) -> str:
    return re.sub(r"[\W_]", "", name.lower().replace("plus", "p").replace("+", "p"))


def unknown(kind: str, name: str, known: Iterable[str], listed_by: str = "") -> BadInput:
    """The error for a name that does not exist: the nearest one, and all that exist or the command that lists them."""
    name = name if isinstance(name, str) else f"{name!r:.40}"  # as a file may have it
    names = sorted(known)
    near = nearest(name, names)
    hint = f' (did you mean "{near}"?)' if near else ""
    more = f"all: {listed_by}" if listed_by else f"known: {', '.join(names)}"
    if kind in ("method", "selector", "model") and not near:
        more += "; one of your own: gcr --plugin FILE"
    return BadInput(f'unknown {kind} "{name}"{hint}; {more}')


@dataclass(frozen=True)
class Settings:
    """Checks every declared field when an instance is made."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __post_init__(self) -> None:
        for declared in fields(self):
            if "help" in declared.metadata:
                object.__setattr__(self, declared.name, _checked(declared, getattr(self, declared.name)))

    def changed(self, *names: str) -> str:
        """The first of these that is not at its default, or nothing."""
        defaults = {declared.name: declared.default for declared in fields(self)}
        return next((name for name in names if getattr(self, name) != defaults[name]), "")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Build from JSON-like values; unknown keys are refused."""
        known = {declared.name for declared in fields(cls)}
        for key in values:
            if key not in known:
                raise unknown(f"setting of {cls.name or cls.__name__}", key, known)
        return cls(**values)


def class_of(kind: str, name: str, known: tuple[type[Any], ...]) -> type[Any]:
    for candidate in known:
        if candidate.name == name:
            return candidate
    raise unknown(kind, name, [candidate.name for candidate in known])


def to_mapping(part: Any, *, named: bool = False) -> dict[str, Any]:
    """The settings of an instance as JSON has them; ``named``: with the name of its class."""
    values = {name: getattr(part, name) for name in setting_names(type(part))}
    return {"name": part.name} | values if named else values


def from_mapping(values: Mapping[str, Any], kind: str, known: tuple[type[Any], ...]) -> Any:
    """The opposite of ``to_mapping`` with a name, which is one of ``known``."""
    if not isinstance(values, Mapping):
        raise BadInput(f"{kind} must be a JSON object, got {values!r:.40}")
    rest = dict(values)
    chosen: type[Settings] = class_of(kind, rest.pop("name", ""), known)
    return chosen.from_mapping(rest)


def _checked(declared: Field[Any], value: Any) -> Any:
    rule, kind = declared.metadata, getattr(declared.type, "__name__", str(declared.type))
    value = _converted(declared.name, kind, value)
    remedy = f"; {rule['remedy']}" if rule["remedy"] else ""
    if rule["choices"] and value not in rule["choices"]:
        raise BadInput(f'{declared.name} must be one of {", ".join(rule["choices"])}, got "{value}"{remedy}')
    if rule["low"] is not None and value < rule["low"]:
        raise BadInput(f"{declared.name} must be >= {rule['low']}, got {value}{remedy}")
    if rule["high"] is not None and value > rule["high"]:
        raise BadInput(f"{declared.name} must be <= {rule['high']}, got {value}{remedy}")
    return value


def _converted(name: str, kind: str, value: Any) -> Any:
    """``value`` as the declared kind. Text is read as the command line gives it ("0.03")."""
    if kind in ("int", "float"):
        with contextlib.suppress(TypeError, ValueError, OverflowError):
            number = float(value)
            if not isinstance(value, bool) and math.isfinite(number) and (kind == "float" or number == int(number)):
                return int(number) if kind == "int" else number
    elif kind == "bool":
        if isinstance(value, bool) or value in ("true", "false"):
            return value in (True, "true")
    elif kind != "str" or isinstance(value, str):
        return value
    raise BadInput(f'{name} must be {_KIND_WORDS.get(kind, kind)}, got "{value}"')


_KIND_WORDS = {"int": "a whole number", "float": "a finite number", "bool": "true or false", "str": "text"}
