"""Capturing a function's kernels as a CUDA graph, to be launched again as one; and GPU memory that runs out."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


def capture(function: Callable[[], None], device: torch.device, graph_pool: Any = None) -> torch.cuda.CUDAGraph:
    """The kernels that ``function`` would launch on a device. Nothing is computed until the graph is replayed.

    Graphs with one ``graph_pool`` share memory: they must be replayed in turn, on one CUDA stream. Only the current
    CUDA stream waits, so other runs on the device go on. Where memory is short it is tried a second time, with the
    memory that torch keeps and does not use: during a capture it cannot give that back.
    """
    with torch.cuda.device(device):
        first = torch.cuda.CUDAGraph()  # lives on, and the pool with it, which torch would not open again
        try:
            _capture(first, function, graph_pool)
            return first
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
        gc.collect()  # the error is gone, and what had been allocated
        give_back_memory()
        second = torch.cuda.CUDAGraph()
        try:
            _capture(second, function, graph_pool)
        except RuntimeError as error:
            if out_of_memory(error):
                raise torch.OutOfMemoryError(str(error)) from error
            raise
        return second


def _capture(graph: torch.cuda.CUDAGraph, function: Callable[[], None], graph_pool: Any) -> None:
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
    stream.wait_stream(current)
    collects = gc.isenabled()
    gc.disable()  # what it finds may be a CUDA graph, whose end would break this capture
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(graph_pool, capture_error_mode="thread_local")  # a loader's thread may go on meanwhile
            try:
                function()
            except BaseException:
                with suppress(RuntimeError):  # a capture that broke off cannot be ended; what broke it is what matters
                    graph.capture_end()
                raise
            graph.capture_end()
    finally:
        if collects:
            gc.enable()
    current.wait_stream(stream)


def out_of_memory(error: BaseException) -> bool:
    """Whether it says so of a GPU: torch's allocator, or the driver, which needs memory for graphs."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


def give_back_memory() -> None:
    """Give memory that torch keeps and does not use back to the device. torch refuses after a capture that broke off;
    then it stays."""
    with suppress(RuntimeError):
        torch.cuda.empty_cache()
