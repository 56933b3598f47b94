"""Every format gives back the examples it was made of; damaged or hostile files are refused by name."""

import io
import json
import os
import pickle
import tarfile
import zipfile

import made_data as made
import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from gcr.data import catalog, parquet_check
from gcr.data.archive import open_tree
from gcr.data.importers import FORMATS, cifar, idx, image_folder, parquet, tiny_imagenet
from gcr.data.parquet_check import check_parquet
from gcr.data.source import Wanted, check_source
from gcr.settings import BadInput


def read(paths, wanted):
    """As import does: the format that finds its files, and its checked source."""
    tree = open_tree(paths if isinstance(paths, list) else [paths])
    chosen = next(known for known in FORMATS if known.finds(tree, wanted) is not None)
    source = chosen.read(tree, wanted)
    check_source(source, wanted)
    return chosen.name, source


def holds(part, images, labels):
    assert np.array_equal(part.labels, labels)
    assert np.array_equal(np.concatenate(list(part.blocks())), images)


CIFAR10 = made.cifar10_parts()
LIKE_CIFAR10 = made.wanted("cifar10", 10, 2)


@pytest.mark.parametrize(
    ("format_name", "files"),
    [
        ("cifar-binary", made.cifar10_binary(*CIFAR10)),
        ("cifar-python", made.cifar10_python(*CIFAR10)),
        ("cifar-python", made.cifar10_python(*CIFAR10, protocol=4)),
        ("png-sheets", made.sheets(*CIFAR10)),
    ],
)
@pytest.mark.parametrize("kind", ["folder", "tgz", "zip"])
def test_cifar10(tmp_path, format_name, files, kind):
    write = {"folder": made.write_folder, "tgz": made.write_tar, "zip": made.write_zip}[kind]
    found, source = read(write(tmp_path / f"given.{kind}", files), LIKE_CIFAR10)
    assert found == format_name
    assert source.shape == (3, 32, 32)
    assert source.class_names[3] == "cat"
    holds(source.train, *CIFAR10[0])
    holds(source.test, *CIFAR10[1])


def test_pickles_written_by_python_2(tmp_path):
    files = made.cifar10_python(*CIFAR10)
    files["cifar-10-batches-py/test_batch"] = made.pickled_by_python2(*CIFAR10[1])
    _, source = read(made.write_folder(tmp_path, files), LIKE_CIFAR10)
    holds(source.test, *CIFAR10[1])


@pytest.mark.parametrize("format_name", ["cifar-binary", "cifar-python"])
def test_cifar100_takes_the_fine_labels(tmp_path, format_name):
    train, test = made.examples(2, 100, (3, 32, 32)), made.examples(1, 100, (3, 32, 32), seed=1)
    if format_name == "cifar-binary":
        files = {"x/train.bin": made.records(*train, coarse=True), "x/test.bin": made.records(*test, coarse=True)}
    else:
        files = {f"x/{n}": made.pickled(*p, key=b"fine_labels") for n, p in (("train", train), ("test", test))}
    found, source = read(made.write_tar(tmp_path / "x.tar.gz", files), made.wanted("cifar100", 2, 1))
    assert found == format_name
    holds(source.train, *train)
    holds(source.test, *test)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx(tmp_path, packed, name):
    train, test = made.examples(3, 10, (1, 28, 28)), made.examples(1, 10, (1, 28, 28), seed=1)
    files = made.mnist(train, test, packed)
    found, source = read(made.write_folder(tmp_path, files), made.wanted(name, 3, 1))
    assert found == "idx"
    holds(source.train, *train)
    holds(source.test, *test)
    _, source = read([tmp_path / file for file in files], made.wanted(name, 3, 1))
    holds(source.train, *train)


