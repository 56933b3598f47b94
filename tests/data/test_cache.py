"""The cache: what is written is read back, replaced as a whole, and damage is found and named."""

import io
import json
import os
import re
import sys
import time
import warnings
import zipfile
import zlib
from dataclasses import asdict
from pathlib import Path

import made_data as made
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gcr.data import blocks, data_root, is_cached, open_cached, own_names, writing
from gcr.data import cache as cache_room
from gcr.data.catalog import CATALOG
from gcr.data.check import check_set
from gcr.data.source import Part, Source
from gcr.data.writing import write_set
from gcr.files import read_json
from gcr.scenarios import datasets
from gcr.scenarios.datasets import load_cached
from gcr.settings import BadInput


def source(n_train=6, n_test=2, seed=0):
    train, test = (made.examples(n, 3, (2, 5, 4), seed=seed) for n in (n_train, n_test))
    return Source(Part.of(*train), Part.of(*test), (2, 5, 4), ("a", "b", "c")), train, test


def test_what_is_written_is_read_back(cache):
    given, train, test = source()
    about = write_set("letters", "made", given)
    cached = open_cached("letters")
    assert cached.about == about
    assert (about.shape, about.train, about.test) == ((2, 5, 4), (6, 6, 6), (2, 2, 2))
    for part, (images, labels) in (("train", train), ("test", test)):
        assert np.array_equal(cached.images(part), images)
        assert np.array_equal(cached.labels(part), labels)
    scaled = train[0] / 255
    assert about.mean == pytest.approx(scaled.mean((0, 2, 3)), abs=1e-5)
    assert about.std == pytest.approx(scaled.std((0, 2, 3)), abs=1e-5)
    assert own_names() == ["letters"]
    assert [path.name for path in cache.iterdir()] == ["letters"]


def test_images_are_a_map_that_torch_takes_without_a_warning(cache):
    write_set("letters", "made", source()[0])
    images = open_cached("letters").images("train")
    assert isinstance(images, np.memmap)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.from_numpy(images)[0] = 7  # in memory
    assert open_cached("letters").images("train")[0].max() != 7  # not in the file
    assert check_set("letters").problems == []


def test_writing_again_replaces(cache):
    write_set("letters", "made", source()[0])
    write_set("letters", "made", source(n_train=4, seed=1)[0])
    assert open_cached("letters").about.train == (4, 4, 4)
    assert [path.name for path in cache.iterdir()] == ["letters"]


@pytest.mark.parametrize("error", [BadInput("a picture is damaged"), KeyboardInterrupt()])
def test_an_import_that_fails_leaves_what_was_there(cache, error):
    write_set("letters", "made", source()[0])
    given, _, _ = source(seed=1)

    def broken():
        yield next(given.test.blocks())
        raise error

    with pytest.raises(type(error)):
        write_set(
            "letters", "made", Source(given.train, Part(given.test.labels, broken), given.shape, given.class_names)
        )
    assert check_set("letters").problems == []
    assert [path.name for path in cache.iterdir()] == ["letters"]


def test_fewer_images_than_labels_are_refused(cache):
    given, (images, labels), _ = source()
    short = Source(Part(labels, lambda: iter([images[:-1]])), given.test, given.shape, given.class_names)
    with pytest.raises(BadInput, match="there are 18 labels, but 17 images"):
        write_set("letters", "made", short)
    assert not is_cached("letters")


def test_too_small_a_disk_is_told_first(cache, monkeypatch):
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))
    with pytest.raises(BadInput, match="set GCR_DATA to a folder on another disk"):
        write_set("letters", "made", source()[0])


def test_a_place_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("GCR_DATA", str(tmp_path / "file"))
    with pytest.raises(BadInput, match=r"cannot write to .*file .*set GCR_DATA to another folder"):
        write_set("letters", "made", source()[0])


def test_a_sound_set_passes_with_its_facts(cache):
    about = write_set("letters", "made", source()[0])
    found = check_set("letters")
    assert found.problems == []
    assert found.facts["train"] == {"examples": 18, "per_class": [6, 6, 6]}
    assert found.facts["mean"] == list(about.mean)
    assert found.facts["sha256"] == about.sha256
    assert str(cache) not in json.dumps(found.facts)


