"""One network in several processes: each passes its own rows of every minibatch, and all see the outputs of all rows.

Process p of N passes rows p, p + N, p + 2N, … Outputs are gathered, so that each process computes the same loss of the
whole minibatch, whatever the method. Back through its network goes only the gradient by its own rows; the sum over
processes is the gradient of the loss. Weights, memory, draws and decisions are the same in all processes.

BatchNorm has the statistics of the whole minibatch (``ghosts`` 1), or of each of so many parts of it, ghost batches
(Hoffer et al. 2017). Part g are rows g, g + ghosts, …, so that a process needs no messages where it has whole parts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.nn import functional as F

from gcr.settings import BadInput

Rows = Callable[..., Sequence[Tensor]]  # minibatches -> what a network says of the rows of each, [b, d]


class PeerLost(RuntimeError):
    """Another process of the run has ended, or does not answer."""


@dataclass
class Shares:
    rank: int = 0
    world: int = 1
    ghosts: int = 1
    alone: bool = False  # for now, every process computes all of it
    totals: tuple[int, ...] = ()  # rows, over all processes, of the minibatches that are being passed in parts

    def __post_init__(self) -> None:
        if self.ghosts > 1 and self.ghosts % self.world:
            raise BadInput(
                f"ghost_batches must be 1 or a multiple of the {self.world} processes, got {self.ghosts}; give "
                f"--set ghost_batches={self.world}, or another number of processes"
            )

    @property
    def processes(self) -> int:
        """Among which a minibatch is shared now."""
        return 1 if self.alone else self.world

    @property
    def changes_norm(self) -> bool:
        """Whether plain batch statistics of the rows at hand would be wrong."""
        return bool(self.totals) and self.ghosts != self.processes

    @contextmanager
    def everything(self) -> Iterator[None]:
        """Inside, every process computes all of it."""
        before, self.alone = self.alone, True
        try:
            yield
        finally:
            self.alone = before

    def spread(self, passes: Rows, batches: Sequence[Tensor]) -> list[Tensor]:
        """``passes`` of whole minibatches, each process by its rows. Each minibatch has statistics of its own.

        Where a part would have a single row, all processes pass the whole minibatch, as one part.
        """
        large = [len(batch) >= 2 * max(self.processes, self.ghosts) for batch in batches]
        if len(batches) > 1 and not all(large):
            return [self.spread(passes, [batch])[0] for batch in batches]
        if not all(large):
            return [self._one_of_equals(said) for said in passes(*batches)]
        n = self.processes
        self.totals = tuple(len(batch) for batch in batches)
        try:
            own = passes(*(batch[self.rank :: n] if n > 1 else batch for batch in batches))
        finally:
            totals, self.totals = self.totals, ()
        if n == 1:
            return list(own)
        every: Tensor = _Gather.apply(torch.cat(list(own)), totals, self)  # type: ignore[no-untyped-call]
        return list(every.split(totals))

    def _one_of_equals(self, said: Tensor) -> Tensor:
        """Its gradient is counted once, though every process has it."""
        if self.processes == 1 or not said.requires_grad:
            return said
        counted: Tensor = _Counted.apply(said, self.processes)  # type: ignore[no-untyped-call]
        return counted

    def sum(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Over all processes, by one message."""
        reached = [gradient for gradient in gradients if gradient is not None]
        if self.processes == 1 or not reached:
            return list(gradients)
        flat = torch.cat([gradient.flatten() for gradient in reached])
        parts = iter(self.reduced(flat).split([gradient.numel() for gradient in reached]))
        return [None if gradient is None else next(parts).view_as(gradient) for gradient in gradients]

    def average(self, statistics: Sequence[Tensor]) -> None:
        """In place, of running statistics of ghost batches, which are each process's own."""
        if self.ghosts > 1 and self.processes > 1 and statistics:
            for kept, total in zip(statistics, self.sum(statistics), strict=True):
                assert total is not None
                kept.copy_(total / self.processes)

    def gathered(self, own: Tensor) -> Tensor:
        """[...] -> [processes, ...]"""
        every = own.new_zeros((self.processes, *own.shape))
        every[self.rank] = own
        return self.reduced(every)

    def reduced(self, tensor: Tensor) -> Tensor:
        """Its sum over processes, in place."""
        try:
            dist.all_reduce(tensor)
        except RuntimeError as error:
            raise PeerLost(lost(error)) from None
        return tensor

    def same_everywhere(self, *tensors: Tensor) -> None:
        """Overwrite them by those of the first process: kernels of a GPU may differ by rounding."""
        if self.processes == 1:
            return
        try:
            for tensor in tensors:
                whole = tensor.contiguous()
                dist.broadcast(whole, 0)
                if whole is not tensor:
                    tensor.copy_(whole)
        except RuntimeError as error:
            raise PeerLost(lost(error)) from None

    def from_first(self, value: Any) -> Any:
        """What the first process has: a small object."""
        box = [value]
        try:
            dist.broadcast_object_list(box, 0, device=torch.device("cpu"))
        except RuntimeError as error:
            raise PeerLost(lost(error)) from None
        return box[0]


def lost(error: Exception) -> str:
    why = shorten(re.sub(r"\[[^\]]*:\d+\]", "", str(error)), 120, placeholder=" …")  # without places in its source
    return (
        f"another process of this run ended or does not answer ({why}); the run stops here: the same command, with any "
        "number of processes, continues it from its last checkpoint"
    )


