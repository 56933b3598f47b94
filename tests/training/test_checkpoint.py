import json
import time

import named
import pytest
import torch
from conftest import SAVING_SECONDS, make_scenario
from hypothesis import given, settings
from hypothesis import strategies as st
from named import Training

from gcr import training as core
from gcr.files import read_tensors, tensor_bytes
from gcr.memory import Policy
from gcr.methods import Er, Finetune, Gcr
from gcr.models import build
from gcr.select import GradApprox
from gcr.settings import BadInput
from gcr.training import Checkpoints, Diverged, How, Stopped, loop
from gcr.training.randomness import torch_randomness


def new_run(folder, identity=None, how=None, lr=0.05, epochs=3, stop=lambda: False):
    saved = Checkpoints(folder, identity or {"seed": 0})
    training = Training(epochs=epochs, lr=lr, batch=8)
    return named.new_run(
        make_scenario(), "mlp", Er(), Policy(buffer=12), training, 0, how or How(), checkpoints=saved, stop=stop
    )


def train_to(run, steps):
    for _ in run.advance():
        if run.state.steps == steps:
            return run
    return run


def test_every_epoch_is_saved_and_two_are_kept(tmp_path):
    train_to(new_run(tmp_path), 8)  # an epoch is 3 steps
    assert [file.name for file in Checkpoints(tmp_path, {}).files()] == [
        "checkpoint-000000006.safetensors",
        "checkpoint-000000003.safetensors",
    ]
    assert not list(tmp_path.glob(".*"))


def saves_of(run, monkeypatch, seconds):
    """The steps at which it saves, on a clock that only saving moves."""
    saved, began = [], time.perf_counter()

    def save(self, state):
        saved.append(state.steps)

    monkeypatch.setattr(loop, "SAVING_SECONDS", SAVING_SECONDS)
    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr(time, "perf_counter", lambda: began + seconds * len(saved))
    train_to(run, -1)  # an epoch is 3 steps, a task 3 epochs, a run 3 tasks
    return saved


def test_slow_checkpoints_at_epochs_ends_are_few(tmp_path, monkeypatch):
    """A run saves there while that took no more than a quarter of a second and a hundredth of its time."""
    assert saves_of(new_run(tmp_path), monkeypatch, 0.0) == list(range(3, 28, 3))
    assert saves_of(new_run(tmp_path), monkeypatch, 0.3) == [3]


@pytest.mark.parametrize("n_runs", [1, 3])
def test_runs_side_by_side_share_the_time_for_checkpoints(tmp_path, monkeypatch, n_runs):
    clock, spent = [0.0], [0.0]

    def save(self, state):
        clock[0] += 0.3
        spent[0] += 0.3

    monkeypatch.setattr(loop, "SAVING_SECONDS", SAVING_SECONDS)
    monkeypatch.setattr(Checkpoints, "save", save)
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])
    going = [new_run(tmp_path, epochs=30).advance() for _ in range(n_runs)]
    while going:
        going = [steps for steps in going if next(steps, None)]
        clock[0] += 1.0
    whole = n_runs * 0.3  # each may be over its quarter of a second, and over its share, by one
    assert whole < spent[0] <= whole + 0.01 * clock[0] + whole
    assert core.Run.training_now == 0


def test_checkpoints_that_were_asked_for_are_made_however_slow(tmp_path, monkeypatch):
    assert saves_of(new_run(tmp_path, how=How(checkpoint_steps=2)), monkeypatch, 0.3) == [
        *(2, 3, 4, 6),  # 3: the one at an epoch's end that was not asked for
        *range(8, 28, 2),
    ]


def test_every_n_steps_on_request(tmp_path):
    train_to(new_run(tmp_path, how=How(checkpoint_steps=2)), 5)
    assert Checkpoints(tmp_path, {}).files()[0].name == "checkpoint-000000004.safetensors"
    resumed = new_run(tmp_path)
    assert (resumed.state.steps, resumed.state.epoch, resumed.state.epoch_steps) == (4, 1, 1)


