"""What users point at: class folders, tables of paths, tables of features; and what is wrong with them."""

import math
from unicodedata import normalize

import numpy as np
import pytest
from PIL import Image

from gcr.classifier.examples import Form, first_form, read_examples
from gcr.classifier.sources import FeatureRows, PictureFiles, find_labelled, find_unlabelled
from gcr.settings import BadInput


def quiet(what, done, total):
    pass


def picture(path, shade=0, size=(8, 8), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade if mode == "L" else (shade, 0, 255 - shade)).save(path)


@pytest.fixture
def folders(tmp_path):
    for name in ("cat", "dog"):
        for number in range(3):
            picture(tmp_path / "new" / name / "deep" / f"{number}.png", 20 * number)
    return tmp_path / "new"


def test_a_folder_per_class(folders):
    (folders / "cat/notes.txt").write_text("")
    (folders / "cat/.hidden.png").write_text("")
    (folders / "loose.png").write_text("")
    found = find_labelled(folders)
    assert found.labels == ["cat"] * 3 + ["dog"] * 3
    assert [file.name for file in found.files] == ["0.png", "1.png", "2.png"] * 2
    assert found.notes[0].startswith("left out 2 files that are not pictures in a class folder: ")


def test_an_empty_class_folder(folders):
    (folders / "eel").mkdir()
    with pytest.raises(BadInput, match=r"the class folder .*eel has no pictures .*; add some or remove the folder"):
        find_labelled(folders)


def test_no_class_folders(tmp_path):
    picture(tmp_path / "loose.png")
    with pytest.raises(BadInput, match="must hold a folder per class with its pictures, got no folder"):
        find_labelled(tmp_path)
    with pytest.raises(BadInput, match="does not exist"):
        find_labelled(tmp_path / "absent")
    with pytest.raises(BadInput, match=r"must be a folder or a file of \.csv, \.tsv, \.parquet"):
        find_labelled(tmp_path / "loose.png")


def test_a_table_of_paths(folders):
    table = folders / "list.csv"
    table.write_text("path;kind\ncat/deep/0.png;cat\n dog/deep/1.png ;dog\n")
    found = find_labelled(table, label="kind")
    assert found == PictureFiles([folders / "cat/deep/0.png", folders / "dog/deep/1.png"], ["cat", "dog"])
    with pytest.raises(BadInput, match=r"must have a label column; name it by --label \(its columns: path, kind\)"):
        find_labelled(table)
    with pytest.raises(BadInput, match=r'--label must name a column of .*, got "Kind"'):
        find_labelled(table, label="Kind")


def test_a_table_of_features(tmp_path):
    table = tmp_path / "rows.csv"
    table.write_text("\ufeffa,b,Label\n1,2.5,x\n3,-4e1,y\n")
    found = find_labelled(table)
    assert isinstance(found, FeatureRows)
    assert (found.names, found.labels) == (["a", "b"], ["x", "y"])
    assert found.values.tolist() == [[1, 2.5], [3, -40]]


def test_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": [1, 2], "label": [3.0, 7.0]}), tmp_path / "rows.parquet")
    found = find_labelled(tmp_path / "rows.parquet")
    assert found.labels == ["3", "7"]
    assert found.values.tolist() == [[1], [2]]
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadInput, match="is not a complete parquet file"):
        find_labelled(tmp_path / "rows.parquet")


def test_labels_that_are_numbers(tmp_path):
    for text, label in (("3", "3"), ("3.0", "3"), ("-3.", "-3"), ("1.10", "1.10"), ("v3.0", "v3.0"), ("inf", "inf")):
        (tmp_path / "rows.csv").write_text(f"a,label\n1,{text}\n")
        assert find_labelled(tmp_path / "rows.csv").labels == [label]


@pytest.mark.parametrize("value", [float("inf"), -float("inf")])
def test_an_infinite_label(tmp_path, value):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"a": [1, 2], "label": [3.0, value]}), tmp_path / "rows.parquet")
    with pytest.raises(BadInput, match=f'must be text or a finite number, got {value} in row 2, column "label"'):
        find_labelled(tmp_path / "rows.parquet")


