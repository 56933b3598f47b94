"""What a user's network takes, as memory keeps it: one tensor a batch, one row an example.

A tensor stays as it is. Tuples and dicts of tensors are stored as rows of bytes, and put together again where the
network is called.

>>> layout = Layout.of({"ids": torch.tensor([[5, 7], [1, 2]]), "mask": torch.tensor([[True, False], [True, True]])})
>>> rows = layout.rows({"ids": torch.tensor([[3, 4]]), "mask": torch.tensor([[True, True]])})
>>> rows.shape, layout.inputs(rows)["ids"].tolist()
(torch.Size([1, 18]), [[3, 4]])
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from gcr.learner.labels import from_json
from gcr.memory.examples import refuse_not_finite
from gcr.select.checks import check_masked
from gcr.settings import BadInput, Misfit

KINDS = ("tensor", "tuple", "dict")  # of what a network takes
MOST_NUMBERS = 2**27  # of an example


@dataclass(frozen=True)
class Part:
    """One tensor of an input, without the batch dimension."""

    name: str  # empty where the input is a tensor, "0", "1", … in a tuple
    dtype: str  # as "float32"
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * dtype_of(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.name or 'x'}: {self.dtype} {list(self.shape)}"


@dataclass(frozen=True)
class Layout:
    kind: str  # one of KINDS
    parts: tuple[Part, ...]
    names: tuple[Hashable, ...] = field(default=(), compare=False)  # of the numbers of a vector, where they have some

    @classmethod
    def of(cls, x: Any) -> Self:
        """Of a batch as the user gives it."""
        kind, tensors = _tensors(x)
        parts = _parts(tensors)
        for part in parts:
            if math.prod(part.shape) > MOST_NUMBERS:
                raise BadInput(f"x must have examples of at most {MOST_NUMBERS:,} numbers, got {list(part.shape)}")
        return cls(kind, parts, columns_of(x))

    @classmethod
    def of_rows(cls, shape: tuple[int, ...], dtype: torch.dtype) -> Self:
        """Of plain tensors."""
        return cls("tensor", (Part("", _NAMES[dtype], shape),))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        if value["kind"] not in KINDS:
            raise Misfit(f"layout.kind must be one of {', '.join(KINDS)}, got {value['kind']!r:.40}")
        for part in value["parts"]:
            if not all(type(n) is int and n >= 0 for n in part["shape"]) or math.prod(part["shape"]) > MOST_NUMBERS:
                raise Misfit(f"layout.parts must have a shape of whole numbers, got {part['shape']!r:.40}")
        names = [part["name"] for part in value["parts"]]
        right = {"tensor": [""], "tuple": [str(place) for place in range(len(names))]}.get(value["kind"], names)
        if names != right:
            raise Misfit(f"layout.parts of a {value['kind']} must have the names {right!r:.40}, got {names!r:.40}")
        parts = tuple(Part(p["name"], p["dtype"], tuple(p["shape"])) for p in value["parts"])
        return cls(value["kind"], parts, tuple(map(from_json, value.get("names", ()))))

    def named(self, x: Any) -> Self:
        """With the keys of ``x`` as names, if it is a dict of so many numbers and there are none yet."""
        if self.names or not _is_numbers(x) or self.shape != (len(x),):
            return self
        return replace(self, names=tuple(x))

    @property
    def dtype(self) -> torch.dtype:
        """Of rows."""
        return dtype_of(self.parts[0].dtype) if self.kind == "tensor" else torch.uint8

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a row."""
        return self.parts[0].shape if self.kind == "tensor" else (sum(part.nbytes for part in self.parts),)

    @property
    def is_image(self) -> bool:
        """[c, h, w] of bytes or floats, with as many channels as images have."""
        shape = self.shape
        return self.scales and len(shape) == 3 and shape[0] in (1, 3, 4)

    @property
    def scales(self) -> bool:
        """Whether numbers are bytes, which the network gets as floats in [0, 1], or floats."""
        return self.kind == "tensor" and (self.dtype == torch.uint8 or self.dtype.is_floating_point)

    def rows(self, x: Any) -> Tensor:
        """A batch as memory keeps it, where it is. Refused if it is not of this layout. Columns of a DataFrame come in
        the order of the first."""
        if self.names and (columns := columns_of(x)) and columns != self.names:
            _refuse_others(columns, self.names, "columns of the first batch")
            x = x[list(self.names)]
        kind, tensors = _tensors(x)
        if kind == "dict" and tensors.keys() == {part.name for part in self.parts}:
            tensors = {part.name: tensors[part.name] for part in self.parts}
        got = _parts(tensors)
        if kind != self.kind or got != self.parts:
            wanted, given = (", ".join(map(str, parts)).removeprefix("x: ") for parts in (self.parts, got))
            alone = kind == "tensor" == self.kind and tensors[""].shape == self.shape
            remedy = "one example is x[None]" if alone else "convert it"
            raise BadInput(f"x must be {wanted} for each example, as in the first batch, got {given}; {remedy}")
        if kind == "tensor":
            return tensors[""]
        flat = [t.contiguous().reshape(len(t), -1).view(torch.uint8).reshape(len(t), -1) for t in tensors.values()]
        return torch.cat(flat, 1)

    def inputs(self, rows: Tensor) -> Any:
        """The opposite of ``rows``: copies, for networks and augmentations that change what they are given."""
        if self.kind == "tensor":
            return rows.clone()
        tensors, start = {}, 0
        for part in self.parts:
            raw = rows[:, start : start + part.nbytes].clone(memory_format=torch.contiguous_format).flatten()
            tensors[part.name] = raw.view(dtype_of(part.dtype)).reshape(len(rows), *part.shape)
            start += part.nbytes
        return tensors if self.kind == "dict" else tuple(tensors.values())

    def call(self, net: nn.Module, rows: Tensor) -> Any:
        """Dicts are keyword arguments, tuples are positional ones."""
        x = self.inputs(rows)
        return net(**x) if self.kind == "dict" else net(*x) if self.kind == "tuple" else net(x)


