"""The package's source under the name that git gives it."""

import shutil
import subprocess
from pathlib import Path

import pytest

import gcr
from gcr.runs.provenance import git_tree, source


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_it_is_gits_own_name_of_the_folder(tmp_path):
    for name, text in {"b.py": "x = 1\n", "b/c.py": "", "a-b/d.toml": "é = 1\n", "b0": "0"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o755)

    def git(*words):
        return subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True, text=True).stdout.strip()

    git("init", "-q")
    git("add", "-A")
    tree = git("write-tree")
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "c.pyc").write_bytes(b"1")
    (tmp_path / "gone" / "__pycache__").mkdir(parents=True)  # of a package that was removed
    assert git_tree(tmp_path).hex() == tree
    (tmp_path / "b" / "c.py").write_text("#")
    assert git_tree(tmp_path).hex() != tree


def test_it_is_of_this_package():
    assert source() == git_tree(Path(gcr.__file__).parent).hex()