@pytest.mark.parametrize("file", ["train-images.npy", "train-labels.npy", "test-images.npy", "test-labels.npy"])
def test_one_changed_byte_is_found(cache, file):
    write_set("letters", "made", source()[0])
    content = bytearray((cache / "letters" / file).read_bytes())
    content[-1] ^= 1
    (cache / "letters" / file).write_bytes(content)
    (problem,) = check_set("letters").problems
    assert problem == (
        f"{cache / 'letters' / file} is damaged (its SHA-256 is not the one taken at import); "
        "create it again with: gcr data import letters PATH"
    )


def flip(file, place, bit=0):
    content = bytearray(file.read_bytes())
    content[place] ^= 1 << bit
    file.write_bytes(content)


@pytest.mark.parametrize("part", ["train", "test"])
def test_labels_are_checked_whenever_they_are_read(cache, part):
    write_set("letters", "made", source()[0])
    file = cache / f"letters/{part}-labels.npy"
    whole = file.read_bytes()
    for place in range(len(whole)):
        flip(file, place, place % 8)
        with pytest.raises(BadInput, match=f"{part}-labels.npy is damaged .* create it again with: gcr data import"):
            load_cached("letters")
        file.write_bytes(whole)
    load_cached("letters")


@pytest.mark.parametrize("layout", [1, 2])
@pytest.mark.parametrize("part", ["train", "test"])
def test_resident_images_are_checked_in_the_background(cache, part, layout):
    write_set("letters", "made", source()[0])
    if layout == 1:
        as_of_gcr_0_2_0(cache / "letters")
    file = cache / f"letters/{part}-images.npy"
    for place in (20, 128, -1):
        flip(file, place)
        with pytest.raises(BadInput, match=f"{part}-images.npy is damaged .* create it again"):
            load_and_check()
        flip(file, place)
    load_and_check()


def load_and_check():
    for images in load_cached("letters"):
        images.wait_checked()


def as_of_gcr_0_2_0(folder):
    """Without digests."""
    about = read_json(folder / "about.json")
    del about["blocks"]
    (folder / "about.json").write_text(json.dumps(about | {"layout": 1}, indent=2) + "\n")


def test_images_on_disk_are_checked_block_by_block_as_they_are_read(cache, monkeypatch):
    monkeypatch.setattr(blocks, "BLOCK_BYTES", 150)
    monkeypatch.setattr(datasets, "RESIDENT_BYTES", 0)
    made_source, (pixels, _), _ = source()  # 18 images of 40 bytes behind a header of 128
    write_set("letters", "made", made_source)
    flip(cache / "letters/train-images.npy", 128 + 40 * 9 + 39)  # in image 9 and in the block of bytes 450 to 599
    train, _ = load_cached("letters")
    train.wait_checked()
    for rows in (torch.tensor([0, 3, 7]), slice(12, 18), torch.tensor([17])):
        assert torch.equal(train.pixels_of(rows), torch.from_numpy(pixels)[rows])
    for rows in (torch.tensor([0, 9]), slice(8, 9), torch.tensor([11])):
        with pytest.raises(BadInput, match=r"train-images.npy is damaged \(bytes 450 to 599 are not as imported"):
            train.pixels_of(rows)
    with pytest.raises(BadInput, match="is damaged"):
        train.part(torch.arange(8, 12)).pixels_of(torch.tensor([1]))


