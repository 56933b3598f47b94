"""Gradients of any parameters, projected at random to few numbers: one row per example, in a mapped file if named.

Coordinate i of a gradient g of length p goes to bucket h(i) of m with sign s(i), both drawn once from the seed:
``P g = (sum_{h(i) = b} s(i) g_i)_b``. This costs O(p) a row and no matrix is held. Inner products keep their mean,
``E <P g, P g'> = <g, g'>``, and deviate by at most ``|g| |g'| sqrt(2 / m)`` in root mean square over the draws: 1.6% of
the lengths at m = 8,192 (count sketch, Charikar et al. 2002). Up to m parameters nothing is projected.

The file is a NumPy array (.npy) that grows by batches. Its header says how many rows are whole, so a pass that was
broken off goes on there.
"""

from __future__ import annotations

import ast
import os
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from gcr.select.checks import check_finite
from gcr.select.cuda_graph import out_of_memory
from gcr.settings import BadInput

MAGIC = b"\x93NUMPY\x01\x00"
HEADER = 128  # bytes before the rows: that of NumPy's version 1.0, padded
HELD = 2**26  # numbers of explicit gradients that are held at once
CHECKED = 8  # examples whose exact inner products are compared, at most
SLICE = 2**20  # parameters whose products are summed together in that
ALLOWED = 4  # times the stated error: more than that by chance in at most 1 of 16 seeds (Markov), far fewer in practice


@dataclass(frozen=True)
class ProjectedGradients:
    """What ``collect(…, gradients="projected")`` gives; ``gradients`` go to ``select_coreset``."""

    gradients: Tensor  # [n, m] float32 in memory, or mapped from the file that was named
    labels: Tensor  # as the loader gave them
    error: float  # root mean square of what inner products of the first examples are off, as a share of the lengths
    stated_error: float  # sqrt(2 / m), its bound over seeds; 0 without projection
    checked: int  # how many examples these are


