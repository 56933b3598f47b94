from dataclasses import replace

import pytest
import torch
from conftest import make_scenario
from named import Training, fresh_state, train

from gcr.memory import Policy
from gcr.methods import Batch, ClsEr, Er, Finetune, Gcr, GcrPlus, Joint
from gcr.models import build
from gcr.select import ClassBalanced, GradApprox
from gcr.settings import BadInput
from gcr.training import reselect
from gcr.training.randomness import DrawPlan, EpochDraws, selection_views
from gcr.training.schedule import make_schedule


class Bounded(Er):
    stages = "tasks"


def labels(scenario, plan):
    return [scenario.train.labels[stage.rows].tolist() for stage in plan.stages]


def test_stages_are_tasks_and_joint_has_one(scenario):
    plan = make_schedule(scenario, Finetune(), Training(epochs=3), seed=0)
    assert [sorted(set(stage)) for stage in labels(scenario, plan)] == [[0, 1], [2, 3], [4, 5]]
    assert plan.first == plan.last == [0, 1, 2]
    assert all(stage.shuffled and stage.epochs == 3 for stage in plan.stages)
    joint = make_schedule(scenario, Joint(), Training(), seed=0)
    assert [len(stage.rows) for stage in joint.stages] == [72]
    assert joint.first == [0, 0, 0]


def test_streams_do_not_end_where_tasks_do():
    scenario = replace(make_scenario(), stream_length=20)  # tasks of 24
    plan = make_schedule(scenario, Er(), Training(epochs=1), seed=0)
    assert [len(stage.rows) for stage in plan.stages] == [20, 20, 20, 12]
    assert [sorted(set(stage)) for stage in labels(scenario, plan)] == [[0, 1], [0, 1, 2, 3], [2, 3, 4, 5], [4, 5]]
    assert (plan.first, plan.last) == ([0, 1, 2], [1, 2, 3])
    rows = torch.cat([stage.rows for stage in plan.stages])
    assert sorted(rows.tolist()) == list(range(72))
    tasks = scenario.task_of_class[scenario.train.labels[rows]]
    assert torch.equal(tasks, tasks.sort().values)  # in the order of tasks
    assert not torch.equal(rows[:24], rows[:24].sort().values)  # shuffled inside
    again, other = (make_schedule(scenario, Er(), Training(epochs=1), seed=seed) for seed in (0, 1))
    assert torch.equal(again.stages[0].rows, plan.stages[0].rows)
    assert not torch.equal(other.stages[0].rows, plan.stages[0].rows)
    assert not any(stage.shuffled for stage in plan.stages)


def test_methods_that_need_tasks_get_them_in_a_stream():
    scenario = replace(make_scenario(), stream_length=20)
    plan = make_schedule(scenario, Bounded(), Training(epochs=1), seed=0)
    assert [sorted(set(stage)) for stage in labels(scenario, plan)] == [[0, 1], [2, 3], [4, 5]]
    assert torch.equal(
        torch.cat([stage.rows for stage in plan.stages]),
        torch.cat([stage.rows for stage in make_schedule(scenario, Er(), Training(epochs=1), 0).stages]),
    )


def test_a_lone_last_example_joins_the_stream_before():
    scenario = replace(make_scenario(), stream_length=71)
    plan = make_schedule(scenario, Er(), Training(epochs=1), seed=0)
    assert [len(stage.rows) for stage in plan.stages] == [72]
    assert plan.last == [0, 0, 0]


def test_an_online_run_passes_once_and_selects_after_each_stream():
    scenario = replace(make_scenario(), stream_length=20)
    policy = Policy(buffer=12, selector=GradApprox())
    outcome = train(scenario, "mlp", Gcr(), policy, Training(epochs=1, batch=8, lr=0.1), 0)
    assert int(outcome.state.memory.seen) == 72
    assert len(outcome.class_il["matrix"]) == len(outcome.state.selections) == 4
    assert outcome.steps == 3 + 3 + 3 + 2


