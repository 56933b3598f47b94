"""Selection as a library: k-centre against anomalib's, large pools, and how the cost grows.

    python benchmarks/selection_library.py                        all of it on two cores (about half an hour)
    python benchmarks/selection_library.py --only k-centre --anomalib PATH    with anomalib's file from a checkout
    python benchmarks/selection_library.py --device cuda          the same on a GPU
    python benchmarks/selection_library.py --quick                smaller problems in two minutes; writes nothing

Writes ``selection-library`` or ``selection-library-cuda`` (``benchmarks/measured.py``). A part that is run alone
replaces its own rows there. Seconds come with the processor time of the process and the load of the machine when they
were taken. anomalib's walk costs the same for every centre, so ``--peer-centres`` of them are timed and the rest is
scaled.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
import types
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch
from selection import make_pool
from torch import Tensor

import gcr

PARTS = ("k-centre", "no-labels", "million", "growth")
N, D, BUDGET = 100_000, 384, 10_000
QUICK = 10  # by which --quick divides the sizes


def timed(work: Callable[[], Any], device: str) -> tuple[dict[str, float], Any]:
    """One run: seconds, processor seconds, load before it."""
    load = os.getloadavg()[0]
    wall, processor = time.perf_counter(), time.process_time()
    answer = work()
    if device == "cuda":
        torch.cuda.synchronize()
    took = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor, "load": load}
    return took, answer


def patch_features(n: int, device: str) -> Tensor:
    """Rows around 200 centres, after a ReLU, as patches of a network's features are."""
    g = torch.Generator().manual_seed(0)
    kinds = torch.randint(200, (n,), generator=g)
    return (torch.randn(200, D, generator=g)[kinds] + torch.randn(n, D, generator=g)).relu().to(device)


def k_centre(device: str, anomalib: Path | None, peer_centres: int, part: int = 1) -> list[dict[str, Any]]:
    n, budget = N // part, BUDGET // part
    features, rows = patch_features(n, device), list[dict[str, Any]]()
    peer = load_anomalib(anomalib, features, peer_centres) if anomalib is not None else None
    projection = peer.model.sparse_random_matrix.T.contiguous() if peer is not None else None
    gcr.k_centre(features, 5, projection=projection)  # warms up
    took, theirs = timed(peer.select_coreset_idxs if peer is not None else list, device)
    first = theirs[0] if peer is not None else 0
    ours, chosen = timed(partial(gcr.k_centre, features, budget, start=first, projection=projection), device)
    rows.append({"what": "gcr.k_centre", "centres": budget, **ours, "note": chosen.note})
    if peer is not None:
        scaled = {name: took[name] * budget / peer_centres for name in ("seconds", "processor_seconds")}
        same = sum(a == b for a, b in zip(theirs, chosen.rows.tolist(), strict=False))
        rows.append({"what": "anomalib KCenterGreedy", "centres": budget, **scaled, "load": took["load"]})
        rows[-1] |= {"centres_timed": peer_centres, "seconds_of_these": took["seconds"], "same_rows": same}
        rows[-1]["times_ours"] = scaled["seconds"] / ours["seconds"]
    width = D if projection is None else projection.shape[1]
    return [row | {"n": n, "d": D, "projected_to": width} for row in rows]


