"""The saved state: versions, rollback, locks; and the previous version whole whatever happens to a writer."""

import errno
import json
import os
import shutil
import signal

import pytest
import torch
from conftest import HANG_SECONDS, hold

import gcr
from gcr import files
from gcr.learner import state_folder
from gcr.learner.state_folder import Busy, Damaged, StateFolder
from gcr.settings import BadInput


def content(number):
    about = {"learner": {"classes": ["cat", "dög"], "number": number, "rate": 0.1}}
    return about, {"net.w": torch.full((3, 4), float(number)), "memory.image": torch.arange(6, dtype=torch.uint8)}


def assert_holds(folder, number, version=None):
    about, tensors = folder.read(version)
    expected_about, expected = content(number)
    assert about == expected_about
    assert tensors.keys() == expected.keys()
    assert all(torch.equal(tensors[name], expected[name]) for name in expected)


@pytest.fixture
def state(tmp_path):
    """Versions 1 and 2."""
    folder = StateFolder(tmp_path / "state")
    assert [folder.write(*content(number)) for number in (1, 2)] == [1, 2]
    return folder


def names(folder):
    return sorted(os.listdir(folder.path))


def test_reads_what_was_written(state):
    assert_holds(state, 2)
    assert_holds(state, 1, version=1)


def test_the_newest_two_are_kept(state):
    state.write(*content(3))
    assert state.versions() == [3, 2]
    assert names(state) == ["version-0002", "version-0003"]


def test_views_and_shared_tensors_are_written(tmp_path):
    base = torch.arange(12.0).view(3, 4)
    folder = StateFolder(tmp_path / "state")
    folder.write({}, {"a": base.t(), "b": base[1:], "c": base})
    _, tensors = folder.read()
    assert torch.equal(tensors["a"], base.t())
    assert torch.equal(tensors["b"], base[1:])


def test_rollback(state):
    assert state.rollback() == 1
    assert_holds(state, 1)
    assert names(state) == ["version-0001"]
    with pytest.raises(BadInput, match="cannot be rolled back: its only version is 1"):
        state.rollback()
    assert state.write(*content(5)) == 2


def test_rollback_of_nothing_makes_nothing(tmp_path):
    with pytest.raises(BadInput, match="it has no version"):
        StateFolder(tmp_path / "state").rollback()
    assert not (tmp_path / "state").exists()


def test_not_a_state(tmp_path):
    with pytest.raises(BadInput, match=r"does not exist; make one with: gcr update"):
        StateFolder(tmp_path / "state").read()
    with pytest.raises(BadInput, match="is not a state"):
        StateFolder(tmp_path).read()
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="a state must be a folder, got the file"):
        StateFolder(tmp_path / "file").write(*content(1))
    with pytest.raises(BadInput, match='must be a new folder or a state, got a folder with "file"'):
        StateFolder(tmp_path).write(*content(1))
    assert os.listdir(tmp_path) == ["file"]


def test_no_such_version(state):
    with pytest.raises(BadInput, match=r"version must be one of 2, 1 in .*, got 7"):
        state.read(7)


@pytest.mark.parametrize(("made", "maker"), [("999.0", "gcr 999.0"), (gcr.__version__, "a later gcr")])
def test_a_newer_format(state, monkeypatch, made, maker):
    with monkeypatch.context() as later:
        later.setattr(state_folder, "FORMAT", state_folder.FORMAT + 1)
        later.setattr(gcr, "__version__", made)
        state.write(*content(3))
    with pytest.raises(BadInput) as caught:
        state.read()
    assert str(caught.value) == (
        f"{state.path}/version-0003/learner.json is of format 2, made by {maker}; this gcr ({gcr.__version__}) reads "
        f"up to format 1: install the newer one, or go back to version 2 with: gcr update {state.path} --rollback, or "
        "read it with Learner.load(…, version=2)"
    )
    assert_holds(state, 2, version=2)
    assert state.rollback() == 2
    assert_holds(state, 2)


def test_a_flipped_format_is_damage(state):
    file = state.path / "version-0002" / "learner.json"
    file.write_text(file.read_text().replace('"format": 1', '"format": 5', 1))
    with pytest.raises(Damaged, match=r"learner.json is damaged \(its checksum is wrong\)"):
        state.read()


def test_a_newer_format_with_nothing_before_it(tmp_path, monkeypatch):
    folder = StateFolder(tmp_path / "state")
    with monkeypatch.context() as later:
        later.setattr(state_folder, "FORMAT", state_folder.FORMAT + 1)
        folder.write(*content(1))
    with pytest.raises(BadInput, match=r"install the newer one$"):
        folder.read()


def cut(file):
    file.write_bytes(file.read_bytes()[:-7])


def flip(file):
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 1
    file.write_bytes(changed)


def edit(file):
    file.write_text(file.read_text().replace("0.1", "0.2"))


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("learner.json", cut),
        ("learner.json", edit),
        ("learner.json", lambda file: file.write_text("[]")),
        ("learner.json", os.unlink),
        ("tensors.safetensors", cut),
        ("tensors.safetensors", flip),
        ("tensors.safetensors", os.unlink),
    ],
)
def test_a_damaged_version_is_named_and_the_one_before_offered(state, name, damage):
    damage(state.path / "version-0002" / name)
    with pytest.raises(Damaged, match=rf"0002/{name} is .*; go back to version 1 with: gcr update ") as caught:
        state.read()
    assert str(caught.value).endswith("state --rollback, or read it with Learner.load(…, version=1)")
    assert state.rollback() == 1
    assert_holds(state, 1)


