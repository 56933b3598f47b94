"""Files that later commands believe: no damage goes unseen, no crash leaves half a file."""

import errno
import json
import logging
import os
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr import files
from gcr.files import Damaged, json_bytes, parse_json, parse_tensors, tensor_bytes, write_whole

VALUES = {"class_il": {"accuracy": 91.25, "matrix": [[1.0, 2.5]], "forgetting": None}, "steps": 9, "name": 'a\n"é'}
TENSORS = {"image": torch.arange(12, dtype=torch.uint8).reshape(3, 4), "weight": torch.linspace(0.5, 3, 3)}
KINDS = [
    pytest.param(json_bytes(VALUES), lambda content: parse_json(content, "f"), id="json"),
    pytest.param(json_bytes(VALUES, indent=None), lambda content: parse_json(content, "f"), id="line"),
    pytest.param(json_bytes({}), lambda content: parse_json(content, "f"), id="empty"),
    pytest.param(tensor_bytes(TENSORS, VALUES), lambda content: parse_tensors(content, "f"), id="tensors"),
    pytest.param(tensor_bytes({}), lambda content: parse_tensors(content, "f"), id="no tensors"),
]


def test_what_is_written_is_read():
    assert parse_json(json_bytes(VALUES), "f") == VALUES
    assert json_bytes(VALUES, indent=None).count(b"\n") == 1
    about, tensors = parse_tensors(tensor_bytes(TENSORS, VALUES), "f")
    assert about == VALUES
    assert tensors.keys() == TENSORS.keys()
    assert all(torch.equal(tensors[name], TENSORS[name]) for name in TENSORS)


@pytest.mark.parametrize(("content", "read"), KINDS)
def test_every_flipped_bit_is_seen(content, read):
    for place in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[place] ^= 1 << bit
            with pytest.raises(Damaged, match="f is damaged"):
                read(bytes(damaged))


@pytest.mark.parametrize(("content", "read"), KINDS)
def test_every_missing_and_added_end_is_seen(content, read):
    for damaged in [*(content[:end] for end in range(len(content))), *(content + b" " * n for n in range(1, 300))]:
        with pytest.raises(Damaged):
            read(damaged)


@pytest.mark.parametrize(("content", "read"), KINDS)
@given(data=st.data())
def test_overwritten_stretches_are_seen(content, read, data):
    start = data.draw(st.integers(0, len(content) - 1))
    length = data.draw(st.integers(1, 64))
    over = data.draw(st.one_of(st.just(bytes(length)), st.binary(min_size=length, max_size=length)))
    damaged = content[:start] + over[: len(content) - start] + content[start + length :]
    if damaged != content:
        with pytest.raises(Damaged):
            read(damaged)


@pytest.mark.parametrize(("content", "read"), KINDS[:2])
def test_swapped_blocks_are_seen(content, read):
    """Also where a part of the digest's own name lies in another place then."""
    size = 64
    for one in range(len(content) - size + 1):
        for other in range(one + size, len(content) - size + 1):
            between = content[one + size : other]
            damaged = content[other : other + size] + between + content[one : one + size]
            with pytest.raises(Damaged, match="f is damaged"):
                read(content[:one] + damaged + content[other + size :])


@settings(max_examples=50)
@given(
    st.dictionaries(
        st.text(max_size=5).filter(lambda key: key != "digest"),
        st.recursive(st.none() | st.floats() | st.text(max_size=9), lambda inner: st.lists(inner, max_size=3)),
        max_size=4,
    )
)
def test_any_values_come_back(values):
    assert repr(parse_json(json_bytes(values), "f")) == repr(json.loads(json.dumps(values)))


def test_a_text_that_looks_like_a_digest_is_only_text():
    values = {"name": '"digest": "sha256:' + "0" * 64 + '"'}
    assert parse_json(json_bytes(values), "f") == values


def test_files_of_an_older_gcr_load_with_one_line(caplog):
    from safetensors.torch import save

    files.unchecked.clear()
    with caplog.at_level(logging.WARNING):
        assert parse_json(json.dumps(VALUES).encode(), "old/result.json") == VALUES
        assert parse_json(b'{"a": 1}', "old/other.json") == {"a": 1}
        about, tensors = parse_tensors(save(TENSORS), "old/memory.safetensors")
    assert about == {}
    assert torch.equal(tensors["weight"], TENSORS["weight"])
    assert caplog.messages == [
        "old/result.json carries no digest, being of an older gcr; it and others like it are read unchecked"
    ]


@pytest.mark.parametrize("content", [b"", b"null", b"[1]", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_object_is_damaged(content):
    with pytest.raises(Damaged):
        parse_json(content, "f")
    with pytest.raises(Damaged):
        parse_tensors(content, "f")
    with pytest.raises(Damaged):
        parse_tensors(b"\xff" * 8 + content, "f")


def dead_process():
    process = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, text=True)
    return int(process.stdout)


def test_leftovers_of_dead_processes_go_and_others_stay(tmp_path):
    here, dead = files._this_machine(), dead_process()
    elsewhere = f"{int(here, 16) ^ 1:08x}"
    of_dead = tmp_path / f".result.json.{here}-{dead}.part"
    stay = [
        tmp_path / name
        for name in (
            f".result.json.{here}-{os.getppid()}.part",
            f".result.json.{elsewhere}-{dead}.part",
            f".other.json.{here}-{dead}.part",
            "result.json.part",
        )
    ]
    for file in [of_dead, *stay]:
        file.write_bytes(b"")
    write_whole(tmp_path / "result.json", b"whole")
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "result.json", *stay])
    files.sweep(tmp_path)
    assert not stay[2].exists()
    assert stay[0].exists()


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_file_before_and_nothing_else(tmp_path, monkeypatch, call):
    def fail(*arguments):
        raise OSError(28, "No space left on device")

    file = tmp_path / "result.json"
    write_whole(file, b"before")
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, b"after")
    assert file.read_bytes() == b"before"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_a_file_is_synced_before_it_is_renamed_and_its_folder_after(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(
        os, "fsync", lambda number: (calls.append(os.readlink(f"/proc/self/fd/{number}")), fsync(number))
    )
    monkeypatch.setattr(os, "replace", lambda old, new: (calls.append("rename"), replace(old, new)))
    write_whole(tmp_path / "result.json", b"whole")
    assert calls == [str(tmp_path / f".result.json.{files.this_process()}.part"), "rename", str(tmp_path)]


@pytest.mark.parametrize(("number", "raised"), [(errno.EINVAL, False), (errno.EACCES, False), (errno.EIO, True)])
def test_a_folder_that_cannot_be_synced_is_no_error_but_a_broken_disk_is(tmp_path, monkeypatch, number, raised):
    def fail(*arguments):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "open", fail)
    with pytest.raises(OSError, match="Input/output error") if raised else nullcontext():
        write_whole(tmp_path / "result.json", b"whole")
    assert (tmp_path / "result.json").read_bytes() == b"whole"


def test_a_line_that_cannot_be_added_is_taken_back(tmp_path, monkeypatch):
    file = tmp_path / "metrics.jsonl"
    files.append_line(file, b"first\n")

    def fail(number):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            files.append_line(file, b"second\n")
    assert file.read_bytes() == b"first\n"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_in_place_of_a_file_is_no_wait(tmp_path):
    os.mkfifo(tmp_path / "memory.safetensors")
    for read in (files.read_tensors, files.read_json):
        with pytest.raises(Damaged, match="not a regular file"):
            read(tmp_path / "memory.safetensors")
