"""The parts of which a run on ImageNet-1k consists, each timed on the machine at hand: import, reading, steps, passes.

    python benchmarks/imagenet_cost.py --device cuda     an H200: about a minute
    python benchmarks/imagenet_cost.py                   a CPU: import and reading only
    python benchmarks/imagenet_cost.py --quick           all parts at toy sizes, to try the script; writes nothing

Pictures are made, 500 x 375 pixels in about 110 kB, and pass through the product's own import, memory map and prefetch.
Steps are of ResNet-18 on 3 x 224 x 224, in the last of 10 tasks, K = 10,000. "8 processes" is what one of eight does by
itself: all views, its rows through the network, and no messages, which are counted but go nowhere. Communication
between GPUs is not measured. Writes ``imagenet-cost`` (``benchmarks/measured.py``) after each part.
"""

from __future__ import annotations

import argparse
import gc
import io
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import measured
import numpy as np
import PIL
import step
import torch
from PIL import Image
from torch import Tensor

import gcr
from gcr.augment import Views
from gcr.data import open_cached
from gcr.data.importing import import_set
from gcr.data.pictures import decode
from gcr.experiments.experiment import compose
from gcr.methods import Method
from gcr.models import build
from gcr.models.shares import Shares
from gcr.scenarios import Images, Scenario, entry, equal_tasks
from gcr.training import How, Run, own_cuda_stream
from gcr.training.evaluate import evaluate
from gcr.training.numerics import computing
from gcr.training.prefetch import Prefetch

TASKS, PER_TASK = 10, 2560
CASES = (  # method, batch, processes; those that matter most first, since the time may run out
    ("gcr", 32, 1),
    ("gcr", 32, 8),
    ("er", 32, 1),
    ("er", 32, 8),
    ("gcr+", 32, 1),
    ("gcr+", 32, 8),
    ("gcr", 256, 8),
    ("er", 256, 8),
    ("gcr+", 256, 8),
)


@dataclass(frozen=True)
class Sizes:
    pictures: int = 3000
    side: int = 224
    model: str = "resnet18"
    classes: int = 1000
    buffer: int = 10_000
    steps: int = 40
    repeats: int = 3
    passed: int = 1000  # images of a pass, as in evaluation


QUICK = Sizes(pictures=40, side=32, model="convnet", classes=20, buffer=1000, steps=2, repeats=1, passed=20)


