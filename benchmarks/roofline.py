"""Roofline of a step: every distinct convolution and normalisation of ResNet-18 at CIFAR shapes, in bfloat16.

    python benchmarks/roofline.py

Each is timed alone on the GPU and in 8 CUDA streams, in captured graphs, on tensors that together exceed the L2 cache.
Its floor is the larger of operations / peak of a large matrix product and bytes / bandwidth of a large copy, both
measured here. Bytes count every tensor that a pass must read or write: statistics need a pass of their own. Writes
``kernels-roofline`` (``benchmarks/measured.py``) with the sums over a step of DER++ (3 minibatches of 32 images) and
GCR (5, of which the last two share statistics).
"""

from __future__ import annotations

import argparse
import math
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import measured
import torch
from step import peak_tflops
from torch import Tensor, nn

from gcr.models import build
from gcr.models.norm import BatchNorm
from gcr.select.cuda_graph import capture

SIZES = {"der++": (32, 32, 32), "gcr": (32, 32, 32, 64)}
STREAMS, CALLS, SETS_BYTES, SECONDS = 8, 16, 256 * 2**20, 0.02
DEVICE, BF16 = torch.device("cuda"), torch.bfloat16


class Layer(NamedTuple):
    """A convolution (kernel > 0) or a normalisation, by shapes."""

    n_in: int
    n_out: int
    pixels: int  # of a side of its input
    kernel: int = 0
    stride: int = 1
    adds: bool = False
    relu: bool = False

    def label(self) -> str:
        if self.kernel:
            stride = f", stride {self.stride}" if self.stride > 1 else ""
            return f"{self.kernel}x{self.kernel} {self.n_in}-{self.n_out}{stride}, {self.pixels}x{self.pixels}"
        then = f"{' + sum' if self.adds else ''}{', ReLU' if self.relu else ''}"
        return f"norm {self.n_in}{then}, {self.pixels}x{self.pixels}"


def layers_of(net: nn.Module) -> Counter[Layer]:
    """How often each distinct layer comes."""
    found: Counter[Layer] = Counter()

    def note(layer: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], _: Any) -> None:
        pixels = inputs[0].shape[-1]
        if isinstance(layer, nn.Conv2d):
            found[Layer(layer.in_channels, layer.out_channels, pixels, layer.kernel_size[0], layer.stride[0])] += 1
        elif isinstance(layer, BatchNorm):
            c = layer.num_features
            found[Layer(c, c, pixels, adds=kwargs.get("add") is not None, relu=layer.relu)] += 1

    for layer in net.modules():
        layer.register_forward_hook(note, with_kwargs=True)
    net(torch.zeros(2, 3, 32, 32))
    return found


Pass = tuple[str, float, float, Callable[[], Callable[[], Any]]]  # name, GFLOP, bytes, maker of a call on new tensors


def image(b: int, channels: int, pixels: int) -> Tensor:
    return torch.randn(b, channels, pixels, pixels, device=DEVICE, dtype=BF16).to(memory_format=torch.channels_last)


