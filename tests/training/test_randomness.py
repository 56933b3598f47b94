import torch

from gcr.training.randomness import DrawPlan, EpochDraws


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