def load_anomalib(path: Path, features: Tensor, centres: int) -> Any:
    """anomalib's two files alone; importing the package would pull in all it depends on."""
    if importlib.util.find_spec("tqdm") is None:
        sys.modules["tqdm"] = types.SimpleNamespace(tqdm=lambda steps, **_: steps)  # type: ignore[assignment]
    found = {}
    for name in ("random_projection", "k_center_greedy"):
        file = next(iter(path.rglob(f"{name}.py")), None)
        if file is None:
            raise SystemExit(f"no {name}.py below {path}: give an anomalib checkout")
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        found[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(found[name])
        reduction = types.SimpleNamespace(SparseRandomProjection=found["random_projection"].SparseRandomProjection)
        sys.modules["anomalib.models.components.dimensionality_reduction"] = reduction  # type: ignore[assignment]
    torch.manual_seed(0)
    peer = found["k_center_greedy"].KCenterGreedy(features, centres / len(features))
    peer.coreset_size = centres
    peer.model.fit(features)
    peer.model.fit = lambda _: peer.model  # the same projection for both
    return peer


def no_labels(device: str, part: int = 1) -> list[dict[str, Any]]:
    n, k = 20_000 // part, 2000 // part
    _, features, residuals = make_pool(n, 1, 512, 10, device)
    took, chosen = timed(partial(gcr.select_coreset, gcr.LastLayerGradients(features, residuals), k), device)
    return [{"what": f"no labels: K = {k:,} of {n:,}", **took, "note": chosen.note, "peak_gib": peak()}]


def million(device: str, folder: Path, part: int = 1) -> list[dict[str, Any]]:
    """Mapped files on the CPU; on a GPU the same numbers in its memory, with the seconds of that copy on their own."""
    n, classes = 1_000_000 // part, 100
    labels = np.arange(n) % classes
    features, residuals = folder / "features.npy", folder / "residuals.npy"
    if not residuals.exists():
        left = np.lib.format.open_memmap(features, mode="w+", dtype=np.float32, shape=(n, 512))
        right = np.lib.format.open_memmap(residuals, mode="w+", dtype=np.float32, shape=(n, classes))
        rng = np.random.default_rng(0)
        centres = rng.standard_normal((classes, 512), dtype=np.float32)
        for begin in range(0, n, 20_000):
            own = labels[begin : begin + 20_000]
            left[begin : begin + 20_000] = np.maximum(
                centres[own] + rng.standard_normal((20_000, 512), dtype=np.float32), 0
            )
            logits = 1.5 * rng.standard_normal((20_000, classes), dtype=np.float32)
            logits[np.arange(20_000), own] += 4
            share = np.exp(logits - logits.max(1, keepdims=True))
            share /= share.sum(1, keepdims=True)
            share[np.arange(20_000), own] -= 1
            right[begin : begin + 20_000] = share
        left.flush()
        right.flush()
    command = [sys.executable, __file__, "--device", device, "--only", "million-here", "--folder", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return list(json.loads(done.stdout))


def million_here(device: str, folder: Path) -> list[dict[str, Any]]:
    features, residuals = (np.load(folder / name, mmap_mode="r") for name in ("features.npy", "residuals.npy"))
    labels = np.arange(len(features)) % residuals.shape[1]
    n, copy = len(features), dict[str, float]()
    if device == "cuda":
        few = [torch.tensor(part[: n // 5]).cuda() for part in (features, residuals)]
        gcr.select_coreset(gcr.LastLayerGradients(few[0], few[1]), n // 500, labels=labels[: n // 5])  # warms up
        took, (features, residuals) = timed(
            lambda: [torch.tensor(part).cuda() for part in (features, residuals)], device
        )
        copy = {"copy_seconds": took["seconds"]}
    gradients = gcr.LastLayerGradients(features, residuals)
    took, chosen = timed(partial(gcr.select_coreset, gradients, n // 100, labels=labels), device)
    row = {"what": f"100 classes: K = {n // 100:,} of {n:,}", **took, **copy}
    return [row | {"note": chosen.note, "peak_gib": peak()}]


def peak() -> float:
    """GiB of this process at most, libraries and mapped pages included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def growth(device: str) -> list[dict[str, Any]]:
    """No labels, 512 features and 10 residuals: n at K = 500, and K at n = 10,000; k-centre of 384 numbers alike."""
    rows = []
    for axis, cases in (
        ("n", [(n, 500) for n in (2500, 5000, 10_000, 20_000)]),
        ("K", [(10_000, k) for k in (125, 250, 500, 1000)]),
    ):
        for n, k in cases:
            _, features, residuals = make_pool(n, 1, 512, 10, device)
            took, _ = timed(partial(gcr.select_coreset, gcr.LastLayerGradients(features, residuals), k), device)
            walk, _ = timed(partial(gcr.k_centre, features, k), device)
            rows.append({"axis": axis, "n": n, "k": k, **took, "k_centre": walk})
    return rows


def quick(device: str, anomalib: Path | None) -> None:
    """Small problems now, and the full ones as they were measured, next to their peers."""
    from evidence_library import speed

    with tempfile.TemporaryDirectory() as folder:
        rows = k_centre(device, anomalib, 100, QUICK) + no_labels(device, QUICK) + million(device, Path(folder), QUICK)
    for row in rows:
        ratio = f"{row['times_ours']:.1f} times ours, {row['same_rows']} rows alike" if "times_ours" in row else ""
        size = f", {row['centres']:,} of {row['n']:,}" if "centres" in row else ""
        times = f"{row['seconds']:8.2f} s {row['processor_seconds']:8.2f} processor s"
        print(f"  {row['what'] + size:48} {times}  {ratio}")
    print(f"\nFull problems, from results/:\n\n{speed()}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Selection as a library: time, memory, growth.")
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--anomalib", type=Path, help="an anomalib checkout")
    parser.add_argument("--peer-centres", type=int, default=500, help="centres of anomalib that are timed")
    parser.add_argument("--only", choices=[*PARTS, "million-here"], help="one part")
    parser.add_argument("--quick", action="store_true", help=f"sizes divided by {QUICK}, and what results/ has")
    parser.add_argument("--folder", type=Path, help="where the files of a million rows are, or are made (2.3 GiB)")
    options = parser.parse_args()
    device = options.device
    if device == "cpu":
        torch.set_num_threads(min(2, os.cpu_count() or 1))
    if options.only == "million-here":
        print(json.dumps(million_here(device, options.folder)))
        return
    if options.quick:
        quick(device, options.anomalib)
        return
    out = "selection-library" if device == "cpu" else "selection-library-cuda"
    written = measured.read(out, {})
    with tempfile.TemporaryDirectory() as made:
        parts: dict[str, Callable[[], list[dict[str, Any]]]] = {
            "k-centre": partial(k_centre, device, options.anomalib, options.peer_centres),
            "no-labels": partial(no_labels, device),
            "million": partial(million, device, options.folder or Path(made)),
            "growth": partial(growth, device),
        }
        for name in PARTS if options.only is None else [options.only]:
            written[name] = [row | {"machine": platform.machine()} for row in parts[name]()]
            for row in written[name]:
                print(name, json.dumps(row), flush=True)
    written["device"] = (
        torch.cuda.get_device_name()
        if device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"  # which one is in the rows
    )
    written["versions"] = {"gcr": gcr.__version__, "torch": torch.__version__, "numpy": np.__version__}
    measured.write(out, written)
    print(f"written: {out}, in {measured.FILE}")


if __name__ == "__main__":
    main()
