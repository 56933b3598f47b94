"""Options that are more than a word or a number: settings, packs, seeds."""

from __future__ import annotations

import itertools
import re
from typing import Any

from gcr.settings import BadInput


def read_words(name: str, text: str | None) -> tuple[str, ...]:
    """
    >>> read_words("method", "er, gcr"), read_words("method", None)
    (('er', 'gcr'), ())
    """
    if text is None:
        return ()
    words = tuple(word.strip() for word in text.split(",") if word.strip())
    if not words:
        raise BadInput(f"--{name} is empty; name what you want, or leave it out for all")
    return words


def read_buffers(text: str | None) -> tuple[int, ...]:
    words = read_words("buffer", text)
    for word in words:
        if not word.isdigit():
            raise BadInput(f'buffer must be whole numbers as 200,500, got "{word}"')
    return tuple(int(word) for word in words)


def read_settings(items: list[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for item in items:
        key, equals, value = item.partition("=")
        if not equals or not key or not value:
            raise BadInput(f'--set must be given as name=value, got "{item}"')
        if key in values:
            raise BadInput(f"{key} is set twice; give it once")
        values[key] = value
    return values


def read_variants(items: list[str]) -> list[dict[str, Any]]:
    """Every combination of the values that are given; one empty one for nothing.

    >>> read_variants(["gamma=0,1", "contrast=logits"])
    [{'gamma': '0', 'contrast': 'logits'}, {'gamma': '1', 'contrast': 'logits'}]
    """
    choices: dict[str, list[str]] = {}
    for item in items:
        key, equals, text = item.partition("=")
        values = [value.strip() for value in text.split(",")]
        if not equals or not key or not all(values):
            raise BadInput(f'--vary must be given as name=value,value, got "{item}"')
        if key == "method":
            raise BadInput("methods are compared as --method er,gcr, without --vary")
        if key in choices:
            raise BadInput(f"{key} is varied twice; give all its values at once")
        choices[key] = values
    return [dict(zip(choices, values, strict=True)) for values in itertools.product(*choices.values())]


def read_pack(text: str) -> int:
    """0 stands for auto."""
    if text == "auto":
        return 0
    if not re.fullmatch(r"[1-9]\d{0,3}", text):
        raise BadInput(f'pack must be auto or a whole number from 1 on, got "{text}"')
    return int(text)


def read_seeds(text: str) -> list[int]:
    seeds: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)(?:\s*-\s*(\d+))?\s*", part)
        if match is None:
            raise BadInput(f'seeds must be whole numbers as 0,1,2 or a range as 0-4, got "{text}"')
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise BadInput(f'seeds must be in rising order in a range, got "{part.strip()}"')
        if last - first >= 10_000:
            raise BadInput(f'seeds must be at most 10,000 at a time, got "{part.strip()}"')
        seeds.extend(range(first, last + 1))
    if len(set(seeds)) < len(seeds):
        twice = sorted({seed for seed in seeds if seeds.count(seed) > 1})
        raise BadInput(f"seeds must be different, got {', '.join(map(str, twice))} more than once")
    return seeds
