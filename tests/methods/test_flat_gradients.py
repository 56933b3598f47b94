"""Directions as vectors, and back."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.methods.flat_gradients import parts, vectors
from gcr.methods.gem import inner_products

SHAPES = ((3, 2, 3, 3), (5,), (4, 2), (1,))


def made(seed, n):
    generator = torch.Generator().manual_seed(seed)
    return [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(n)]


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.sets(st.integers(0, 15)), st.sets(st.integers(0, 3)))
def test_sums_of_vectors_are_sums_of_parts(seed, n, absent, channels_last):
    lines = made(seed, n)
    for place, line in enumerate(lines):
        if place in channels_last:
            line[0] = line[0].contiguous(memory_format=torch.channels_last)
        for part in range(len(SHAPES) - 1):  # the last one is always there
            if 4 * place + part in absent:
                line[part] = None
    whole = vectors(lines)
    for total, same in zip(parts(sum(whole), lines), zip(*lines, strict=True), strict=True):
        there = [part for part in same if part is not None]
        if there:
            torch.testing.assert_close(total, sum(there))
            assert total.stride() == there[0].stride()
        else:
            assert total is None
    long = torch.stack(whole).double()
    torch.testing.assert_close(inner_products(torch.stack(whole)), long @ long.T)
