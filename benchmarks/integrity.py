"""What it costs that files are durable and checked.

    python benchmarks/integrity.py

Writing: a result, and a checkpoint of a ResNet-18 with 500 images of memory, with and without ``fsync``, in turns on
the disk of the temporary folder. Reading: the check of a data set's images, of CIFAR-10's size and made of noise, next
to one epoch of training on the same processor, one thread each. The check is made once in a run, in the background; its
share of an epoch is in processor seconds, which other programs hardly change. Writes ``integrity``
(``benchmarks/measured.py``).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import measured
import numpy as np
import torch

from gcr import files
from gcr.data.cache import open_cached
from gcr.data.importing import import_set
from gcr.experiments.experiment import compose
from gcr.models import build
from gcr.runs.engine import run_all
from gcr.runs.folder import RunFolder
from gcr.runs.job import Execution, Job
from gcr.training.step_runner import StepRunner

SHAPE, CLASSES, MEMORY, BATCH = (3, 32, 32), 10, 500, 32
TRAIN, TEST = 50_000, 10_000
LIMIT = 2.0  # percent of an epoch
NETWORKS = {"mlp": 200, "convnet": 20}  # steps to time, after the first ones
WARM = 5


class Enough(BaseException):
    """So many steps were timed."""


def in_turns(write: Callable[[], None], times: int) -> dict[str, float]:
    """Milliseconds of writing with and without ``fsync``, in turns: the medians."""
    plain = os.fsync
    spent: dict[str, list[float]] = {"with fsync": [], "without": []}
    for _ in range(times):
        for how, sync in (("with fsync", plain), ("without", lambda number: None)):
            os.fsync = sync
            try:
                began = time.perf_counter()
                write()
                spent[how].append(1000 * (time.perf_counter() - began))
            finally:
                os.fsync = plain
    return {how: round(statistics.median(each), 2) for how, each in spent.items()}


def writing(folder: Path) -> dict[str, Any]:
    protocol = {"matrix": [[50.0] * 5] * 5, "accuracy": 50.0, "forgetting": 10.0}
    result = {"class_il": protocol, "task_il": protocol, "seconds": 2.0, "selections": []}
    net = build("resnet18", SHAPE, CLASSES, seed=0)
    tensors = {f"net.{name}": value for name, value in net.state_dict().items()}
    tensors["memory.image"] = torch.randint(256, (MEMORY, *SHAPE), dtype=torch.uint8)
    found = {}
    for name, content, times in (
        ("result", files.json_bytes(result), 30),
        ("checkpoint", files.tensor_bytes(tensors, {"place": {}}), 7),
    ):
        found[name] = {
            "bytes": len(content),
            "milliseconds": in_turns(partial(files.write_whole, folder / name, content), times),
        }
    return found


def make_data(folder: Path) -> None:
    """CIFAR-10's files, of noise."""
    rng = np.random.default_rng(0)
    folder.mkdir()
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        records = rng.integers(0, 256, (TEST, 1 + 3072), dtype=np.uint8)
        records[:, 0] = np.arange(TEST) % CLASSES
        (folder / name).write_bytes(records.tobytes())


def check_seconds() -> float:
    """Of a processor, for all images; the median of five times. Files are in memory, as after reading them."""
    spent = []
    for _ in range(5):
        checks = [open_cached("cifar10").image_check(part) for part in ("train", "test")]
        began = time.thread_time()
        for check in checks:
            check.check_all()
        spent.append(time.thread_time() - began)
    return statistics.median(spent)


def step_seconds(network: str, steps: int, out: Path) -> float:
    """Of a processor, for one step of ER; the median."""
    spent: list[float] = []
    step = StepRunner.__call__

    def timed(self: StepRunner, *args: Any, **kwargs: Any) -> Any:
        began = time.thread_time()
        done = step(self, *args, **kwargs)
        spent.append(time.thread_time() - began)
        if len(spent) == WARM + steps:
            raise Enough
        return done

    overrides = {"model": network, "epochs": 1, "batch": BATCH, "buffer": MEMORY}
    experiment = compose("seq-cifar10", "er", overrides=overrides)
    StepRunner.__call__ = timed  # type: ignore[method-assign]
    try:
        job = Job(experiment, RunFolder.of(out, experiment))
        run_all([job], lambda event: print(event.error or "", end=""), Execution("cpu", processes=1))
    except Enough:
        pass
    finally:
        StepRunner.__call__ = step  # type: ignore[method-assign]
    return statistics.median(spent[WARM:])


def reading(folder: Path) -> dict[str, Any]:
    os.environ["GCR_DATA"] = str(folder / "cache")
    make_data(folder / "given")
    import_set("cifar10", [folder / "given"])
    check = check_seconds()
    epochs = {}
    for network, steps in NETWORKS.items():
        epoch = step_seconds(network, steps, folder / network) * TRAIN / BATCH
        epochs[network] = {"epoch seconds": round(epoch, 1), "percent": round(100 * check / epoch, 3)}
    return {"images": TRAIN + TEST, "check seconds": round(check, 3), "epochs": epochs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="gcr-integrity-") as folder:
        found = {"writing": writing(Path(folder)), "reading": reading(Path(folder))}
    about = {"command": "python benchmarks/integrity.py", "python": platform.python_version()}
    values = about | {"torch": torch.__version__, "device": f"CPU, {platform.machine()}, one thread"} | found
    measured.write("integrity", values)
    print(json.dumps(found, indent=1))
    costly = [name for name, one in found["reading"]["epochs"].items() if one["percent"] > LIMIT]
    print(f"more than {LIMIT} % of an epoch: {', '.join(costly)}" if costly else f"all below {LIMIT} % of an epoch")
    return int(bool(costly))


if __name__ == "__main__":
    raise SystemExit(main())