class Projector:
    """Rows of projected gradients for batches of examples."""

    def __init__(self, net: nn.Module, loss: Callable[..., Tensor], parameters: Any, width: int, seed: int) -> None:
        self.net, self.loss = net, loss
        named = dict(net.named_parameters())
        self.chosen = {name: named[name].detach() for name in chosen_names(named, parameters)}
        self.fixed = {name: value.detach() for name, value in named.items() if name not in self.chosen}
        self.fixed |= {name: value.detach() for name, value in net.named_buffers()}
        self.length = sum(value.numel() for value in self.chosen.values())
        self.device = next(iter(self.chosen.values())).device
        self.width = min(width, self.length)
        self.stated_error = (2 / self.width) ** 0.5 if self.width < self.length else 0.0
        generator = torch.Generator().manual_seed(seed)
        self.buckets = torch.randint(self.width, (self.length,), generator=generator).to(self.device)
        self.signs = torch.randint(2, (self.length,), generator=generator, dtype=torch.int8).to(self.device) * 2 - 1

    def explicit(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """[b, p] gradients of the loss of each example."""

        def loss_of(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            output = functional_call(self.net, values | self.fixed, (x.unsqueeze(0),))
            found = self.loss(output, y.unsqueeze(0))
            if found.shape != (1,):
                raise BadInput(
                    f'loss must give one value per example, [1] here, got {tuple(found.shape)}; use reduction="none"'
                )
            return found.squeeze(0)

        try:
            with sdpa_kernel(SDPBackend.MATH):  # the one that can be batched
                found = vmap(grad(loss_of), (None, 0, 0))(self.chosen, inputs, labels)
        except RuntimeError as error:
            if out_of_memory(error):
                raise
            why = str(error).strip().splitlines()[0]
            raise BadInput(f"net and loss must be ones that torch.func can batch over examples ({why})") from error
        return torch.cat([found[name].flatten(1) for name in self.chosen], 1)

    def project(self, gradients: Tensor) -> Tensor:
        if self.width == self.length:
            return gradients.float()
        rows = torch.zeros(len(gradients), self.width, dtype=torch.float32, device=self.device)
        return rows.index_add_(1, self.buckets, gradients.float() * self.signs)

    def rows(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """[b, m], a few examples at a time."""
        step = max(HELD // self.length, 1)
        parts = zip(inputs.split(step), labels.split(step), strict=True)
        made = [self.project(self.explicit(x.to(self.device), y.to(self.device))).cpu() for x, y in parts]
        return torch.cat(made)

    def check(self, inputs: Tensor, labels: Tensor) -> tuple[float, int]:
        """Root mean square of what inner products of the first examples are off, by their lengths, and their number.

        As many gradients are held as in the pass itself, two at least. Exact products are summed slice by slice.
        """
        count = min(CHECKED, max(HELD // self.length, 2), len(labels))
        parts = zip(inputs[:count].split(1), labels[:count].split(1), strict=True)
        gradients = [self.explicit(x.to(self.device), y.to(self.device)) for x, y in parts]
        rows = torch.cat([self.project(g) for g in gradients]).double()
        exact = torch.zeros(count, count, dtype=torch.float64, device=self.device)
        for slices in zip(*(g.split(SLICE, dim=1) for g in gradients), strict=True):
            part = torch.cat(slices).double()
            exact += part @ part.T
        lengths = exact.diagonal().sqrt().clamp_min(1e-150)
        off = (rows @ rows.T - exact) / (lengths.unsqueeze(1) * lengths)
        first, second = torch.triu_indices(count, count, device=self.device)
        error = float(off[first, second].square().mean().sqrt())
        if not error <= ALLOWED * self.stated_error + 1e-4:
            warnings.warn(
                f"inner products of projected gradients are off by {error:.2g} of the lengths in root mean square over "
                f"{len(first)} pairs of {count} examples; {self.stated_error:.2g} is stated. Give a larger width or "
                "another seed",
                stacklevel=4,
            )
        return error, count


def chosen_names(named: dict[str, nn.Parameter], parameters: Any) -> list[str]:
    """Names of the parameters: those that need gradients, those whose names contain a text, or those given."""
    if parameters is None:
        found = [name for name, value in named.items() if value.requires_grad]
        if not found:
            raise BadInput("no parameter of net requires a gradient; name some with parameters=")
    elif isinstance(parameters, str):
        found = [name for name in named if parameters in name]
    else:
        wanted = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        ids = {id(value) for value in named.values()}
        for one in wanted:
            if not (any(one in name for name in named) if isinstance(one, str) else id(one) in ids):
                got = (
                    repr(one) if isinstance(one, str) else f"another tensor of shape {tuple(getattr(one, 'shape', ()))}"
                )
                raise BadInput(f"parameters must be the net's, such as {', '.join(list(named)[:3])}; got {got}")
        texts, own = [w for w in wanted if isinstance(w, str)], {id(w) for w in wanted if not isinstance(w, str)}
        found = [name for name, value in named.items() if id(value) in own or any(text in name for text in texts)]
    if not found:
        raise BadInput(
            f"parameters must name some of the net's, such as {', '.join(list(named)[:3])}; got {parameters!r}"
        )
    return found


def collect_projected(
    projector: Projector, batches: Iterable[tuple[Tensor, Tensor]], to: str | Path | None
) -> ProjectedGradients:
    """One pass. Rows that the file has are not computed again, but the first and the last of them, to compare."""
    try:
        file = None if to is None else RowFile(Path(to), projector.width)
    except OSError as refused:
        raise BadInput(f"cannot write {to} ({refused.strerror}); name another file") from None
    held, labels, error, checked, begin = list[Tensor](), list[Tensor](), 0.0, 0, 0
    try:
        for inputs, own in batches:
            labels.append(own)
            end, done = begin + len(own), 0 if file is None else file.count
            if file is not None and begin < done:
                for row in {begin, min(end, done) - 1} if begin == 0 or end >= done else ():
                    made = projector.rows(inputs[row - begin :][:1], own[row - begin :][:1])
                    check_finite("gradients", made, row)
                    file.compare(row, made[0])
            if end > done:
                first = max(done - begin, 0)
                rows = projector.rows(inputs[first:], own[first:])
                check_finite("gradients", rows, begin + first)
                held.append(rows) if file is None else file.append(rows)
            if begin == 0:
                error, checked = projector.check(inputs, own)
            begin = end
        if not labels:
            raise BadInput("loader is empty; it must give batches of (inputs, labels)")
        if file is not None and file.count > begin:
            raise BadInput(f"{to} has {file.count} rows, but loader gives {begin}; name another file or the same data")
    finally:
        if file is not None:
            file.stream.close()
    gradients = torch.cat(held) if file is None else file.mapped()
    return ProjectedGradients(gradients, torch.cat(labels), error, projector.stated_error, checked)


class RowFile:
    """A NumPy file of float32 rows that can be appended to."""

    stream: BinaryIO

    def __init__(self, path: Path, width: int) -> None:
        self.path, self.width, self.count = path, width, 0
        if path.exists() and path.stat().st_size > 0:
            self.count = self._rows_so_far()
            self.stream = path.open("r+b")
            self.stream.truncate(HEADER + 4 * width * self.count)
        else:
            self.stream = path.open("w+b")
            self._write_header()

    def _rows_so_far(self) -> int:
        with self.path.open("rb") as stream:
            start = stream.read(HEADER)
        try:
            about = ast.literal_eval(start[10:].decode("latin-1").strip())
            count, width = about["shape"]
            whole = start.startswith(MAGIC) and about["descr"] == "<f4" and not about["fortran_order"]
        except (ValueError, SyntaxError, TypeError, KeyError):
            raise BadInput(f"{self.path} is not a file of projected gradients; name another file") from None
        if not whole or width != self.width:
            shape = (count, width)
            raise BadInput(
                f"{self.path} must have float32 rows of {self.width} numbers, got {shape}; name another file"
            )
        held = (self.path.stat().st_size - HEADER) // (4 * self.width)
        if held < count:
            raise BadInput(f"{self.path} is cut short: {count} rows by its header, {held} in it; make it again")
        return int(count)

    def mapped(self) -> Tensor:
        size = HEADER // 4 + self.count * self.width
        everything = torch.from_file(str(self.path), shared=False, size=size, dtype=torch.float32)
        return everything[HEADER // 4 :].view(self.count, self.width)

    def _write_header(self) -> None:
        text = repr({"descr": "<f4", "fortran_order": False, "shape": (self.count, self.width)}).encode()
        padded = text.ljust(HEADER - 11) + b"\n"
        self.stream.seek(0)
        self.stream.write(MAGIC + len(padded).to_bytes(2, "little") + padded)
        self.stream.flush()

    def append(self, rows: Tensor) -> None:
        """Rows first, then the header that counts them."""
        self.stream.seek(HEADER + 4 * self.width * self.count)
        self.stream.write(rows.contiguous().numpy().tobytes())
        self.stream.flush()
        os.fsync(self.stream.fileno())
        self.count += len(rows)
        self._write_header()

    def compare(self, row: int, made: Tensor) -> None:
        self.stream.seek(HEADER + 4 * self.width * row)
        stored = torch.frombuffer(bytearray(self.stream.read(4 * self.width)), dtype=torch.float32)
        if not float((stored - made).norm()) <= 1e-3 * float(made.norm()) + 1e-12:
            raise BadInput(
                f"{self.path} has other gradients in row {row}: another net, seed, parameters or order of examples; "
                "name another file, and do not shuffle"
            )
