"""The official data sets: shape, examples per class, class names, and where their archives are, with checksums.

The MD5 sums are those that the sets' authors or torchvision publish. Adding a set is one entry here.

>>> find("cifar10").n_classes
10
"""

from __future__ import annotations

from dataclasses import dataclass

from gcr.data import class_names as names


@dataclass(frozen=True)
class Archive:
    url: str
    md5: str
    megabytes: int

    @property
    def file_name(self) -> str:
        return self.url.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class DataSet:
    name: str
    summary: str
    shape: tuple[int, int, int]  # channels, height, width
    n_classes: int
    train: tuple[int, ...] | int  # examples of each class; one number where only the sum over classes is checked
    test: tuple[int, ...] | int
    class_names: tuple[str, ...] = ()  # empty: the source names them
    class_ids: tuple[str, ...] = ()  # what sources call the class folders, where that is not the class name
    archives: tuple[Archive, ...] = ()  # empty: import only
    resized: bool = False  # whether the originals come in many sizes and are cut to ``shape``

    @property
    def folder_names(self) -> tuple[str, ...]:
        """What the class folders of a source are called, in the order of labels."""
        return self.class_ids or self.class_names


def _idx_archives(folder: str, sums: tuple[str, ...], megabytes: tuple[int, ...]) -> tuple[Archive, ...]:
    parts = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        Archive(f"{folder}/{part}-ubyte.gz", md5, size) for part, md5, size in zip(parts, sums, megabytes, strict=True)
    )


CATALOG: tuple[DataSet, ...] = (
    DataSet(
        name="cifar10",
        summary="CIFAR-10: 60,000 colour images of 32 x 32 in 10 classes",
        shape=(3, 32, 32),
        n_classes=10,
        train=(5000,) * 10,
        test=(1000,) * 10,
        class_names=names.CIFAR10,
        archives=(
            Archive("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530", 170),
        ),
    ),
    DataSet(
        name="cifar100",
        summary="CIFAR-100: 60,000 colour images of 32 x 32 in 100 classes",
        shape=(3, 32, 32),
        n_classes=100,
        train=(500,) * 100,
        test=(100,) * 100,
        class_names=names.CIFAR100,
        archives=(
            Archive(
                "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8", 169
            ),
        ),
    ),
    DataSet(
        name="tinyimagenet",
        summary="Tiny-ImageNet: 110,000 colour images of 64 x 64 in 200 classes, tested on its validation set",
        shape=(3, 64, 64),
        n_classes=200,
        train=(500,) * 200,
        test=(50,) * 200,
        class_ids=names.TINY_IMAGENET,
        archives=(
            Archive("http://cs231n.stanford.edu/tiny-imagenet-200.zip", "90528d7ca1a48142e341f4ef8d21d0de", 248),
        ),
    ),
    DataSet(
        name="mnist",
        summary="MNIST: 70,000 grey digits of 28 x 28",
        shape=(1, 28, 28),
        n_classes=10,
        train=(5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949),
        test=(980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009),
        class_names=names.DIGITS,
        archives=_idx_archives(
            "https://ossci-datasets.s3.amazonaws.com/mnist",
            (
                "f68b3c2dcbeaaa9fbdd348bbdeb94873",
                "d53e105ee54ea40749a09fcbcd1e9432",
                "9fb629c4189551a2d022fa330f9573f3",
                "ec29112dd5afa0611ce80d1b7f02629c",
            ),
            megabytes=(10, 1, 2, 1),
        ),
    ),
    DataSet(
        name="fashion-mnist",
        summary="Fashion-MNIST: 70,000 grey pictures of clothes of 28 x 28 in 10 classes",
        shape=(1, 28, 28),
        n_classes=10,
        train=(6000,) * 10,
        test=(1000,) * 10,
        class_names=names.FASHION,
        archives=_idx_archives(
            "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
            (
                "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
                "25c81989df183df01b3e8a0aad5dffbe",
                "bef4ecab320f06d8554ea6380940ec79",
                "bb300cfdad3c16e7a12a480ee83cd310",
            ),
            megabytes=(26, 1, 5, 1),
        ),
    ),
    DataSet(
        name="imagenet1k",
        summary="ImageNet-1k (ILSVRC 2012): 1.33 million colour images cut to 224 x 224 in 1,000 classes; 200 GB here",
        shape=(3, 224, 224),
        n_classes=1000,
        train=1_281_167,
        test=(50,) * 1000,
        resized=True,
    ),
)


def find(name: str) -> DataSet | None:
    """The official data set of that name, if there is one."""
    return next((known for known in CATALOG if known.name == name), None)


def commands(name: str) -> str:
    """What a user types to have the data set."""
    known = find(name)
    get = f"gcr data get {name}, or " if known and known.archives else ""
    return f"{get}gcr data import {name} PATH"
