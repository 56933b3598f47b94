"""Triton kernels of ``fused_norm.py``. Imported only where Triton is installed.

An activation in channels_last order is a matrix [rows, channels], a row per pixel. Its rows are cut into chunks that
never cross a minibatch. ``chunks`` [n, 3] lists (minibatch, first row, rows) of each, ``groups`` [g, 3] lists (first
chunk, chunks, rows) of each minibatch. Every program takes one chunk and one block of channels; the second kernel of
each direction puts the chunks together in a fixed order, so that results do not depend on timing.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def chunk_moments(x, chunks, moments, C, ROWS: tl.constexpr, R: tl.constexpr, B: tl.constexpr):
    """Mean and sum of squared deviations of every chunk: moments [n, 2, C]."""
    chunk = tl.program_id(0)
    channel = tl.program_id(1) * B + tl.arange(0, B)
    there = channel < C
    first = tl.load(chunks + chunk * 3 + 1).to(tl.int64)
    n = tl.load(chunks + chunk * 3 + 2)
    x += first * C
    shift = tl.load(x + channel, mask=there, other=0.0).to(tl.float32)  # sums stay small relative to the mean
    total = tl.zeros([R, B], tl.float32)
    square = tl.zeros([R, B], tl.float32)
    for start in range(0, ROWS, R):
        row = start + tl.arange(0, R)
        mask = (row < n)[:, None] & there[None, :]
        value = tl.load(x + row[:, None] * C + channel[None, :], mask=mask, other=0.0).to(tl.float32)
        value = tl.where(mask, value - shift[None, :], 0.0)
        total += value
        square += value * value
    s = tl.sum(total, 0)
    tl.store(moments + chunk * 2 * C + channel, shift + s / n, mask=there)
    tl.store(moments + chunk * 2 * C + C + channel, tl.sum(square, 0) - s * s / n, mask=there)


@triton.jit
def group_moments(
    moments,
    chunks,
    groups,
    mean_out,
    rstd_out,
    running_mean,
    running_var,
    C,
    momentum,
    eps,
    G: tl.constexpr,
    N: tl.constexpr,
    B: tl.constexpr,
):
    """Chunks -> minibatches: mean and 1/deviation [G, C]; running statistics take the minibatches in turn."""
    channel = tl.program_id(0) * B + tl.arange(0, B)
    there = channel < C
    old_mean = tl.load(running_mean + channel, mask=there, other=0.0)
    old_var = tl.load(running_var + channel, mask=there, other=0.0)
    for g in range(G):
        first = tl.load(groups + g * 3)
        n = tl.load(groups + g * 3 + 1)
        rows = tl.load(groups + g * 3 + 2).to(tl.float32)
        total = tl.zeros([B], tl.float32)
        for start in range(0, n, N):
            index = start + tl.arange(0, N)
            mask = (index < n)[:, None] & there[None, :]
            count = tl.load(chunks + (first + index) * 3 + 2, mask=index < n, other=0).to(tl.float32)
            at = moments + ((first + index) * 2 * C)[:, None] + channel[None, :]
            total += tl.sum(count[:, None] * tl.load(at, mask=mask, other=0.0), 0)
        mean = total / rows
        around = tl.zeros([B], tl.float32)
        for start in range(0, n, N):
            index = start + tl.arange(0, N)
            mask = (index < n)[:, None] & there[None, :]
            count = tl.load(chunks + (first + index) * 3 + 2, mask=index < n, other=0).to(tl.float32)
            at = moments + ((first + index) * 2 * C)[:, None] + channel[None, :]
            away = tl.load(at, mask=mask, other=0.0) - mean[None, :]
            part = tl.load(at + C, mask=mask, other=0.0) + count[:, None] * away * away
            around += tl.sum(tl.where(mask, part, 0.0), 0)
        var = around / rows
        tl.store(mean_out + g * C + channel, mean, mask=there)
        tl.store(rstd_out + g * C + channel, 1.0 / tl.sqrt(var + eps), mask=there)
        old_mean = (1 - momentum) * old_mean + momentum * mean
        old_var = (1 - momentum) * old_var + momentum * var * (rows / (rows - 1))
    tl.store(running_mean + channel, old_mean, mask=there)
    tl.store(running_var + channel, old_var, mask=there)


@triton.jit
def normalise(
    x,
    add,
    y,
    chunks,
    mean,
    rstd,
    weight,
    bias,
    C,
    ROWS: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
):
    """``y = relu(norm(x) + add)``"""
    chunk = tl.program_id(0)
    channel = tl.program_id(1) * B + tl.arange(0, B)
    there = channel < C
    group = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1).to(tl.int64)
    n = tl.load(chunks + chunk * 3 + 2)
    scale = tl.load(rstd + group * C + channel, mask=there, other=0.0)
    scale *= tl.load(weight + channel, mask=there, other=0.0)
    middle = tl.load(mean + group * C + channel, mask=there, other=0.0)
    shift = tl.load(bias + channel, mask=there, other=0.0)
    for start in range(0, ROWS, R):
        row = start + tl.arange(0, R)
        mask = (row < n)[:, None] & there[None, :]
        at = first * C + row[:, None] * C + channel[None, :]
        out = (tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - middle[None, :]) * scale[None, :] + shift[None, :]
        if ADD:
            out += tl.load(add + at, mask=mask, other=0.0).to(tl.float32)
        if RELU:
            out = tl.maximum(out, 0.0)
        tl.store(y + at, out.to(y.dtype.element_ty), mask=mask)


@triton.jit
def chunk_gradients(
    dy,
    x,
    y,
    chunks,
    mean,
    rstd,
    weight,
    bias,
    sums,
    dadd,
    C,
    ROWS: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
):
    """Sums over every chunk of d (the gradient behind the ReLU) and of d * normalised x: sums [n, 2, C].

    Behind a shortcut's sum ``dadd = d`` is written here, and the next kernel need not make it again.
    """
    chunk = tl.program_id(0)
    channel = tl.program_id(1) * B + tl.arange(0, B)
    there = channel < C
    group = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1).to(tl.int64)
    n = tl.load(chunks + chunk * 3 + 2)
    middle = tl.load(mean + group * C + channel, mask=there, other=0.0)
    scale = tl.load(rstd + group * C + channel, mask=there, other=0.0)
    factor = scale * tl.load(weight + channel, mask=there, other=0.0)
    shift = tl.load(bias + channel, mask=there, other=0.0)
    plain = tl.zeros([R, B], tl.float32)
    along = tl.zeros([R, B], tl.float32)
    for start in range(0, ROWS, R):
        row = start + tl.arange(0, R)
        mask = (row < n)[:, None] & there[None, :]
        at = first * C + row[:, None] * C + channel[None, :]
        d = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        centred = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - middle[None, :]
        if RELU:
            if ADD:
                open_ = tl.load(y + at, mask=mask, other=0.0).to(tl.float32) > 0
            else:  # cheaper to compute again than to read
                open_ = centred * factor[None, :] + shift[None, :] > 0
            d = tl.where(open_, d, 0.0)
        if ADD:
            tl.store(dadd + at, d.to(dadd.dtype.element_ty), mask=mask)
        plain += d
        along += d * centred * scale[None, :]
    tl.store(sums + chunk * 2 * C + channel, tl.sum(plain, 0), mask=there)
    tl.store(sums + chunk * 2 * C + C + channel, tl.sum(along, 0), mask=there)


@triton.jit
def group_gradients(sums, groups, means, dweight, dbias, C, G: tl.constexpr, N: tl.constexpr, B: tl.constexpr):
    """Chunks -> minibatches: the two sums over rows, [G, 2, C]; and the gradients of weight and bias."""
    channel = tl.program_id(0) * B + tl.arange(0, B)
    there = channel < C
    all_plain = tl.zeros([B], tl.float32)
    all_along = tl.zeros([B], tl.float32)
    for g in range(G):
        first = tl.load(groups + g * 3)
        n = tl.load(groups + g * 3 + 1)
        rows = tl.load(groups + g * 3 + 2).to(tl.float32)
        plain = tl.zeros([B], tl.float32)
        along = tl.zeros([B], tl.float32)
        for start in range(0, n, N):
            index = start + tl.arange(0, N)
            mask = (index < n)[:, None] & there[None, :]
            at = sums + ((first + index) * 2 * C)[:, None] + channel[None, :]
            plain += tl.sum(tl.load(at, mask=mask, other=0.0), 0)
            along += tl.sum(tl.load(at + C, mask=mask, other=0.0), 0)
        tl.store(means + g * 2 * C + channel, plain / rows, mask=there)
        tl.store(means + g * 2 * C + C + channel, along / rows, mask=there)
        all_plain += plain
        all_along += along
    tl.store(dbias + channel, all_plain, mask=there)
    tl.store(dweight + channel, all_along, mask=there)


@triton.jit
def input_gradient(
    dy,
    x,
    dx,
    chunks,
    mean,
    rstd,
    means,
    weight,
    bias,
    C,
    ROWS: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    CUT: tl.constexpr,
):
    """``dx = weight / deviation * (d - mean(d) - x' mean(d x'))``, x' the normalised x. Unless CUT, ``dy`` is d."""
    chunk = tl.program_id(0)
    channel = tl.program_id(1) * B + tl.arange(0, B)
    there = channel < C
    group = tl.load(chunks + chunk * 3)
    first = tl.load(chunks + chunk * 3 + 1).to(tl.int64)
    n = tl.load(chunks + chunk * 3 + 2)
    middle = tl.load(mean + group * C + channel, mask=there, other=0.0)
    scale = tl.load(rstd + group * C + channel, mask=there, other=0.0)
    plain = tl.load(means + group * 2 * C + channel, mask=there, other=0.0)
    along = tl.load(means + group * 2 * C + C + channel, mask=there, other=0.0)
    factor = scale * tl.load(weight + channel, mask=there, other=0.0)
    shift = tl.load(bias + channel, mask=there, other=0.0)
    for start in range(0, ROWS, R):
        row = start + tl.arange(0, R)
        mask = (row < n)[:, None] & there[None, :]
        at = first * C + row[:, None] * C + channel[None, :]
        d = tl.load(dy + at, mask=mask, other=0.0).to(tl.float32)
        centred = tl.load(x + at, mask=mask, other=0.0).to(tl.float32) - middle[None, :]
        if CUT:
            d = tl.where(centred * factor[None, :] + shift[None, :] > 0, d, 0.0)
        out = factor[None, :] * (d - plain[None, :] - centred * scale[None, :] * along[None, :])
        tl.store(dx + at, out.to(dx.dtype.element_ty), mask=mask)