def test_no_pickle_and_no_spare_row(tmp_path):
    from safetensors.torch import load

    train_to(new_run(tmp_path), 5)
    tensors = load(Checkpoints(tmp_path, {}).files()[0].read_bytes())
    assert len(tensors["memory.label"]) == 12
    assert tensors["memory.seen"].item() == 24


def test_a_truncated_checkpoint_gives_way_to_the_one_before(tmp_path):
    train_to(new_run(tmp_path), 8)
    newest = Checkpoints(tmp_path, {}).files()[0]
    newest.write_bytes(newest.read_bytes()[:-100])
    run = new_run(tmp_path)
    assert run.state.steps == 3
    (remark,) = run.remarks
    assert "checkpoint-000000006.safetensors is not a complete checkpoint" in remark
    assert "the one before" in remark


def test_no_readable_checkpoint_is_a_new_beginning_and_said(tmp_path):
    (tmp_path / "checkpoint-000000003.safetensors").write_bytes(b"nothing")
    run = new_run(tmp_path)
    assert run.state.steps == 0
    assert "starting from the beginning" in run.remarks[-1]


def test_train_warns_of_what_a_user_should_know(tmp_path, scenario):
    (tmp_path / "checkpoint-000000003.safetensors").write_bytes(b"nothing")
    net, training = build("mlp", scenario.image_shape, scenario.n_classes, seed=0), core.Training(epochs=1)
    with pytest.warns(UserWarning, match=r"no whole checkpoint in .*; starting from the beginning"):
        core.train(
            scenario,
            net,
            core.Sgd(net.parameters(), 0.1),
            Finetune(),
            None,
            0,
            training,
            checkpoints=Checkpoints(tmp_path, {}),
        )


def test_a_checkpoint_of_another_run_is_refused(tmp_path):
    train_to(new_run(tmp_path, {"training.lr": 0.1, "version of gcr": "0.1.0"}), 5)
    with pytest.raises(BadInput, match=r"training.lr is 0.1 there, 0.2 here; version of gcr is 0.1.0 there, 0.3 here"):
        new_run(tmp_path, {"training.lr": 0.2, "version of gcr": "0.3"})


def test_a_loss_that_is_no_number_is_placed_and_the_good_checkpoint_stays(tmp_path):
    run = train_to(new_run(tmp_path), 7)
    run.checkpoints.save(run.state)
    broken = new_run(tmp_path, how=How(checkpoint_steps=1))
    with torch.no_grad():
        broken.state.net.head.weight.fill_(torch.nan)
    with pytest.raises(Diverged, match="task 1, epoch 3, step 2"):
        train_to(broken, 99)
    names = [file.name for file in Checkpoints(tmp_path, {}).files()]
    assert names == ["checkpoint-000000007.safetensors", "checkpoint-000000006.safetensors"]


def test_the_header_is_json(tmp_path):
    from safetensors import safe_open

    train_to(new_run(tmp_path), 5)
    with safe_open(Checkpoints(tmp_path, {}).files()[0], "pt") as file:
        about = json.loads(file.metadata()["gcr"])
    assert about["identity"] == {"seed": 0}
    assert about["place"]["steps"] == 3