def test_a_version_copied_as_another_is_named(state):
    shutil.rmtree(state.path / "version-0002")
    shutil.copytree(state.path / "version-0001", state.path / "version-0002")
    with pytest.raises(Damaged, match=r"version-0002 is a copy of version 1; go back to version 1 with: gcr update "):
        state.read()
    assert state.rollback() == 1
    assert_holds(state, 1)


def test_no_rollback_to_a_damaged_version(state):
    flip(state.path / "version-0001" / "tensors.safetensors")
    with pytest.raises(Damaged, match="so version 2 stays"):
        state.rollback()
    assert_holds(state, 2)
    with pytest.raises(Damaged, match="there is no version before it"):
        state.read(1)


def test_a_full_disk_leaves_what_was_there(state, monkeypatch):
    """A tiny disk: it is full after so many bytes, wherever that is."""
    real = open

    class Full:
        def __init__(self, *args):
            self.file = real(*args)

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def write(self, content):
            self.file.write(content[:20])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files, "open", lambda *args: Full(*args) if args[1] == "wb" else real(*args), raising=False)
    with pytest.raises(BadInput, match=r"No space left on device\); what was saved there before is unchanged"):
        state.write(*content(3))
    monkeypatch.undo()
    assert names(state) == ["version-0001", "version-0002"]
    assert_holds(state, 2)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_could_not_be_read_again_is_not_written(state, monkeypatch):
    monkeypatch.setattr(files, "MAX_JSON_BYTES", 5000)
    about = {"learner": {"seed": 0, "classes": ["long " * 1200]}}
    with pytest.raises(BadInput, match=r"at most 5000 bytes .*, most of them in learner.classes; .* is unchanged"):
        state.write(about, {})
    assert names(state) == ["version-0001", "version-0002"]
    assert_holds(state, 2)


def test_killed_at_any_moment(tmp_path):
    """kill -9 before and after every change on disk: the old version or the new one is whole, never anything else."""
    outcomes = set()
    for moment in range(40):
        folder = StateFolder(tmp_path / f"state-{moment}")
        for number in (1, 2):
            folder.write(*content(number))
        child = os.fork()
        if child == 0:
            _write_and_die(folder, moment)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        current = folder.versions()[0]
        assert current in (2, 3)
        assert_holds(folder, current)
        assert_holds(folder, current - 1, version=current - 1)
        outcomes.add(current)
        assert folder.write(*content(current + 1)) == current + 1  # the lock went with the process
        assert names(folder) == [f"version-{n:04d}" for n in (current, current + 1)]  # and its leftovers are swept
        if status == 0:
            break
    assert status == 0  # all moments were tried
    assert moment > 8
    assert outcomes == {2, 3}


def _write_and_die(folder, moment):
    left = moment

    def mortal(function):
        def call(*args, **kwargs):
            nonlocal left
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left -= 1
            return function(*args, **kwargs)

        return call

    try:
        for name in ("fsync", "open", "rename", "mkdir", "rmdir", "unlink"):
            setattr(os, name, mortal(getattr(os, name)))
        state_folder.open = mortal(open)
        folder.write(*content(3))
        os._exit(0)
    except BaseException:
        os._exit(1)


@pytest.fixture
def holder(state):
    process, pipe = hold(StateFolder(state.path).lock)
    yield process, pipe
    process.kill()
    process.join(HANG_SECONDS)


def test_a_locked_state_is_refused_and_says_who_has_it(state, holder):
    with pytest.raises(Busy, match=rf"is being changed by process {holder[0].pid}; try again"):
        state.write(*content(3))
    with pytest.raises(Busy), state.lock():
        pass
    assert_holds(state, 2)  # reading needs no lock


def test_waiting_for_a_lock(state, holder):
    heard = []
    process, pipe = holder

    def on_wait(who):
        heard.append(who)
        pipe.send("go on")

    with state.lock(wait=True, on_wait=on_wait):
        assert state.write(*content(3)) == 3
    assert heard == [f"process {process.pid}"]


def test_a_killed_process_leaves_no_lock(state, holder):
    process, _ = holder
    process.kill()
    process.join(HANG_SECONDS)
    assert process.exitcode == -signal.SIGKILL
    assert state.write(*content(3)) == 3


def test_a_state_replaced_while_it_is_read(state, monkeypatch):
    real, done = state_folder._read_version, []

    def slowly(folder, version):
        if not done:
            done.append(True)
            for number in (3, 4):
                StateFolder(state.path).write(*content(number))
        return real(folder, version)

    monkeypatch.setattr(state_folder, "_read_version", slowly)
    assert_holds(state, 4)


def test_the_json_is_readable(state):
    values = json.loads((state.path / "version-0002/learner.json").read_text())
    assert values["format"] == 1
    assert values["about"] == content(2)[0]
    assert values["tensors"]["bytes"] == (state.path / "version-0002/tensors.safetensors").stat().st_size


@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() == 0, reason="root may read all")
def test_an_unreadable_file(state):
    (state.path / "version-0002/learner.json").chmod(0)
    with pytest.raises(BadInput, match="check its permissions"):
        state.read()
