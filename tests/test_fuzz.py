"""Every reader of files, a few damaged files each; ``make fuzz`` tries them for minutes."""

import tempfile
from functools import cache
from pathlib import Path

import pytest
from fuzz_readers import READERS, attack
from hypothesis import given, settings
from hypothesis import strategies as st

SLOW = ("parquet", "table", "pictures", "runs", "packed", "packed-gz", *(name for name in READERS if READERS[name].odd))


@cache
def sound_files(name):
    return READERS[name].files()


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused(name):
    """Any error but BadInput fails."""

    @settings(max_examples=3 if name in SLOW else 15, derandomize=True, database=None)
    @given(st.randoms(use_true_random=False))
    def try_one(rng):
        with tempfile.TemporaryDirectory() as folder:
            assert attack(READERS[name], sound_files(name), Path(folder), rng) in ("read", "refused")

    try_one()


@pytest.mark.parametrize("name", READERS)
def test_sound_files_are_read(name, tmp_path):
    """What is refused above is refused for its damage."""
    for file, content in sound_files(name).items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(READERS[name].pack(file, content))
    READERS[name].read(tmp_path)
