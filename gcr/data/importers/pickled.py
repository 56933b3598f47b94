"""Pickles of arrays, read without Python's unpickler.

A pickle may name any function for the unpickler to call. The reader here knows the few instructions that arrays and
plain containers need, and refuses every other by name.
"""

from __future__ import annotations

import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gcr.settings import BadInput


def read_pickle(data: bytes, where: str) -> Any:
    try:
        return _Reading(data).value()
    except BadInput as error:
        raise BadInput(f"{where} is refused: {error}") from None
    except Exception as error:  # a damaged pickle raises anything
        raise BadInput(f"{where} is not a complete pickle of arrays ({type(error).__name__}); get it again") from None


class _Array:
    """An array on its way: its state comes later."""

    pixels: NDArray[np.uint8] | None = None

    def fill(self, state: Any) -> None:
        _, shape, dtype, fortran, content = state
        if not isinstance(dtype, _Bytes):
            raise BadInput("it holds an array of something else than bytes")
        data = content if isinstance(content, bytes) else content.encode("latin1")
        self.pixels = np.frombuffer(data, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


class _Bytes:
    """NumPy's type uint8."""


class _Reading:
    """A pickle is a program for a machine with a stack. This machine knows arrays of bytes, numbers, text, lists,
    tuples, and dictionaries with text for keys. It imports nothing and calls nothing but the functions below.

    Text of Python 2 is read as latin-1.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def value(self) -> Any:
        for code, argument, _ in pickletools.genops(self.data):
            self._step(code.name, argument)
        (value,) = self.stack
        return value.pixels if isinstance(value, _Array) else value

    def _step(self, code: str, argument: Any) -> None:
        if code in VALUES:
            self.stack.append(argument)
        elif code in CONSTANTS:
            self.stack.append(CONSTANTS[code])
        elif code in EMPTY:
            self.stack.append(EMPTY[code]())
        elif code in TUPLES:
            self.stack.append(tuple(self._top(TUPLES[code])))
        elif code in ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if code == "MEMOIZE" else argument] = self.stack[-1]
        elif code in ("GET", "BINGET", "LONG_BINGET"):
            self.stack.append(self.memo[argument])
        elif code == "MARK":
            self.marks.append(len(self.stack))
        elif code in ("GLOBAL", "STACK_GLOBAL"):
            self._name(*(argument.split(" ", 1) if code == "GLOBAL" else self._top(2)))
        elif code not in ("PROTO", "FRAME", "STOP"):
            self._change(code)

    def _change(self, code: str) -> None:
        """Instructions that use what is on the stack."""
        if code in ("APPEND", "APPENDS"):
            added = self._top(1 if code == "APPEND" else None)
            self.stack[-1].extend(added)
        elif code in ("SETITEM", "SETITEMS", "DICT"):
            pairs = self._top(2 if code == "SETITEM" else None)
            if code == "DICT":
                self.stack.append({})
            for key, value in zip(pairs[::2], pairs[1::2], strict=True):
                if not isinstance(key, (str, bytes)):
                    raise BadInput("it has a key that is not text")
                self.stack[-1][key] = value.pixels if isinstance(value, _Array) else value
        elif code in ("LIST", "TUPLE"):
            inside = self._top(None)
            self.stack.append(inside if code == "LIST" else tuple(inside))
        elif code == "REDUCE":
            function, arguments = self._top(2)
            self.stack.append(function(*arguments))
        elif code == "BUILD":
            (state,) = self._top(1)
            if isinstance(self.stack[-1], _Array):
                self.stack[-1].fill(state)
        else:
            raise BadInput(f"it has the instruction {code}, and only NumPy arrays and plain values are admitted")

    def _top(self, n: int | None) -> list[Any]:
        """The last n values of the stack, or those since the last mark; they leave it."""
        start = self.marks.pop() if n is None else len(self.stack) - n
        if start < 0:
            raise IndexError
        values = self.stack[start:]
        del self.stack[start:]
        return values

    def _name(self, module: str, name: str) -> None:
        if (module, name) not in ADMITTED:
            raise BadInput(f'it asks for "{module}.{name}", and only NumPy arrays and plain values are admitted')
        self.stack.append(ADMITTED[module, name])


def _ndarray(*_: object) -> Any:
    raise BadInput("it makes an array in an unusual way")


def _empty_array(kind: object, shape: object, code: object) -> _Array:
    if kind is not _ndarray:
        raise BadInput("it makes an array of an unusual kind")
    return _Array()


def _type(name: object, *_: object) -> _Bytes | None:
    return _Bytes() if name in ("u1", b"u1") else None


def _bytes_of(text: object, encoding: object = "latin1") -> bytes:
    """How Python 3 writes bytes for Python 2's pickle protocol."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise BadInput("it encodes text in an unusual way")
    return text.encode("latin1")


ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _ndarray,
    ("numpy", "dtype"): _type,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("_codecs", "encode"): _bytes_of,
}
VALUES = frozenset(
    (
        *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "STRING", "BINSTRING", "SHORT_BINSTRING"),
        *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    )
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
EMPTY: dict[str, Any] = {"EMPTY_LIST": list, "EMPTY_TUPLE": tuple, "EMPTY_DICT": dict}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
