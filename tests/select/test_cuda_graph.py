"""What happens where memory is short; captures themselves are tested on a GPU."""

import pytest
import torch

from gcr.select.cuda_graph import capture


class Stream:
    def wait_stream(self, other):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass


class Graph:
    def capture_begin(self, pool, capture_error_mode):
        pass

    def capture_end(self):
        pass


@pytest.fixture
def given_back(monkeypatch):
    """How often unused memory was given back, on a device that is not there."""
    times = []
    for name in ("current_stream", "default_stream", "Stream"):
        monkeypatch.setattr(torch.cuda, name, Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: times.append(1))
    return times


def short_of_memory(times):
    left = iter([True] * times + [False])

    def function():
        if next(left):
            raise torch.OutOfMemoryError("CUDA out of memory")

    return function


def test_memory_that_is_kept_and_not_used_is_given_back_before_a_second_try(given_back):
    assert isinstance(capture(short_of_memory(1)), Graph)
    assert given_back == [1]


def test_a_second_lack_of_memory_is_an_error(given_back):
    with pytest.raises(torch.OutOfMemoryError):
        capture(short_of_memory(2))
    assert given_back == [1]


def test_another_error_is_not_tried_again(given_back):
    tries = []

    def function():
        tries.append(1)
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(RuntimeError, match="not permitted"):
        capture(function)
    assert (tries, given_back) == ([1], [])


@pytest.mark.gpu
def test_on_a_gpu_a_capture_takes_memory_that_nothing_uses():
    torch.cuda.empty_cache()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.empty(2**30, dtype=torch.uint8, device="cuda")  # stays with torch, for this stream
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**28) / total)
    made = []
    try:
        capture(lambda: made.append(torch.ones(2**30, dtype=torch.uint8, device="cuda"))).replay()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert int(made[-1].sum()) == 2**30
