"""Learner.save and load: everything comes back, and a run goes on with equal bits."""

import json
import signal

import pytest
import torch
from conftest import HANG_SECONDS, forked
from made_learners import A, B, C, blobs, mlp, quick, same_weights
from torch import nn

import gcr
from gcr.learner import Learner, StateFolder, engine, state_folder
from gcr.memory import Policy
from gcr.methods import ClsEr, Der, ErAce, Finetune, Gcr, GcrPlus, Mir
from gcr.models import build
from gcr.select import Uniform
from gcr.settings import BadInput


def net_with_dropout(seed=0, n_out=2):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, n_out))


def batches(first, last, turn=20):
    """A new class from batch ``turn`` on."""
    for number in range(first, last):
        labels = (A, B) if number < turn else (B, C)
        yield blobs(labels, n=6, seed=number)


def equal_states(one, other):
    (about, tensors), (their_about, their_tensors) = one.state(), other.state()
    assert json.loads(json.dumps(about)) == json.loads(json.dumps(their_about))
    assert tensors.keys() == their_tensors.keys()
    for name in tensors:
        torch.testing.assert_close(tensors[name], their_tensors[name], rtol=0, atol=0, equal_nan=True)


METHODS = [ErAce(), Der(), Finetune(), ClsEr(), Mir(), Gcr(), GcrPlus()]
CASES = [("adamw", None, method) for method in METHODS]
CASES += [("adam", quick, Gcr()), ("ours", lambda p: gcr.Sgd(p, 0.05, 1e-4), Gcr())]


@pytest.mark.parametrize(
    ("optimizer", "method"), [case[1:] for case in CASES], ids=[f"{name}-{method.name}" for name, _, method in CASES]
)
def test_a_loaded_learner_goes_on_with_equal_bits(optimizer, method, tmp_path, monkeypatch):
    """Saved after a class came, and after new draws were made; they are made again before the end."""
    monkeypatch.setattr(engine, "AHEAD", 8)
    options = {"memory": 12, "method": method, "optimizer": optimizer, "seed": 5, "class_weight": "balanced"}
    straight = gcr.Learner(net_with_dropout(), **options)
    for x, y in batches(0, 20, turn=6):
        straight.observe(x, y)
    killed = gcr.Learner(net_with_dropout(), **options)
    for x, y in batches(0, 10, turn=6):
        killed.observe(x, y)
    killed.save(tmp_path / "state")
    torch.manual_seed(99)
    loaded = gcr.Learner.load(tmp_path / "state", net_with_dropout(seed=7))
    for x, y in batches(10, 20, turn=6):
        loaded.observe(x, y)
    equal_states(straight, loaded)
    x, _ = blobs([A, B, C])
    assert (straight.predict(x) == loaded.predict(x)).all()


def test_only_a_class_balanced_reservoir_is_resized():
    for given in ({"method": Finetune()}, {"memory": gcr.GCR(memory=12).memory}):
        with pytest.raises(BadInput, match="resize is for memory in a class-balanced reservoir"):
            gcr.Learner(mlp(), **given).resize(20)


@pytest.mark.parametrize("method", [ErAce(), GcrPlus()], ids=lambda method: method.name)
def test_memory_of_another_size_goes_on_and_is_loaded_with_equal_bits(method, tmp_path):
    learner = gcr.Learner(net_with_dropout(), 12, method=method, optimizer=quick)
    learner.resize(14)  # before it has seen anything
    for x, y in batches(0, 10, turn=6):
        learner.observe(x, y)
    held = {tuple(row) for row in learner.memory.examples.tolist()}
    assert len(held) == 14
    learner.resize(30)
    assert {tuple(row) for row in learner.memory.examples.tolist()} == held
    learner.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", net_with_dropout(1), optimizer=quick)
    for one in (learner, loaded):
        for x, y in batches(10, 20, turn=6):
            one.observe(x, y)
    equal_states(learner, loaded)
    assert len(loaded.memory) == 30
    loaded.resize(6)
    assert {*loaded.memory.counts().values()} == {2}
    with pytest.raises(BadInput, match="memory must be a whole number >= 3, got 2"):
        loaded.resize(2)