LIKE_TINY = made.wanted("tinyimagenet", 4, 2, n_classes=3, class_ids=made.TINY_IDS)


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_tiny_imagenet_without_what_is_not_official(tmp_path, kind):
    write = {"folder": made.write_folder, "zip": made.write_zip}[kind]
    found, source = read(write(tmp_path / f"tiny.{kind}", made.tiny_imagenet()), LIKE_TINY)
    assert found == "tiny-imagenet"
    assert source.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert source.test.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert source.class_names == ("Egyptian cat", "reel (n04067472)", "reel (n04540053)")
    images = np.concatenate(list(source.train.blocks()))
    assert images.shape == (12, 3, 64, 64)
    assert np.array_equal(images[0, 0], images[0, 2])  # the grey one
    assert not np.array_equal(images[1, 0], images[1, 2])
    assert source.notes == (
        "left out 4 training pictures of 1 classes that are not official: n09999999",
        "left out 3 validation pictures without an official class",
    )


def test_tiny_imagenet_that_lacks_a_picture(tmp_path):
    files = made.tiny_imagenet()
    del files["tiny-imagenet-200/val/images/val_0.JPEG"]
    with pytest.raises(BadInput, match=r"names .*val_0\.JPEG, which is not there"):
        read(made.write_folder(tmp_path, files), LIKE_TINY)


def test_tiny_imagenet_that_lacks_a_class(tmp_path):
    files = made.tiny_imagenet() | {"tiny-imagenet-200/wnids.txt": b"n02124075\n"}
    with pytest.raises(BadInput, match="lacks the class n04067472"):
        tiny_imagenet.read(open_tree([made.write_folder(tmp_path, files)]), LIKE_TINY)


def write_parquet(path, images, labels, column="img", label="fine_label", names=None, flat=False):
    data = [made.png(image) for image in images]
    values = data if flat else [{"bytes": one, "path": None} for one in data]
    table = pa.table({column: values, "coarse_label": [0] * len(labels), label: labels.tolist()})
    if names:
        about = {"info": {"features": {label: {"names": names, "_type": "ClassLabel"}}}}
        table = table.replace_schema_metadata({"huggingface": json.dumps(about)})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=7)
    return path


def test_parquet_in_shards(tmp_path):
    train, test = CIFAR10
    halves = [slice(0, 60), slice(60, None)]
    for number, rows in enumerate(halves):
        write_parquet(tmp_path / f"data/train-0000{number}-of-00002.parquet", train[0][rows], train[1][rows])
    write_parquet(tmp_path / "data/test-00000-of-00001.parquet", *test)
    found, source = read(tmp_path, LIKE_CIFAR10)
    assert found == "parquet"
    holds(source.train, *train)
    holds(source.test, *test)


@pytest.mark.parametrize(("column", "flat"), [("image", False), ("img.bytes", True), ("image", True)])
def test_parquet_columns_and_single_files(tmp_path, column, flat):
    train, test = CIFAR10
    paths = [
        write_parquet(tmp_path / f"{part}.parquet", *given, column=column, label="label", flat=flat)
        for part, given in (("train", train), ("test", test))
    ]
    _, source = read(paths, LIKE_CIFAR10)
    holds(source.train, *train)
    holds(source.test, *test)


def test_parquet_of_ones_own_and_in_another_order(tmp_path):
    """Names come from Hugging Face's metadata; an official set in another order of classes is renumbered."""
    train, test = made.examples(2, 3, (3, 8, 8)), made.examples(1, 3, (3, 8, 8), seed=1)
    for part, given in (("train", train), ("validation", test)):
        write_parquet(tmp_path / f"{part}/0000.parquet", *given, names=["c", "a", "b"])
    _, source = read(tmp_path, Wanted("letters", None))
    assert source.class_names == ("c", "a", "b")
    assert source.train.labels.tolist() == train[1].tolist()
    official = made.wanted("tinyimagenet", 2, 1, n_classes=3, class_ids=("a", "b", "c"), shape=(3, 8, 8))
    _, source = read(tmp_path, official)
    assert source.train.labels.tolist() == [{0: 2, 1: 0, 2: 1}[label] for label in train[1].tolist()]


