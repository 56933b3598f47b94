"""What happens where memory is short; captures themselves are tested on a GPU."""

import gc
import weakref
from contextlib import nullcontext

import pytest
import torch

from gcr.select.cuda_graph import capture, give_back_memory


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
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: times.append(1))
    return times


GPU = torch.device("cuda")
BY_TORCH = torch.OutOfMemoryError("CUDA out of memory")
BY_THE_DRIVER = RuntimeError("CUDA error: out of memory")  # as a graph is made of what was captured


def failing(errors):
    left = iter(errors)

    def function():
        assert not gc.isenabled()  # it might end another graph
        if error := next(left, None):
            raise error

    return function


@pytest.mark.parametrize("error", [BY_TORCH, BY_THE_DRIVER])
def test_memory_that_is_kept_and_not_used_is_given_back_before_a_second_try(given_back, error):
    assert isinstance(capture(failing([error]), GPU), Graph)
    assert given_back == [1]
    assert gc.isenabled()


@pytest.mark.parametrize("error", [BY_TORCH, BY_THE_DRIVER])
def test_a_second_lack_of_memory_is_an_error(given_back, error):
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        capture(failing([error, error]), GPU)
    assert given_back == [1]
    assert gc.isenabled()


def test_the_first_graph_outlives_the_second_try(given_back, monkeypatch):
    """Without it their pool would be closed, and torch does not open one again."""
    alive = []

    class Counted(Graph):
        def __init__(self):
            alive.append(self)

        def capture_begin(self, pool, capture_error_mode):
            tries.append(sum(graph() is not None for graph in seen))
            seen.append(weakref.ref(self))
            alive.clear()

    seen, tries = [], []
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Counted)
    capture(failing([BY_TORCH]), GPU)
    assert tries == [0, 1]


def test_another_error_is_not_tried_again(given_back):
    with pytest.raises(RuntimeError, match="not permitted"):
        capture(failing([RuntimeError("operation not permitted when stream is capturing")]), GPU)
    assert given_back == []


def test_memory_that_torch_will_not_give_back_stays(monkeypatch):
    def refuse():
        raise RuntimeError("captures_underway.empty() INTERNAL ASSERT FAILED")

    monkeypatch.setattr(torch.cuda, "empty_cache", refuse)
    give_back_memory()


@pytest.mark.gpu
def test_on_a_gpu_a_capture_takes_memory_that_nothing_uses():
    torch.cuda.empty_cache()
    before, blocks = torch.cuda.memory_reserved(), []
    with torch.cuda.stream(torch.cuda.Stream()):
        while torch.cuda.memory_reserved() < before + 2**30:  # other tests may have left room for some
            blocks.append(torch.empty(2**30, dtype=torch.uint8, device="cuda"))
    blocks.clear()  # the last one stays with torch, for this stream
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 2**28) / total)
    made = []
    try:
        capture(lambda: made.append(torch.ones(2**30, dtype=torch.uint8, device="cuda")), GPU).replay()
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert int(made[-1].sum()) == 2**30