def test_a_full_memory_names_the_remedy():
    learner = gcr.Learner(mlp(), 2, optimizer=quick).fit(*blobs([A, B]), epochs=1)
    with pytest.raises(BadInput, match="use a larger memory, by resize"):
        learner.fit(*blobs([C]), epochs=1)
    learner.resize(3)
    assert {*learner.fit(*blobs([C]), epochs=1).memory.counts().values()} == {1}


def test_memory_of_another_size_is_as_wide_as_a_head_that_was_replaced():
    learner = gcr.Learner(mlp(), 4).fit(*blobs([A, B]), epochs=1)
    learner.net[-1] = nn.Linear(learner.net[-1].in_features, 5)
    learner.resize(6)
    assert learner.memory.logits.shape == (4, 5)


def test_a_selected_memory_goes_on_with_equal_bits(tmp_path):
    recipe = gcr.GCR.paper(memory=8)
    straight = gcr.Learner(mlp(), memory=recipe.memory, method=Gcr(gamma=0.0))
    straight.fit(*blobs([A, B]), epochs=2)
    straight.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", mlp(seed=3))
    for learner in (straight, loaded):
        learner.fit(*blobs([C]), epochs=2)
    equal_states(straight, loaded)


def test_only_the_last_selections_are_described_and_the_next_follows_their_number(tmp_path, monkeypatch):
    policy = Policy(buffer=6, selector=Uniform(), every=12)
    straight = gcr.Learner(mlp(), policy)
    for x, y in batches(0, 8):
        straight.observe(x, y)
    monkeypatch.setattr(engine, "KEPT_SELECTIONS", 2)
    learner = gcr.Learner(mlp(), policy)
    for x, y in batches(0, 5):
        learner.observe(x, y)
    assert len(learner.state()[0]["place"]["selections"]) == 2
    learner.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", mlp(seed=1))
    for x, y in batches(5, 8):
        loaded.observe(x, y)
    (about, tensors), (_, theirs) = straight.state(), loaded.state()
    assert len(about["place"]["selections"]) == tensors["memory.updates"] == theirs["memory.updates"] == 8
    assert torch.equal(tensors["memory.image"], theirs["memory.image"])
    of_older = gcr.Learner.from_state(about, tensors, mlp(seed=1))
    assert of_older.state()[0]["place"]["selections"] == about["place"]["selections"][-2:]


def test_killed_in_the_middle_of_a_task(tmp_path):
    path = str(tmp_path / "state")

    def learn(pipe):
        learner = gcr.Learner(net_with_dropout(), memory=12, seed=5)
        for number, (x, y) in enumerate(batches(0, 80)):
            learner.observe(x, y)
            if number == 40:
                learner.save(path)
            if number == 50:
                pipe.send("now")
                pipe.recv()

    child, pipe = forked(learn)
    assert pipe.recv() == "now"
    child.kill()
    child.join(HANG_SECONDS)
    assert child.exitcode == -signal.SIGKILL
    loaded = gcr.Learner.load(path, net_with_dropout(seed=7))
    straight = gcr.Learner(net_with_dropout(), memory=12, seed=5)
    threads = torch.get_num_threads()
    for x, y in batches(0, 80):
        straight.observe(x, y)
    for x, y in batches(41, 80):
        loaded.observe(x, y)
    assert torch.get_num_threads() == threads
    equal_states(straight, loaded)


def test_everything_that_was_said_comes_back(tmp_path):
    learner = gcr.Learner(
        mlp(),
        memory=9,
        clip=2.0,
        class_weight={("a", 1): 2.0},
        seed=4,
        augment=None,
        optimizer=lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True),
    )
    learner.fit(blobs([A, B])[0], [("a", 1)] * 40 + [("b", 2)] * 40, epochs=1)
    learner.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", mlp(seed=2, n_out=7))
    assert loaded.classes == [("a", 1), ("b", 2)]
    assert loaded.net[2].out_features == 2
    group = loaded.optimizer.param_groups[0]
    assert (group["lr"], group["momentum"], group["nesterov"]) == (0.1, 0.9, True)
    assert (loaded.clip, loaded.augment, loaded.seed) == (2.0, None, 4)
    equal_states(learner, loaded)