@given(sizes=st.lists(st.integers(0, 25), max_size=6))
def test_digests_of_blocks_do_not_depend_on_how_they_are_written(sizes):
    content = bytes(range(256))[: sum(sizes)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(blocks, "BLOCK_BYTES", 10)
        digests = blocks.BlockDigests()
        for end, size in zip(np.cumsum(sizes), sizes, strict=True):
            digests.add(content[end - size : end])
        text = digests.text()
        assert len(text) == blocks.digits_of(len(content))
    assert text == "".join(f"{zlib.crc32(content[n : n + 10]):08x}" for n in range(0, len(content), 10))


def test_every_flipped_bit_of_the_description_is_named(cache):
    write_set("letters", "made", source()[0])
    file = cache / "letters/about.json"
    whole = file.read_bytes()
    for place in range(0, len(whole), 9):
        flip(file, place, place % 8)
        with pytest.raises(BadInput, match=r"about\.json is damaged .* create it again"):
            open_cached("letters")
        file.write_bytes(whole)


def test_truncated_and_missing_files_are_named_when_opened(cache):
    write_set("letters", "made", source()[0])
    file = cache / "letters/train-images.npy"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(BadInput, match=r"train-images\.npy is damaged \(\d+ bytes instead of \d+\); create it again"):
        open_cached("letters")
    file.unlink()
    with pytest.raises(BadInput, match=r"train-images\.npy is damaged \(it is missing\)"):
        open_cached("letters")
    (cache / "letters/test-labels.npy").unlink()
    assert ["it is missing" in problem for problem in check_set("letters").problems] == [True, True]


@pytest.mark.parametrize("file", cache_room.ARRAYS)
def test_every_file_is_looked_at_when_opened(cache, file):
    write_set("letters", "made", source()[0])
    cached = open_cached("letters")
    os.truncate(cache / "letters" / file, 130)
    with pytest.raises(BadInput, match=f"{file} is damaged"):
        open_cached("letters")
    part, what = file.removesuffix(".npy").split("-")
    with pytest.raises(BadInput, match=f"{file} is damaged"):
        getattr(cached, what)(part)  # opened before the damage


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("shape", 3),
        ("shape", []),
        ("shape", [2, 5]),
        ("mean", ["a", "b"]),
        ("std", [0.5]),
        ("train", [1, 2]),
        ("test", None),
        ("class_names", [1, 2, 3]),
        ("bytes", {}),
        ("sha256", ["x"]),
        ("mirrored", "no"),
        ("name", "others"),
    ],
)
def test_an_about_with_wrong_values_is_named(cache, key, value):
    about = asdict(write_set("letters", "made", source()[0]))
    (cache / "letters/about.json").write_text(json.dumps(about | {key: value}))
    with pytest.raises(BadInput, match=r"about\.json is damaged"):
        open_cached("letters")


def killed_between_renames(cache, name="letters"):
    (cache / name).rename(cache / f".{name}.4711.old.part")


@pytest.mark.parametrize(
    "look",
    [
        lambda: open_cached("letters"),
        lambda: is_cached("letters"),
        lambda: own_names() == ["letters"],
        lambda: write_set("others", "made", source()[0]),
    ],
)
def test_a_set_that_is_only_aside_returns(cache, look):
    """An import was killed when the earlier set was out of its place and the new one not yet in it."""
    write_set("letters", "made", source()[0])
    killed_between_renames(cache)
    longago = time.time() - 2 * writing.LEFTOVER_SECONDS
    os.utime(cache / ".letters.4711.old.part", (longago, longago))
    assert look()
    assert check_set("letters").problems == []
    assert not list(cache.glob(".*"))


def test_a_half_set_aside_does_not_return(cache):
    write_set("letters", "made", source()[0])
    (cache / "letters/test-images.npy").unlink()
    killed_between_renames(cache)
    assert not is_cached("letters")
    with pytest.raises(BadInput, match="the data set letters is not in"):
        open_cached("letters")


def test_a_set_aside_that_cannot_be_put_back_is_told(cache, monkeypatch):
    write_set("letters", "made", source()[0])
    killed_between_renames(cache)
    monkeypatch.setattr(Path, "rename", refused)
    with pytest.raises(
        BadInput, match=r"letters is in .*\.letters\.4711\.old\.part, .* rename that folder to .*letters"
    ):
        open_cached("letters")


def refused(*_):
    raise PermissionError(13, "Permission denied")


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_rename_that_fails_brings_the_earlier_set_back(cache, monkeypatch, error):
    write_set("letters", "made", source()[0])
    rename = Path.rename

    def failing(path, target):
        if path.name.endswith(".part") and not path.name.endswith(".old.part"):
            raise error
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(BadInput if isinstance(error, OSError) else KeyboardInterrupt):
        write_set("letters", "made", source(n_train=4, seed=1)[0])
    assert open_cached("letters").about.train == (6, 6, 6)
    assert [path.name for path in cache.iterdir()] == ["letters"]


