"""How fast selection is, against what, and how it grows. Every ratio is of times measured in this run.

    python benchmarks/selection.py                     all of it on this machine's CPU (a few minutes)
    python benchmarks/selection.py --device cuda       the same on a GPU, without the limits on memory
    python benchmarks/selection.py --cords PATH        also the solvers of a CORDS checkout or installation at PATH

Writes ``selection-<device>`` (``benchmarks/measured.py``). Data are made: ReLU features around a centre per class,
residuals of a softmax that is right more often than not. The objective next to a time is ``L_sub`` summed over classes,
so that speed is never bought with a worse answer.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from torch import Tensor

import gcr

RIDGE = 0.5


def make_pool(n: int, n_classes: int, n_features: int, n_residuals: int, device: str = "cpu") -> tuple[Tensor, ...]:
    """Labels [n], features [n, f], residuals [n, c], float32."""
    g = torch.Generator().manual_seed(0)
    labels = torch.arange(n) % n_classes
    features = (
        torch.randn(n_classes, n_features, generator=g)[labels] + torch.randn(n, n_features, generator=g)
    ).relu()
    logits = 1.5 * torch.randn(n, n_residuals, generator=g)
    right = labels % n_residuals
    logits[torch.arange(n), right] += 2
    residuals = logits.softmax(1)
    residuals[torch.arange(n), right] -= 1
    return labels.to(device), features.to(device), residuals.to(device)


def objective(factors: gcr.LastLayerGradients, labels: Tensor | None, rows: Tensor, weights: Tensor) -> float:
    """``L_sub`` for unit weights in the pool, summed over classes."""
    difference = torch.ones(len(factors), dtype=torch.float64, device=rows.device)
    difference[rows] -= weights.double()
    groups = [slice(None)] if labels is None else [labels == c for c in torch.unique(labels)]
    error = 0.0
    for group in groups:
        part = gcr.LastLayerGradients(factors.features[group], factors.residuals[group])
        error += float(part.weighted_sum(difference[group]).square().sum())
    return error + RIDGE * float(weights.double().square().sum())


def timed(work: Callable[[], Any], device: str, repeats: int = 3) -> tuple[float, Any]:
    """Median seconds of ``repeats`` runs after one that warms up, and the last answer."""
    times, answer = [], work() if repeats > 1 else None
    for _ in range(repeats):
        started = time.perf_counter()
        answer = work()
        if device == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times), answer


def torch_loop(gradients: Tensor, budget: int) -> tuple[Tensor, Tensor]:
    """The usual way: one class, explicit gradients, a host read and a fresh solve for every row."""
    target, support = gradients.sum(0), list[int]()
    residual, weights = target, gradients.new_zeros(0)
    while len(support) < budget:
        correlation = gradients @ residual
        correlation[support] = -torch.inf
        support.append(int(correlation.argmax().item()))
        while True:
            chosen = gradients[support]
            system = chosen @ chosen.T + RIDGE * torch.eye(len(support), dtype=chosen.dtype, device=chosen.device)
            weights = torch.linalg.solve(system, chosen @ target)
            worst = int(weights.argmin().item())
            if weights[worst].item() > 0:
                break
            support.pop(worst)
        residual = target - chosen.T @ weights
    return torch.tensor(support, device=gradients.device), weights


def compare(device: str, cords: Path | None, quick: bool) -> list[dict[str, Any]]:
    """K = 2,000 from 4,000 in 10 classes, 512 features: ours and the others, class by class on explicit gradients."""
    n, k, n_classes = (4000, 2000, 10) if not quick else (400, 200, 10)
    labels, features, residuals = make_pool(n, n_classes, 512, n_classes, device)
    factors = gcr.LastLayerGradients(features, residuals)
    rows: list[dict[str, Any]] = []

    def add(name: str, seconds: float, answer: tuple[Tensor, Tensor], note: str = "") -> None:
        chosen, weights = answer
        value = objective(factors, labels, chosen, weights)
        ours = rows[0]["seconds"] if rows else seconds
        rows.append({"what": name, "seconds": seconds, "times_ours": seconds / ours, "objective": value, "note": note})
        print(f"  {name:44} {1000 * seconds:12.1f} ms {seconds / ours:9.1f}x  L_sub {value:14.2f}  {note}", flush=True)

    for replace in (0, 1, 3):
        select = partial(gcr.select_coreset, factors, k, labels=labels, ridge=RIDGE, replace=replace)
        seconds, chosen = timed(select, device)
        name = "ours" if not replace else f"ours, {replace} pass{'es' * (replace > 1)} of replacement"
        add(name, seconds, (chosen.rows, chosen.weights), chosen.note)

    groups = [torch.nonzero(labels == c).flatten() for c in range(n_classes)]
    explicit = [gcr.LastLayerGradients(features[g], residuals[g]).explicit() for g in groups]

    def by_class(solve: Callable[[Tensor], tuple[Tensor, Tensor]], some: int) -> tuple[float, tuple[Tensor, Tensor]]:
        """Seconds for all classes; where only ``some`` are solved, their mean times the number of classes."""
        found, times = [], []
        for c in range(n_classes):
            if c < some:
                started = time.perf_counter()
                found.append(solve(explicit[c]))
                if device == "cuda":
                    torch.cuda.synchronize()
                times.append(time.perf_counter() - started)
        chosen = torch.cat([groups[c][found[c][0]] for c in range(len(found))])
        return sum(times) / len(times) * n_classes, (chosen, torch.cat([weights for _, weights in found]))

    share = k // n_classes
    torch_loop(explicit[0], 5)  # warms up
    seconds, answer = by_class(lambda g: torch_loop(g, share), n_classes)
    add("a loop of torch operations per class", seconds, answer)
    if device == "cpu":
        sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
        from reference.gcr_algorithm import matching_pursuit as textbook  # type: ignore[import-not-found]

        def plain(gradients: Tensor) -> tuple[Tensor, Tensor]:
            g = gradients.numpy()
            support, weights = textbook(g, g.sum(0), share, RIDGE)
            return torch.tensor(sorted(support)), torch.from_numpy(weights[sorted(support)])

        seconds, answer = by_class(plain, n_classes)
        add("plain textbook, scipy's NNLS inside", seconds, answer)
    if cords is not None:
        solvers = load_cords(cords)

        def numpy_solver(gradients: Tensor) -> tuple[Tensor, Tensor]:
            g = gradients.cpu().numpy()
            weights = torch.from_numpy(
                solvers.OrthogonalMP_REG(g.T, g.sum(0), tol=0.0, nnz=share, positive=True, lam=RIDGE)
            )
            chosen = torch.nonzero(weights > 0).flatten()
            return chosen.to(device), weights[chosen].to(device)

        def torch_solver(gradients: Tensor) -> tuple[Tensor, Tensor]:
            g = gradients.float()
            weights = solvers.OrthogonalMP_REG_Parallel(
                g.T.contiguous(), g.sum(0), tol=0.0, nnz=share, positive=True, lam=RIDGE, device=device
            )
            chosen = torch.nonzero(weights > 0).flatten()
            return chosen, weights[chosen]

        for name, solve in (
            ("CORDS OrthogonalMP_REG (NumPy)", numpy_solver),
            ("CORDS …_Parallel (torch)", torch_solver),
        ):
            try:
                seconds, answer = by_class(solve, n_classes)
                add(name, seconds, answer, f"{len(answer[0])} rows")
            except Exception as error:  # someone else's code, on whatever versions are here
                print(f"  {name:44} failed: {type(error).__name__}: {error}", flush=True)
                rows.append({"what": name, "failed": f"{type(error).__name__}: {error}"})
    return rows


def load_cords(path: Path) -> Any:
    """CORDS' solvers alone; importing the package would pull in all it depends on."""
    found = sorted(path.rglob("omp_solvers.py"))
    if not found:
        raise SystemExit(f"no omp_solvers.py below {path}: give a CORDS checkout or its folder in site-packages")
    spec = importlib.util.spec_from_file_location("omp_solvers", found[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


LARGE = {
    "no labels: K = 2,000 of 20,000": (20_000, 1, 512, 10, 2_000),
    "1,000 classes: K = 10,000 of 20,000": (20_000, 1_000, 512, 1_000, 10_000),
}


def large(name: str, device: str) -> dict[str, Any]:
    """One large problem. Memory is the peak of this whole process, libraries and data included."""
    n, n_classes, n_features, n_residuals, k = LARGE[name]
    labels, features, residuals = make_pool(n, n_classes, n_features, n_residuals, device)
    factors, groups = gcr.LastLayerGradients(features, residuals), None if n_classes == 1 else labels
    seconds, chosen = timed(lambda: gcr.select_coreset(factors, k, labels=groups, ridge=RIDGE), device, repeats=1)
    return {
        "what": name,
        "seconds": seconds,
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        "objective": objective(factors, groups, chosen.rows, chosen.weights),
        "note": chosen.note,
    }


def growth(device: str) -> list[dict[str, Any]]:
    """Seconds against n at K = n / 4, and against K at n = 4,000; 10 classes, 512 features."""
    rows = []
    for axis, cases in (
        ("n", [(n, n // 4) for n in (500, 1000, 2000, 4000, 8000)]),
        ("K", [(4000, k) for k in (100, 200, 500, 1000, 2000)]),
    ):
        for n, k in cases:
            labels, features, residuals = make_pool(n, 10, 512, 10, device)
            factors = gcr.LastLayerGradients(features, residuals)
            seconds, _ = timed(partial(gcr.select_coreset, factors, k, labels=labels), device)
            rows.append({"axis": axis, "n": n, "k": k, "seconds": seconds})
            print(f"  n = {n:6}, K = {k:5} {1000 * seconds:10.1f} ms", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="Selection: time, memory, objective.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--cords", type=Path, help="a CORDS checkout, or its folder in site-packages")
    parser.add_argument("--quick", action="store_true", help="a tenth of the size, nothing written")
    parser.add_argument(
        "--case", choices=list(LARGE), help=argparse.SUPPRESS
    )  # one large case, in a process of its own
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(min(2, os.cpu_count() or 1))
    if options.case:
        print(json.dumps(large(options.case, options.device)))
        return
    n, k = (400, 200) if options.quick else (4000, 2000)
    print(f"K = {k:,} from {n:,} in 10 classes, 512 features ({options.device})")
    compared = compare(options.device, options.cords, options.quick)
    if options.quick:
        return
    print("large problems, each in a process of its own")
    large_rows = []
    for name in LARGE:
        command = [sys.executable, __file__, "--device", options.device, "--case", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        large_rows.append(json.loads(done.stdout))
        row = large_rows[-1]
        print(
            f"  {name:44} {row['seconds']:10.2f} s, peak {row['peak_gib']:.2f} GiB, L_sub {row['objective']:.2f}",
            flush=True,
        )
    print("growth")
    grown = growth(options.device)
    about = {
        "device": torch.cuda.get_device_name()
        if options.device == "cuda"
        else f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
        "versions": {"gcr": gcr.__version__, "torch": torch.__version__, "numpy": np.__version__},
        "compared": compared,
        "large": large_rows,
        "growth": grown,
    }
    measured.write(f"selection-{options.device}", about)
    print(f"written: selection-{options.device}, in {measured.FILE}")


if __name__ == "__main__":
    main()
