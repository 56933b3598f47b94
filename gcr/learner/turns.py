"""Calls of several threads take turns: a step and a prediction set the network's mode, and methods swap its weights."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, Protocol, TypeVar


class Turn:
    """A lock that its holder may take again. A copy, or what comes out of a pickle, is a lock of its own."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.learning = 0  # calls that learn and have not ended

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def __reduce__(self) -> tuple[type[Turn], tuple[()]]:
        return Turn, ()


class HasTurn(Protocol):
    turn: Turn


P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S", bound=HasTurn)


def in_turn(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A function of an object with a ``turn``, which other threads wait for."""

    @wraps(call)
    def alone(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with self.turn:
            return call(self, *args, **kwargs)

    return alone
