"""Directions against one long vector."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gcr.methods.directions import add, inner_products

SHAPES = ((3, 2, 3, 3), (5,), (4, 2), (1,))


def made(seed, n):
    generator = torch.Generator().manual_seed(seed)
    lines = [[torch.randn(shape, generator=generator) for shape in SHAPES] for _ in range(n)]
    for line in lines:
        line[0] = line[0].contiguous(memory_format=torch.channels_last)
    return lines


def long_vector(line):
    return torch.cat(
        [torch.zeros(s).flatten() if p is None else p.flatten() for p, s in zip(line, SHAPES, strict=True)]
    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 4), st.lists(st.booleans(), min_size=16, max_size=16))
def test_as_with_one_long_vector(seed, n, absent):
    lines = made(seed, n + 1)
    for line in range(n + 1):
        for part in range(len(SHAPES) - 1):  # the last one is always there
            if absent[(line * len(SHAPES) + part) % 16]:
                lines[line][part] = None
    long = torch.stack([long_vector(line) for line in lines]).double()
    torch.testing.assert_close(inner_products(lines), long @ long.T)
    multipliers = torch.linspace(-1, 2, n, dtype=torch.float64)
    total, expected = add(lines[0], lines[1:], multipliers), long[0] + multipliers @ long[1:]
    for part, piece, same in zip(total, expected.split([54, 5, 8, 1]), zip(*lines, strict=True), strict=True):
        if all(other is None for other in same):
            assert part is None
        else:
            torch.testing.assert_close(part.flatten().double(), piece, atol=1e-5, rtol=1e-5)