def _parts(tensors: Mapping[str, Tensor]) -> tuple[Part, ...]:
    return tuple(Part(name, _NAMES[t.dtype], tuple(t.shape[1:])) for name, t in tensors.items())


_NAMES = {dtype: str(dtype).removeprefix("torch.") for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


def dtype_of(name: str) -> torch.dtype:
    dtype = getattr(torch, name)
    assert isinstance(dtype, torch.dtype)
    return dtype


def _tensors(x: Any) -> tuple[str, dict[str, Tensor]]:
    """Kind and tensors of a batch; all have the same number of rows."""
    if isinstance(x, Mapping):
        kind, tensors = "dict", {str(name): as_rows(f"x[{name!r}]", value) for name, value in x.items()}
    elif isinstance(x, tuple):
        kind, tensors = "tuple", {str(place): as_rows(f"x[{place}]", value) for place, value in enumerate(x)}
    else:
        kind, tensors = "tensor", {"": as_rows("x", x)}
    if not tensors:
        raise BadInput("x must hold at least one tensor, got an empty " + kind)
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) > 1:
        raise BadInput(f"all parts of x must have the same number of examples, got {lengths}")
    if not next(iter(lengths.values())):
        raise BadInput("x must have at least one example, got none")
    return kind, tensors


def as_rows(name: str, values: Any) -> Tensor:
    """Tensors, arrays and lists of numbers, a row an example. float64 becomes float32."""
    if not isinstance(values, Tensor):
        if isinstance(values, list) and values and isinstance(values[0], Tensor):
            try:
                values = torch.stack(values)
            except (RuntimeError, TypeError) as error:
                raise BadInput(f"{name} must have rows of equal shapes ({error})") from None
        else:
            values = _from_numpy(name, values)
    if values.dim() == 0:
        raise BadInput(f"{name} must have a row per example, got a single number")
    rows: Tensor = values.detach()
    if rows.is_complex():
        raise BadInput(f"{name} must be real numbers, got {rows.dtype}")
    if rows.layout is not torch.strided:
        raise BadInput(f"{name} must be dense, got a tensor of layout {rows.layout}; give its to_dense()")
    if rows.dtype == torch.float64:
        rows = rows.float()
    if rows.is_floating_point() and rows.device.type == "cpu" and not bool(rows.isfinite().all()):
        refuse_not_finite(name, rows)
    return rows


def _from_numpy(name: str, values: Any) -> Tensor:
    check_masked(name, values)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise BadInput(f"{name} must have rows of equal shapes ({error})") from None
    if array.dtype.kind not in "biuf":
        raise BadInput(f"{name} must be numbers, got {array.dtype}; turn text and dates into numbers first")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)
    array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    with warnings.catch_warnings():  # nothing writes to it: networks get copies
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # a file mapped for reading
        return torch.from_numpy(array)


def as_one(x: Any, names: tuple[Hashable, ...] = ()) -> Any:
    """A single example as a batch of one. A dict of numbers, as streams have them, is a vector in the order of
    ``names``, or of its keys where there are none.

    >>> as_one({"width": 2.0, "height": 1.0}, ("height", "width"))
    tensor([[1., 2.]])
    """
    if _is_numbers(x):
        names = names or tuple(x)
        _refuse_others(x, names, "keys of the first example")
        return torch.tensor([[float(x[name]) for name in names]])
    if isinstance(x, Mapping):
        return {name: _alone(value) for name, value in x.items()}
    return tuple(map(_alone, x)) if isinstance(x, tuple) else _alone(x)


def columns_of(x: Any) -> tuple[Hashable, ...]:
    """The names of a DataFrame's columns, where all are text and no two are equal."""
    names = getattr(x, "columns", ()) if hasattr(x, "to_numpy") else ()
    names = tuple(str(name) for name in names if isinstance(name, str))
    return names if 0 < len(set(names)) == len(getattr(x, "columns", ())) else ()


def _refuse_others(given: Iterable[Hashable], names: tuple[Hashable, ...], what: str) -> None:
    """An error unless these are the names, in any order."""
    here, wanted = dict.fromkeys(given), dict.fromkeys(names)  # there may be thousands, in each example of a stream
    missing, unknown = [n for n in wanted if n not in here], [n for n in here if n not in wanted]
    if missing or unknown:
        lacks = f"lacks {missing[0]!r}" if missing else f"has {unknown[0]!r} too"
        raise BadInput(
            f"x must have the {what}, {len(names)}, got one that {lacks}; fill in what is missing, leave out what is "
            "new"
        )


def _is_numbers(x: Any) -> bool:
    return isinstance(x, Mapping) and len(x) > 0 and all(isinstance(value, Real) for value in x.values())


def _alone(value: Any) -> Tensor:
    return (value if isinstance(value, Tensor) else _from_numpy("x", value))[None]
