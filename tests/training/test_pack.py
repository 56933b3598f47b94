"""How a pack grows; what runs in it is tested on a GPU (test_modes_on_gpu.py)."""

from gcr.training.pack import WINDOW_SECONDS, Growth


def grow(rates, has_room=lambda: True, members=64):
    """Sizes over time, with as many members as the size asks for, at most ``members``; ``rates`` in steps a second."""
    growth, now, steps, sizes = Growth(has_room), 0.0, 0.0, [1]
    for _ in range(400):
        present = min(growth.size, members)
        now += 0.1
        steps += 0.1 * rates(present)
        growth.look(now, present, True, int(steps))
        if growth.size != sizes[-1]:
            sizes.append(growth.size)
    return sizes


def test_doubles_while_it_pays_and_goes_back_one():
    assert grow(lambda n: 100 * min(n, 5)) == [1, 2, 4, 8, 16, 8]  # 5 times as fast at best: 8 paid, 16 did not


def test_never_less_than_one_run():
    assert grow(lambda n: 100.0 if n == 1 else 10.0) == [1, 2, 1]
    assert min(grow(lambda n: 0.0)) == 1


def test_stops_where_memory_ends():
    assert grow(lambda n: 100.0 * n, has_room=iter([True, True, False]).__next__) == [1, 2, 4]


def test_too_few_runs_to_grow():
    assert grow(lambda n: 100.0 * n, members=3) == [1, 2, 4]


def test_a_run_that_ends_within_a_window_starts_it_anew():
    growth = Growth(lambda: True)
    growth.look(0.0, 1, True, 1000)
    growth.look(WINDOW_SECONDS / 2, 1, False, 1100)  # another took its place and warms up
    growth.look(WINDOW_SECONDS * 1.1, 1, True, 1200)
    assert growth.size == 1
    growth.look(WINDOW_SECONDS * 2.2, 1, True, 1400)
    assert (growth.size, growth.settled) == (2, False)
