"""How long runs will take here: from finished runs of their kind, else from a few real steps, else by arithmetic.

An estimate trains the real method with the real network for a few steps on made images of the data set's shape, so it
needs no data. On a CPU a ResNet is given a small batch, and its time is scaled up to the real one. What was measured is
kept in ``estimate.json``. Selection, evaluation and reading data are not in it, so it is a lower bound; a finished run
has all of that and replaces it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from gcr import scenarios
from gcr.data import described, find, is_cached
from gcr.experiments.experiment import Experiment
from gcr.files import read_json, write_json
from gcr.methods import Method
from gcr.runs.job import Execution, Job
from gcr.scenarios import Images, Scenario, equal_tasks
from gcr.training import How, Run, own_cuda_stream

SMALL_BATCH = 8  # of a ResNet on a CPU: a step with 32 + 32 images can take seconds
TIMED_STEPS = 8  # one where the batch is small: it was made so to be quick
WARM_STEPS = {"cpu": 2, "cuda": 4}  # the first is a task of its own and has no replay; on a GPU, the next are captured
DIGITS = ((1, 8, 8), 1442)  # known without loading them


@dataclass(frozen=True)
class Estimate:
    seconds: float  # of one run
    source: str  # "finished runs", "measured steps" or "arithmetic"


class Estimator:
    """Seconds of a step by kind of run, on this machine, kept in a file."""

    def __init__(self, file: Path, how: Execution, device: torch.device) -> None:
        self.file, self.how, self.device = file, how, device
        self.steps: dict[str, float] = {}
        self.runs: dict[str, float] = {}  # the same, from finished runs
        with suppress(OSError, ValueError, TypeError, AttributeError):  # an unreadable file: measure again
            self.steps = {str(kind): float(seconds) for kind, seconds in read_json(file).items()}

    def kind(self, experiment: Experiment) -> str:
        """What decides how long a step takes."""
        memory = experiment.memory
        batches = [experiment.training.batch, memory.replay_batch if memory else 0]
        whole = f"k{memory.buffer}" if memory and _replays_whole(experiment.method) else ""
        where = f"{self.device.type} threads{self.how.threads}" if self.device.type == "cpu" else str(self.device)
        name = [experiment.scenario, experiment.model, experiment.label, whole, *map(str, batches)]
        return " ".join([*filter(None, name), experiment.training.precision, where])

    def learn(self, finished: Iterable[Job]) -> None:
        """From one finished run of each kind. Runs of a pack share their time, so a GPU's are not taken."""
        for job in finished:
            kind = self.kind(job.experiment)
            if kind not in self.runs and self.device.type == "cpu":
                with suppress(OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
                    result = job.folder.result()
                    if result["device"] == "cpu":
                        self.runs[kind] = float(result["seconds"]) / int(result["steps"])

    def measure(self, experiments: Sequence[Experiment], seconds: float) -> None:
        """Kinds that are not known yet, cheapest first, as many as fit into the time; the first is always measured."""
        known = {**self.runs, **self.steps}
        wanted = {kind: e for e in experiments if (kind := self.kind(e)) not in known} if seconds > 0 else {}
        ends, pace = time.perf_counter() + seconds, 0.0
        for kind, experiment in sorted(wanted.items(), key=lambda item: _work(item[1])):
            began = time.perf_counter()
            if pace and began + pace * _work(experiment) >= ends:
                break
            self.steps[kind] = self._seconds_of_a_step(experiment)
            pace = (time.perf_counter() - began) / _work(experiment)
        with suppress(OSError):  # what cannot be kept is measured again
            self.file.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.file, self.steps)

    def estimate(self, experiment: Experiment) -> Estimate | None:
        """None where nothing like it has been measured."""
        kind, n_steps = self.kind(experiment), _n_steps(experiment)
        if kind in self.runs:
            return Estimate(self.runs[kind] * n_steps, "finished runs")
        if kind in self.steps:
            return Estimate(self.steps[kind] * n_steps, "measured steps")
        return None

    def estimates(self, experiments: Sequence[Experiment]) -> list[Estimate | None]:
        """Of each. What was not measured takes the time of the others per pixel that goes through the network."""
        found = {self.kind(e): (e, self.estimate(e)) for e in experiments}
        rates = [
            (e.model, known.seconds / (_n_steps(e) * _work(e))) for e, known in found.values() if known is not None
        ]

        def guess(experiment: Experiment) -> Estimate | None:
            known = self.estimate(experiment)
            like = sorted(rate for model, rate in rates if model == experiment.model)
            if known is not None or not like:
                return known
            return Estimate(like[len(like) // 2] * _n_steps(experiment) * _work(experiment), "arithmetic")

        return [guess(experiment) for experiment in experiments]

    def weights(self, experiments: Sequence[Experiment]) -> list[float]:
        """How long each run takes relative to the others: seconds where all are known, else by arithmetic alone."""
        found = self.estimates(experiments)
        if any(estimate is None for estimate in found):
            return [float(_n_steps(e) * _work(e)) for e in experiments]
        return [estimate.seconds for estimate in found if estimate is not None]

    def _seconds_of_a_step(self, experiment: Experiment) -> float:
        kind = self.device.type
        batch, memory, scale = experiment.training.batch, experiment.memory, 1.0
        if kind == "cpu" and experiment.model.startswith("resnet") and not _replays_whole(experiment.method):
            scale, batch = batch / min(batch, SMALL_BATCH), min(batch, SMALL_BATCH)
            if memory is not None:
                memory = replace(memory, replay_batch=max(1, round(memory.replay_batch / scale)))
        warm, timed = WARM_STEPS[kind], TIMED_STEPS if scale == 1 else 1
        scenario = _made(experiment, batch, warm + timed)
        net = experiment.make_net(scenario)
        run = Run(
            scenario=scenario,
            net=net,
            optimizer=experiment.make_optimizer(net),
            method=experiment.method,
            policy=memory,
            training=replace(experiment.training, batch=batch, epochs=1),
            seed=0,
            how=How(str(self.device), self.how.mode, self.how.threads),
        )
        with own_cuda_stream(self.device):
            going = run.advance()
            while run.state.steps < warm:
                next(going)
            self._wait()
            began = time.perf_counter()
            while run.state.steps < warm + timed:
                next(going)
            self._wait()
            return scale * (time.perf_counter() - began) / timed

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def shape_and_examples(scenario: str) -> tuple[tuple[int, int, int], int]:
    """Of the training images, without reading them."""
    about = scenarios.entry(scenario)
    if not about.data:
        return DIGITS
    if is_cached(about.data):
        cached = described(about.data).about
        return cached.shape, sum(cached.train)
    known = find(about.data)
    assert known is not None
    return known.shape, known.train if isinstance(known.train, int) else sum(known.train)


def _made(experiment: Experiment, batch: int, steps: int) -> Scenario:
    """Noise in the shape of the real images: a first task of one step, so that there is something to replay, and a
    second one."""
    about = scenarios.entry(experiment.scenario)
    shape, _ = shape_and_examples(experiment.scenario)
    tasks = equal_tasks(about.n_classes, experiment.stream.tasks or about.n_tasks)
    labels = torch.tensor([(tasks[i >= batch])[i % len(tasks[i >= batch])] for i in range(batch * (steps + 1))])
    train = Images(torch.randint(256, (len(labels), *shape), dtype=torch.uint8), labels)
    test = Images(train.pixels[:2], torch.tensor([tasks[0][0], tasks[-1][0]]))
    names = tuple(str(label) for label in range(about.n_classes))
    return Scenario(about.name, train, test, tasks, about.views, names)


def _n_steps(experiment: Experiment) -> int:
    _, examples = shape_and_examples(experiment.scenario)
    training = experiment.training
    return round(examples * (1 - experiment.stream.validation) * training.epochs * training.repeats / training.batch)


def _work(experiment: Experiment) -> int:
    """Pixels that go through the network in a step, which its time roughly follows."""
    (_, height, width), _ = shape_and_examples(experiment.scenario)
    replayed = experiment.method.replay_size(experiment.memory.replay_batch) if experiment.memory else 0
    if experiment.memory and _replays_whole(experiment.method):
        replayed = experiment.memory.buffer
    images = experiment.training.batch + replayed * sum(len(replay.views) for replay in experiment.method.replays)
    return images * height * width


def in_words(seconds: float) -> str:
    """
    >>> in_words(40), in_words(200), in_words(7000), in_words(400000)
    ('40 s', '3 min', '1.9 h', '4.6 days')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 100 * 3600 else f"{seconds / 86400:.1f} days"


def _replays_whole(method: Method) -> bool:
    """Whether a step takes the whole buffer, so that its cost grows with it."""
    return any(replay.kind == "whole" for replay in method.replays)