def made_jpegs(n: int) -> list[bytes]:
    """Smooth colours with noise, as many bytes as a typical picture of ImageNet."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(n):
        coarse = Image.fromarray(rng.integers(0, 256, (12, 16, 3), dtype=np.uint8)).resize((500, 375), 3)
        noisy = np.asarray(coarse) + rng.normal(0, 27, (375, 500, 1))
        file = io.BytesIO()
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(file, "JPEG", quality=88)
        found.append(file.getvalue())
    return found


@contextmanager
def timed(into: dict[str, Any], images: int) -> Iterator[None]:
    """Wall clock, and processor time of all threads."""
    wall, processor = time.perf_counter(), time.process_time()
    yield
    spent = {"seconds": time.perf_counter() - wall, "processor_seconds": time.process_time() - processor}
    into.update({"images": images} | spent)


def time_data(sizes: Sizes, device: torch.device, about: dict[str, Any], folder: Path) -> None:
    """Decoding in one thread, the whole import in as many as it takes, and reading minibatches of what it wrote."""
    os.environ["GCR_DATA"] = str(folder / "cache")
    jpegs = made_jpegs(16)
    about["picture_bytes"] = statistics.mean(map(len, jpegs))
    one: dict[str, Any] = about.setdefault("decode", {})
    some = max(1, sizes.pictures // 10)
    with timed(one, some):
        for number in range(some):
            decode(jpegs[number % len(jpegs)], "made", 3, sizes.side, upright=False)
    for number in range(sizes.pictures):
        name = folder / f"pictures/{('train', 'test')[number % 20 == 0]}/{number // 20 % 2}/{number}.jpeg"
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_bytes(jpegs[number % len(jpegs)])
    with timed(about.setdefault("import", {}), sizes.pictures):
        import_set("made", [folder / "pictures"], size=sizes.side)
    cached = open_cached("made")
    pixels, check = torch.from_numpy(cached.images("train")), cached.image_check("train")
    images = Images(pixels, torch.from_numpy(cached.labels("train")), resident=False, check=check)
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.permutation(len(pixels)) for _ in range(3)])[: len(pixels) * 3 // 32 * 32]
    prefetch = Prefetch(images, 32, device)
    check.check_all()  # once in a run; later reads are compared with nothing
    with timed(about.setdefault("reading", {}), len(rows)):
        prefetch.begin(rows.reshape(-1, 32), 0)
        for _ in range(len(rows) // 32):
            prefetch.put()
        if device.type == "cuda":
            torch.cuda.synchronize()
    prefetch.close()


def made_scenario(sizes: Sizes, device: torch.device) -> Scenario:
    shape = (TASKS * PER_TASK, 3, sizes.side, sizes.side)
    pixels = torch.randint(256, shape, dtype=torch.uint8, device=device)
    labels = torch.arange(len(pixels), device=device) % sizes.classes
    one_a_task = torch.arange(TASKS, device=device) * (sizes.classes // TASKS)
    tasks = equal_tasks(sizes.classes, TASKS)
    names = tuple(str(label) for label in range(sizes.classes))
    test = Images(pixels[one_a_task], labels[one_a_task])
    views: Views = entry("seq-imagenet1k").views
    return Scenario("made", Images(pixels, labels), test, tasks, views, names)


def new_run(method: str, batch: int, processes: int, scenario: Scenario, sizes: Sizes, how: How) -> Run:
    """As ``step.new_run``, as the first of so many processes."""
    given = {"batch": batch, "replay_batch": batch, "buffer": sizes.buffer, "tasks": TASKS}
    experiment = compose("seq-imagenet1k", method, overrides=given)
    net = build(sizes.model, scenario.image_shape, scenario.n_classes, experiment.seed)
    optimizer = experiment.make_optimizer(net)
    run = Run(scenario, net, optimizer, experiment.method, experiment.memory, experiment.seed, experiment.training, how)
    run.state.stage = TASKS - 1
    return run


@contextmanager
def silent_peers() -> Iterator[list[int]]:
    """Inside, messages to other processes go nowhere; their bytes, one number each."""
    sent: list[int] = []

    def reduced(self: Shares, tensor: Tensor) -> Tensor:
        sent.append(tensor.nbytes)
        return tensor

    with (
        patch.object(Shares, "reduced", reduced),
        patch.object(Shares, "same_everywhere", lambda self, *tensors: None),
        patch.object(Shares, "from_first", lambda self, value: value),
    ):
        yield sent


def time_step(case: tuple[str, int, int], scenario: Scenario, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    method, batch, processes = case
    with silent_peers() as sent:
        run = new_run(*case, scenario, sizes, How(str(device), processes=processes))
        times = step.time_together([step.steps_of(run)], sizes.steps, sizes.repeats, device)
        row = {"method": method, "batch": batch, "processes": processes, "mode": run.mode, "precision": run.precision}
        row |= {"ms": statistics.median(times), "ms_all": times}
        if processes > 1:
            eager = new_run(*case, scenario, sizes, How(str(device), "eager", processes=processes))
            steps = step.steps_of(eager)
            with own_cuda_stream(device):
                next(islice(steps, 1, None))  # from the second on, memory is replayed
                sent.clear()
                next(steps)
            row |= {"messages": len(sent), "message_bytes": sum(sent)}
    return row


def time_passes(scenario: Scenario, sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Images through the network alone, as evaluation (in the run's precision) and selection pass them."""
    run = new_run("er", 32, 1, scenario, sizes, How(str(device)))
    net, test = run.state.net, Images(scenario.train.pixels[: sizes.passed], scenario.train.labels[: sizes.passed])
    whole = Scenario("made", scenario.train, test, scenario.tasks, scenario.views, scenario.class_names)
    found: dict[str, Any] = {}
    for name, autocast in (("evaluation", True), ("selection", False)):
        for _ in range(2):  # the second time counts
            with timed(found.setdefault(name, {}), sizes.passed), computing(run.precision, device, autocast):
                evaluate(net, whole, Method(), {}).tolist()
    return found


def time_copy(net_bytes: int, device: torch.device) -> float:
    """Milliseconds of a copy inside the device."""
    a, b = (torch.zeros(net_bytes, dtype=torch.uint8, device=device) for _ in range(2))
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        began = time.perf_counter()
        b.copy_(a)
        torch.cuda.synchronize()
        times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--quick", action="store_true", help="toy sizes: the figures mean nothing, and are not written")
    parser.add_argument("--seconds", type=float, default=65.0, help="after which no further kind of step is begun")
    options = parser.parse_args()
    began, device, sizes = time.perf_counter(), torch.device(options.device), QUICK if options.quick else Sizes()
    on_gpu = device.type == "cuda"
    torch.backends.cudnn.benchmark = True
    versions = {"gcr": gcr.__version__, "torch": torch.__version__, "pillow": PIL.__version__}
    about: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if on_gpu else f"{platform.machine()} CPU",
        "gpu": on_gpu,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "versions": versions,
    }

    def done(what: str, found: object) -> None:
        if not options.quick:
            measured.write("imagenet-cost", about)  # what is measured is not lost
        print(f"{time.perf_counter() - began:5.1f} s  {what}: {json.dumps(found)}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        time_data(sizes, device, about, Path(folder))
    done("data", {name: about[name] for name in ("picture_bytes", "decode", "import", "reading")})
    if on_gpu or options.quick:  # a step of a CPU would take minutes
        scenario = made_scenario(sizes, device)
        net = build("resnet18", (3, 224, 224), 1000, 0)
        about["gradient_bytes"] = sum(p.nbytes for p in net.parameters())
        about["copy_ms"] = time_copy(about["gradient_bytes"], device) if on_gpu else None
        passes = time_passes(scenario, sizes, device)
        about |= passes
        done("passes", passes)
        about["steps"] = []
        for case in CASES:
            if time.perf_counter() - began > options.seconds:
                print(f"no time left for {case}")
                continue
            about["steps"].append(time_step(case, scenario, sizes, device))
            gc.collect()  # the memory of runs that are done
            done("step", about["steps"][-1])


if __name__ == "__main__":
    main()
