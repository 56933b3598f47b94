"""Precision: how finely a network computes. Weights, statistics and memory are float32 in any case; of the loss, the
products of SupCon and of A-GEM's slopes are computed as the network is.

``fp32`` is the reference, ``tf32`` cuts the factors of matrix products on a GPU to 10 bits, ``bf16`` computes the
network in bfloat16 (autocast). ``auto`` is bf16 on a GPU that has it (``docs/performance.md``), tf32 on others,
fp32 on a CPU. Selection of a buffer never computes in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from gcr.settings import BadInput

PRECISIONS = ("auto", "fp32", "tf32", "bf16")


def usable_device(device: torch.device | str) -> torch.device:
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError, TypeError) as error:
        raise BadInput(f'device "{device}" cannot be used ({str(error).splitlines()[0]}); "cpu" always can') from None
    return where


def resolved(precision: str, device: torch.device) -> str:
    """What ``auto`` means here. A CPU has no tf32: it computes fp32.

    >>> resolved("auto", torch.device("cpu")), resolved("bf16", torch.device("cpu"))
    ('fp32', 'bf16')
    """
    if precision == "auto":
        has_bf16 = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        precision = "bf16" if has_bf16 else "tf32"
    return "fp32" if precision == "tf32" and device.type == "cpu" else precision


@contextmanager
def computing(precision: str, device: torch.device, autocast: bool = True) -> Iterator[None]:
    """Kernels launched inside compute at this (resolved) precision."""
    if device.type == "cpu" and precision == "fp32":
        with torch.autocast("cpu", enabled=False) if torch.is_autocast_enabled("cpu") else nullcontext():
            yield
        return
    before = torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
    try:
        # Without a cache: it would hand out the weights of before an optimizer's step to what comes after it.
        with torch.autocast(device.type, torch.bfloat16, autocast and precision == "bf16", cache_enabled=False):
            yield
    finally:
        torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32 = before