@pytest.mark.parametrize("pool", ["reservoir", "selector"])
def test_shares_by_task_are_for_streams_where_tasks_end_elsewhere(pool):
    scenario = replace(make_scenario(), stream_length=20)
    policy = Policy(buffer=12, selector=GradApprox(shares="task"), pool=pool)
    memory = train(scenario, "mlp", Gcr(), policy, Training(epochs=1, batch=8, lr=0.1), 0).state.memory
    assert memory.columns["task"][:12].bincount().tolist() == [3, 3, 3, 3]  # of the four streams, not of three tasks


def test_order_of_a_stream_is_kept():
    """No further shuffling: with batches as long as streams, memory of the last batch is the last stream's."""
    scenario = replace(make_scenario(), stream_length=24)
    plan = make_schedule(scenario, Er(), Training(epochs=1), seed=5)
    offered = train(scenario, "mlp", Er(), Policy(buffer=72), Training(epochs=1, batch=8), 5).state.memory
    expected = torch.cat([scenario.train.labels[stage.rows] for stage in plan.stages])
    assert torch.equal(offered.columns["label"][:72], expected)


def test_every_n_examples_wherever_tasks_end(scenario):
    policy = Policy(buffer=12, selector=GradApprox(), every=16)
    outcome = train(scenario, "mlp", Gcr(), policy, Training(epochs=2, batch=8, lr=0.1), 0)
    assert len(outcome.state.selections) == 2 * 72 // 16
    assert int(outcome.state.memory.updates) == 2 * 72 // 16
    with pytest.raises(BadInput, match="leave out every"):
        Policy(buffer=12, selector=GradApprox(), every=16, pool="selector")
    with pytest.raises(BadInput, match="shares=class or use --variant paper"):
        Policy(buffer=12, selector=GradApprox(shares="task"), every=16)
    with pytest.raises(BadInput, match="every needs a selector"):
        Policy(buffer=12, every=16)


def test_merging_every_batch_holds_no_more_than_one_batch_beyond_the_buffer(scenario):
    policy = Policy(buffer=12, selector=GradApprox(), every=8, candidates=8)
    outcome = train(scenario, "mlp", Gcr(), policy, Training(epochs=1, batch=8, lr=0.1), 0)
    assert outcome.state.memory.rows == 20
    assert {selection["from"] for selection in outcome.state.selections[2:]} == {20}


def test_repeats_train_more_and_offer_once(scenario):
    seen = []
    for repeats in (1, 3):
        training = Training(epochs=1, batch=10, repeats=repeats)
        outcome = train(scenario, "mlp", Er(), Policy(buffer=12), training, 0)
        assert outcome.steps == 3 * 3 * repeats
        seen.append(outcome.state.memory.read(torch.arange(12))["label"].tolist())
        assert int(outcome.state.memory.seen) == 72
    assert seen[0] == seen[1]


def test_candidates_may_be_the_selectors_choice_of_everything(scenario):
    policy = Policy(buffer=12, selector=GradApprox(), pool="selector", candidates=10)
    outcome = train(scenario, "mlp", Gcr(), policy, Training(epochs=1, batch=8, lr=0.1), 0)
    assert [selection["from"] for selection in outcome.state.selections] == [10, 20, 22]
    assert int(outcome.state.memory.kept) == 12


@pytest.mark.parametrize(
    "setting",
    [{"pool_view": "weak"}, {"pool_mode": "training"}, {"pool_mode": "class"}, {"pool_view": "weak", "pool_views": 3}],
)
def test_what_selection_sees(scenario, setting):
    plain = Policy(buffer=12, selector=GradApprox())
    other = Policy(buffer=12, selector=GradApprox(), **setting)
    outcomes = [
        train(scenario, "convnet", Gcr(), policy, Training(epochs=1, batch=8, lr=0.1), 0) for policy in (plain, other)
    ]
    first, second = (outcome.state.selections for outcome in outcomes)
    assert first[1]["gradient_length"] != second[1]["gradient_length"]