def test_parquet_files_are_of_the_part_nearest_to_their_name(tmp_path):
    train, test = CIFAR10
    write_parquet(tmp_path / "test_v1/data/train.parquet", *train)
    write_parquet(tmp_path / "test_v1/data/test.parquet", *test)
    _, source = read(tmp_path, LIKE_CIFAR10)
    holds(source.train, *train)
    holds(source.test, *test)
    write_parquet(tmp_path / "train-test-0.parquet", *test)
    with pytest.raises(BadInput, match=r'"train-test-0\.parquet" in .* names training and test; rename it'):
        read(tmp_path, LIKE_CIFAR10)


def test_parquet_whose_test_files_have_no_labels(tmp_path):
    """ImageNet's: the validation files are taken; repeated names stay distinct."""
    train, test = made.examples(2, 3, (3, 8, 8)), made.examples(1, 3, (3, 8, 8), seed=1)
    for part, given in (("train", train), ("validation", test), ("test", (test[0], test[1] * 0 - 1))):
        write_parquet(tmp_path / f"{part}.parquet", *given, names=["crane", "reel", "crane"])
    _, source = read(tmp_path, Wanted("things", None))
    holds(source.test, *test)
    assert source.class_names == ("crane (0)", "reel", "crane (2)")


def test_parquet_that_does_not_name_official_classes_is_told(tmp_path):
    train, test = made.examples(2, 3, (3, 8, 8)), made.examples(1, 3, (3, 8, 8), seed=1)
    paths = [write_parquet(tmp_path / f"{n}.parquet", *given) for n, given in (("train", train), ("test", test))]
    _, source = read(paths, made.wanted("tinyimagenet", 2, 1, n_classes=3, class_ids=("a", "b", "c"), shape=(3, 8, 8)))
    assert "labels are taken as they are" in source.notes[0]


def test_parquet_that_cannot_be_used_is_named(tmp_path):
    train, test = CIFAR10
    write_parquet(tmp_path / "train.parquet", *train)
    with pytest.raises(BadInput, match="lacks test files"):
        read(tmp_path, LIKE_CIFAR10)
    whole = (tmp_path / "train.parquet").read_bytes()
    (tmp_path / "test.parquet").write_bytes(whole[:1000])
    with pytest.raises(BadInput, match=r"test\.parquet in .* is not a complete parquet file"):
        read(tmp_path, LIKE_CIFAR10)
    write_parquet(tmp_path / "test.parquet", test[0][:0], test[1][:0])
    with pytest.raises(BadInput, match=r"test\.parquet in .* has no rows"):
        read(tmp_path, LIKE_CIFAR10)
    write_parquet(tmp_path / "test.parquet", *test, column="photo")
    with pytest.raises(BadInput, match="has no column of pictures: one of img, image"):
        parquet.read(open_tree([tmp_path]), LIKE_CIFAR10)


def test_image_folder_with_train_and_test(tmp_path):
    made.write_folder(tmp_path, made.pictures())
    found, source = read(tmp_path, Wanted("birds", None, size=8))
    assert found == "image-folder"
    assert source.class_names == ("robin", "tit", "wren")
    assert source.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    images = np.concatenate(list(source.test.blocks()))
    assert images.shape == (12, 3, 8, 8)
    assert images.mean((2, 3)).argmax(1).tolist() == source.test.labels.tolist()  # the pattern of its class
    assert source.notes == ()


def test_image_folder_of_class_folders_alone(tmp_path):
    files = {f"photos/{name}": content for name, content in made.pictures(parts=("",), n=10).items()}
    files |= {"photos/.hidden/x.png": b"", "photos/README.txt": b"", "__MACOSX/robin/0.png": b""}
    _, source = read(made.write_zip(tmp_path / "birds.zip", files), Wanted("birds", None, size=8))
    assert np.bincount(source.train.labels).tolist() == [8, 8, 8]
    assert np.bincount(source.test.labels).tolist() == [2, 2, 2]
    assert "6 of 30 pictures are held out for testing, 20% of each class, drawn with seed 0" in source.notes[0]


