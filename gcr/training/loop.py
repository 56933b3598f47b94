"""The loop: stages > epochs > steps, with an update of memory and an evaluation after every stage."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from gcr.memory import Policy
from gcr.methods import Method
from gcr.models import state_tensors
from gcr.models.recompute_bn import refuse_without_statistics
from gcr.models.shares import Shares
from gcr.scenarios import Scenario
from gcr.settings import BadInput, to_mapping
from gcr.training.checkpoint import Checkpoints, checkpoints_of, copy_from_first
from gcr.training.evaluate import evaluate
from gcr.training.metrics import summary
from gcr.training.numerics import computing, resolved, usable_device
from gcr.training.optimizer import AnyOptimizer
from gcr.training.prefetch import Prefetch
from gcr.training.randomness import EpochDraws, StepDraws, torch_randomness
from gcr.training.rates import Schedule, begin_schedule, check_schedule, own_values, put_back
from gcr.training.reselect import Arrived, order_by_herding, recompute_bn_on_memory, reselect, statistics_kept
from gcr.training.schedule import check_stream, make_schedule
from gcr.training.settings import Training
from gcr.training.state import RunState
from gcr.training.step import Incoming, draw_plan
from gcr.training.step_runner import StepRunner, pick_mode

SAVING_SHARE = 0.01  # of the time, that checkpoints at epochs' ends of all runs side by side may take
SAVING_SECONDS = 0.25  # plus this, of each run
STEPS_BETWEEN_QUESTIONS = 10  # of several processes on GPUs, whether one was asked to stop


@dataclass(frozen=True)
class Epoch:
    """Metrics of an epoch: one line of metrics.jsonl."""

    stage: int
    epoch: int
    steps: int  # of the whole run so far
    total_steps: int
    loss: float  # mean over the epoch's new examples
    accuracy: float  # percent of the epoch's new examples classified right while training
    seconds: float


class Diverged(RuntimeError):
    """The loss, or a weight, is NaN or inf."""


class Stopped(Exception):
    """The run was asked to stop, and did so after saving a checkpoint."""


@dataclass(frozen=True)
class Outcome:
    state: RunState
    class_il: dict[str, object]  # matrix, accuracy, forgetting
    task_il: dict[str, object]
    seconds: float
    steps: int


@dataclass(frozen=True)
class How:
    """How a run is carried out: what changes its speed and its safety, and its numbers by rounding at most."""

    device: str = "cpu"
    mode: str = "auto"
    threads: int = 1  # on a CPU
    checkpoint_steps: int = 0  # steps between checkpoints; 0: only at the ends of epochs
    processes: int = 1  # that train the run together, in a group of torch.distributed
    rank: int = 0  # of this one


class Run:
    """One run. ``advance`` trains it to the end, a step at a time, so that several can share a device."""

    training_now = 0  # runs of this process; while one saves no step is launched, so they share the time for it

    def __init__(
        self,
        scenario: Scenario,
        net: nn.Module,
        optimizer: AnyOptimizer,
        method: Method,
        policy: Policy | None,
        seed: int,
        training: Training | None,
        how: How,
        head: str | None = None,
        on_epoch: Callable[[Epoch], None] = lambda epoch: None,
        checkpoints: Checkpoints | str | Path | None = None,
        stop: Callable[[], bool] = lambda: False,
        schedule: Schedule | None = None,
    ) -> None:
        _check_kinds(scenario, net, method, policy, seed)
        if training is None:
            training = Training(epochs=1) if scenario.stream_length and method.stages != "all at once" else Training()
        if scenario.stream_length:
            check_stream(scenario.stream_length, method, training)
        self.device = usable_device(how.device)
        self.scenario = scenario.to(self.device)
        self.method, self.training, self.seed, self.how = method, training, seed, how
        if method.replays and policy is None:
            raise BadInput(f"{method.name} replays from memory, got memory=None; give a Policy(buffer=…)")
        self.policy = policy if method.replays else None
        if self.policy is not None:
            method.check_memory(self.policy.buffer, len(scenario.tasks))
            self.policy.check_predictor(method.name, method.predicts_by_copy)
        self.on_epoch, self.stop, self.schedule = on_epoch, stop, schedule
        self.precision = resolved(training.precision, self.device)
        self.mode, remark = pick_mode(how.mode, self.device, optimizer)
        self.remarks = [remark] if remark else []
        self.plan = make_schedule(self.scenario, method, training, seed)
        self.total_steps = self.plan.total_steps(training)
        if scenario.stream_length and len(self.plan.stages) == 1 and method.stages == "streams":
            self.remarks.append(
                f"all {len(scenario.train.labels)} training images are one stream: accuracy is measured and memory "
                f"selected once, at its end; give a stream smaller than {scenario.stream_length}"
            )
        arriving = sum(len(stage.rows) * stage.epochs for stage in self.plan.stages)
        if self.policy is not None and self.policy.every > arriving:
            raise BadInput(f"every must be <= {arriving}, the examples of the whole run, got {self.policy.every}")
        self.state = RunState.of_scenario(self.scenario, net, optimizer, method, self.policy, self.device, head)
        if schedule is not None:
            check_schedule(schedule, optimizer)
        self.own_values = own_values(optimizer)
        self.shares = Shares(how.rank, how.processes, training.ghost_batches)
        if training.ghost_batches > max(1, training.batch // 2):
            raise BadInput(
                f"ghost_batches must be <= {training.batch // 2}, two examples of a batch of {training.batch} each, "
                f"got {training.ghost_batches}"
            )
        if how.processes > 1 or training.ghost_batches > 1:
            if self.mode == "compiled":
                raise BadInput("mode compiled is for one process and ghost_batches=1; use --mode auto")
            self.state.net.share(self.shares)
        if self.policy is not None and self.policy.statistics == "memory":
            refuse_without_statistics(self.state.net)
        if isinstance(checkpoints, str | Path):
            plain = {"seed": seed, "training": to_mapping(training), "schedule": schedule is not None}
            checkpoints = checkpoints_of(checkpoints, self.state, self.scenario, method, self.policy, **plain)
        self.checkpoints = checkpoints
        if checkpoints is not None:
            if extra := set(net.state_dict()).difference(state_tensors(net)):
                raise BadInput(f"checkpoints hold no extra state of modules, got {min(extra)}; leave checkpoints out")
            self.remarks += checkpoints.restore(self.state, self.plan, training)
        if how.processes > 1:
            copy_from_first(self.state, self.shares)
        self.scheduler = self._scheduler()
        self.clock = self.began = time.perf_counter()
        self.saving = 0.0  # seconds, at epochs' ends that were not asked for

    def advance(self) -> Iterator[bool]:
        """Trains to the end. Yields True after every step, and False while it waits for the device."""
        stages = self.plan.stages
        with _cpu_threads(self.how.threads):
            most_steps = max(self.plan.steps(number, self.training) for number in range(len(stages)))
            draws = EpochDraws(draw_plan(self.method, self.policy, self.training), most_steps, self.device)
            train = self.scenario.train
            prefetch = None if train.resident else Prefetch(train, self.training.batch, self.device)
            self.clock = time.perf_counter()
            step_runner = StepRunner(
                self.state,
                partial(incoming, self.scenario, self.policy, slot=prefetch.slot if prefetch else None),
                self.scenario.views,
                self.method,
                self.policy,
                draws,
                self.seed,
                self.precision,
                self.mode,
                insists=self.how.mode == "captured",
            )
            Run.training_now += 1
            try:
                if not self.state.untrained:
                    with computing(self.precision, self.device):
                        untrained = evaluate(self.state.net, self.scenario, Method(), {}, self._stop_untrained)
                    yield from self._device_done()
                    self.state.untrained = untrained.tolist()
                while self.state.stage < len(stages):
                    while self.state.epoch < stages[self.state.stage].epochs:
                        yield from self._epoch(step_runner, draws, prefetch)
                    yield from self._end_stage()
            finally:
                Run.training_now -= 1
                if prefetch:
                    prefetch.close()

    def outcome(self) -> Outcome:
        state, plan = self.state, self.plan
        self._count_seconds()
        untrained = state.untrained if self.method.predicts_unseen() else (None, None)
        return Outcome(
            state=state,
            class_il=summary(state.class_il, plan.first, plan.last, untrained[0]),
            task_il=summary(state.task_il, plan.first, plan.last, untrained[1]),
            seconds=state.seconds,
            steps=state.steps,
        )

    def _epoch(self, step_runner: StepRunner, draws: EpochDraws, prefetch: Prefetch | None) -> Iterator[bool]:
        """One pass over the examples of a stage, from wherever in it the state stands."""
        state, stage, training = self.state, self.plan.stages[self.state.stage], self.training
        n_steps, repeats = self.plan.steps(state.stage, training), training.repeats
        due = False  # a checkpoint, by the number of steps
        began = time.perf_counter()
        key = (self.seed, state.stage, state.epoch)
        draws.fill(key, stage.rows, n_steps // repeats, stage.shuffled, repeats)
        if state.epoch_steps == 0:
            state.begin_epoch()
        if prefetch:
            prefetch.begin(draws.host_rows, state.epoch_steps)
        while state.epoch_steps < n_steps:
            if prefetch:
                prefetch.put()
            number = state.epoch_steps // repeats
            size = min(training.batch, len(stage.rows) - number * training.batch)
            step_runner(size, offers=(state.epoch_steps + 1) % repeats == 0)
            if self.scheduler is not None:
                self.scheduler.step()
            self._select_if_due(size)
            if self._stops():
                self._save()
                raise Stopped
            due = self.how.checkpoint_steps > 0 and state.steps % self.how.checkpoint_steps == 0
            if due and state.epoch_steps < n_steps:
                self._save()
            yield True
        yield from self._device_done()
        self._refuse_diverged()
        self._refuse_damaged_data()
        n = min(len(stage.rows), n_steps // repeats * training.batch)  # a single last example is left out
        trained_on = n * repeats
        loss, right = float(state.loss_sum) / trained_on, int(state.correct)
        seconds = time.perf_counter() - began
        self.on_epoch(
            Epoch(state.stage, state.epoch, state.steps, self.total_steps, loss, 100 * right / trained_on, seconds)
        )
        state.epoch += 1
        state.begin_epoch()
        ended = time.perf_counter()
        if due:
            self._save()
        elif self.saving <= SAVING_SECONDS + SAVING_SHARE * (ended - self.began) / Run.training_now:
            self._save()
            self.saving += time.perf_counter() - ended

    def _end_stage(self) -> Iterator[bool]:
        state, policy = self.state, self.policy
        if policy is not None and policy.selects and not policy.every:
            arrived = Arrived(self.scenario.train, self.plan.stages[state.stage].rows)
            self._select(arrived if policy.pool == "selector" else None)
        elif policy is not None and policy.evicts_by_herding:
            assert state.memory is not None
            with computing(self.precision, self.device, autocast=False):
                order_by_herding(state.memory, policy, self.method, state.net, self.scenario.views, state.extras)
        recomputes = policy is not None and policy.statistics == "memory"
        goes_on = state.stage + 1 < len(self.plan.stages)  # training, as it would have
        keeping = statistics_kept(state.net) if recomputes and goes_on else nullcontext()
        with computing(self.precision, self.device), keeping:
            if recomputes:
                assert state.memory is not None
                recompute_bn_on_memory(state.net, state.memory, self.scenario.views)
            key = (self.seed, state.stage)
            randomness = torch_randomness((self.seed, state.steps), self.device, "end of a stage")
            with state.net.unshared(), randomness:
                self.method.end_stage(state.net, state.memory, self.scenario.views, state.extras, key)
            self.shares.same_everywhere(*state_tensors(state.net).values(), *state.extras.values())
            self._refuse_bad_weights(f"at the end of task {state.stage + 1}")
            accuracies = evaluate(state.net, self.scenario, self.method, state.extras)
        yield from self._device_done()
        self._refuse_damaged_data()  # which a run that goes on from here has not read before
        class_il, task_il = accuracies.tolist()
        state.class_il.append(class_il)
        state.task_il.append(task_il)
        state.stage, state.epoch = state.stage + 1, 0
        self.scheduler = self._scheduler()

    def _scheduler(self) -> Any:
        """That of the stage, from wherever in it the state stands. It begins with the optimizer's own values."""
        if self.schedule is None:
            return None
        state, plan = self.state, self.plan
        put_back(state.optimizer, self.own_values)
        if state.stage == len(plan.stages):
            return None
        steps = plan.steps(state.stage, self.training)
        done = state.epoch * steps + state.epoch_steps
        return begin_schedule(self.schedule, state.optimizer, steps * plan.stages[state.stage].epochs, done)

    def _stops(self) -> bool:
        """Whether it was asked to stop; of several processes, any of them. On a GPU they ask each other rarely."""
        if self.how.processes == 1:
            return self.stop()
        asks = self.device.type == "cpu" or self.state.steps % STEPS_BETWEEN_QUESTIONS == 0
        return asks and bool(self.shares.reduced(torch.tensor(float(self.stop()))))

    def _stop_untrained(self) -> None:
        """Nothing is lost yet, and on a CPU the first evaluation may take minutes."""
        if self._stops():
            raise Stopped

    def _select_if_due(self, arrived: int) -> None:
        """After every ``policy.every`` examples, if that is asked for."""
        state, policy = self.state, self.policy
        if policy is not None and policy.selects and policy.every and state.epoch_steps % self.training.repeats == 0:
            state.arrived += arrived
            if state.arrived >= policy.every:
                self._refuse_diverged()
                self._select()
                state.arrived = 0

    def _select(self, arrived: Arrived | None = None) -> None:
        state, policy = self.state, self.policy
        assert policy is not None
        assert state.memory is not None
        key = (self.seed, len(state.selections))
        randomness = torch_randomness((self.seed, state.steps), self.device, "selection")
        with computing(self.precision, self.device, autocast=False), randomness:
            about = reselect(
                state.memory, policy, self.method, state.net, self.scenario.views, key, arrived, state.extras
            )
        state.selections.append({"stage": state.stage} | about)

    def _device_done(self) -> Iterator[bool]:
        """Let other runs go on until the device has done what this one asked for."""
        if self.device.type == "cuda":
            done = torch.cuda.Event()
            done.record()
            while not done.query():
                yield False

    def _refuse_diverged(self) -> None:
        state = self.state
        where, step = f"task {state.stage + 1}, epoch {state.epoch + 1}", int(state.diverged_at)
        if step >= 0:
            raise Diverged(f"loss is NaN or inf at {where}, step {step + 1}; try a smaller lr")
        self._refuse_bad_weights(f"in {where}")

    def _refuse_bad_weights(self, when: str) -> None:
        if not bool(get_total_norm([p.detach() for p in self.state.net.parameters()]).isfinite()):
            raise Diverged(f"weights are NaN or inf {when}; try a smaller lr")

    def _refuse_damaged_data(self) -> None:
        """Before anything computed from it is kept. Only the first time may take a moment."""
        self.scenario.train.wait_checked()
        self.scenario.test.wait_checked()

    def _save(self) -> None:
        """A state whose loss is NaN or inf is never saved: the last good checkpoint stays."""
        if self.checkpoints is not None:
            self._refuse_diverged()
            self._refuse_damaged_data()
            self._count_seconds()
            self.checkpoints.save(self.state)

    def _count_seconds(self) -> None:
        now = time.perf_counter()
        self.state.seconds += now - self.clock
        self.clock = now


