"""CIFAR's python version: pickles, read by an unpickler that admits NumPy arrays and plain containers, nothing else.

A pickle may name any function for the reader to call. This one resolves four names to harmless functions of its own
and refuses every other, by name.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

from gcr.data.archive import Tree
from gcr.data.importers.cifar_files import read_files, root_of
from gcr.data.source import Labels, Pixels, Source, Wanted
from gcr.settings import BadInput

FILES = {  # training files, test file, key of the labels
    "cifar10": (tuple(f"data_batch_{number}" for number in range(1, 6)), "test_batch", "labels"),
    "cifar100": (("train",), "test", "fine_labels"),
}


def finds(tree: Tree, wanted: Wanted) -> str | None:
    if wanted.name not in FILES:
        return None
    train_files, test_file, _ = FILES[wanted.name]
    return root_of(tree, train_files, test_file)


def read(tree: Tree, wanted: Wanted) -> Source:
    train_files, test_file, key = FILES[wanted.name]
    return read_files(tree, wanted, train_files, test_file, lambda file: _batch(tree, file, key))


def _batch(tree: Tree, file: str, key: str) -> tuple[Pixels, Labels]:
    where = f"{file} in {tree.where}"
    values = read_pickle(tree.read(file), where)
    if not isinstance(values, dict):
        raise BadInput(f"{where} must hold a dictionary, got {type(values).__name__}")
    named = {name.decode("latin1") if isinstance(name, bytes) else name: value for name, value in values.items()}
    images, labels = named.get("data"), named.get(key)
    if not isinstance(images, np.ndarray) or images.dtype != np.uint8 or images.shape[1:] != (3072,):
        raise BadInput(f'{where} must hold "data", uint8 of [n, 3072]; get it again')
    if not isinstance(labels, list) or not all(type(label) is int for label in labels):
        raise BadInput(f'{where} must hold "{key}", a list of whole numbers; get it again')
    if len(labels) != len(images):
        raise BadInput(f"{where} has {len(images)} images, but {len(labels)} labels; get it again")
    return images.reshape(-1, 3, 32, 32), np.array(labels, dtype=np.int64)


def read_pickle(data: bytes, where: str) -> Any:
    try:
        return _ArraysOnly(io.BytesIO(data), encoding="bytes").load()
    except BadInput as error:
        raise BadInput(f"{where} is refused: {error}") from None
    except Exception as error:  # a damaged pickle raises anything
        raise BadInput(f"{where} is not a complete pickle of arrays ({type(error).__name__}); get it again") from None


class _Array:
    """Stands for the class ndarray, so that a pickle can name it but not call it for a large allocation."""

    def __new__(cls, *_: object) -> Any:
        raise BadInput("it makes an array in an unusual way")


def _empty_array(kind: object, shape: object, code: object) -> Any:
    """In place of NumPy's own: the empty array that the pickle then fills with its state."""
    if kind is not _Array:
        raise BadInput("it makes an array of an unusual kind")
    return np.empty(0, dtype=np.uint8)


def _bytes_of(text: object, encoding: object = "latin1") -> bytes:
    """How Python 3 writes bytes for Python 2's pickle protocol."""
    if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
        raise BadInput("it encodes text in an unusual way")
    return text.encode("latin1")


_ADMITTED: dict[tuple[str, str], Any] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): np.dtype,
    ("numpy.core.multiarray", "_reconstruct"): _empty_array,
    ("numpy._core.multiarray", "_reconstruct"): _empty_array,
    ("_codecs", "encode"): _bytes_of,
}


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ADMITTED:
            raise BadInput(f'it asks for "{module}.{name}", and only NumPy arrays and plain values are admitted')
        return _ADMITTED[module, name]
