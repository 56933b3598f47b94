"""One experiment, trained into its folder: begun or continued, watched, finished."""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from traceback import walk_tb
from typing import Any

import torch

import gcr
from gcr import scenarios
from gcr.experiments import plugins
from gcr.experiments.experiment import Experiment
from gcr.files import digest_of
from gcr.models.network import Attached
from gcr.models.shares import PeerLost
from gcr.runs.folder import Busy, RunFolder
from gcr.runs.model_file import SavedModel
from gcr.runs.provenance import source, weights_digest
from gcr.scenarios import Scenario, Stream
from gcr.select.cuda_graph import out_of_memory
from gcr.settings import BadInput, printable
from gcr.training import Checkpoints, Diverged, Epoch, How, Run, Stopped, own_cuda_stream
from gcr.training.numerics import resolved

FORESEEN = (BadInput, Diverged, PeerLost)
REMEDY = "use the options it was made with, another --out or --name, or --fresh to start from the beginning"
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


@dataclass(frozen=True)
class Job:
    experiment: Experiment
    folder: RunFolder


def check_folders(jobs: Sequence[Job]) -> None:
    """Refuse folders that hold other experiments, and new seeds next to those of another."""
    for job in jobs:
        job.folder.check(job.experiment)
    asked = {job.folder.path for job in jobs}
    new = {job.folder.path.parent: job for job in jobs if not job.folder.begun}
    for job in new.values():
        job.folder.check_siblings(job.experiment, asked)


@dataclass(frozen=True)
class Execution:
    """How jobs are carried out. Only ``threads``, ``deterministic`` and the device can touch a number, by rounding."""

    device: str = "auto"
    mode: str = "auto"
    pack: int = 0  # runs at a time on a GPU; 0: as many as pay
    processes: int = 0  # runs at a time on a CPU; 0: one per core
    threads: int = 1  # of a run on a CPU
    deterministic: bool = False  # kernels that give the same bits every time, on a GPU
    checkpoint_steps: int = 0  # steps between checkpoints; 0: only at the ends of epochs
    fresh: bool = False  # begin again rather than continue from a checkpoint
    engine: str = "local"  # or "ray"
    address: str | None = None  # of a Ray cluster, as HOST:PORT; None: one of our own on this machine
    gpus: float = 1.0  # that Ray gives to each run, or the share of one that it gives to each pack
    track: str = ""  # trackers next to the run folder: tensorboard, mlflow, wandb; several with commas
    model: bool = True  # whether a finished run keeps its network, as model.safetensors
    world: int = 1  # processes that train one run together
    rank: int = 0  # of this one among them


@dataclass(frozen=True)
class TaskEnd:
    """A task that is not the last has been learnt."""

    number: int  # from 1
    of: int
    accuracy: float  # class-IL, in percent, over the tasks so far


@dataclass(frozen=True)
class Event:
    """Something happened in job number ``job``: an epoch or a task ended, there is something to say, or the job ended
    (with an ``accuracy``, an ``error``, or ``stopped``)."""

    job: int
    epoch: Epoch | None = None
    task: TaskEnd | None = None
    remark: str | None = None
    accuracy: float | None = None
    error: str | None = None
    stopped: bool = False
    kind: str = ""  # of an error that some can live with: "diverged", or "busy" where another process trains the run

    @property
    def ends_job(self) -> bool:
        return self.accuracy is not None or self.error is not None or self.stopped


Listener = Callable[[Event], None]


def job_steps(
    number: int, job: Job, how: Execution, listen: Listener, stop: Callable[[], bool] = lambda: False
) -> Iterator[bool]:
    """Train the job to its end, yielding as ``Run.advance`` does. Errors are reported as events, not raised; but those
    of GPU memory are the caller's."""
    try:
        result = yield from _train(number, job, how, listen, stop)
        listen(Event(number, accuracy=result["class_il"]["accuracy"]))
    except Stopped:
        listen(Event(number, stopped=True))
    except Exception as error:
        if out_of_memory(error):
            raise torch.OutOfMemoryError(str(error)) from error
        listen(ended_by(number, error))


def ended_by(number: int, error: Exception) -> Event:
    kind = "diverged" if isinstance(error, Diverged) else "busy" if isinstance(error, Busy) else ""
    return Event(number, error=in_words(error) + _where(error), kind=kind)