@pytest.mark.parametrize(
    "groups",
    [
        lambda net: [{"params": [net[0].bias, net[2].bias], "lr": 0.2}, {"params": [net[2].weight, net[0].weight]}],
        lambda net: list(net[2].parameters()),
    ],
    ids=["reversed", "head alone"],
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_groups_of_parameters_come_back(groups, momentum, tmp_path):
    def make(net):
        return torch.optim.SGD(groups(net), lr=0.05, momentum=momentum)

    net, other = mlp(), mlp(seed=9)
    straight = gcr.Learner(net, memory=12, optimizer=make(net))
    for x, y in batches(0, 25):
        straight.observe(x, y)
    straight.save(tmp_path / "state")
    for learner in (straight, gcr.Learner.load(tmp_path / "state", other)):
        for x, y in batches(25, 40):
            learner.observe(x, y)
    assert same_weights(net, other)


def test_layers_that_are_unfrozen_after_loading_are_no_more_than_before_those_of_the_users_optimizer(tmp_path):
    nets = mlp(), mlp()
    for net in nets:
        net[0].requires_grad_(False)
    learner = gcr.Learner(nets[0], memory=12, optimizer=torch.optim.SGD(nets[0][2].parameters(), lr=0.05))
    learner.observe(*blobs([A, B]))
    learner.save(tmp_path)
    for each, net in ((learner, nets[0]), (gcr.Learner.load(tmp_path, nets[1]), nets[1])):
        net[0].requires_grad_(True)
        each.observe(*blobs([A, B]))
        assert torch.equal(net[0].weight, mlp()[0].weight)


def test_an_optimizer_of_the_loaded_network_is_taken(tmp_path):
    path = saved(tmp_path, optimizer=lambda p: torch.optim.Adam(p, 0.01))
    net = mlp(n_out=5)
    optimizer = torch.optim.Adam(net.parameters(), 0.01)
    loaded = gcr.Learner.load(path, net, optimizer=optimizer)
    before = net[2].weight.detach().clone()
    loaded.observe(*blobs([A, B]))
    assert not torch.equal(net[2].weight, before)


def of_equal_shapes():
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))


def remembered(learner):
    state = learner.engine.state.optimizer.state
    return {name: state[parameter]["exp_avg"] for name, parameter in learner.net.named_parameters()}


@pytest.mark.parametrize(
    "given",
    [
        lambda net: lambda parameters: torch.optim.AdamW(parameters, 1e-4),
        lambda net: torch.optim.AdamW([*net.parameters()][::-1]),
        lambda net: torch.optim.AdamW([{"params": [*net[2].parameters()]}, {"params": [*net[:2].parameters()]}]),
    ],
    ids=["function", "reversed", "groups"],
)
def test_a_given_optimizer_remembers_by_the_names_of_parameters(given, tmp_path):
    """Layers that were unfrozen later come behind the others in the saved one."""
    x, y, net = torch.rand(6, 8), [0, 1, 2, 3, 4, 5], of_equal_shapes()
    net[0].requires_grad_(False)
    learner = gcr.Learner(net, 20, optimizer=torch.optim.AdamW, classes=range(8))
    learner.observe(x, y)
    net[0].requires_grad_(True)
    learner.observe(x, y)
    learner.save(tmp_path)
    other = of_equal_shapes()
    loaded = gcr.Learner.load(tmp_path, other, optimizer=given(other))
    for name, moment in remembered(learner).items():
        assert torch.equal(remembered(loaded)[name], moment)


def test_a_given_optimizer_holds_what_the_saved_one_remembers(tmp_path):
    net = of_equal_shapes()
    learner = gcr.Learner(net, 20, optimizer=torch.optim.AdamW, classes=range(8))
    learner.observe(torch.rand(3, 8), [0, 1, 2])
    learner.save(tmp_path)
    other = of_equal_shapes()
    with pytest.raises(BadInput, match=r"it held 0\.(weight|bias), which this one does not"):
        gcr.Learner.load(tmp_path, other, optimizer=torch.optim.AdamW(other[1:].parameters()))


def one_cycle(optimizer, steps):
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=steps)


@pytest.mark.parametrize("schedule", [torch.optim.lr_scheduler.CosineAnnealingLR, one_cycle])
def test_a_checkpoint_within_a_schedule_has_the_rates_of_the_optimizer(schedule, tmp_path):
    def save(learner, epoch):
        assert learner.optimizer.param_groups[0]["lr"] != 1e-3
        learner.save(tmp_path / "state")

    learner = gcr.Learner(mlp(), 10).fit(*blobs([A, B]), epochs=1, schedule=schedule, on_epoch=save)
    loaded = gcr.Learner.load(tmp_path / "state", mlp(seed=1))
    own, theirs = ({**each.optimizer.param_groups[0], "params": None} for each in (learner, loaded))
    assert own == theirs
    assert (own["lr"], own["betas"]) == (1e-3, (0.9, 0.999))