@pytest.mark.parametrize("name", ["image", "file"])
def test_a_column_of_numbers_is_a_feature_whatever_its_name(tmp_path, name):
    (tmp_path / "rows.csv").write_text(f"{name},label\n0.344,x\n-2e3,y\n")
    found = find_labelled(tmp_path / "rows.csv")
    assert isinstance(found, FeatureRows)
    assert found.names == [name]
    assert isinstance(find_labelled(tmp_path / "rows.csv", path_column=name), PictureFiles)
    (tmp_path / "rows.csv").write_text(f"{name},label\n0.344,x\n,y\n")
    with pytest.raises(BadInput, match=f'column "{name}" of .* must be finite numbers, got "" in row 2'):
        find_labelled(tmp_path / "rows.csv")
    (tmp_path / "rows.csv").write_text(f"{name},label\n7.png,x\n8,y\n")
    assert isinstance(find_labelled(tmp_path / "rows.csv"), PictureFiles)


def test_a_parquet_column_of_numbers_is_a_feature(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pyarrow.table({"image": [0.5, 2.0], "label": ["x", "y"]}), tmp_path / "rows.parquet")
    assert find_labelled(tmp_path / "rows.parquet").values.tolist() == [[0.5], [2.0]]


def test_a_parquet_column_of_lists_is_a_feature_for_each_place(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    def found(**columns):
        parquet.write_table(pyarrow.table({**columns, "label": ["x", "y"]}), tmp_path / "rows.parquet")
        return find_labelled(tmp_path / "rows.parquet")

    given = found(image=[[0.5, 2.0], [1.0, 3.0]], a=[7, 8])
    assert (given.names, given.values.tolist()) == (["image[0]", "image[1]", "a"], [[0.5, 2.0, 7], [1.0, 3.0, 8]])
    for uneven in ([[0.5, 2.0], [1.0]], [[0.5, 2.0], None], [[], []]):
        with pytest.raises(BadInput, match=r'column "e" of .* must hold lists of one length'):
            found(e=uneven)
    with pytest.raises(BadInput, match=r'column "e\[0\]" of .* must hold lists of one length'):
        found(e=[[[0.5]], [[1.0]]])
    with pytest.raises(BadInput, match=r'two columns "e\[0\]"'):
        found(**{"e": [[0.5], [1.0]], "e[0]": [1, 2]})


def test_accents_are_written_in_one_way(tmp_path):
    composed, decomposed = (normalize(form, "café") for form in ("NFC", "NFD"))
    picture(tmp_path / "a" / composed / "0.png")
    picture(tmp_path / "b" / decomposed / "1.png")
    (tmp_path / "rows.csv").write_text(f"a,label\n1,{composed}\n2,{decomposed}\n")
    for place, n in (("a", 1), ("b", 1), ("rows.csv", 2)):
        assert find_labelled(tmp_path / place).labels == [composed] * n


@pytest.mark.filterwarnings("error")
def test_a_number_that_is_too_large(tmp_path):
    (tmp_path / "rows.csv").write_text("a,label\n1,x\n1e39,y\n")
    with pytest.raises(BadInput, match=r'column "a" of .* must be finite numbers, got "1e39" in row 2'):
        find_labelled(tmp_path / "rows.csv")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must have a row of column names"),
        ("a,label\n", "must have a row of column names and at least one row"),
        ("a,label\n1,x\n2\n", "row 2 of .* must have 2 values, as the first line, got 1"),
        ("a,label\n1,x\n2,\n", 'has no label in row 2, column "label"; fill it in'),
        ("a,label\n1,x\nnan,y\n", 'column "a" of .* must be finite numbers, got "nan" in row 2'),
        ("a,label\n1,x\nred,y\n", 'column "a" of .* must be finite numbers, got "red" in row 2'),
        ("a,a,label\n1,1,x\n", 'has two columns "a"'),
        ("label\nx\n", "must have columns of numbers or a column of paths"),
        ("path,label\n,x\n", 'must have a path in row 1, column "path"'),
    ],
)
def test_bad_tables(tmp_path, text, message):
    (tmp_path / "rows.csv").write_text(text)
    with pytest.raises(BadInput, match=message):
        find_labelled(tmp_path / "rows.csv")