def test_image_folder_takes_the_test_folder_whose_classes_match(tmp_path):
    """ImageNet's test pictures have no classes: its validation folder is meant."""
    files = made.pictures(parts=("train", "val"))
    files["test/unlabelled/1.png"] = files["train/robin/0.png"]
    _, source = read(made.write_folder(tmp_path, files), Wanted("birds", None))
    assert len(source.test.labels) == 12
    assert source.shape == (3, 10, 14)


@pytest.mark.parametrize(("train", "test"), [("Training", "Testing"), ("Train", "Test"), ("TRAIN", "valid")])
def test_image_folder_whose_parts_are_spelt_in_another_way(tmp_path, train, test):
    files = {
        name.replace("train/", f"mri/{train}/").replace("test/", f"mri/{test}/"): content
        for name, content in made.pictures(parts=("train", "test")).items()
    }
    _, source = read(made.write_folder(tmp_path, files), Wanted("birds", None, size=8))
    assert source.class_names == ("robin", "tit", "wren")
    assert (len(source.train.labels), len(source.test.labels), source.notes) == (12, 12, ())


def test_parts_are_known_where_test_pictures_have_no_classes(tmp_path):
    files = {name.replace("train/", "Train/"): content for name, content in made.pictures(parts=("train",)).items()}
    files["Test/0.png"] = next(iter(files.values()))
    _, source = read(made.write_folder(tmp_path, files), Wanted("signs", None))
    assert source.class_names == ("robin", "tit", "wren")


def test_a_class_may_be_called_as_a_part(tmp_path):
    files = made.pictures(parts=("",))
    files |= {name.replace("robin/", "Train/steam/"): content for name, content in files.items() if "robin" in name}
    _, source = read(made.write_folder(tmp_path, files), Wanted("vehicles", None))
    assert source.class_names == ("Train", "robin", "tit", "wren")


def test_what_is_left_out_of_class_folders_is_told(tmp_path):
    files = made.pictures()
    one = next(iter(files.values()))
    files |= {"train/robin/0.jfif": one, "train/robin/1.heic": one, "train/tit/Thumbs.db": b"", "README.txt": b""}
    _, source = read(made.write_folder(tmp_path, files), Wanted("birds", None))
    assert len(source.train.labels) == 13
    (note,) = source.notes
    assert note.startswith("left out 1 files that are not pictures (.jpg, ")
    assert note.endswith("): train/robin/1.heic")


def test_image_folder_of_an_official_set_is_in_official_order(tmp_path):
    files = made.pictures(classes=made.TINY_IDS, n=2, side=64)
    official = made.wanted(
        "tinyimagenet", 2, 2, n_classes=3, class_ids=made.TINY_IDS[::-1], shape=(3, 64, 64), resized=True
    )
    _, source = read(made.write_folder(tmp_path, files), official)
    assert source.train.labels.tolist() == [2, 2, 1, 1, 0, 0]
    strange = made.wanted("tinyimagenet", 2, 2, n_classes=3, class_ids=("a", "b", "c"), shape=(3, 64, 64))
    with pytest.raises(BadInput, match=r'tinyimagenet has 3 classes as "a", these folders are 3 as "n02124075"'):
        image_folder.read(open_tree([tmp_path]), strange)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"train/wren/0.png": b"\x89PNG no more"}, "train/wren/0.png cannot be read as a picture"),
        ({"train/wren/0.png": made.png(np.zeros((3, 9, 9), np.uint8))}, "has 9 x 9 pixels, the first picture 14 x 10"),
        ({"test/crow/0.png": made.png(np.zeros((3, 10, 14), np.uint8))}, 'test class "crow"'),
        ({"train/crow/0.png": made.png(np.zeros((3, 10, 14), np.uint8))}, 'every class needs test images, but "crow"'),
    ],
)
def test_image_folders_that_cannot_be_used_are_named(tmp_path, change, message):
    made.write_folder(tmp_path, made.pictures() | change)
    with pytest.raises(BadInput, match=message):
        list(read(tmp_path, Wanted("birds", None))[1].train.blocks())