def rewritten(file, change):
    """With a right digest of what is wrong."""
    about, tensors = read_tensors(file)
    change(about, tensors)
    file.write_bytes(tensor_bytes(tensors, about))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda about, tensors: tensors.pop("step"), "step is missing or of another shape"),
        (lambda about, tensors: tensors["net.head.bias"].fill_(float("nan")), "net.head.bias has NaN, inf or"),
        (
            lambda about, tensors: tensors.update({"memory.label": torch.zeros(3)}),
            "memory.label is missing or of another",
        ),
        (lambda about, tensors: about.pop("identity"), "its header does not say what it is"),
        (lambda about, tensors: about["place"].pop("stage"), "it lacks stage"),
        (lambda about, tensors: about["place"].update(stage=99), "stage 99, epoch 2, step 0 is not in the plan"),
        (lambda about, tensors: about["place"].update(epoch=-1), "epoch must be a whole number >= 0, got -1"),
        (lambda about, tensors: about["place"].update(steps=7), "steps must be those before stage 0, epoch 2, got 7"),
        (lambda about, tensors: about["place"].update(class_il=[[1.0]]), "class_il must be 0 rows of 3 accuracies"),
        (lambda about, tensors: about["place"].update(untrained=None), "untrained must be 2 rows of 3 accuracies"),
        (lambda about, tensors: about["place"].update(selections=3), "selections must be a list of objects"),
        (lambda about, tensors: about["place"].update(seconds="x"), "seconds a number"),
        (lambda about, tensors: about.update(optimizer=3), "optimizer: "),
        (lambda about, tensors: about.update(optimizer=[{"lr": "x"}]), "lr must be a number as 0.05, got 'x'"),
        (lambda about, tensors: about.update(optimizer=[{"step": 3}]), "optimizer: "),
        (lambda about, tensors: tensors["memory.kept"].fill_(99), "kept and pooled of state must be <= capacity"),
        (lambda about, tensors: tensors["memory.label"].fill_(77), "memory.label must be 0 to 5"),
    ],
)
def test_a_damaged_checkpoint_changes_nothing_and_gives_way(tmp_path, change, words):
    train_to(new_run(tmp_path), 8)
    rewritten(Checkpoints(tmp_path, {}).files()[0], change)
    run = new_run(tmp_path)
    assert run.state.steps == 3
    assert words in run.remarks[0]
    assert run.remarks[0].count("checkpoint-000000006.safetensors") == 1


@given(data=st.data())
@settings(max_examples=30)
def test_a_flipped_bit_anywhere_gives_way_to_the_checkpoint_before(two_checkpoints, data):
    newest, whole = two_checkpoints
    place = data.draw(st.one_of(st.integers(0, 900), st.integers(0, len(whole) - 1)))  # the header counts as much
    newest.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << data.draw(st.integers(0, 7))]) + whole[place + 1 :])
    run = new_run(newest.parent)
    assert run.state.steps == 3
    assert f"{newest} is not a complete checkpoint" in run.remarks[0]


