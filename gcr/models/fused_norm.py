"""``BatchNorm`` of several minibatches, shortcut sum and ReLU in three kernels forward and three backward, on a GPU.

Plain torch needs some ten kernels for every minibatch, and passes over memory for each. Reads and writes here: forward
x twice, y once; backward dy and x twice, dx once (behind a shortcut's sum dy and y once, its gradient twice).
Statistics are float32 whatever the activations are.
"""

from __future__ import annotations

import importlib.util
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

TILE_ROWS, TILE_CHANNELS = 64, 64
CHUNK_ELEMENTS = 32768  # rows * channels of a chunk: at CIFAR's sizes two or three chunks for each multiprocessor
CHUNKS_AT_ONCE, CHANNELS_AT_ONCE = 64, 16  # of the kernels that put chunks together


@cache
def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def serves(x: Tensor) -> bool:
    known = x.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return x.is_cuda and known and not torch.compiler.is_compiling() and _has_triton()


def norm(x: Tensor, module: nn.BatchNorm2d, sizes: tuple[int, ...], add: Tensor | None) -> Tensor:
    """``relu(norm(x) + add)`` in training, with ReLU if ``module.relu``; running statistics are updated in place."""
    if any(size * x.shape[2] * x.shape[3] < 2 for size in sizes):
        raise ValueError(f"batch statistics need more than one value per channel, got sizes {sizes}")
    out: Tensor = _Norm.apply(x, module.weight, module.bias, add, module, sizes)  # type: ignore[no-untyped-call]
    return out


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, module: Any, sizes: tuple[int, ...]
    ) -> Tensor:
        from gcr.models import norm_kernels as kernels

        x = x.contiguous(memory_format=torch.channels_last)
        add = None if add is None else add.contiguous(memory_format=torch.channels_last)
        work = _Work.of(x, sizes)
        c, g = x.shape[1], len(sizes)
        moments = x.new_empty((work.n_chunks, 2, c), dtype=torch.float32)
        mean, rstd = x.new_empty((2, g, c), dtype=torch.float32)
        y = torch.empty_like(x)
        kernels.chunk_moments[work.grid](x, work.chunks, moments, c, **work.tile)
        kernels.group_moments[work.channel_grid](
            moments,
            work.chunks,
            work.groups,
            mean,
            rstd,
            module.running_mean,
            module.running_var,
            c,
            module.momentum,
            module.eps,
            G=g,
            N=CHUNKS_AT_ONCE,
            B=CHANNELS_AT_ONCE,
        )
        kernels.normalise[work.grid](
            x, add, y, work.chunks, mean, rstd, weight, bias, c, **work.tile, ADD=add is not None, RELU=module.relu
        )
        adds = add is not None
        ctx.save_for_backward(x, y if adds else x, mean, rstd, weight, bias)  # without a sum, x shows where ReLU cut
        ctx.work, ctx.relu, ctx.adds = work, module.relu, adds
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        from gcr.models import norm_kernels as kernels

        x, y, mean, rstd, weight, bias = ctx.saved_tensors
        work = ctx.work
        dy = dy.contiguous(memory_format=torch.channels_last)
        c, g = x.shape[1], len(mean)
        sums = x.new_empty((work.n_chunks, 2, c), dtype=torch.float32)
        means = x.new_empty((g, 2, c), dtype=torch.float32)
        dweight, dbias = torch.empty_like(weight), torch.empty_like(weight)
        dx = torch.empty_like(x)
        d = torch.empty_like(dy) if ctx.adds else dy
        flags = work.tile | {"ADD": ctx.adds, "RELU": ctx.relu}
        kernels.chunk_gradients[work.grid](dy, x, y, work.chunks, mean, rstd, weight, bias, sums, d, c, **flags)
        kernels.group_gradients[work.channel_grid](
            sums, work.groups, means, dweight, dbias, c, G=g, N=CHUNKS_AT_ONCE, B=CHANNELS_AT_ONCE
        )
        cut = ctx.relu and not ctx.adds
        kernels.input_gradient[work.grid](
            d, x, dx, work.chunks, mean, rstd, means, weight, bias, c, **work.tile, CUT=cut
        )
        return dx, dweight, dbias, d if ctx.adds else None, None, None


class _Work:
    """How an activation of one shape is cut into chunks; the lists sit on its device."""

    def __init__(self, sizes: tuple[int, ...], pixels: int, channels: int, device: torch.device) -> None:
        rows = max(TILE_ROWS, CHUNK_ELEMENTS // channels)
        chunks: list[tuple[int, int, int]] = []
        groups: list[tuple[int, int, int]] = []
        first = 0
        for group, size in enumerate(sizes):
            total = size * pixels
            starts = range(0, total, rows)
            groups.append((len(chunks), len(starts), total))
            chunks += [(group, first + start, min(rows, total - start)) for start in starts]
            first += total
        self.chunks = torch.tensor(chunks, dtype=torch.int32, device=device)
        self.groups = torch.tensor(groups, dtype=torch.int32, device=device)
        self.n_chunks = len(chunks)
        width = min(TILE_CHANNELS, max(16, 1 << (channels - 1).bit_length()))
        self.tile = {"ROWS": rows, "R": TILE_ROWS, "B": width}
        self.grid = (len(chunks), -(-channels // width))
        self.channel_grid = (-(-channels // CHANNELS_AT_ONCE),)

    @staticmethod
    def of(x: Tensor, sizes: tuple[int, ...]) -> _Work:
        return _work(sizes, x.shape[2] * x.shape[3], x.shape[1], x.device)


@cache  # copied to the device once: a captured step must not wait for the host
def _work(sizes: tuple[int, ...], pixels: int, channels: int, device: torch.device) -> _Work:
    return _Work(sizes, pixels, channels, device)
