"""Proof that a cached data set is whole: hashes, counts per class and channel statistics, recomputed from the files."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gcr.data.blocks import OTHER_SHA256
from gcr.data.cache import ARRAYS, PARTS, CachedSet, corrupt, described
from gcr.data.catalog import find
from gcr.data.source import block_rows, check_counts, counts
from gcr.data.writing import Histogram, Progress, no_progress
from gcr.settings import BadInput


@dataclass
class Finding:
    """What ``check`` found in one data set. It is whole if there are no problems."""

    name: str
    problems: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)


def check_set(name: str, progress: Progress = no_progress) -> Finding:
    found = Finding(name)
    try:
        cached = described(name)
        about = cached.about
        found.facts |= {"source": about.source, "shape": list(about.shape), "classes": len(about.class_names)}
        found.problems = [problem for file in ARRAYS if (problem := _hash_problem(cached, file, progress))]
        if not found.problems:
            for part in PARTS:
                found.facts[part] = _counted(cached, part)
            found.facts |= _measured(cached, progress) | {"sha256": dict(about.sha256)}
    except BadInput as error:
        found.problems.append(str(error))
    return found


def _hash_problem(cached: CachedSet, file: str, progress: Progress) -> str:
    path, about = cached.folder / file, cached.about
    if problem := cached.file_problem(file):
        return str(corrupt(about.name, path, problem))
    if file_sha256(path, f"{about.name}: reading {file}", progress) != about.sha256[file]:
        return str(corrupt(about.name, path, OTHER_SHA256))
    return ""


def _counted(cached: CachedSet, part: str) -> dict[str, Any]:
    """Examples of each class, counted in the labels."""
    about = cached.about
    cached.images(part)  # its shape
    labels, n_classes = cached.labels(part), len(about.class_names)
    file = cached.folder / f"{part}-labels.npy"
    if int(labels.min()) < 0 or int(labels.max()) >= n_classes:
        raise corrupt(about.name, file, f"labels outside 0 to {n_classes - 1}")
    found = counts(labels, n_classes)
    if found != list(getattr(about, part)):
        raise corrupt(about.name, file, "its counts per class are not those of about.json")
    if known := find(about.name):
        check_counts(about.name, part, found, known.train if part == "train" else known.test)
    return {"examples": sum(found), "per_class": found}


def _measured(cached: CachedSet, progress: Progress) -> dict[str, Any]:
    about = cached.about
    images = cached.images("train")
    histogram, rows = Histogram(about.shape[0]), block_rows(about.shape)
    for start in range(0, len(images), rows):
        histogram.add(images[start : start + rows])
        progress(f"{about.name}: channel means", start, len(images))
    if not np.allclose([histogram.mean, histogram.std], [about.mean, about.std], atol=1e-5):
        raise corrupt(about.name, cached.folder / "about.json", "its mean or std is not that of the images")
    return {"mean": list(histogram.mean), "std": list(histogram.std)}


def file_sha256(path: Path, what: str = "", progress: Progress = no_progress) -> str:
    digest, done, total = hashlib.sha256(), 0, path.stat().st_size
    with open(path, "rb") as file:
        while block := file.read(2**22):
            digest.update(block)
            done += len(block)
            progress(what, done, total)
    return digest.hexdigest()
