"""The file format: what is written is read, and what is not such a file is refused by name."""

import gzip
import json

import pytest

from gcr.runs.packed import BadFile, packed_bytes, read_packed, split_path

HEADER = {"format": "gcr-runs", "version": 1}
LINE = {"path": "er/seed-0", "experiment": {"seed": 0}, "result": {"steps": 9}}


def write(file, *lines):
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    file.write_bytes(gzip.compress("\n".join(texts).encode()))
    return file


def test_what_is_written_is_read(tmp_path):
    values = {"experiment": {"seed": 0}, "result": {"steps": 9}}
    content = packed_bytes([("b/seed-0", values), ("a-b/seed-0", values), ("a/seed-0", values | {"metrics": [{}]})])
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    runs, bad = read_packed(tmp_path / "x.jsonl.gz")
    assert [run.name for run in runs] == ["a/seed-0", "a-b/seed-0", "b/seed-0"]  # as folders are sorted
    assert not bad
    assert runs[0].path == tmp_path / "x.jsonl.gz/a/seed-0"
    assert [len(run.metrics()) for run in runs] == [1, 0, 0]
    assert runs[0].result() == {"steps": 9}
    assert runs[0].experiment_values() == {"seed": 0}
    assert runs[0].memory() is None


def test_equal_runs_give_equal_bytes():
    runs = [("b/seed-0", {"experiment": {}}), ("a/seed-0", {"experiment": {}})]
    assert packed_bytes(runs) == packed_bytes(runs[::-1])
    assert packed_bytes(runs)[4:8] == bytes(4)  # no time in the header


def test_paths_lead_into_the_file(tmp_path):
    file = write(tmp_path / "x.jsonl.gz", HEADER, LINE)
    assert split_path(file) == (file, "")
    assert split_path(file / "er/seed-0") == (file, "er/seed-0")
    assert split_path(tmp_path / "y.jsonl.gz/er") is None
    assert split_path(tmp_path) is None
    (tmp_path / "folder.jsonl.gz").mkdir()
    assert split_path(tmp_path / "folder.jsonl.gz/er") is None


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("{", "Expecting property name"),
        ("[" * 100_000, "levels deep"),
        ([1], "must be a JSON object, got list"),
        ({"experiment": {}}, "path must be like run-name/seed-0, got None"),
        (LINE | {"path": "seed-0"}, "path must be like run-name/seed-0"),
        (LINE | {"path": "/etc/seed-0"}, "path must be like"),
        (LINE | {"path": "er/../seed-0"}, "path must be like"),
        (LINE | {"experiment": 3}, "experiment of er/seed-0 must be a JSON object"),
        ({"path": "er/seed-0", "experiment": {}}, "result of er/seed-0 must be a JSON object"),
        (LINE | {"metrics": {}}, "metrics of er/seed-0 must be a JSON array"),
    ],
)
def test_a_bad_line_is_named_and_the_others_stand(tmp_path, line, why):
    runs, (bad,) = read_packed(write(tmp_path / "x.jsonl.gz", HEADER, line, LINE, ""))
    assert [run.name for run in runs] == ["er/seed-0"]
    assert bad.number == 2
    assert why in bad.why


def test_a_run_that_is_there_twice(tmp_path):
    runs, (bad,) = read_packed(write(tmp_path / "x.jsonl.gz", HEADER, LINE, LINE))
    assert len(runs) == 1
    assert bad.why == "path er/seed-0 is there twice"


def test_text_that_is_not_utf8(tmp_path):
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(json.dumps(HEADER).encode() + b"\n\xff\xfe\n"))
    runs, bad = read_packed(tmp_path / "x.jsonl.gz")
    assert (len(runs), len(bad)) == (0, 1)


WHOLE = gzip.compress((json.dumps(HEADER) + "\n" + json.dumps(LINE) + "\n").encode())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (WHOLE[:-12], "damaged, cut short, or not packed by gzip"),
        (WHOLE[:20] + bytes([WHOLE[20] ^ 255]) + WHOLE[21:], "cannot be read"),
        (b"no gzip at all", "damaged, cut short, or not packed by gzip"),
        (b"", "no packed runs"),
        (gzip.compress(b""), "no packed runs"),
        (gzip.compress(json.dumps(LINE).encode()), "no packed runs"),
        (gzip.compress(b'{"format": "gcr-runs", "version": 2}'), "format version 2, this gcr knows version 1"),
        (gzip.compress(b'{"format": "gcr-runs", "version": 1}' + b"\n" * 20_000), "too many lines that are no runs"),
        (gzip.compress(b'{"format": "gcr-runs", "version": 1}\n' + b"x" * 2**26), "bytes, or 33554432 in a line"),
    ],
    ids=["cut", "flipped", "not gzip", "nothing", "empty", "no header", "newer", "blank lines", "a long line"],
)
def test_a_file_that_cannot_be_read_is_refused(tmp_path, content, why):
    (tmp_path / "x.jsonl.gz").write_bytes(content)
    with pytest.raises(BadFile, match=why) as error:
        read_packed(tmp_path / "x.jsonl.gz")
    assert str(error.value).startswith(str(tmp_path / "x.jsonl.gz"))
    assert "\n" not in str(error.value)