class _Gather(torch.autograd.Function):
    """[own rows of all minibatches, d] -> [rows of all minibatches, d]"""

    @staticmethod
    def forward(ctx: Any, own: Tensor, totals: tuple[int, ...], shares: Shares) -> Tensor:
        ctx.places = _places(totals, shares.rank, shares.processes)
        every = own.new_zeros((sum(totals), *own.shape[1:]))
        start = 0
        for place in ctx.places:
            n = len(range(*place.indices(len(every))))
            every[place] = own[start : start + n]
            start += n
        return shares.reduced(every)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return torch.cat([gradients[0][place] for place in ctx.places]), None, None


def _places(totals: tuple[int, ...], rank: int, processes: int) -> list[slice]:
    """Where a process's rows of each minibatch are, where the minibatches lie one behind another."""
    starts = [sum(totals[:number]) for number in range(len(totals))]
    return [slice(start + rank, start + total, processes) for start, total in zip(starts, totals, strict=True)]


class _Counted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, said: Tensor, processes: int) -> Tensor:
        ctx.processes = processes
        return said.view_as(said)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] / ctx.processes, None


def norm(x: Tensor, module: nn.BatchNorm2d, sizes: tuple[int, ...], shares: Shares) -> Tensor:
    """Batch normalisation in training of minibatches of which ``x`` has this process's rows, ``sizes`` of each."""
    if shares.ghosts == 1:
        out: Tensor = _Synchronised.apply(x, module.weight, module.bias, module, sizes, shares)  # type: ignore[no-untyped-call]
        return out
    return torch.cat([_ghost_norm(part, module, shares.ghosts // shares.processes) for part in x.split(sizes)])


def _ghost_norm(x: Tensor, module: nn.BatchNorm2d, n_parts: int) -> Tensor:
    """Rows p, p + n_parts, … are normalised by themselves. Running statistics take the mean over parts."""
    out = torch.empty_like(x)
    mean, var = module.weight.new_zeros((2, n_parts, x.shape[1]))
    for p in range(n_parts):
        out[p::n_parts] = F.batch_norm(
            x[p::n_parts], mean[p], var[p], module.weight, module.bias, True, 1.0, module.eps
        )
    _move_running(module, mean.mean(0), var.mean(0))
    return out


def _move_running(module: Any, mean: Tensor, var: Tensor) -> None:
    """As torch does, without a trace in the graphs of earlier minibatches."""
    module.running_mean.data.lerp_(mean, module.momentum)
    module.running_var.data.lerp_(var, module.momentum)


class _Synchronised(torch.autograd.Function):
    """Statistics of whole minibatches, by one message forward and one backward."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, module: Any, sizes: tuple[int, ...], shares: Shares
    ) -> Tensor:
        values = [total * x.shape[2] * x.shape[3] for total in shares.totals]  # of a channel
        moments = [torch.stack(torch.var_mean(_fine(part), (0, 2, 3), correction=0)) for part in x.split(sizes)]
        var, mean = shares.gathered(torch.stack(moments)).unbind(2)  # [processes, minibatches, c] each
        share = _row_shares(shares.totals, shares.processes, mean.dtype, x.device)
        whole_mean = (share * mean).sum(0)
        whole_var = (share * (var + (mean - whole_mean).square())).sum(0)
        out = torch.empty_like(x)
        for part, to, m, v, n in zip(x.split(sizes), out.split(sizes), whole_mean, whole_var, values, strict=True):
            to.copy_(F.batch_norm(part, m, v, weight, bias, False, 0.0, module.eps))
            _move_running(module, m, v * (n / (n - 1)))
        ctx.save_for_backward(x, weight, whole_mean, (whole_var + module.eps).rsqrt())
        ctx.sizes, ctx.values, ctx.shares = sizes, values, shares
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, rstd = ctx.saved_tensors
        parts = list(zip(x.split(ctx.sizes), gradients[0].split(ctx.sizes), mean, rstd, strict=True))
        normed = [(_fine(part) - _wide(m)) * _wide(r) for part, _, m, r in parts]
        own = torch.stack(
            [
                torch.stack([_fine(dy).sum((0, 2, 3)), (_fine(dy) * z).sum((0, 2, 3))])
                for (_, dy, _, _), z in zip(parts, normed, strict=True)
            ]
        )
        total = ctx.shares.reduced(own.clone())
        dx = [
            _wide(weight * r) * (_fine(dy) - _wide(sums[0] / n) - z * _wide(sums[1] / n))
            for (_, dy, _, r), z, sums, n in zip(parts, normed, total, ctx.values, strict=True)
        ]
        db, dw = own.sum(0)  # over processes they are summed with all gradients
        return torch.cat(dx).to(x.dtype), dw.to(weight.dtype), db.to(weight.dtype), None, None, None


def _fine(x: Tensor) -> Tensor:
    """At least float32."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def _wide(values: Tensor) -> Tensor:
    """One per channel -> to go with [b, c, h, w]"""
    return values.view(1, -1, 1, 1)


@cache  # copied to the device once: a captured step must not wait for the host
def _row_shares(totals: tuple[int, ...], processes: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Of each minibatch's rows, how large a part a process has: [processes, minibatches, 1]"""
    rows = [[len(range(rank, total, processes)) / total for total in totals] for rank in range(processes)]
    return torch.tensor(rows, dtype=dtype, device=device).unsqueeze(2)