def test_columns_follow_the_classifier(tmp_path):
    (tmp_path / "rows.csv").write_text("extra,b,a,label\n9,2,1,x\n")
    found = find_labelled(tmp_path / "rows.csv", known=["a", "b"])
    assert found.values.tolist() == [[1, 2]]
    assert found.notes == ("left out columns that the classifier does not know: extra",)
    (unlabelled,) = find_unlabelled([tmp_path / "rows.csv"], known=["b"])
    assert (unlabelled.values.tolist(), unlabelled.notes) == ([[2]], ())
    with pytest.raises(BadInput, match="feature columns of the classifier; it lacks 1: c"):
        find_labelled(tmp_path / "rows.csv", known=["a", "b", "c"])


@pytest.mark.parametrize("name", ["", "Unnamed: 0", "Unnamed: 0.1", "__index_level_0__"])
def test_row_numbers_of_pandas_are_no_feature(tmp_path, name):
    """Rows in the order of their classes would give the classes away."""
    (tmp_path / "rows.csv").write_text(f"{name},a,label\n0,5,x\n1,4,x\n2,7,y\n")
    found = find_labelled(tmp_path / "rows.csv")
    assert (found.names, found.values.tolist()) == (["a"], [[5], [4], [7]])
    assert found.notes == (f'left out the column "{name}": by its name it numbers the rows',)
    earlier = find_labelled(tmp_path / "rows.csv", known=[name, "a"])  # of an earlier state
    assert (earlier.values.tolist(), earlier.notes) == ([[0, 5], [1, 4], [2, 7]], ())
    later = find_labelled(tmp_path / "rows.csv", known=["a"])
    shown = name or '""'
    assert later.notes == (f"left out columns that the classifier does not know: {shown}",)


@pytest.mark.parametrize("first", [0, 1])
def test_a_column_that_numbers_the_rows_is_said(tmp_path, first):
    rows = "".join(f"{first + row},{row % 2},{10 - row},{'xy'[row // 2]}\n" for row in range(4))
    (tmp_path / "rows.csv").write_text("id,even,down,label\n" + rows)
    found = find_labelled(tmp_path / "rows.csv")
    assert found.names == ["id", "even", "down"]
    assert found.notes == ('the column "id" numbers the rows, and is taken as a feature; remove it if it is none',)


@pytest.mark.parametrize("parts", [("Train", "val"), ("test", "train", "validation"), ("train",)])
def test_the_parts_of_a_data_set_are_no_classes(tmp_path, parts):
    for part in parts:
        for name in ("cat", "dog"):
            picture(tmp_path / "set" / part / name / "0.png")
    with pytest.raises(BadInput, match=r"got the parts of a data set \(.*\); give one of them, as .*set/[Tt]rain: "):
        find_labelled(tmp_path / "set")
    assert find_labelled(tmp_path / "set" / next(p for p in parts if "rain" in p)).labels == ["cat", "dog"]


def test_classes_may_have_the_names_of_parts(tmp_path):
    picture(tmp_path / "a/test/0.png")
    picture(tmp_path / "a/train/deep/0.png")
    assert find_labelled(tmp_path / "a").labels == ["test", "train"]
    picture(tmp_path / "b/train/deep/0.png")
    picture(tmp_path / "b/bus/deep/0.png")
    assert find_labelled(tmp_path / "b").labels == ["bus", "train"]


def test_what_is_to_be_predicted(folders):
    single = folders / "cat/deep/0.png"
    (folders / "list.csv").write_text("file\ndog/deep/1.png\n")
    found = find_unlabelled([single, folders / "dog", folders / "list.csv"])
    assert [len(one.files) for one in found] == [1, 3, 1]
    with pytest.raises(BadInput, match="does not exist"):
        find_unlabelled([folders / "absent.png"])
    (folders / "rows.csv").write_text("a\n1\n")
    with pytest.raises(BadInput, match="must have a column of picture paths; name it by --path"):
        find_unlabelled([folders / "rows.csv"])


def test_the_first_update_fixes_size_and_channels(folders):
    grey = find_labelled(folders)
    assert first_form(grey, None, quiet).shape == (1, 8, 8)
    assert first_form(grey, 12, quiet).shape == (1, 12, 12)
    assert first_form(grey, None, quiet).default_net() == "convnet"
    for name in ("cat", "dog"):
        for number in range(4):
            picture(folders / name / f"large-{number}.png", 9, size=(300, 200), mode="RGB")
    form = first_form(find_labelled(folders), None, quiet)
    assert form.shape == (3, 64, 64)
    assert form.default_net() == "resnet18"


