"""From files that a user has, or from the official archive, to a data set in the cache."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gcr.data.archive import Tree, open_tree
from gcr.data.cache import About, check_name, data_root, is_cached
from gcr.data.catalog import find
from gcr.data.download import fetch
from gcr.data.importers import FORMATS, Format
from gcr.data.source import Wanted, check_source
from gcr.data.writing import Progress, Say, no_progress, write_set
from gcr.settings import BadInput, unknown


def import_set(
    name: str,
    paths: list[Path],
    format_name: str = "auto",
    size: int = 0,
    progress: Progress = no_progress,
    say: Say = lambda line: None,
    mirrored: bool = True,
) -> About:
    """Read the files at ``paths`` as the data set ``name`` into the cache, in the place of an earlier one. Training on
    a set of one's own that is not ``mirrored`` never mirrors its images."""
    check_name(name)
    wanted = Wanted(name, find(name), size)
    if wanted.known and size and size != wanted.known.shape[1]:
        raise BadInput(f"{name} is of {wanted.known.shape[1]} pixels, got --size {size}; leave it out")
    if wanted.known and not mirrored:
        raise BadInput(f"whether {name} is mirrored is part of its scenario, got --no-mirror; leave it out")
    tree = open_tree(paths)
    chosen = _pick(format_name, tree, wanted)
    inside = (chosen.finds(tree, wanted) or "").rstrip("/")
    say(f"{name}: reading {tree.where} as {chosen.name}" + (f", from its folder {inside}" if inside else ""))
    source = chosen.read(tree, wanted)
    check_source(source, wanted)
    for note in source.notes:
        say(f"{name}: {note}")
    if is_cached(name):
        say(f"{name}: replaces what was imported under this name before")
    return write_set(name, chosen.name, replace(source, mirrored=mirrored), progress, say)


def get_set(
    name: str, mirror: str | None = None, progress: Progress = no_progress, say: Say = lambda line: None
) -> About:
    """Download the official archive and import it. The archive is removed when its content is in the cache."""
    check_name(name)
    known = find(name)
    if known is None:
        raise BadInput(f"{name} is not an official data set; a set of your own comes with: gcr data import {name} PATH")
    if not known.archives:
        raise BadInput(
            f"{name} cannot be downloaded without an account; get it from its makers, then: gcr data import {name} "
            "PATH (a folder with train/ and val/, each with a folder for every class)"
        )
    folder = data_root() / ".downloads" / name
    files: list[Path] = []
    try:
        for archive in known.archives:
            url = f"{mirror.rstrip('/')}/{archive.file_name}" if mirror else archive.url
            say(f"{name}: downloading {url} ({archive.megabytes} MB)")
            files.append(folder / archive.file_name)
            most = (2 * archive.megabytes + 1) * 10**6
            fetch(url, archive.md5, files[-1], progress, elsewhere=f"gcr data import {name} PATH", most=most)
        about = import_set(name, files, progress=progress, say=say)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        with suppress(OSError):  # folders that hold something stay
            folder.rmdir()
        with suppress(OSError):
            folder.parent.rmdir()
    return about


def _pick(format_name: str, tree: Tree, wanted: Wanted) -> Format:
    possible = [known for known in FORMATS if known.own or wanted.known]
    if format_name != "auto":
        for known in FORMATS:
            if known.name == format_name:
                if known not in possible:
                    raise BadInput(
                        f"the format {format_name} is for official data sets; {wanted.name} is one of your own: use "
                        + " or ".join(other.name for other in possible)
                    )
                return known
        raise unknown("format", format_name, ["auto", *(known.name for known in FORMATS)])
    for known in possible:
        if known.finds(tree, wanted) is not None:
            return known
    raise BadInput(
        f"{tree.where} holds nothing that can be read as {wanted.name}; known formats: "
        + "; ".join(f"{known.name} ({known.summary})" for known in possible)
    )
