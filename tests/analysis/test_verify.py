"""``gcr verify``: every kind of file that a later command believes, whole and with one flipped bit."""

import gzip
import json
import os
import shutil
from pathlib import Path

import made_data
import pytest
import torch
from made_runs import add_epoch, experiment_of, link_files, put_run, put_unfinished, square

from gcr.analysis.verify import verify
from gcr.cli.main import run_cli
from gcr.data.source import Part, Source
from gcr.data.writing import write_set
from gcr.files import json_bytes, tensor_bytes
from gcr.learner.state_folder import StateFolder
from gcr.runs.folder import AGAIN, RunFolder
from gcr.runs.packed import packed_bytes
from gcr.settings import BadInput


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Finished and unfinished runs, a packed file, a cached data set and a state."""
    run = put_run(tmp_path / "runs", experiment_of("er"), square(50.0), memory=True)
    add_epoch(run, 1)
    (run.path / "model.safetensors").write_bytes(tensor_bytes({"net.w": torch.ones(2)}, {"model": "mlp"}))
    link_files(run)
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
        assert printed[0] == (f"{file} is damaged (its digest is wrong); {AGAIN}")
        assert printed[1].endswith("checked, 1 damaged")


def test_a_missing_experiment_is_damage(tree):
    (file,) = tree.rglob("result.json")
    file.with_name("experiment.json").unlink()
    (found,) = [one for one in verify(tree) if one.damage]
    assert "experiment.json is missing next to it" in found.damage


@pytest.mark.parametrize("name", ["metrics.jsonl", "memory.safetensors", "model.safetensors"])
def test_a_missing_file_and_one_of_another_run_are_named(tree, name):
    (result,) = tree.rglob("result.json")
    file = result.with_name(name)
    file.unlink()
    (found,) = [one for one in verify(tree) if one.damage]
    assert found.damage == f"{file} is missing; {AGAIN}"
    if name == "metrics.jsonl":
        add_epoch(RunFolder(result.parent), 2)
    else:
        file.write_bytes(tensor_bytes({"net.w": torch.zeros(2)}))
    (found,) = [one for one in verify(tree) if one.damage]
    assert found.damage.startswith(f"{file} is damaged (not the file that result.json names); ")


def test_files_without_the_one_that_leads_to_them(tree):
    (result,) = tree.rglob("result.json")
    result.unlink()
    (tree / "cache/birds/about.json").unlink()
    assert {one.damage for one in verify(tree) if one.damage} == {
        f"{result} is missing; {AGAIN}",
        f"{tree / 'cache/birds/about.json'} is missing; get or import the data set again",
    }


def test_a_data_set_that_is_being_made_is_not_damaged(tree):
    shutil.copytree(tree / "cache/birds", tree / "cache/.birds.0a1b2c3d-4711.part")
    (tree / "cache/.birds.0a1b2c3d-4711.part/about.json").unlink()
    assert not any(one.damage for one in verify(tree))


def test_a_run_that_was_killed_before_its_result_is_not_damaged(tree):
    (result,) = tree.rglob("result.json")
    result.unlink()
    checkpoint = result.with_name("checkpoint-000000003.safetensors")
    checkpoint.write_bytes(tensor_bytes({"step": torch.ones(())}))
    assert not any(one.damage for one in verify(tree))


def test_what_a_table_leaves_out_of_a_packed_file_is_damage(tree):
    odd = json.loads(gzip.decompress((tree / "packed.jsonl.gz").read_bytes()).splitlines()[1])
    odd["result"]["class_il"]["accuracy"] = 5000.0
    name, values = odd.pop("path"), {key: odd[key] for key in ("experiment", "result")}
    (tree / "packed.jsonl.gz").write_bytes(packed_bytes([(name, values)]))
    (found,) = [one for one in verify(tree / "packed.jsonl.gz") if one.damage]
    assert "accuracy must be null or from 0 to 100" in found.damage


def test_a_failure_without_a_reason(tree):
    (file,) = tree.rglob("failure.json")
    file.write_bytes(json_bytes({"why": "loss is NaN"}))
    (found,) = [one for one in verify(tree) if one.damage]
    assert "it does not say why the run ended" in found.damage


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_not_waited_for(tree):
    os.mkfifo(tree / "pipe.jsonl.gz")
    (found,) = [one for one in verify(tree) if one.damage]
    assert "not a plain file" in found.damage


def test_a_file_that_the_run_did_not_write(tree):
    (result,) = tree.rglob("result.json")
    file = result.with_name("model.safetensors")
    content = file.read_bytes()
    file.unlink()
    link_files(RunFolder(result.parent))
    file.write_bytes(content)
    (found,) = [one for one in verify(tree) if one.damage]
    assert found.damage.startswith(f"{file} is damaged (result.json does not name it: it is of another run); ")


@pytest.mark.parametrize("name", ["result.json", "experiment.json"])
def test_files_swapped_between_two_seeds(tmp_path, name, capfd):
    for seed in range(3):
        put_run(tmp_path / "runs", experiment_of("er", seed=seed), square(50.0 + seed), memory=True)
    one, other, _ = sorted(tmp_path.rglob(name))
    contents = one.read_bytes(), other.read_bytes()
    other.write_bytes(contents[0])
    one.write_bytes(contents[1])
    found = [one for one in verify(tmp_path) if one.damage]
    of_results = [one for one in found if one.path.name == "result.json"]
    assert [one.path for one in of_results] == [file.with_name("result.json") for file in (one, other)]
    assert all("(result.json is of another run than experiment.json); " in one.damage for one in of_results)
    copies = [one for one in found if one not in of_results]
    assert len(copies) == (2 if name == "experiment.json" else 0)
    assert all("a copy of another run" in one.damage for one in copies)
    assert run_cli(["table", str(tmp_path / "runs"), "--format", "csv"]) == 0
    printed = capfd.readouterr()
    assert "52.0" in printed.out
    assert "50.0" not in printed.out
    assert "51.0" not in printed.out
    assert printed.err.count("left out: ") == printed.err.count("result.json is of another run") == 2


@pytest.mark.parametrize("links", [{"files": 3}, {"files": {"memory.safetensors": 3}}, {"files": {}}])
def test_a_result_with_odd_names_of_files(tree, links):
    (result,) = tree.rglob("result.json")
    link_files(RunFolder(result.parent), **links)
    found = [one for one in verify(tree) if one.damage]
    assert all("\n" not in one.damage and "result.json" in one.damage for one in found)
    assert bool(found) == (links != {"files": {}})


def test_a_line_of_a_packed_file_is_checked_behind_its_compression(tree):
    file = tree / "packed.jsonl.gz"
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()).replace(b"50.0", b"51.0", 1)))
    (found,) = [one for one in verify(file) if one.damage]
    assert found.damage.startswith(f"{file} is damaged (1 line, first line 2: its digest")


def test_lines_of_a_packed_file_that_are_gone_or_of_another_file(tmp_path, capfd):
    files = []
    for number in range(2):
        for seed in range(3):
            put_run(tmp_path / f"runs{number}", experiment_of("er", seed=seed), square(50.0 + seed + 10 * number))
        files.append(tmp_path / f"packed{number}.jsonl.gz")
        assert run_cli(["results", "pack", str(tmp_path / f"runs{number}"), str(files[-1])]) == 0
    one, other = (gzip.decompress(file.read_bytes()).splitlines(keepends=True) for file in files)
    for lines, why in (
        ([*one[:2], *one[3:]], "damaged: 2 runs, of 3 that were packed"),
        ([*one, b"{}\n"], "damaged: 4 runs, of 3 that were packed"),
        ([*one[:2], other[2], one[3]], "damaged: its lines are not those that were packed"),
        ([one[0], one[2], one[1], one[3]], "damaged: its lines are not those that were packed"),
        ([one[0].replace(b'"runs":3', b'"runs":2'), *one[1:3]], "its digest is wrong"),
    ):
        files[0].write_bytes(gzip.compress(b"".join(lines)))
        (found,) = [one for one in verify(files[0]) if one.damage]
        assert found.damage.startswith(f"{files[0]} cannot be read (")
        assert why in found.damage
        assert run_cli(["table", str(files[0])]) == 2
        assert why in capfd.readouterr().err
    old = json.dumps({"format": "gcr-runs", "version": 1}).encode() + b"\n"
    files[0].write_bytes(gzip.compress(b"".join([old, *one[1:3]])))
    assert run_cli(["verify", str(files[0])]) == 0
    assert capfd.readouterr().out.endswith("1 checked, 0 damaged; 1 of an older gcr could be checked in part only\n")


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
    assert capfd.readouterr().out.endswith("0 damaged; 3 of an older gcr could be checked in part only\n")
    (message,) = caplog.messages
    assert "experiment.json carries no digest, being of an older gcr" in message


def test_runs_of_an_older_gcr_that_were_packed_are_counted(tree, capfd):
    for file in (tree / "runs").rglob("experiment.json"):
        values = json.loads(file.read_text())
        del values["digest"]
        file.write_text(json.dumps(values, indent=2) + "\n")
    once, twice = tree / "old.jsonl.gz", tree / "again.jsonl.gz"
    for packed, source in ((once, tree / "runs"), (twice, once)):
        assert run_cli(["results", "pack", str(source), str(packed)]) == 0
        capfd.readouterr()
        assert run_cli(["verify", str(packed)]) == 0
        assert capfd.readouterr().out.endswith("0 damaged; 1 of an older gcr could be checked in part only\n")


def test_a_part_of_a_state_or_a_data_set_stands_for_the_whole(tree, monkeypatch):
    parts = [*files_of(tree / "cache"), *files_of(tree / "state"), *(tree / "state").glob("version-*")]
    parts = [part for part in parts if not part.name.startswith(".")]
    assert len(parts) == 5 + 2 * 2 + 2
    for part in parts:
        (found,) = verify(part)
        assert not found.damage
    (tensors,) = (tree / "state/version-0002").glob("*.safetensors")
    tensors.write_bytes(tensors.read_bytes()[:-1] + b"!")
    monkeypatch.chdir(tensors.parent)
    for part in (tensors, tensors.parent, Path("learner.json")):
        (found,) = verify(part)
        assert found.damage


def test_what_has_nothing_to_check_is_refused(tmp_path, capfd):
    with pytest.raises(BadInput, match="does not exist"):
        list(verify(tmp_path / "nowhere"))
    assert run_cli(["verify", str(tmp_path)]) == 2
    assert "nothing to check at" in capfd.readouterr().err