def test_the_version_before_is_kept(tmp_path):
    learner = gcr.Learner(mlp(), memory=5)
    for x, y in batches(0, 3):
        learner.observe(x, y)
        learner.save(tmp_path / "state")
    assert StateFolder(tmp_path / "state").versions() == [3, 2]
    assert gcr.Learner.load(tmp_path / "state", mlp(), version=2).engine.state.steps == 2


def test_a_frozen_learner_comes_back(tmp_path):
    learner = gcr.Learner(mlp(), memory=5, frozen=True).fit(*blobs([A, B]), epochs=2)
    learner.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", mlp(seed=4)).fit(*blobs([C]), epochs=2)
    learner.fit(*blobs([C]), epochs=2)
    equal_states(learner, loaded)


def saved(tmp_path, **options):
    learner = gcr.Learner(mlp(), memory=5, **options).fit(*blobs([A, B]), epochs=1)
    learner.save(tmp_path / "state")
    return tmp_path / "state"


class Home(torch.optim.SGD):
    pass


@pytest.mark.parametrize(
    ("options", "load", "message"),
    [
        ({}, lambda path: gcr.Learner.load(path, mlp(width=9)), r"0.weight is \(16, 8\) there, \(9, 8\)"),
        ({}, lambda path: gcr.Learner.load(path, nn.Linear(8, 2)), "net does not fit the saved state"),
        ({}, lambda path: gcr.Learner.load(path, mlp(n_in=5)), r"0.weight is \(16, 8\) there, \(16, 5\) in net"),
        ({}, lambda path: gcr.Learner.load(path, mlp(), nets=3), "load takes optimizer"),
        ({}, lambda path: gcr.Learner.load(path / "other", mlp()), "does not exist"),
        ({"augment": lambda x: x}, lambda path: gcr.Learner.load(path, mlp()), "augment must be given to load"),
        ({"optimizer": lambda p: Home(p, 0.1)}, lambda path: gcr.Learner.load(path, mlp()), "given to load: Home"),
    ],
)  # fmt: skip
def test_what_cannot_be_loaded(options, load, message, tmp_path):
    with pytest.raises(BadInput, match=message):
        load(saved(tmp_path, **options))


def test_what_a_file_cannot_hold_is_given_again(tmp_path):
    path = saved(tmp_path, augment=lambda x: x, optimizer=lambda p: Home(p, 0.1, momentum=0.9))
    loaded = gcr.Learner.load(path, mlp(), augment=lambda x: x, optimizer=lambda p: Home(p, 0.1, momentum=0.9))
    loaded.observe(*blobs([A, B]))