def test_a_picture_of_too_many_pixels_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("gcr.data.pictures.MAX_PIXELS", 100)
    with pytest.raises(BadInput, match="14 x 10 pixels; at most 100 are read"):
        read(made.write_folder(tmp_path, made.pictures()), Wanted("birds", None))


def test_a_file_that_goes_away_is_named(tmp_path):
    _, source = read(made.write_folder(tmp_path, made.pictures()), Wanted("birds", None))
    (tmp_path / "train/tit/2.png").unlink()
    with pytest.raises(BadInput, match=r"tit/2\.png cannot be read \(No such file"):
        list(source.train.blocks())


class Shell:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return os.system, (f"touch {self.target}",)


class Allocation:
    def __reduce__(self):
        return np.ndarray, ((10**13,),)


@pytest.mark.parametrize("values", [[2**70] * 100, [0.5], {"a": 1}, [[1]], "[" * 70 + "]" * 70, "9" * 5000])
def test_json_labels_that_cannot_be_are_refused(tmp_path, values):
    files = made.sheets(*CIFAR10)
    files["package/train_lables.json"] = (values if isinstance(values, str) else json.dumps(values)).encode()
    with pytest.raises(BadInput, match=r"train_lables\.json .*(must be a list of whole numbers|is not JSON of labels)"):
        read(made.write_folder(tmp_path, files), LIKE_CIFAR10)


def test_parquet_labels_that_leave_classes_empty_are_refused(tmp_path):
    """The classes are not counted up to a label of 2**60."""
    train, test = made.examples(2, 3, (3, 8, 8)), made.examples(1, 3, (3, 8, 8), seed=1)
    write_parquet(tmp_path / "train.parquet", train[0], train[1] + 2**60)
    write_parquet(tmp_path / "test.parquet", *test)
    with pytest.raises(BadInput, match=r"labels in .* must be numbers from 0 on, one for each class"):
        read(tmp_path, Wanted("letters", None))