def test_features_are_standardised(tmp_path):
    (tmp_path / "rows.csv").write_text("a,constant,label\n10,7,x\n30,7,y\n")
    found = find_labelled(tmp_path / "rows.csv")
    form = first_form(found, None, quiet)
    assert read_examples(found, form, False, quiet).examples.tolist() == [[-1, 0], [1, 0]]
    assert form == type(form).from_json(form.to_json())
    with pytest.raises(BadInput, match="net must be mlp for features"):
        form.check_net("convnet")
    with pytest.raises(BadInput, match="size is for pictures"):
        first_form(found, 8, quiet)


def test_bad_pictures_are_named_and_counted(folders):
    found = find_labelled(folders)
    form = first_form(found, None, quiet)
    (folders / "cat/deep/1.png").write_bytes(b"no picture")
    (folders / "dog/deep/0.png").unlink()
    named = r"2 of 6 pictures cannot be read: .*1\.png \(not in a format.*\), .*0\.png \(No such file or directory\)"
    with pytest.raises(BadInput, match=named + "; replace or remove them, or leave them out with --skip-bad"):
        read_examples(found, form, False, quiet)
    read = read_examples(found, form, True, quiet)
    assert read.rows == [0, 2, 4, 5]
    assert np.unique(read.examples[1]).tolist() == [40]
    assert read.notes[0].startswith("left out: 2 of 6 pictures cannot be read: ")


def test_colours_in_a_grey_classifier_are_said(folders):
    form = first_form(find_labelled(folders), None, quiet)
    picture(folders / "cat/colour.png", 9, mode="RGB")
    assert read_examples(find_labelled(folders), form, False, quiet).notes == (
        "1 pictures have colours and are read as grey, as all in the first update were grey",
    )


def deep(path, level, n_bits):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((8, 8), round(level * (2**n_bits - 1)), dtype=np.uint16)).save(path)


def test_pictures_of_12_bits_in_files_of_16_are_said(folders):
    for number in range(3):
        deep(folders / "cat" / f"{number}.png", 1 - 0.1 * number, 12)
    found = find_labelled(folders)
    form = first_form(found, None, quiet)
    (note,) = read_examples(found, form, False, quiet).notes
    assert note.startswith("3 pictures of 16 bits use the lowest sixteenth of their values")
    coloured = Form("pictures", (3, 8, 8))
    assert read_examples(found, coloured, False, quiet).notes == (note,)
    deep(folders / "dog/bright.png", 0.2, 16)  # so the others are dark
    assert read_examples(find_labelled(folders), form, False, quiet).notes == ()


def test_pictures_where_features_belong(folders, tmp_path):
    (tmp_path / "rows.csv").write_text("a,label\n10,x\n30,y\n")
    rows, pictures = find_labelled(tmp_path / "rows.csv"), find_labelled(folders)
    with pytest.raises(BadInput, match=r"examples must be pictures, as in the first update .*, got features"):
        read_examples(rows, first_form(pictures, None, quiet), False, quiet)
    with pytest.raises(BadInput, match=r"examples must be features, .* got pictures"):
        read_examples(pictures, first_form(rows, None, quiet), False, quiet)


@pytest.mark.parametrize(
    "odd",
    [
        {"kind": "sounds"},
        {"shape": [0]},
        {"shape": [2.0]},
        {"names": ["x", ["y"]]},
        {"names": ["x"]},
        {"mean": [0.0, "y"]},
        {"mean": [0.0]},
        {"std": [1.0, 0.0]},
        {"std": [1.0, math.nan]},
    ],
    ids=str,
)
def test_a_form_that_no_update_writes_is_refused(odd):
    form = {"kind": "features", "shape": [2], "names": ["x", "y"], "mean": [0.0, 0.0], "std": [1.0, 1.0]}
    assert Form.from_json(form).to_json() == {key: tuple(v) if key != "kind" else v for key, v in form.items()}
    with pytest.raises(BadInput, match="form"):
        Form.from_json(form | odd)
