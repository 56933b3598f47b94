"""The quick part of the harness of faults; ``make faults`` is the whole of it."""

import gc
import sys
from functools import cache
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "report"))

from children import Tally
from conftest import ROOT
from damage import KINDS, damage_kind, prepared
from not_numbers import bad_data, diverge, out_of_memory
from resealed import reseal_kind
from run import main as main_of_faults
from run import summary
from surroundings import closed_pipe
from together import cost_of, make_many, processes_on_one_folder, two_updates
from victims import VICTIMS, prepare, warm_up
from whole_files import change_lines, exchange
from writes import fail_writes, fill_disk, forbid_writing, kill_victim


@pytest.fixture(scope="module", autouse=True)
def warm():
    warm_up()
    yield
    gc.unfreeze()


@pytest.fixture(scope="module")
def victims(tmp_path_factory):
    """By number, each prepared once: attacks are on copies."""
    return cache(lambda number: prepare(VICTIMS[number], tmp_path_factory.mktemp("victim")))


@pytest.fixture(scope="module")
def bases(tmp_path_factory):
    """What kinds of files are damaged in, made once for all kinds that share it: attacks are on copies."""
    return cache(lambda prepare: prepared(prepare, tmp_path_factory.mktemp("kind")))


def check(tally):
    assert tally.survived == tally.tried > 0, tally.failures


@pytest.mark.parametrize("number", range(len(VICTIMS)), ids=[victim.name for victim in VICTIMS])
def test_killed_and_run_again(number, victims, tmp_path):
    """What is there is whole; in the end equal bits, and nothing is left behind."""
    phases = VICTIMS[number].phases or (VICTIMS[number].name,)
    kills = dict.fromkeys(phases, max(1, 4 // len(phases)))
    tally = kill_victim(victims(number), tmp_path / "work", kills, seed=1)
    check(tally)
    assert tally.measured == kills


@pytest.mark.parametrize("number", range(len(VICTIMS)), ids=[victim.name for victim in VICTIMS])
def test_writing_fails(number, victims, tmp_path):
    """One call in some, each in three ways: a line says so, what was there is whole, and the command can go on."""
    check(fail_writes(victims(number), tmp_path / "work", every=29, first=number))


@pytest.mark.parametrize("attack", [fill_disk, forbid_writing])
def test_a_place_where_nothing_can_be_written(attack, victims, tmp_path):
    for parent in (tmp_path, *list(tmp_path.parents)[:2]):
        parent.chmod(0o755)  # for a child that is another user
    tally = attack(victims(4), tmp_path / "work")
    if not tally.tried:
        pytest.skip("this process may not mount a file system")
    check(tally)


@pytest.mark.parametrize("number", range(len(KINDS)), ids=[kind.name for kind in KINDS])
def test_a_damaged_file_is_named_or_harmless(number, bases, tmp_path):
    check(damage_kind(KINDS[number], tmp_path, 5, seed=1, base=bases(KINDS[number].prepare)))


def test_files_of_other_runs(tmp_path):
    check(exchange(tmp_path, every=11))


def test_lines_of_another_packed_file(tmp_path):
    check(change_lines(tmp_path))


@pytest.mark.parametrize("name", ["results", "packed results", "states", "checkpoints"])
def test_odd_contents_under_a_right_digest(name, bases, tmp_path):
    kind = next(kind for kind in KINDS if kind.name == name)
    check(reseal_kind(kind, tmp_path, 6, seed=1, base=bases(kind.prepare)))


def test_an_attack_that_does_not_exist(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run.py", "--only", "zzz"])
    with pytest.raises(SystemExit, match="2"):
        main_of_faults()
    assert 'got "zzz"' in capsys.readouterr().err


def test_what_was_tried_is_added_up():
    good, bad, none = Tally(tried=3, survived=3, measured={"training": 3}), Tally(tried=2, survived=1), Tally()
    assert summary({"kills": good}) == [
        "kills survived: 3 of 3, 3 training",
        "nothing lost, nothing wrong, nothing let in",
    ]
    assert summary({"kills": good, "failing writes": bad})[-1] == "lost, wrong, let in or not said: failing writes (1)"
    assert summary({"hostile files": none})[-1].startswith("nothing was tried: hostile files")


def test_processes_that_share_a_folder(tmp_path):
    check(processes_on_one_folder(tmp_path, 3, 4, seed=1))


def test_two_updates_of_one_state(tmp_path):
    check(two_updates(tmp_path, 2))


def test_a_run_that_diverges_is_marked_and_in_no_mean(tmp_path):
    check(diverge(tmp_path, places=("loss",), values=(float("nan"),)))


def test_data_that_are_no_numbers(tmp_path):
    check(bad_data(tmp_path))


def test_a_pack_without_room_goes_on_with_one_run_less(tmp_path):
    check(out_of_memory(tmp_path, rooms=(2,)))


@pytest.mark.parametrize("words", ["methods", pytest.param("table runs --format csv", marks=pytest.mark.slow)])
def test_a_pipe_that_is_closed(words, tmp_path):
    """The first needs no torch, which each process would import for seconds."""
    check(closed_pipe(tmp_path, commands=(words,)))


@pytest.mark.slow
def test_cost_of_many_runs(tmp_path):
    make_many(tmp_path / "runs", 2000)
    cost = cost_of("table runs", tmp_path)
    assert cost.code == 0
    assert cost.mebibytes < 500


def test_the_table_in_the_docs():
    """Made from results/measured.json by ``python benchmarks/evidence.py``."""
    from evidence_other import faults

    assert faults() in (ROOT / "docs/faults.md").read_text()