def test_a_new_learner_cannot_be_saved(tmp_path):
    with pytest.raises(BadInput, match="seen nothing"):
        gcr.Learner(mlp()).save(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_a_damaged_state_offers_the_version_before(tmp_path):
    learner = gcr.Learner(mlp(), memory=5).fit(*blobs([A, B]), epochs=1)
    learner.save(tmp_path / "state")
    learner.save(tmp_path / "state")
    file = tmp_path / "state/version-0002/tensors.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(BadInput, match=r"damaged .* version 1"):
        gcr.Learner.load(tmp_path / "state", mlp())
    assert same_weights(gcr.Learner.load(tmp_path / "state", mlp(seed=1), version=1).net, learner.net)


WRONG = [
    (("place", "batch"), 10**15),
    (("outputs",), 10**15),
    (("outputs",), -1),
    (("layout",), None),
    (("memory",), []),
    (("classes",), 3),
    (("place",), {}),
    (("seed",), "one"),
]


@pytest.mark.parametrize(("where", "value"), WRONG, ids=lambda value: str(value)[:20])
def test_a_whole_state_with_values_of_another_kind_is_refused(where, value, tmp_path):
    gcr.Learner(mlp(), memory=4).fit(*blobs([A, B]), epochs=1).save(tmp_path / "state")
    (file,) = tmp_path.glob("state/version-*/learner.json")
    values = json.loads(file.read_text())
    del values["sha256"]
    inside = values["about"]["learner"]
    for key in where[:-1]:
        inside = inside[key]
    inside[where[-1]] = value
    file.write_text(json.dumps(values | {"sha256": state_folder._own_hash(values)}))
    with pytest.raises(BadInput):
        gcr.Learner.load(tmp_path / "state", mlp())


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda about, tensors: about["place"].update(batch=-1), "place.batch must be a whole number >= 0, got -1"),
        (lambda about, tensors: about["place"].update(offered=3), "place.offered must be true or false"),
        (lambda about, tensors: about["layout"].update(kind="x"), "layout.kind must be one of tensor, tuple, dict"),
        (lambda about, tensors: about["layout"]["parts"][0].update(shape=[10**9]), "layout.parts must have a shape of"),
        (lambda about, tensors: about["layout"]["parts"][0].update(shape=[3]), "layout.parts must be those of memory"),
        (lambda about, tensors: about["layout"]["parts"][0].update(name="x"), "layout.parts of a tensor must have the"),
        (lambda about, tensors: about.update(classes=[]), "classes must not be empty"),
        (lambda about, tensors: about["optimizer"]["groups"][0].update(differentiable=None), "must be true or false"),
        (
            lambda about, tensors: about["optimizer"]["groups"][0].update(weight_decay=True),
            "weight_decay must be a number",
        ),
        (lambda about, tensors: about["optimizer"]["groups"][0].update(lr="x"), "optimizer.lr must be a number"),
        (lambda about, tensors: about["optimizer"]["groups"][0].pop("eps"), "optimizer lacks eps"),
        (lambda about, tensors: about["optimizer"]["groups"][0].update(foreach=3), "optimizer.foreach must be true or"),
        (lambda about, tensors: about.update(augment={"views": {"mean": -1, "std": [1]}}), "views.mean must be finite"),
        (lambda about, tensors: tensors["memory.label"].fill_(9), "memory.label must be 0 to 1"),
        (lambda about, tensors: about["memory"].update(buffer=2**31), "memory.candidates are not its rows"),
        (lambda about, tensors: tensors["memory.kept"].fill_(-1), "kept of state must be one whole number >= 0"),
        (lambda about, tensors: tensors.pop("memory.task"), "memory.task is missing or of another shape"),
    ],
)
def test_a_whole_state_with_odd_values_is_named(tmp_path, change, why):
    learner = Learner(mlp(), 12, optimizer=quick)
    learner.fit(*blobs([A, B], n=8), epochs=1)
    about, tensors = learner.state()
    about = json.loads(json.dumps(about))
    change(about, tensors)
    StateFolder(tmp_path / "state").write({"learner": about}, tensors)
    with pytest.raises(BadInput) as error:
        Learner.load(tmp_path / "state", mlp())
    assert str(error.value).startswith(f"{tmp_path / 'state'} cannot be read by this gcr (")
    assert why in str(error.value)
    assert str(error.value).endswith("; load it with the gcr that made it")


@pytest.mark.parametrize("name", ["0.exp_avg", "1.step"])
def test_an_optimizer_that_lacks_something(tmp_path, name):
    learner = Learner(mlp(), 12, optimizer=quick)
    learner.fit(*blobs([A, B], n=8), epochs=1)
    about, tensors = learner.state()
    for changed in ({}, {f"optimizer.{name}": torch.full((7, 7), 1.0)}, {f"optimizer.{name}": torch.tensor(-1)}):
        held = {key: tensor for key, tensor in tensors.items() if key != f"optimizer.{name}"} | changed
        StateFolder(tmp_path / "state").write({"learner": about}, held)
        with pytest.raises(BadInput, match=f"optimizer does not fit the saved one .*{name[1:]}"):
            Learner.load(tmp_path / "state", mlp())


def test_an_optimizer_that_lacks_something_of_every_parameter(tmp_path):
    learner = Learner(mlp(), 12, optimizer=quick)
    learner.fit(*blobs([A, B], n=8), epochs=1)
    about, tensors = learner.state()
    held = {key: tensor for key, tensor in tensors.items() if not key.endswith("exp_avg_sq")}
    StateFolder(tmp_path / "state").write({"learner": about}, held)
    with pytest.raises(BadInput, match=r"optimizer does not fit the saved one \(\d\.exp_avg_sq is missing\)"):
        Learner.load(tmp_path / "state", mlp())
    about["optimizer"]["groups"][0]["amsgrad"] = True
    StateFolder(tmp_path / "state").write({"learner": about}, tensors)
    with pytest.raises(BadInput, match=r"optimizer does not fit the saved one \(\d\.max_exp_avg_sq is missing\)"):
        Learner.load(tmp_path / "state", mlp())


