"""Capturing a function's kernels as a CUDA graph, to be launched again as one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch


def capture(function: Callable[[], None], graph_pool: Any = None) -> torch.cuda.CUDAGraph:
    """The kernels that ``function`` would launch. Nothing is computed until the graph is replayed.

    Graphs with one ``graph_pool`` share memory: they must be replayed in turn, on one CUDA stream. Only the current
    CUDA stream waits, so other runs on the device go on. Where memory is short it is tried a second time, with the
    memory that torch keeps and does not use: during a capture it cannot give that back.
    """
    try:
        return _captured(function, graph_pool)
    except torch.OutOfMemoryError:
        pass  # the error holds on to what had been allocated; from here on it is gone
    torch.cuda.empty_cache()
    return _captured(function, graph_pool)


def _captured(function: Callable[[], None], graph_pool: Any) -> torch.cuda.CUDAGraph:
    current = torch.cuda.current_stream()
    stream = torch.cuda.Stream() if current == torch.cuda.default_stream() else current
    stream.wait_stream(current)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(graph_pool, capture_error_mode="thread_local")  # a loader's thread may go on meanwhile
        try:
            function()
        except BaseException:
            with suppress(RuntimeError):  # a capture that broke off cannot be ended; what broke it is what matters
                graph.capture_end()
            raise
        graph.capture_end()
    current.wait_stream(stream)
    return graph