@pytest.mark.parametrize("kind", ["folder", "zip"])
def test_parquet_that_unpacks_to_too_much_is_refused(tmp_path, monkeypatch, kind):
    files = [
        write_parquet(tmp_path / f"given/{n}.parquet", *given)
        for n, given in zip(("train", "test"), CIFAR10, strict=True)
    ]
    given = tmp_path / "given"
    if kind == "zip":
        given = made.write_zip(tmp_path / "x.zip", {path.name: path.read_bytes() for path in files})
    monkeypatch.setattr(parquet_check, "most_unpacked", lambda packed: packed // 10)
    with pytest.raises(BadInput, match=r"train\.parquet in .* \(unpacks to more than \d+ bytes\)"):
        read(given, LIKE_CIFAR10)


def test_parquet_that_ends_its_reader_is_refused(tmp_path, monkeypatch):
    """As when the library crashes, or its process is ended for the time or memory it takes."""
    write_parquet(tmp_path / "train.parquet", *CIFAR10[0])
    for ending in ("while True: pass", "bytes(2**40)", "import os; os.abort()"):
        monkeypatch.setattr(parquet_check, "SECONDS", 1)
        trial = parquet_check.TRIAL.replace("    unpacked = 0\n", f"    {ending}\n    unpacked = 0\n")
        assert ending in trial
        with monkeypatch.context() as patch:
            patch.setattr(parquet_check, "TRIAL", trial)
            with pytest.raises(
                BadInput, match=r"x is not a complete|x cannot be read as parquet within 1 s of processor"
            ):
                check_parquet([("x", tmp_path / "train.parquet")])
    check_parquet([("x", tmp_path / "train.parquet"), ("y", (tmp_path / "train.parquet").read_bytes())])


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_pickle_that_calls_a_command_is_refused_and_does_nothing(tmp_path, protocol):
    target = tmp_path / "touched"
    hostile = pickle.dumps({b"data": Shell(target)}, protocol)
    files = made.cifar10_python(*CIFAR10) | {"cifar-10-batches-py/data_batch_3": hostile}
    with pytest.raises(BadInput, match=r'data_batch_3 .* is refused: it asks for "(posix|nt)\.system"'):
        read(made.write_folder(tmp_path / "given", files), LIKE_CIFAR10)
    assert not target.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (pickle.dumps(eval), 'asks for "builtins.eval"'),
        (pickle.dumps(io.BytesIO), 'asks for "_io.BytesIO"'),
        (pickle.dumps(Allocation()), "makes an array in an unusual way"),
        (pickle.dumps({b"data": np.zeros((4, 3072), np.uint8)})[:-3000], "not a complete pickle"),
        (b"", "not a complete pickle"),
        (pickle.dumps([1]), "must hold a dictionary, got list"),
        (pickle.dumps({b"data": np.zeros((4, 5), np.uint8), b"labels": [0] * 4}, 2), r"uint8 of \[n, 3072\]"),
        (pickle.dumps({b"data": np.zeros((4, 3072), np.uint8), b"labels": [0]}, 2), "4 images, but 1 labels"),
        (pickle.dumps({b"data": np.zeros((1, 3072), np.uint8), b"labels": ["x"]}, 2), "a list of whole numbers"),
    ],
)
def test_pickles_that_cannot_be_used_are_named(tmp_path, content, message):
    files = made.cifar10_python(*CIFAR10) | {"cifar-10-batches-py/test_batch": content}
    with pytest.raises(BadInput, match=message):
        cifar.read_python(open_tree([made.write_folder(tmp_path, files)]), LIKE_CIFAR10)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("train-labels-idx1-ubyte", b"\x00\x00\x08\x01\x00\x00", "it is not an idx file"),
        ("train-labels-idx1-ubyte", made.idx(np.zeros(5)), "5 labels for 30 images"),
        ("train-images-idx3-ubyte", made.idx(np.zeros((30, 28, 28)))[:-1], "must hold 23520 bytes after its header"),
    ],
)
def test_idx_files_that_cannot_be_used_are_named(tmp_path, file, content, message):
    train, test = made.examples(3, 10, (1, 28, 28)), made.examples(1, 10, (1, 28, 28), seed=1)
    made.write_folder(tmp_path, made.mnist(train, test, packed=False) | {file: content})
    with pytest.raises(BadInput, match=message):
        idx.read(open_tree([tmp_path]), made.wanted("mnist", 3, 1))


def test_truncated_records_are_named(tmp_path):
    files = made.cifar10_binary(*CIFAR10)
    name = "cifar-10-batches-bin/data_batch_2.bin"
    files[name] = files[name][:-7]
    with pytest.raises(BadInput, match=r"data_batch_2\.bin in .* must be records of 3073 bytes"):
        read(made.write_folder(tmp_path, files), LIKE_CIFAR10)


def test_wrong_counts_are_refused(tmp_path):
    path = made.write_folder(tmp_path, made.cifar10_binary(*CIFAR10))
    with pytest.raises(BadInput, match=r"must have 11 training images of class 0, these files have 10 \(100 of 110"):
        read(path, made.wanted("cifar10", 11, 2))


def test_a_label_out_of_range_is_refused(tmp_path):
    train, test = made.cifar10_parts()
    test[1][4] = 10
    with pytest.raises(BadInput, match="test labels must be from 0 to 9, got 10"):
        read(made.write_folder(tmp_path, made.cifar10_binary(train, test)), LIKE_CIFAR10)


def test_sheets_whose_labels_do_not_match_are_refused(tmp_path):
    files = made.sheets(*CIFAR10) | {"package/train_lables.json": b"[1, 2, 3]"}
    with pytest.raises(BadInput, match=r"train_lables\.json in .* has 3 labels, the sheets have 100 images"):
        read(made.write_folder(tmp_path, files), LIKE_CIFAR10)


def test_class_folders_without_pictures_are_told(tmp_path):
    files = made.pictures() | {"train/crow/notes.txt": b"", "train/.hidden/x.txt": b""}
    made.write_folder(tmp_path / "birds", files)
    (tmp_path / "birds/train/finch/more").mkdir(parents=True)
    _, source = read(tmp_path / "birds", Wanted("birds", None))
    assert source.class_names == ("robin", "tit", "wren")
    assert source.notes == ("left out 2 folders without pictures: crow, finch",)


