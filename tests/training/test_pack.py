"""How a pack grows and takes turns; what runs in it is tested on a GPU (test_modes_on_gpu.py)."""

import time

import pytest
import torch

from gcr.training.pack import AHEAD, TURN, WINDOW_SECONDS, Growth, OutOfMemory, run_pack


class Device:
    """Stands in for streams and events: what was launched is done after some looks."""

    class Stream:
        def __init__(self, device=None):
            pass

        def wait_stream(self, other):
            pass

    class Event:
        looks = 0

        def record(self):
            pass

        def query(self):
            self.looks += 1
            return self.looks > 2 * AHEAD


@pytest.fixture
def device(monkeypatch):
    for name in ("Stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(Device, name))
    monkeypatch.setattr(torch.cuda, "current_stream", Device.Stream)
    monkeypatch.setattr(torch.cuda, "set_stream", lambda stream: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2**30, 2**30))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    return torch.device("cuda")


def test_all_jobs_run_to_their_end_a_few_at_a_time(device):
    going, most = set(), []

    def job(number):
        going.add(number)
        for step in range(100):
            most.append(len(going))
            yield step % 10 < 9  # every tenth time it waits
        going.remove(number)
        ended.append(number)

    ended = []
    run_pack(map(job, range(7)), 3, device)
    assert sorted(ended) == list(range(7))
    assert max(most) == 3


def test_the_device_has_work_before_a_run_keeps_the_host(device):
    """What one run does between its steps may take long; meanwhile the steps of the others are there to be done."""
    launched, at_boundary = [0, 0], []

    def steps():
        for _ in range(200):
            launched[0] += 1
            yield True

    def stages():
        for _ in range(3):
            at_boundary.append(launched[0])
            launched[1] += 1
            yield True
            yield False

    run_pack([steps(), stages()], 2, device)
    assert at_boundary[0] == TURN
    assert launched == [200, 3]


def test_no_run_launches_much_while_others_run_dry(device):
    """A launch waits where a stream has no room for more, so a run that launched all it may would keep the host."""
    order = []

    def job(number):
        for _ in range(2 * AHEAD):
            order.append(number)
            yield True

    run_pack([job(0), job(1), job(2)], 3, device)
    while order:
        turn = next((i for i, number in enumerate(order) if number != order[0]), len(order))
        assert turn <= TURN or set(order) == {order[0]}
        del order[:turn]


def test_a_run_is_as_far_ahead_as_it_may_be(device, monkeypatch):
    monkeypatch.setattr(Device.Event, "query", lambda self: over)
    over, launched, most = False, [0, 0], []

    def job(number):
        for _ in range(2 * AHEAD):
            launched[number] += 1
            yield True

    def rest(seconds):
        nonlocal over
        most.append(list(launched))
        over = True

    monkeypatch.setattr(time, "sleep", rest)
    run_pack([job(0), job(1)], 2, device)
    assert most[0] == [AHEAD, AHEAD]


def test_nobody_waits_for_a_run_whose_steps_are_done_at_once(device, monkeypatch):
    monkeypatch.setattr(Device.Event, "query", lambda self: True)
    order = []

    def job(number):
        for _ in range(3 * AHEAD):
            order.append(number)
            yield True

    run_pack([job(0), job(1)], 2, device)
    assert order.index(1) == TURN
    assert len(order) == 6 * AHEAD


def test_the_host_rests_while_all_wait(device, monkeypatch):
    rests = []
    monkeypatch.setattr(time, "sleep", rests.append)

    def job():
        for _ in range(50):
            yield False

    run_pack([job(), job()], 2, device)
    assert len(rests) == 51


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
    assert (growth.size, growth.final) == (2, False)


def test_out_of_memory_makes_the_pack_smaller(device):
    """The job begins again, and no more than fit are tried together from then on."""
    going, most, ended = set(), [], []

    def job(number):
        going.add(number)
        try:
            for _ in range(50):
                most.append(len(going))
                if len(going) == 4:
                    raise OutOfMemory(lambda: job(number))
                yield True
            ended.append(number)
        finally:
            going.discard(number)

    run_pack(map(job, range(6)), 4, device)
    assert sorted(ended) == list(range(6))
    assert most.count(4) == 1
    assert max(most) == 4


def test_what_ended_runs_left_is_given_back_where_little_is_free(device, monkeypatch):
    free = iter([100, 60, 24, 90])  # of 100, as each of four runs comes
    given_back = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (next(free), 100))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: given_back.append(len(began)))
    began = []

    def job(number):
        began.append(number)
        yield True

    run_pack(map(job, range(4)), 1, device)
    assert began == list(range(4))
    assert given_back == [2]  # before the third