def _where(error: Exception) -> str:
    """The file and line that an error came from, of a plugin if it went through one; empty for one that we raise."""
    if isinstance(error, FORESEEN) or (isinstance(error, OSError) and error.filename):
        return ""
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in walk_tb(error.__traceback__)]
    own = [(file, line) for file, line in frames if file.resolve() in plugins.files()]
    return "".join(f" ({file.name}:{line})" for file, line in (own or frames)[-1:])


def in_words(error: Exception) -> str:
    """One line, with the kind of error unless the user can fix it."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{printable(str(error.filename))}: {error.strerror}; put that right, and the same command continues"
    name = "" if isinstance(error, FORESEEN) else f"{type(error).__name__}: "
    return name + " ".join(str(error).split())


@cache
def keep_freed_memory() -> None:
    """What a step frees stays with the process for the next one; glibc hands large pieces back to the system, and asks
    for them again, page by page. Other allocators are left alone."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, TypeError, AttributeError):
        return
    mallopt(MMAP_THRESHOLD, 32 * 2**20)  # the most that it takes
    mallopt(TRIM_THRESHOLD, 2**30)


def run_job(number: int, job: Job, how: Execution, listen: Listener, stop: Callable[[], bool] = lambda: False) -> None:
    keep_freed_memory()
    with own_cuda_stream(torch.device(how.device)):
        try:
            for _ in job_steps(number, job, how, listen, stop):
                pass
        except torch.OutOfMemoryError:
            listen(no_room(number))


def follow_job(
    number: int, job: Job, how: Execution, listen: Listener, stop: Callable[[], bool] = lambda: False
) -> None:
    """Train along with the process that has the run's folder. Errors are events."""
    with own_cuda_stream(torch.device(how.device)):
        try:
            for _ in _make_run(job.experiment, how, lambda epoch: None, None, stop)[0].advance():
                pass
        except Stopped:
            listen(Event(number, stopped=True))
        except Exception as error:
            listen(ended_by(number, error))


def no_room(number: int) -> Event:
    return Event(number, error="out of GPU memory with one run at a time; try a smaller batch, buffer or model")


def _train(
    number: int, job: Job, how: Execution, listen: Listener, stop: Callable[[], bool]
) -> Generator[bool, None, dict[str, Any]]:
    experiment, folder = job.experiment, job.folder
    experiment.check_classes(scenarios.entry(experiment.scenario))  # which may have changed since it was read
    with folder.locked():
        if folder.finished:  # by another command, since this one looked
            return folder.result()
        folder.begin(experiment)
        sources = [source()]

        def each_epoch(epoch: Epoch) -> None:
            folder.add_epoch(epoch)
            listen(Event(number, epoch=epoch))

        checkpoints = Checkpoints(folder.path, identity(experiment, how), sources, REMEDY)
        run, first_weights = _make_run(experiment, how, each_epoch, checkpoints, stop)
        lacking = folder.cut_metrics(run.plan.epochs_before(run.state.stage) + run.state.epoch)
        for remark in [*run.remarks, *([lacking] if lacking else [])]:
            listen(Event(number, remark=remark))
        yield from _advance(run, lambda task: listen(Event(number, task=task)))
        result = _result(run, job, how) | {"source": sources[-1], "first_weights": first_weights}
        result |= {"sources": sources} if len(sources) > 1 else {}
        folder.finish(result, _kept(run), _model(run, experiment) if how.model else None)
        return result


def _advance(run: Run, task_ended: Callable[[TaskEnd], None]) -> Iterator[bool]:
    """As ``Run.advance``. Online, a stream may end several tasks, or none."""
    stage, said = run.state.stage, sum(end < run.state.stage for end in run.plan.last)
    for going in run.advance():
        if run.state.stage > stage:
            stage = run.state.stage
            number = sum(end < stage for end in run.plan.last)
            if number > said:
                said, accuracies = number, run.state.class_il[-1][:number]
                task_ended(TaskEnd(number, len(run.plan.last), sum(accuracies) / number))
        yield going