def convolution(layer: Layer, b: int) -> list[Pass]:
    out, c_in = layer.pixels // layer.stride, max(layer.n_in, 8)  # the first is computed on 8 channels
    weight = torch.randn(layer.n_out, c_in, layer.kernel, layer.kernel, device=DEVICE, dtype=BF16)
    weight = weight.to(memory_format=torch.channels_last)
    gigaflops = 2e-9 * b * out**2 * layer.n_out * layer.n_in * layer.kernel**2
    moved = 2 * (b * layer.n_in * layer.pixels**2 + b * layer.n_out * out**2 + weight.numel())
    how = {"stride": [layer.stride] * 2, "padding": [layer.kernel // 2] * 2, "dilation": [1, 1]}

    def forward() -> Callable[[], Any]:
        x = image(b, c_in, layer.pixels)
        return lambda: torch.nn.functional.conv2d(x, weight, None, layer.stride, layer.kernel // 2)

    def backward(of_input: bool) -> Callable[[], Any]:
        x, dy = image(b, c_in, layer.pixels), image(b, layer.n_out, out)
        rest = (None, *how.values(), False, [0, 0], 1, [of_input, not of_input, False])
        return lambda: torch.ops.aten.convolution_backward(dy, x, weight, *rest)

    passes: list[Pass] = [("forward", gigaflops, moved, forward)]
    if layer.n_in > 3:  # images need no gradient
        passes.append(("input gradient", gigaflops, moved, lambda: backward(True)))
    return [*passes, ("weight gradient", gigaflops, moved, lambda: backward(False))]


def normalisation(layer: Layer, sizes: tuple[int, ...]) -> list[Pass]:
    module = BatchNorm(layer.n_in, layer.relu).to(DEVICE).train()
    shape = sum(sizes), layer.n_in, layer.pixels
    one = 2 * sum(sizes) * layer.n_in * layer.pixels**2

    def forward() -> Callable[[], Any]:
        x, add = image(*shape), image(*shape) if layer.adds else None
        return lambda: module(x, sizes, add=add)

    def backward() -> Callable[[], Any]:
        given = [image(*shape).requires_grad_() for _ in range(1 + layer.adds)]
        y, dy = module(given[0], sizes, add=given[1] if layer.adds else None), image(*shape)
        return lambda: torch.autograd.grad(y, [*given, module.weight, module.bias], dy, retain_graph=True)

    return [("forward", 0.0, one * (3 + layer.adds), forward), ("backward", 0.0, one * (5 + 2 * layer.adds), backward)]


def graph_of(make: Callable[[], Callable[[], Any]], bytes_: float) -> torch.cuda.CUDAGraph:
    calls = [make() for _ in range(min(CALLS, math.ceil(SETS_BYTES / bytes_)))]
    calls[0]()

    def every() -> None:
        for number in range(CALLS):
            calls[number % len(calls)]()

    return capture(every, DEVICE)


def seconds_a_replay(graphs: list[torch.cuda.CUDAGraph]) -> float:
    """Of one graph, with all of them side by side, each on its own CUDA stream."""
    streams = [torch.cuda.Stream() for _ in graphs]

    def together(number: int) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(number):
            for stream, graph in zip(streams, graphs, strict=True):
                with torch.cuda.stream(stream):
                    graph.replay()
        torch.cuda.synchronize()
        return (time.perf_counter() - started) / number / len(graphs)

    together(1)
    number = max(3, math.ceil(SECONDS / len(graphs) / together(2)))
    return min(together(number) for _ in range(3))


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a large copy with the sign changed (a plain one may be no kernel)."""
    a = torch.ones(2**29, dtype=BF16, device=DEVICE)
    b = torch.empty_like(a)

    def copies() -> None:
        for _ in range(4):
            torch.neg(a, out=b)

    return 4 * 2 * 2**30 / seconds_a_replay([capture(copies, DEVICE)])


def rooflines(method: str, layers: Counter[Layer], peak: float, bandwidth: float) -> list[dict[str, Any]]:
    sizes, rows = SIZES[method], []
    for layer, times in layers.items():
        for name, gigaflops, moved, make in (
            convolution(layer, sum(sizes)) if layer.kernel else normalisation(layer, sizes)
        ):
            graphs = [graph_of(make, moved) for _ in range(STREAMS)]
            floor = max(1e-3 * gigaflops / peak, moved / bandwidth)
            alone, packed = (seconds_a_replay(graphs[:n]) / CALLS for n in (1, STREAMS))
            row = {
                "method": method,
                "layer": layer.label(),
                "pass": name,
                "times": times,
                "gigaflops": gigaflops,
                "megabytes": moved / 1e6,
                "floor_us": 1e6 * floor,
                "bound": "operations" if 1e-3 * gigaflops / peak > moved / bandwidth else "bytes",
                "alone_us": 1e6 * alone,
                "packed_us": 1e6 * packed,
            }
            rows.append(row)
            print(" ".join(f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()), flush=True)
            del graphs
            torch.cuda.empty_cache()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Roofline of the convolutions and normalisations of a step.")
    parser.add_argument("--methods", default=",".join(SIZES))
    options = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    layers = layers_of(build("resnet18", (3, 32, 32), 10, 0).eval())
    peak, bandwidth = peak_tflops(DEVICE), copy_bandwidth()
    about: dict[str, Any] = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "peak_tflops_bf16": peak,
        "copy_bytes_a_second": bandwidth,
        "streams": STREAMS,
        "rows": [],
    }
    with torch.cuda.stream(torch.cuda.Stream()):
        for method in options.methods.split(","):
            about["rows"] += rooflines(method, layers, peak, bandwidth)
            measured.write("kernels-roofline", about)
    print(f"{peak:.0f} TFLOP/s, {bandwidth / 1e12:.2f} TB/s; written: kernels-roofline, in {measured.FILE}")


if __name__ == "__main__":
    main()
