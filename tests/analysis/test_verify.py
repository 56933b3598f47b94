"""``gcr verify``: every kind of file that a later command believes, whole and with one flipped bit."""

import gzip
import json
import shutil

import made_data
import pytest
import torch
from made_runs import add_epoch, experiment_of, put_run, put_unfinished, square

from gcr.analysis.verify import verify
from gcr.cli.main import run_cli
from gcr.data.source import Part, Source
from gcr.data.writing import write_set
from gcr.files import tensor_bytes
from gcr.learner.state_folder import StateFolder
from gcr.settings import BadInput


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Finished and unfinished runs, a packed file, a cached data set and a state."""
    run = put_run(tmp_path / "runs", experiment_of("er"), square(50.0), memory=True)
    add_epoch(run, 1)
    (run.path / "model.safetensors").write_bytes(tensor_bytes({"net.w": torch.ones(2)}, {"model": "mlp"}))
    going_on = put_unfinished(tmp_path / "runs", experiment_of("gcr"))
    (going_on.path / "checkpoint-000000003.safetensors").write_bytes(tensor_bytes({"step": torch.ones(())}))
    going_on.fail("loss is NaN")
    assert run_cli(["results", "pack", str(tmp_path / "runs"), str(tmp_path / "packed.jsonl.gz")]) == 0
    monkeypatch.setenv("GCR_DATA", str(tmp_path / "cache"))
    parts = [Part.of(*made_data.examples(4, 3, (2, 5, 4), seed=seed)) for seed in range(2)]
    write_set("birds", "made", Source(*parts, (2, 5, 4), ("a", "b", "c")))
    for number in range(2):
        StateFolder(tmp_path / "state").write({"number": number}, {"net.w": torch.ones(2)})
    return tmp_path


def files_of(tree):
    return [file for file in sorted(tree.rglob("*")) if file.is_file()]


def test_a_whole_tree(tree, capfd):
    assert run_cli(["verify", str(tree)]) == 0
    printed = capfd.readouterr()
    n_of_runs = len(files_of(tree / "runs"))
    assert printed.out.endswith(f"{tree}: {n_of_runs + 4} checked, 0 damaged\n")  # packed, data set, two versions
    assert printed.err == ""


def test_a_flipped_bit_in_any_file_is_named_with_a_remedy(tree):
    for file in files_of(tree):
        whole = file.read_bytes()
        for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 3):
            file.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
            (found,) = [one for one in verify(tree) if one.damage]
            if file.parent == tree / "cache/birds" or found.path.parent == tree / "state":
                assert found.path == file.parent
            else:
                assert found.path == file
            assert str(file) in found.damage
            assert "; " in found.damage
        file.write_bytes(whole)
    assert not any(one.damage for one in verify(tree))


def test_the_command_prints_what_is_damaged(tree, capfd):
    (file,) = tree.rglob("result.json")
    file.write_bytes(file.read_bytes().replace(b"50.0", b"51.0", 1))
    for path in (tree, file):
        assert run_cli(["verify", str(path)]) == 1
        printed = capfd.readouterr().out.splitlines()
        assert printed[0] == (f"{file} is damaged (its digest is wrong); move its folder away and train the run again")
        assert printed[1].endswith("checked, 1 damaged")


def test_a_missing_experiment_is_damage(tree):
    (file,) = tree.rglob("result.json")
    file.with_name("experiment.json").unlink()
    (found,) = [one for one in verify(tree) if one.damage]
    assert "experiment.json is missing next to it" in found.damage


def test_a_line_of_a_packed_file_is_checked_behind_its_compression(tree):
    file = tree / "packed.jsonl.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).replace(b"50.0", b"51.0", 1)))
    (found,) = [one for one in verify(file) if one.damage]
    assert found.damage.startswith(f"{file} is damaged (1 lines, first line 2: packed.jsonl.gz is damaged: its digest")


def test_a_line_that_is_being_written_is_no_damage(tree):
    going_on, finished = sorted(tree.rglob("metrics.jsonl"), key=lambda file: file.with_name("result.json").exists())
    for file, damage in ((going_on, False), (finished, True)):
        with open(file, "ab") as opened:
            opened.write(b'{"stage": 1')
        assert any(one.damage for one in verify(file.parent)) == damage


def test_files_of_an_older_gcr_are_counted(tree, capfd, caplog):
    shutil.rmtree(tree / "cache")
    for file in [*tree.rglob("result.json"), *tree.rglob("experiment.json")]:
        values = json.loads(file.read_text())
        del values["digest"]
        file.write_text(json.dumps(values, indent=2) + "\n")
    assert run_cli(["verify", str(tree)]) == 0
    assert capfd.readouterr().out.endswith("0 damaged; 3 of an older gcr carry no digest\n")
    (message,) = caplog.messages
    assert "experiment.json carries no digest, being of an older gcr" in message


def test_what_has_nothing_to_check_is_refused(tmp_path, capfd):
    with pytest.raises(BadInput, match="does not exist"):
        list(verify(tmp_path / "nowhere"))
    assert run_cli(["verify", str(tmp_path)]) == 2
    assert "nothing to check at" in capfd.readouterr().err