def test_a_reader_between_the_renames_does_not_stop_the_writer(cache, monkeypatch):
    write_set("letters", "made", source()[0])
    rename, looked = Path.rename, []

    def watched(path, target):
        if path.name.endswith(".part") and not path.name.endswith(".old.part") and not looked:
            looked.append(True)
            assert open_cached("letters").about.train == (6, 6, 6)  # puts it back
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", watched)
    write_set("letters", "made", source(n_train=4, seed=1)[0])
    assert looked
    assert open_cached("letters").about.train == (4, 4, 4)
    assert [path.name for path in cache.iterdir()] == ["letters"]


def test_fingerprints_are_those_of_the_arrays(cache):
    about = write_set("letters", "made", source()[0])
    assert re.fullmatch("[0-9a-f]{16}", about.fingerprint)
    assert write_set("others", "otherwise", source()[0]).fingerprint == about.fingerprint
    assert write_set("letters", "made", source(seed=1)[0]).fingerprint != about.fingerprint


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"layout": 99}', '{"layout": 1, "nam": 3}'])
def test_an_about_that_cannot_be_read_is_named(cache, content):
    write_set("letters", "made", source()[0])
    (cache / "letters/about.json").write_text(content)
    with pytest.raises(BadInput, match=r"about\.json is damaged .* gcr data import letters PATH"):
        open_cached("letters")


def test_a_missing_set_says_the_two_commands_and_where_it_looked(cache):
    with pytest.raises(BadInput) as caught:
        open_cached("cifar10")
    assert str(caught.value) == (
        f"the data set cifar10 is not in {cache}; get it with: gcr data get cifar10, or gcr data import cifar10 PATH"
    )
    with pytest.raises(BadInput, match="get it with: gcr data import imagenet1k PATH"):
        open_cached("imagenet1k")


@pytest.mark.parametrize("name", ["Birds", "../birds", "", "-b", "a b", "x" * 65, "seq-birds"])
def test_names_that_are_no_names(name):
    with pytest.raises(BadInput, match="a data set's name must"):
        cache_room.check_name(name)


def test_where_the_cache_is(monkeypatch):
    monkeypatch.setenv("GCR_DATA", "~/data")
    assert data_root() == Path.home() / "data"
    monkeypatch.delenv("GCR_DATA")
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("LOCALAPPDATA", "/local")
    for platform, place in (
        ("linux", Path("/somewhere/gcr")),
        ("darwin", Path.home() / "Library/Caches/gcr"),
        ("win32", Path("/local/gcr")),
    ):
        monkeypatch.setattr(sys, "platform", platform)
        assert data_root() == place


def test_the_catalog_agrees_with_itself():
    for known in CATALOG:
        for counts in (known.train, known.test):
            assert isinstance(counts, int) or len(counts) == known.n_classes
        assert len(known.folder_names) in (0, known.n_classes)
        assert len(set(known.folder_names)) == len(known.folder_names)
        assert all(len(archive.md5) == 32 for archive in known.archives)
    assert [sum(k.train) for k in CATALOG if not isinstance(k.train, int)] == [50000, 50000, 100000, 60000, 60000]


def test_a_home_that_nobody_knows(monkeypatch):
    def unknown(cls):
        raise RuntimeError("Could not determine home directory.")

    for name in ("GCR_DATA", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", classmethod(unknown))
    with pytest.raises(BadInput, match="set GCR_DATA"):
        data_root()


def test_an_archive_in_the_place_of_an_array(cache):
    write_set("letters", "made", source()[0])
    file = cache / "letters/train-labels.npy"
    size, archive = file.stat().st_size, io.BytesIO()
    with zipfile.ZipFile(archive, "w") as opened:
        opened.writestr("a", b"")
    with zipfile.ZipFile(archive, "a") as opened:
        opened.comment = bytes(size - len(archive.getvalue()))
    file.write_bytes(archive.getvalue())
    assert file.stat().st_size == size
    with pytest.raises(BadInput, match=r"train-labels\.npy is damaged \(it is an archive, not an array\)"):
        open_cached("letters").labels("train")