def _make_run(
    experiment: Experiment,
    how: Execution,
    on_epoch: Callable[[Epoch], None],
    checkpoints: Checkpoints | None,
    stop: Callable[[], bool],
) -> tuple[Run, str]:
    """And a digest of the weights that model and seed begin with, also where a checkpoint continues."""
    scenario = _scenario(experiment.scenario, experiment.stream, how.device)
    net = experiment.make_net(scenario)
    first_weights = weights_digest(net)
    run = Run(
        scenario=scenario,
        net=net,
        optimizer=experiment.make_optimizer(net),
        method=experiment.method,
        policy=experiment.memory,
        training=experiment.training,
        seed=experiment.seed,
        how=How(how.device, how.mode, how.threads, how.checkpoint_steps, how.world, how.rank),
        on_epoch=on_epoch,
        checkpoints=checkpoints,
        stop=stop,
    )
    return run, first_weights


def identity(experiment: Experiment, how: Execution) -> dict[str, Any]:
    """What a checkpoint must agree with to be continued."""
    on_gpu = how.device.startswith("cuda")
    carried_out = {
        "data": scenarios.entry(experiment.scenario).fingerprint,
        "version of gcr": gcr.__version__,
        "version of torch": torch.__version__,
        "compiled": how.mode == "compiled",
        "device": "cuda" if on_gpu else "cpu",
        "precision computed in": resolved(experiment.training.precision, torch.device(how.device)),
        "threads": None if on_gpu else how.threads,
        "deterministic": how.deterministic,
    }
    return experiment.settings | _own_code(experiment) | carried_out


def _own_code(experiment: Experiment) -> dict[str, Any]:
    """Digests of the plugins that method, selector and network come from, if they do."""
    found = plugins.digests(experiment.method, experiment.memory, experiment.model)
    return {"plugins": found} if found else {}


@lru_cache(maxsize=4)  # the runs of a pack share it
def _scenario(name: str, stream: Stream, device: str) -> Scenario:
    return scenarios.load(name, stream).to(device)


def _result(run: Run, job: Job, how: Execution) -> dict[str, Any]:
    outcome = run.outcome()
    result = {
        "class_il": outcome.class_il,
        "task_il": outcome.task_il,
        "first_stages": run.plan.first,  # in which each task begins
        "selections": outcome.state.selections,
        "experiment": digest_of(job.experiment.to_dict()),
        "seconds": outcome.seconds,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "steps": outcome.steps,
        "data": scenarios.entry(job.experiment.scenario).fingerprint,
        "views": asdict(run.scenario.views),  # augmentation and normalisation
        "memory_bytes": _kept_bytes(run),
        "peak_bytes": _peak_bytes(how.device),
        "versions": {"gcr": gcr.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "device": torch.cuda.get_device_name(how.device) if how.device.startswith("cuda") else "cpu",
        "machine": platform.machine(),
        "precision": run.precision,
        "mode": run.mode,
        "threads": how.threads,
        "deterministic": how.deterministic,
    }
    return result | ({"processes": how.world} if how.world > 1 else {}) | _own_code(job.experiment)


def _kept_bytes(run: Run) -> int:
    """What the run keeps of its past: memory, and the tensors of the method, as EMA weights."""
    memory = run.state.memory
    return (0 if memory is None else memory.nbytes) + sum(tensor.nbytes for tensor in run.state.extras.values())


def _peak_bytes(device: str) -> int:
    """The most memory that this process has held: on the GPU (all runs of a pack together), or in all."""
    if device.startswith("cuda"):
        return torch.cuda.max_memory_allocated(device)
    import resource  # Unix only

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _model(run: Run, experiment: Experiment) -> SavedModel:
    """The network as it was evaluated last, and what turns images into its classes."""
    scenario, state = run.scenario, run.state
    about = {
        "model": experiment.model,
        "scenario": experiment.scenario,
        "class_names": scenario.class_names,
        "image_shape": scenario.image_shape,
        "pixels": str(scenario.train.pixels.dtype).removeprefix("torch."),
        "views": asdict(scenario.views),
        "head": state.net.head_name if isinstance(state.net, Attached) else None,
    }
    return SavedModel(about, state.net.state_dict(), run.method.predictor_state(state.extras))


def _kept(run: Run) -> dict[str, torch.Tensor] | None:
    memory = run.state.memory
    if memory is None:
        return None
    return {name: column[: int(memory.kept)].cpu().contiguous() for name, column in memory.columns.items()}