def train(
    scenario: Scenario,
    net: nn.Module,
    optimizer: AnyOptimizer,
    method: Method,
    memory: Policy | None,
    seed: int,
    training: Training | None = None,
    how: How | str = "cpu",
    head: str | None = None,
    on_epoch: Callable[[Epoch], None] = lambda epoch: None,
    checkpoints: Checkpoints | str | Path | None = None,
    schedule: Schedule | None = None,
) -> Outcome:
    """Train one run from beginning to end. On a CPU, equal arguments give equal bits.

    ``net`` is any classifier with a linear head (``head`` names it where it cannot be found), ``optimizer`` any of
    ``torch.optim`` over its parameters, or ``Sgd``. Both are trained in place. ``memory`` says what is kept and how it
    is chosen; None for methods without memory. ``seed`` decides the order of examples, their views and what is
    replayed. ``training`` is ``Training()`` if not given, online with one epoch. ``how`` may be just a device.
    ``schedule(optimizer, steps)`` makes a learning-rate scheduler for each task, online for each stream; it is stepped
    after every batch. ``checkpoints`` is a folder in which the run is saved as it goes; called again with the same
    arguments and a new network, ``train`` continues from there.
    """
    how = How(device=how) if isinstance(how, str) else how
    run = Run(
        *(scenario, net, optimizer, method, memory, seed, training, how, head, on_epoch, checkpoints), schedule=schedule
    )
    for remark in run.remarks:
        warnings.warn(remark, stacklevel=2)
    with own_cuda_stream(run.device):
        for _ in run.advance():
            pass
        return run.outcome()