@pytest.fixture(scope="module")
def two_checkpoints(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    train_to(new_run(folder), 8)
    newest = Checkpoints(folder, {}).files()[0]
    return newest, newest.read_bytes()


def test_a_checkpoint_without_a_digest_goes_on(tmp_path):
    from safetensors.torch import save_file

    train_to(new_run(tmp_path), 8)
    newest = Checkpoints(tmp_path, {}).files()[0]
    about, tensors = read_tensors(newest)
    save_file(tensors, newest, {"gcr": json.dumps(about)})
    assert new_run(tmp_path).state.steps == 6


def test_a_checkpoint_of_an_earlier_version_leaves_the_learning_rate(tmp_path):
    train_to(new_run(tmp_path), 8)
    rewritten(Checkpoints(tmp_path, {}).files()[0], lambda about, tensors: about.pop("optimizer"))
    run = new_run(tmp_path, lr=0.2)
    assert (run.state.steps, run.state.optimizer.param_groups[0]["lr"]) == (6, 0.2)
    assert not run.remarks


def test_weights_that_are_not_finite_are_not_saved(tmp_path):
    run = new_run(tmp_path)

    def train_and_spoil():
        for _ in run.advance():
            if run.state.steps == 6:
                with torch.no_grad():
                    run.state.net.head.bias.fill_(torch.inf)

    with pytest.raises(Diverged, match="weights are NaN or inf in task 1, epoch 2"):
        train_and_spoil()
    assert [file.name for file in Checkpoints(tmp_path, {}).files()] == ["checkpoint-000000003.safetensors"]


def test_a_run_stops_between_batches_of_its_first_evaluation(tmp_path, monkeypatch):
    """On a CPU that of a large network takes minutes. Nothing is lost by it."""
    monkeypatch.setattr("gcr.training.evaluate.NUMBERS", 1)  # one image a batch
    asked = []
    stopped = new_run(tmp_path, stop=lambda: asked.append(1) or len(asked) == 3)
    with pytest.raises(Stopped):
        train_to(stopped, 1)
    assert (stopped.state.steps, stopped.state.untrained, len(asked)) == (0, [], 3)
    assert not list(tmp_path.iterdir())
    assert train_to(new_run(tmp_path), 3).state.steps == 3


def test_a_run_that_predicts_with_statistics_of_memory_goes_on_the_same(tmp_path):
    """A stage has three epochs of three steps: stopped at its end, just behind it, and at the next one's end."""

    def run(folder, stop=lambda: False):
        policy = Policy(buffer=12, selector=GradApprox(), statistics="memory")
        saved = Checkpoints(folder, {})
        training = Training(epochs=3, lr=0.05, batch=8)
        return named.new_run(
            make_scenario(), "convnet", Gcr(), policy, training, 0, How(), checkpoints=saved, stop=stop
        )

    whole = run(tmp_path / "whole")
    (tmp_path / "whole").mkdir()
    for _ in whole.advance():
        pass
    going = []
    for steps in (9, 10, 18):
        going.append(run(tmp_path, stop=lambda steps=steps: going[-1].state.steps == steps))
        with pytest.raises(Stopped):
            list(going[-1].advance())
        assert going[-1].state.steps == steps
    continued = run(tmp_path)
    assert continued.state.steps == 18
    for _ in continued.advance():
        pass
    assert continued.outcome().class_il == whole.outcome().class_il
    for (name, ours), (_, theirs) in zip(continued.state.tensors(), whole.state.tensors(), strict=True):
        assert torch.equal(ours, theirs), name


@pytest.mark.parametrize("steps", [4, 6, 16])
def test_dropout_follows_seed_and_step(tmp_path, steps):
    others = iter(range(9))

    def run(**options):
        torch.manual_seed(1)
        net = torch.nn.Sequential(
            torch.nn.Flatten(), torch.nn.Linear(36, 16), torch.nn.Dropout(), torch.nn.Linear(16, 6)
        )
        torch.manual_seed(next(others))  # what others draw
        sgd, policy = core.Sgd(net.parameters(), 0.1), Policy(buffer=12, selector=GradApprox(), pool_mode="training")
        training = core.Training(epochs=2, batch=8)
        return core.Run(make_scenario(), net, sgd, Gcr(), policy, 0, training, How(checkpoint_steps=2), **options)

    whole = train_to(run(), -1)
    train_to(run(checkpoints=Checkpoints(tmp_path, {})), steps)
    continued = run(checkpoints=Checkpoints(tmp_path, {}))
    before = torch.get_rng_state()
    train_to(continued, -1)
    assert torch.equal(torch.get_rng_state(), before)
    assert continued.state.class_il == whole.state.class_il
    for a, b in zip(whole.state.net.parameters(), continued.state.net.parameters(), strict=True):
        assert torch.equal(a, b)


def test_torch_draws_other_numbers_for_each_seed_step_and_purpose():
    def drawn(*key, **field):
        with torch_randomness(key, torch.device("cpu"), **field):
            return tuple(torch.rand(3).tolist())

    keys = [(0, 7), (1, 7), (2**32 - 1, 7), (0, 8), (0, 2**32 + 7)]
    found = {drawn(*key) for key in keys} | {drawn(0, 7, field="selection")}
    assert len(found) == 6
    assert drawn(0, 7) in found


def test_extra_state_of_modules_is_refused_with_checkpoints(tmp_path):
    class Version(torch.nn.Flatten):
        def get_extra_state(self):
            return {"version": 1}

        def set_extra_state(self, state):
            pass

    def run(**options):
        net = torch.nn.Sequential(Version(), torch.nn.Linear(36, 6))
        sgd, training = core.Sgd(net.parameters(), 0.1), core.Training(epochs=1)
        return core.Run(make_scenario(), net, sgd, Er(), Policy(buffer=12), 0, training, How(), **options)

    train_to(run(), -1)
    with pytest.raises(BadInput, match=r"checkpoints hold no extra state of modules, got 0\._extra_state; leave"):
        run(checkpoints=Checkpoints(tmp_path, {}))
