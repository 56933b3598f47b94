"""Made data sets in every format, tiny but laid out as the real ones."""

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
from PIL import Image

from gcr.data import catalog
from gcr.data.source import Wanted


def examples(n_per_class, n_classes, shape, seed=0):
    """uint8 images and shuffled labels."""
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.repeat(np.arange(n_classes), n_per_class))
    return rng.integers(0, 256, (len(labels), *shape), dtype=np.uint8), labels.astype(np.int64)


def small(name, n_train, n_test, **changes):
    """A catalog entry that expects fewer examples per class."""
    known = catalog.find(name)
    n = changes.get("n_classes", known.n_classes)
    return replace(known, train=(n_train,) * n, test=(n_test,) * n, **changes)


def wanted(name, n_train, n_test, size=0, **changes):
    return Wanted(name, small(name, n_train, n_test, **changes), size)


def put_in_catalog(monkeypatch, entry):
    """For tests through the command line's functions: the real entry's place is taken."""
    monkeypatch.setattr(catalog, "CATALOG", tuple(entry if k.name == entry.name else k for k in catalog.CATALOG))


def write_tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def write_zip(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def write_folder(path, files):
    for name, content in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(content)
    return path


def png(pixels, format="PNG"):
    """[c, h, w] uint8 -> bytes of a picture."""
    file = io.BytesIO()
    Image.fromarray(pixels[0] if len(pixels) == 1 else pixels.transpose(1, 2, 0)).save(file, format)
    return file.getvalue()


def cifar10_parts(n_per_class=10):
    """Training and test (images, labels) with 10 per class, so that five batches are of equal size."""
    return examples(n_per_class, 10, (3, 32, 32)), examples(2, 10, (3, 32, 32), seed=1)


def cifar10_binary(train, test):
    files = {}
    for number, rows in enumerate(np.array_split(np.arange(len(train[1])), 5), start=1):
        files[f"cifar-10-batches-bin/data_batch_{number}.bin"] = records(train[0][rows], train[1][rows])
    return files | {"cifar-10-batches-bin/test_batch.bin": records(*test)}


def records(images, labels, coarse=False):
    columns = [labels[:, None].astype(np.uint8), images.reshape(len(images), -1)]
    if coarse:
        columns.insert(0, np.zeros((len(images), 1), np.uint8))
    return np.concatenate(columns, axis=1).tobytes()


def cifar10_python(train, test, protocol=2):
    files = {}
    for number, rows in enumerate(np.array_split(np.arange(len(train[1])), 5), start=1):
        files[f"cifar-10-batches-py/data_batch_{number}"] = pickled(train[0][rows], train[1][rows], protocol)
    return files | {"cifar-10-batches-py/test_batch": pickled(*test, protocol)}


def pickled(images, labels, protocol=2, key=b"labels"):
    return pickle.dumps({b"data": images.reshape(len(images), -1), key: labels.tolist()}, protocol)


def pickled_by_python2(images, labels):
    """As the official archives were: text is bytes, and so are the names inside an array's state."""

    def text(value):
        return b"T" + struct.pack("<I", len(value)) + value

    def number(value):
        return b"I%d\n" % value

    dtype = b"cnumpy\ndtype\n(" + text(b"u1") + b"I0\nI1\ntR(I3\n" + text(b"|") + b"NNNI-1\nI-1\nI0\ntb"
    empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\nt" + text(b"b") + b"tR"
    state = b"(I1\n(" + number(len(images)) + b"I3072\nt" + dtype + b"I00\n" + text(images.tobytes()) + b"tb"
    listed = b"](" + b"".join(number(int(label)) for label in labels) + b"e"
    return b"}" + text(b"data") + empty + state + b"s" + text(b"labels") + listed + b"s."


def sheets(train, test):
    def sheet(images):
        return png(images.reshape(len(images), 3, -1).transpose(1, 0, 2))

    files = {"package/test_batch.png": sheet(test[0])}
    for number, rows in enumerate(np.array_split(np.arange(len(train[1])), 5), start=1):
        files[f"package/data_batch_{number}.png"] = sheet(train[0][rows])
    files["package/train_lables.json"] = json.dumps(train[1].tolist()).encode()
    files["package/test_lables.json"] = json.dumps(test[1].tolist()).encode()
    return files


def idx(array):
    return (
        bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.astype(np.uint8).tobytes()
    )


def mnist(train, test, packed=True):
    ending = ".gz" if packed else ""
    files = {}
    for part, (images, labels) in (("train", train), ("t10k", test)):
        for kind, array in (("images-idx3", images[:, 0]), ("labels-idx1", labels)):
            content = idx(array)
            files[f"{part}-{kind}-ubyte{ending}"] = gzip.compress(content) if packed else content
    return files


TINY_IDS = ("n02124075", "n04067472", "n04540053")


def tiny_imagenet(n_train=4, n_test=2):
    """Three classes, one grey picture, and what some copies have too much: a class, a picture without annotation."""
    rng = np.random.default_rng(0)
    files = {
        "tiny-imagenet-200/wnids.txt": "\n".join((*TINY_IDS, "n09999999")).encode(),
        "tiny-imagenet-200/words.txt": b"n02124075\tEgyptian cat\nn04067472\treel\nn04540053\treel, winch\n",
    }
    lines = []
    for class_id in (*TINY_IDS, "n09999999"):
        for number in range(n_train):
            pixels = rng.integers(0, 256, (1 if number == 0 else 3, 64, 64), dtype=np.uint8)
            files[f"tiny-imagenet-200/train/{class_id}/images/{class_id}_{number}.JPEG"] = png(pixels, "JPEG")
        for _ in range(n_test):
            file = f"val_{len(lines)}.JPEG"
            files[f"tiny-imagenet-200/val/images/{file}"] = png(pixels, "JPEG")
            lines.append(f"{file}\t{class_id}\t0\t0\t63\t63")
    files["tiny-imagenet-200/val/images/val_stray.JPEG"] = png(pixels, "JPEG")
    files["tiny-imagenet-200/val/val_annotations.txt"] = "\n".join(lines).encode()
    return files


def pictures(classes=("robin", "tit", "wren"), parts=("train", "test"), n=4, side=10):
    """Files of an ImageFolder with a pattern for each class; ``parts`` ("",) has class folders alone."""
    rng = np.random.default_rng(0)
    files = {}
    for part in parts:
        for number, class_name in enumerate(classes):
            for picture in range(n):
                pixels = rng.integers(0, 60, (3, side, side + 4), dtype=np.uint8)
                pixels[number % 3] += 150
                files[f"{part}/{class_name}/{picture}.png".lstrip("/")] = png(pixels)
    return files