def pool_of(images, mode, monkeypatch, at_once):
    """The pool of selection for images of two tasks that lie one after the other."""
    monkeypatch.setattr(reselect, "AT_ONCE", at_once)
    net = build("convnet", (1, 8, 8), 4, seed=0)
    n = len(images)
    batch = Batch((), torch.arange(n) % 4, torch.zeros(n, 4), torch.ones(n), torch.arange(n) // (n // 2 + 1))
    policy = Policy(buffer=4, selector=GradApprox(), pool_mode=mode)
    return reselect.make_pool(net, Gcr(), batch, lambda part: images[part], policy)


def test_a_pool_in_several_batches_is_that_of_one(monkeypatch):
    images = torch.rand(23, 1, 8, 8)
    whole, parts = (pool_of(images, "evaluation", monkeypatch, size) for size in (100, 6))
    torch.testing.assert_close(parts.features, whole.features)
    torch.testing.assert_close(parts.residuals, whole.residuals)


def test_batches_of_a_pool_in_training_mode_mix_its_tasks(monkeypatch):
    """Two tasks of different brightness: normalised alone, their features would be alike."""
    images = torch.rand(24, 1, 8, 8)
    images[12:] += 3
    features = pool_of(images, "training", monkeypatch, 12).features
    whole = pool_of(images, "training", monkeypatch, 100).features
    apart = torch.cat([pool_of(half, "training", monkeypatch, 100).features for half in images.split(12)])
    assert (features - whole).norm() < 0.5 * (apart - whole).norm()


def test_a_pool_class_by_class_has_the_statistics_of_each(monkeypatch):
    """As if each part of a class were alone, so many at a time. Of 26 images classes 0 and 1 have 7, the others 6."""
    monkeypatch.setattr(reselect, "OF_A_CLASS", 4)
    images = torch.rand(26, 1, 8, 8)
    features = pool_of(images, "class", monkeypatch, 100).features
    for label in range(4):
        rows = torch.arange(label, 26, 4)
        for part in (rows[:4], rows[4:]):
            alone = pool_of(images[part], "training", monkeypatch, 100).features
            torch.testing.assert_close(features[part], alone)


def test_a_row_that_is_left_alone_joins_the_others_of_its_class(monkeypatch):
    monkeypatch.setattr(reselect, "OF_A_CLASS", 2)
    images = torch.rand(6, 1, 8, 8)  # classes 0 and 1 have two rows, the others one
    features = pool_of(images, "class", monkeypatch, 100).features
    usual = pool_of(images, "evaluation", monkeypatch, 100).features
    torch.testing.assert_close(features[[2, 3]], usual[[2, 3]])  # alone in their classes: running statistics
    assert not torch.allclose(features[[0, 4]], usual[[0, 4]])
    images = torch.rand(9, 1, 8, 8)  # class 0 has three
    features = pool_of(images, "class", monkeypatch, 100).features
    alone = pool_of(images[[0, 4, 8]], "training", monkeypatch, 100).features
    torch.testing.assert_close(features[[0, 4, 8]], alone)


@pytest.mark.parametrize("mode", ["training", "class"])
def test_a_pool_of_one_image_has_no_statistics_of_its_own(monkeypatch, mode):
    image = torch.rand(1, 1, 8, 8)
    alone, usual = (pool_of(image, mode, monkeypatch, 100) for mode in (mode, "evaluation"))
    torch.testing.assert_close(alone.features, usual.features)


def recorded(scenario, method, **setting):
    """The run, and the pools that its selector got."""
    pools = []

    class Recording(GradApprox):
        def __call__(self, pool, budget, draws):
            pools.append(pool)
            return super().__call__(pool, budget, draws)

    policy = Policy(buffer=12, selector=Recording(), **setting)
    return train(scenario, "convnet", method, policy, Training(epochs=2, batch=8, lr=0.1), 0), pools


@pytest.mark.parametrize("method", [GcrPlus(decay=0.9), ClsEr(stable_rate=0.5)])
@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_selection_on_the_predictor_sees_its_features_and_residuals(scenario, method, mode):
    """After the last selection nothing is trained: the copy that predicts is that of the selection."""
    seen = {"pool_network": "predictor", "pool_mode": mode}
    outcome, pools = recorded(scenario, method, **seen)
    state = outcome.state
    copy = {name.split(".", 1)[1]: t for name, t in state.extras.items() if name.startswith(method.predictor)}
    other = build("convnet", scenario.image_shape, 6, seed=1)
    other.load_state_dict(copy)
    rows = state.memory.filled_rows()
    images = scenario.views.plain(state.memory.columns["image"][rows])
    if mode == "evaluation":
        features = other.eval().features(images)
        logits = method.predict(state.net.eval(), images, state.extras)
        torch.testing.assert_close(logits, other.head(features))
        for found in features:  # of each row that was kept
            assert (pools[-1].features - found).abs().amax(1).min() < 1e-5
        assert not torch.allclose(state.net.features(images), features, atol=1e-3)
    trained, _ = recorded(scenario, method, pool_mode=mode)
    first = [run.state.selections[0]["gradient_length"] for run in (outcome, trained)]
    assert first[0] != first[1]


@pytest.mark.parametrize("mode", ["evaluation", "training"])
def test_selection_on_the_predictor_leaves_network_and_copy_as_they_were(scenario, mode):
    method, training = GcrPlus(decay=0.9), Training(epochs=1, batch=8, lr=0.1)
    state = fresh_state(scenario, "convnet", method, Policy(buffer=12, selector=GradApprox()), training, 0)
    policy = Policy(buffer=12, selector=GradApprox(), pool_network="predictor", pool_mode=mode)
    for name, tensor in state.extras.items():
        if name.startswith("ema.") and tensor.is_floating_point():
            tensor.add_(0.1)
    images, labels = scenario.train.pixels[:20], scenario.train.labels[:20]
    state.memory.offer({"image": images, "label": labels}, torch.zeros(20).double())
    before = {name: tensor.clone() for name, tensor in state.tensors() if not name.startswith("memory.")}
    reselect.reselect(state.memory, policy, method, state.net, scenario.views, (0, 0), extras=state.extras)
    after = dict(state.tensors())
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


@pytest.mark.parametrize("method", [Gcr(), GcrPlus(decay=0)])
def test_a_method_without_a_copy_refuses_selection_on_it(scenario, method):
    policy = Policy(buffer=12, selector=GradApprox(), pool_network="predictor")
    with pytest.raises(BadInput, match=r"pool_network must be trained with gcr.* use gcr\+ \(decay > 0\) or cls-er"):
        train(scenario, "mlp", method, policy, Training(epochs=1), 0)


def test_features_and_residuals_are_each_averaged_over_views(scenario, monkeypatch):
    """The first view is that of one view alone."""
    setting = {"pool_view": "weak", "pool_views": 3}
    net, method = build("convnet", scenario.image_shape, 6, seed=0), Gcr()
    policy = Policy(buffer=12, selector=GradApprox(), **setting)
    memory = policy.make_buffer(scenario.image_shape, 6)
    memory.offer({"image": scenario.train.pixels[:9], "label": scenario.train.labels[:9]}, torch.zeros(9).double())
    stored, pools = memory.read(memory.filled_rows()), []
    monkeypatch.setattr(
        GradApprox, "__call__", lambda self, pool, *rest: pools.append(pool) or ClassBalanced()(pool, *rest)
    )
    reselect.reselect(memory, policy, method, net, scenario.views, (5, 2))
    features, residuals = torch.zeros(9, net.head.in_features).double(), torch.zeros(9, 6).double()
    for view in range(3):
        draws = selection_views((5, 2), 9, view)
        seen = net.eval().features(scenario.views.weak(stored["image"], draws)).detach()
        batch = Batch((), stored["label"], stored["logits"], stored["weight"])
        features += seen.double() / 3
        residuals += method.residual(net.head(seen).detach(), batch).double() / 3
    torch.testing.assert_close(pools[0].features.double(), features, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(pools[0].residuals.double(), residuals, atol=1e-5, rtol=1e-5)
    assert torch.equal(selection_views((5, 2), 9), selection_views((5, 2), 9, 0))
    assert not torch.equal(selection_views((5, 2), 9), selection_views((5, 2), 9, 1))


# The random numbers of an epoch.


def draws(key=(0, 1, 2), replays=(("weak",),), n=50):
    """Seven steps of at most 8 new examples; the rows of the stage are 100 to 149."""
    made = EpochDraws(DrawPlan(8, (4, 2), 4, replays), 9, torch.device("cpu"))
    made.fill(key, torch.arange(100, 100 + n), 7)
    return made


def step(made, number, size=8):
    return made.at(torch.tensor(number), size, replaying=True)


def test_draws_are_a_function_of_the_key():
    assert torch.equal(draws().rows, draws().rows)
    assert torch.equal(draws().uniforms, draws().uniforms)
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(draws(other).rows, draws().rows)
        assert not torch.equal(draws(other).uniforms, draws().uniforms)


def test_methods_with_other_needs_see_the_same_examples():
    plain, some, more = draws(replays=()), draws(), draws(replays=(("weak",), ("strong", "strong")))
    assert torch.equal(plain.rows, more.rows)
    assert torch.equal(plain.reservoir, more.reservoir)
    assert torch.equal(step(plain, 3).views, step(more, 3).views)
    assert torch.equal(step(some, 3).replays[0].rows, step(more, 3).replays[0].rows)


def test_shapes_and_range():
    epoch = draws(replays=(("weak",), ("strong", "strong")))
    steps = [step(epoch, number, size=8 if number < 6 else 2) for number in range(7)]
    assert sorted(row for s in steps for row in s.rows.tolist()) == list(range(100, 150))
    assert steps[0].reservoir.dtype == torch.float64
    assert steps[6].views.shape == (2, 3)
    assert steps[2].replays[1].views[1].shape == (4, 11)
    assert not torch.equal(*steps[2].replays[1].views)
    assert not torch.equal(steps[2].replays[0].rows, steps[3].replays[0].rows)
    for field in (epoch.uniforms, epoch.reservoir, epoch.rows / 150):
        assert 0 <= float(field.min()) <= float(field.max()) < 1


def test_no_replay_before_memory_holds_something():
    assert draws().at(torch.tensor(0), 8, replaying=False).replays == ()


def test_a_shorter_epoch_fits_into_the_same_slots():
    made = draws()
    made.fill((0, 2, 0), torch.arange(20), 3)
    assert sorted(step(made, 0).rows.tolist() + step(made, 1).rows.tolist() + step(made, 2, 4).rows.tolist()) == [
        *range(20)
    ]


def test_a_repeated_batch_gets_another_view_each_time():
    """Three steps on every batch: the same examples and coins, other views and other replays."""
    made = EpochDraws(DrawPlan(8, (4, 2), 4, (("weak",),)), 21, torch.device("cpu"))
    made.fill((0, 1, 2), torch.arange(100, 150), 7, repeats=3)
    for batch in range(7):
        size = 8 if batch < 6 else 2
        first, *others = (step(made, 3 * batch + repeat, size) for repeat in range(3))
        for other in others:
            assert torch.equal(other.rows, first.rows)
            assert torch.equal(other.reservoir, first.reservoir)
            assert not (other.views == first.views).any()
            assert not torch.equal(other.replays[0].rows, first.replays[0].rows)
            assert not torch.equal(other.replays[0].views[0], first.replays[0].views[0])
    views = torch.stack([step(made, number, 2).views for number in range(21)])
    assert len(views.flatten().unique()) == views.numel()


def test_the_stream_stays_what_it_was():
    """Results are only comparable over versions while this holds."""
    assert (draws().rows.flatten()[:5] - 100).tolist() == [26, 19, 43, 28, 45]


def test_statistics_are_kept_with_the_number_of_their_batches():
    net = torch.nn.BatchNorm1d(2, momentum=None)
    net(torch.ones(4, 2))
    with reselect.statistics_kept(net):
        net(torch.zeros(4, 2))
    assert (int(net.num_batches_tracked), net.running_mean.tolist()) == (1, [1, 1])


def test_a_stream_that_holds_everything_is_a_remark():
    whole = replace(make_scenario(), stream_length=6250)
    with pytest.warns(UserWarning, match="all 72 training images are one stream: accuracy is measured"):
        train(whole, "mlp", Er(), Policy(buffer=12), Training(epochs=1), 0)
