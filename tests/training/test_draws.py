import torch

from gcr.training.draws import epoch_draws


def draws(key=(0, 1, 2), replays=(("weak",),), n=50):
    return epoch_draws(key, n, 7, (4, 2), 4, replays, "cpu")


def test_draws_are_a_function_of_the_key():
    assert torch.equal(draws().order, draws().order)
    assert torch.equal(draws().replays[0].rows, draws().replays[0].rows)
    for other in ((1, 1, 2), (0, 2, 2), (0, 1, 3)):
        assert not torch.equal(draws(other).order, draws().order)
        assert not torch.equal(draws(other).views, draws().views)


def test_methods_with_other_needs_see_the_same_examples():
    plain, more = draws(replays=()), draws(replays=(("weak",), ("strong", "strong")))
    assert torch.equal(plain.order, more.order)
    assert torch.equal(plain.views, more.views)
    assert torch.equal(plain.reservoir, more.reservoir)
    assert torch.equal(draws().replays[0].rows, more.replays[0].rows)


def test_shapes_and_range():
    epoch = draws(replays=(("weak",), ("strong", "strong")))
    assert sorted(epoch.order.tolist()) == list(range(50))
    assert epoch.reservoir.dtype == torch.float64
    assert epoch.replays[1].views[1].shape == (7, 4, 11)
    assert not torch.equal(*epoch.replays[1].views)
    for field in (epoch.views, epoch.reservoir, epoch.replays[0].rows):
        assert float(field.min()) >= 0
        assert float(field.max()) < 1


def test_the_stream_stays_what_it_was():
    """Results are only comparable over versions while this holds."""
    assert draws().order[:5].tolist() == [26, 19, 43, 28, 45]