ADAMS = ["Adam", "AdamW", "Adamax", "NAdam", "RAdam"]
OTHERS = ["ASGD", "Adadelta", "Adafactor", "Adagrad", "RMSprop", "Rprop", "SGD"]


@pytest.mark.parametrize("name", ADAMS + OTHERS)
def test_every_optimizer_of_torch_comes_back(tmp_path, name):
    make = getattr(torch.optim, name)
    learner = Learner(mlp(), 12, optimizer=lambda p: make(p, lr=0.01)).fit(*blobs([A, B], n=8), epochs=1)
    learner.save(tmp_path / "state")
    again = Learner.load(tmp_path / "state", mlp(seed=1))
    assert same_weights(learner.fit(*blobs([C], n=8), epochs=1).net, again.fit(*blobs([C], n=8), epochs=1).net)


class Lengths(nn.Module):
    """Reads padded sequences by their lengths, which must not be 0."""

    def __init__(self):
        super().__init__()
        self.words, self.states, self.out = nn.Embedding(50, 4), nn.GRU(4, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, ids, lengths):
        pack = nn.utils.rnn.pack_padded_sequence
        return self.out(self.states(pack(self.words(ids), lengths, batch_first=True, enforce_sorted=False))[1][-1])


class Masked(nn.Module):
    """Attends to the tokens that a mask names, of which there must be one."""

    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 4, batch_first=True)
        self.words, self.layers, self.out = nn.Embedding(50, 4), nn.TransformerEncoder(layer, 1), nn.Linear(4, 2)

    def forward(self, ids, mask):
        return self.out(self.layers(self.words(ids), src_key_padding_mask=~mask)[:, 0])


def texts():
    ids, lengths = torch.arange(140).view(20, 7) % 50, 1 + torch.arange(20) % 7
    mask = torch.arange(7) < lengths[:, None]
    return (Lengths, (ids, lengths)), (Masked, {"ids": ids, "mask": mask})


@pytest.mark.parametrize("options", [{}, {"frozen": True}, {"method": Finetune()}], ids=["memory", "features", "none"])
def test_a_network_that_refuses_zeros_comes_back(options, tmp_path):
    for make, x in texts():
        learner = gcr.Learner(make(), 10, **options).fit(x, [0, 1] * 10, epochs=1)
        learner.save(tmp_path / make.__name__)
        loaded = gcr.Learner.load(tmp_path / make.__name__, make())
        assert (loaded.predict(x) == learner.predict(x)).all()
        for each in (learner, loaded):
            each.fit(x, [0, 2] * 10, epochs=1)
        equal_states(learner, loaded)


@pytest.mark.parametrize("recipe", [10, gcr.GCR.paper(memory=10).memory], ids=["kept", "candidates alone"])
def test_a_state_that_does_not_name_its_head_is_read_with_remembered_examples(recipe):
    """As those of an older gcr."""
    for make, x in texts():
        learner = gcr.Learner(make(), recipe)
        learner.observe(x, [0, 1] * 10)
        about, tensors = learner.state()
        loaded = gcr.Learner.from_state(json.loads(json.dumps(about | {"head": None})), tensors, make())
        assert (loaded.predict(x) == learner.predict(x)).all()
        equal_states(learner, loaded)


def test_a_state_without_examples_and_head_is_read_with_zeros():
    for options in ({"method": Finetune()}, {"frozen": True}):
        learner = gcr.Learner(mlp(), 5, **options).fit(*blobs([A, B]), epochs=1)
        about, tensors = learner.state()
        equal_states(learner, gcr.Learner.from_state(about | {"head": None}, tensors, mlp(seed=1)))


class Scale(nn.Module):
    def __init__(self, state):
        super().__init__()
        self.state = state

    def forward(self, x):
        return x

    def get_extra_state(self):
        return self.state

    def set_extra_state(self, state):
        self.state = state