def incoming(scenario: Scenario, policy: Policy | None, draws: StepDraws, slot: Tensor | None = None) -> Incoming:
    """The new examples of a step; their images are in ``slot`` where the data set does not sit on the device."""
    images = scenario.train.pixels[draws.rows] if slot is None else slot[: len(draws.rows)]
    labels = scenario.train.labels[draws.rows]
    by_selection = policy is not None and policy.selects and not policy.every  # these follow streams
    return Incoming(images, labels, None if by_selection else scenario.task_of_class[labels])


@contextmanager
def own_cuda_stream(device: torch.device, stream: torch.cuda.Stream | None = None) -> Iterator[None]:
    """Captured steps need a CUDA stream that is not the default one: this, or a new one."""
    if device.type == "cpu":
        yield
        return
    stream = stream or torch.cuda.Stream(device)
    stream.wait_stream(torch.cuda.current_stream(device))
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        torch.cuda.current_stream(device).wait_stream(stream)


@contextmanager
def _cpu_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _check_kinds(scenario: object, net: object, method: object, memory: object, seed: object) -> None:
    """Objects, not their names."""
    for name, value, kind, remedy in (
        ("scenario", scenario, Scenario, "gcr.from_arrays makes one of arrays, gcr.scenarios.load one by name"),
        ("net", net, nn.Module, "gcr.models.build makes one by name"),
        ("method", method, Method, "as gcr.GCR().method or gcr.methods.Er()"),
        ("memory", memory, Policy | None, "as gcr.GCR(memory=500).memory or gcr.memory.Policy(buffer=500)"),
    ):
        if not isinstance(value, kind):
            wanted = "a Policy or None" if name == "memory" else f"a {kind.__name__}"  # type: ignore[union-attr]
            raise BadInput(f"{name} must be {wanted}, got {type(value).__name__}; {remedy}")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < 2**32:
        raise BadInput(f"seed must be a whole number from 0 to 2^32 - 1, got {seed!r}")