def test_pictures_of_no_part_are_told(tmp_path):
    made.write_folder(tmp_path / "birds", made.pictures(parts=("train", "test", "val"), n=1))
    (note,) = read(tmp_path / "birds", Wanted("birds", None))[1].notes
    assert note == (
        "left out 3 pictures in no class folder of training or test: val/robin/0.png, val/tit/0.png, val/wren/0.png"
    )


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_empty_class_folders_of_archives_are_told(tmp_path, kind):
    path = tmp_path / f"birds.{kind}"
    if kind == "zip":
        made.write_zip(path, made.pictures(n=2))
        with zipfile.ZipFile(path, "a") as archive:
            archive.mkdir("train/crow")
    else:
        made.write_tar(path, made.pictures(n=2), "w:")
        with tarfile.open(path, "a:") as archive:
            folder = tarfile.TarInfo("train/crow")
            folder.type = tarfile.DIRTYPE
            archive.addfile(folder)
    assert read(path, Wanted("birds", None))[1].notes == ("left out 1 folders without pictures: crow",)


@pytest.mark.parametrize(
    ("name", "files", "root"),
    [
        ("cifar10", made.cifar10_binary(*CIFAR10), "cifar-10-batches-bin/"),
        ("cifar10", made.cifar10_python(*CIFAR10), "cifar-10-batches-py/"),
        ("cifar10", made.sheets(*CIFAR10), "package/"),
        ("mnist", {f"raw/{name}": b"" for name in made.mnist(*CIFAR10)}, "raw/"),
        ("tinyimagenet", made.tiny_imagenet(), "tiny-imagenet-200/"),
        ("birds", {"data/train-0.parquet": b"", "data/test-0.parquet": b""}, "data/"),
        ("birds", {"train/0.parquet": b"", "test/0.parquet": b""}, ""),
        ("birds", {f"a/b/{name}": content for name, content in made.pictures().items()}, "a/b/"),
        ("birds", made.pictures(parts=("xtrain",)), "xtrain/"),
        ("birds", {"robin/1.png": b""}, None),
    ],
)
def test_formats_say_in_which_folder_they_are(tmp_path, name, files, root):
    tree = open_tree([made.write_folder(tmp_path, files)])
    wanted = Wanted(name, catalog.find(name))
    found = [at for known in FORMATS if (at := known.finds(tree, wanted)) is not None]
    assert found[:1] == ([] if root is None else [root])


def test_the_whole_copy_is_named_not_a_shallower_one_that_lacks_files(tmp_path):
    files = made.cifar10_binary(*CIFAR10)
    some = {f"x/{name}": files[f"cifar-10-batches-bin/{name}"] for name in ("data_batch_1.bin", "test_batch.bin")}
    whole = {f"y/{name}": content for name, content in files.items()}
    tree = open_tree([made.write_folder(tmp_path, some | whole)])
    assert FORMATS[0].finds(tree, LIKE_CIFAR10) == "y/cifar-10-batches-bin/"


def test_bad_pictures_in_parquet_are_counted_over_all_shards(tmp_path, monkeypatch):
    monkeypatch.setattr("gcr.data.source.BLOCK_BYTES", 3 * 8 * 8 * 4)  # several blocks a shard
    good = made.png(np.zeros((3, 8, 8), np.uint8))
    for name, bad in (("train-0", (0, 7)), ("train-1", (9,)), ("test", ())):
        rows = [{"bytes": b"" if row in bad else good} for row in range(10)]
        pq.write_table(pa.table({"image": rows, "label": [0, 1] * 5}), tmp_path / f"{name}.parquet")
    _, source = read(tmp_path, Wanted("letters", None))
    with pytest.raises(BadInput, match=r"^3 pictures cannot be read: row 0 of train-0.*, row 7 .*, row 9 of train-1"):
        list(source.train.blocks())
    assert sum(map(len, source.test.blocks())) == 10