@pytest.mark.parametrize("state", [torch.tensor([3, 4]), {"version": [1, None, 0.5]}], ids=["tensor", "values"])
def test_extra_state_of_a_module_comes_back(state, tmp_path):
    learner = gcr.Learner(nn.Sequential(Scale(state), mlp()), 10)
    learner.fit(*blobs([A, B]), epochs=2, validation=lambda learner: -learner.fits, patience=1)
    learner.save(tmp_path / "state")
    net = nn.Sequential(Scale(torch.zeros(5)), mlp(seed=1))
    equal_states(learner, gcr.Learner.load(tmp_path / "state", net))
    assert str(net[0].state) == str(state)
    with pytest.raises(BadInput, match=r"net does not fit the saved state: 0._extra_state is .* there, nothing in net"):
        gcr.Learner.load(tmp_path / "state", nn.Sequential(nn.Identity(), mlp()))


@pytest.mark.parametrize("method", [ClsEr(), GcrPlus()], ids=lambda method: method.name)
def test_copies_of_a_network_are_without_extra_state(method):
    learner = gcr.Learner(nn.Sequential(Scale({"version": 1}), mlp()), 10, method=method).fit(*blobs([A, B]), epochs=1)
    assert not any("_extra_state" in name for name in learner.engine.state.extras)


@pytest.mark.parametrize("state", [object(), {1: "a"}, (1, 2)], ids=["object", "keys", "tuple"])
def test_extra_state_that_a_file_cannot_hold_is_refused_before_training(state):
    with pytest.raises(BadInput, match=r'net must have extra state .* get_extra_state of "1.0"; return a tensor'):
        gcr.Learner(nn.Sequential(mlp(), nn.Sequential(Scale(state))), 10).observe(*blobs([A, B]))


@pytest.mark.parametrize("options", [{}, {"frozen": True}], ids=["inputs", "features"])
def test_lazy_layers_get_their_shapes_when_loaded(options, tmp_path):
    def make():
        return nn.Sequential(nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(2))

    learner = gcr.Learner(make(), 10, **options).fit(*blobs([A, B]), epochs=1)
    learner.save(tmp_path / "state")
    loaded = gcr.Learner.load(tmp_path / "state", make())
    for each in (learner, loaded):
        each.fit(*blobs([C]), epochs=1)
    equal_states(learner, loaded)
    with pytest.raises(BadInput, match=r"net does not fit the saved state: 0.weight is \(16, 8\) there, \(9, 8\) in"):
        gcr.Learner.load(tmp_path / "state", nn.Sequential(nn.LazyLinear(9), *make()[1:]))


def transposed():
    net = nn.Sequential(nn.Flatten(), nn.Linear(48, 6), nn.ReLU(), nn.Linear(6, 2))
    net[1].weight = nn.Parameter(torch.randn(48, 6).t())
    return net


def convolutions():
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    )


LYING = {
    "channels last": lambda: convolutions().to(memory_format=torch.channels_last),
    "transposed": transposed,
    "ours": lambda: build("convnet", (3, 4, 4), 2, seed=0),
}


def seeded(make):
    torch.manual_seed(0)
    return make()


def picture_tasks():
    generator = torch.Generator().manual_seed(0)
    return torch.randn(40, 3, 4, 4, generator=generator), torch.arange(40) % 2


@pytest.mark.parametrize("optimizer", [None, lambda p: torch.optim.SGD(list(p), 0.01, momentum=0.9, fused=True)])
@pytest.mark.parametrize("make", LYING)
def test_a_loaded_optimizer_moves_weights_that_lie_otherwise_in_memory(make, optimizer, tmp_path):
    """torch's fused optimizers read weights and moments as flat memory."""
    x, y = picture_tasks()
    learner = gcr.Learner(seeded(LYING[make]), 20, optimizer=optimizer, augment=None).fit(x, y, epochs=3)
    learner.save(tmp_path)
    given = {} if optimizer is None else {"optimizer": optimizer}
    loaded = gcr.Learner.load(tmp_path, seeded(LYING[make]), **given)
    for one in (learner, loaded):
        one.fit(x, y, epochs=1)
    assert same_weights(learner.net, loaded.net)


def test_a_network_may_change_its_memory_format_between_fits():
    x, y = picture_tasks()
    plain, changed = (gcr.Learner(seeded(convolutions), 20, augment=None).fit(x, y, epochs=3) for _ in range(2))
    changed.net.to(memory_format=torch.channels_last)
    for one in (plain, changed):
        one.observe(x, y)
    for a, b in zip(plain.net.parameters(), changed.net.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=0)
