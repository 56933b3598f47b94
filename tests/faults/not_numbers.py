"""NaN and inf in data, loss, gradients and weights: the run says so, is marked in the table, and is in no mean; a pack
that finds no room on a GPU continues with one run less."""

from __future__ import annotations

import csv
import json
import math
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from children import Ended, Tally, in_child
from victims import TRAIN, command, make_cache, run_facts

PLACES = ("loss", "gradients", "weights")
VALUES = (math.nan, math.inf, -math.inf)
GOOD, BAD = 0, 1  # seeds
BAD_STEP = 3


def train_diverging(place: str, value: float) -> int:
    """Seed 0 as it is, seed 1 with a bad value in its third step."""
    import torch

    from gcr.methods import Gcr
    from gcr.training.step_runner import StepRunner

    assert command(f"{TRAIN} --seeds {GOOD}") == 0
    step, steps, method = StepRunner.__call__, 0, Gcr
    loss_of, gradients_of = method.loss, torch.autograd.grad

    def spoilt_step(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal steps
        steps += 1
        done = step(self, *args, **kwargs)
        if place == "weights" and steps == BAD_STEP:
            with torch.no_grad():
                next(iter(self.state.net.parameters())).view(-1)[0] = value
        return done

    def spoilt_loss(*args: Any) -> Any:
        loss = loss_of(*args)
        return loss._replace(value=loss.value * value) if place == "loss" and steps == BAD_STEP else loss

    def spoilt_gradients(*args: Any, **kwargs: Any) -> Any:
        found = gradients_of(*args, **kwargs)
        if place == "gradients" and steps == BAD_STEP:
            found[0].view(-1)[0] = value
        return found

    StepRunner.__call__, method.loss = spoilt_step, spoilt_loss  # type: ignore[method-assign]
    torch.autograd.grad = spoilt_gradients
    return command(f"{TRAIN} --seeds {BAD}")


def diverge(folder: Path, places: Sequence[str] = PLACES, values: Sequence[float] = VALUES) -> Tally:
    tally = Tally()
    base = folder / "base"
    base.mkdir(parents=True)
    assert in_child(make_cache, base).code == 0
    for place in places:
        for value in values:
            work = _copy(base, folder / "work")
            ended = in_child(lambda place=place, value=value: train_diverging(place, value), work)
            tally.count(f"{value} in {place}", *_marked(work, ended))
    return tally


def _copy(base: Path, work: Path) -> Path:
    shutil.rmtree(work, ignore_errors=True)
    shutil.copytree(base, work)
    return work


def _marked(folder: Path, ended: Ended) -> list[str]:
    """The command failed with a word; the table has the good seed alone and names the other."""
    found = ["tracebacks"] * ended.traceback
    if ended.code != 1 or "NaN or inf" not in ended.err:
        found.append("wrong")
    shown = in_child(lambda: command("table runs"), folder)
    numbers = in_child(lambda: command("table runs --format csv"), folder)
    rows = list(csv.DictReader(numbers.out.splitlines()))
    means = {(row["protocol"].replace("-", "_"), row["metric"]): float(row["mean"]) for row in rows}
    (file,) = folder.glob(f"runs/*/seed-{GOOD}/result.json")
    good = json.loads(file.read_bytes())
    alone = len(means) == 4 and all(mean == good[protocol][metric] for (protocol, metric), mean in means.items())
    words = " ".join(shown.out.split())
    marked = "1 run diverged" in words and "(1 diverged)" in words and f"/seed-{BAD} (" in words
    if not marked or not alone or any(row["n"] != "1" for row in rows):
        found.append("wrong")
    return list(dict.fromkeys(found))


def bad_data(folder: Path) -> Tally:
    """In what is given: refused in a line before anything is trained or saved."""
    import numpy as np
    import torch

    import gcr
    from gcr.settings import BadInput

    tally = Tally()
    rows = {"nan": "nan", "inf": "inf", "-inf": "-inf", "1e400": "1e400"}
    for name, text in rows.items():
        folder.mkdir(parents=True, exist_ok=True)
        lines = ["label,x,y", *(f"{'ab'[i % 2]},{i},{i % 3}" for i in range(30)), f"a,{text},1"]
        (folder / "rows.csv").write_text("\n".join(lines) + "\n")
        ended = in_child(lambda: command("update state rows.csv --epochs 1"), folder)
        refused = ended.code == 2 and "error:" in ended.err and not (folder / "state").exists()
        tally.count(f"{name} in a table", *(["tracebacks"] * ended.traceback), *([] if refused else ["wrong"]))
        shutil.rmtree(folder)
    for value in VALUES:
        for make in (np.array, torch.tensor):
            x = [[0.0, 1.0], [1.0, value], [2.0, 0.0]]
            given = make(x, dtype=(np if make is np.array else torch).float32)
            for method in ("observe", "fit"):
                learner = gcr.Learner(torch.nn.Linear(2, 2), memory=4)
                before = [parameter.clone() for parameter in learner.net.parameters()]
                try:
                    getattr(learner, method)(given, [0, 1, 0])
                    found = ["silent"]
                except BadInput:
                    found = [] if all(map(torch.equal, before, learner.net.parameters())) else ["wrong"]
                tally.count(f"{value} in {make.__name__} for Learner.{method}", *found)
    return tally


def out_of_memory(folder: Path, rooms: Sequence[int] = (1, 2, 3, 4)) -> Tally:
    """Jobs in packs on a stand-in for a GPU that has room for so many runs at a time: all end as they would alone."""
    tally = Tally()
    base = folder / "base"
    base.mkdir(parents=True)
    assert in_child(make_cache, base).code == 0
    alone = _copy(base, folder / "alone")
    assert in_child(lambda: command(f"{TRAIN} --seeds 0-4"), alone).code == 0
    for room in rooms:
        work = _copy(base, folder / "work")
        ended = in_child(lambda room=room: _in_packs(room), work)
        found = ["tracebacks"] * ended.traceback
        if ended.code or run_facts(work) != run_facts(alone) or "continuing with --pack" not in ended.out:
            found.append("wrong")
        tally.count(f"packs of 5 where {room} fit", *found)
    work = _copy(base, folder / "work")
    ended = in_child(lambda: _in_packs(0), work)
    named = ended.code == 1 and "out of GPU memory with one run at a time" in ended.out
    tally.count("a run that does not fit", *(["tracebacks"] * ended.traceback), *([] if named else ["wrong"]))
    return tally


def _in_packs(room: int) -> int:
    """``run_here`` as on a GPU, with steps on the CPU; a step with more runs than fit raises as torch does."""
    import torch

    from gcr.experiments.experiment import compose
    from gcr.runs import job, local
    from gcr.runs.folder import RunFolder

    class Nothing:
        def __init__(self, *args: object) -> None:
            pass

        def __getattr__(self, name: str) -> Callable[..., bool]:
            return lambda *args: True

    for name in ("Stream", "Event", "current_stream", "set_stream"):
        setattr(torch.cuda, name, Nothing)
    torch.cuda.empty_cache = lambda: None
    torch.cuda.mem_get_info = lambda device: (2**30, 2**30)
    local.set_kernels = lambda deterministic: None
    local.pick_device = lambda name: torch.device("cuda")
    train, going = job._train, set[int]()

    def crowded(number: int, *args: object) -> object:
        steps = train(number, job_of[number], replace(args[1], device="cpu"), *args[2:])
        going.add(number)
        try:
            while True:
                try:
                    yield next(steps)
                except StopIteration as end:
                    return end.value
                if len(going) > room:
                    raise torch.OutOfMemoryError("CUDA out of memory")
        finally:
            going.discard(number)
            steps.close()

    job._train = crowded
    os.environ["GCR_DATA"] = str(Path.cwd() / "cache")
    given = {"epochs": 1, "model": "mlp", "buffer": 10, "tasks": 3, "batch": 2}
    experiments = [compose("letters", "gcr", seed=seed, overrides=given) for seed in range(5)]
    jobs = [job.Job(experiment, RunFolder.of(Path("runs"), experiment)) for experiment in experiments]
    job_of = dict(enumerate(jobs))
    failed = 0

    def listen(event: job.Event) -> None:
        nonlocal failed
        failed += event.error is not None
        print(event.error or event.remark or "")

    local.run_here(jobs, listen, job.Execution("cuda", pack=5))
    return int(failed > 0)
