"""Three ways to run the same step: kernel by kernel, compiled, or captured as a CUDA graph."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable

import torch

from gcr.augment import AnyViews
from gcr.memory import Policy
from gcr.methods import Method
from gcr.models import Network
from gcr.select.cuda_graph import capture
from gcr.settings import BadInput
from gcr.training.numerics import computing
from gcr.training.optimizer import AnyOptimizer, make_capturable, numbers_of
from gcr.training.randomness import EpochDraws, StepDraws, torch_randomness
from gcr.training.state import RunState
from gcr.training.step import Incoming, train_step

MODES = ("auto", "eager", "compiled", "captured")


def pick_mode(mode: str, device: torch.device, optimizer: AnyOptimizer | None = None) -> tuple[str, str]:
    """The mode to run, and a remark if it is not the one asked for.

    ``auto`` is captured on a GPU and eager on a CPU. An optimizer that cannot be captured makes it eager.
    """
    if mode not in MODES:
        raise BadInput(f'mode must be one of {", ".join(MODES)}, got "{mode}"')
    on_gpu = device.type == "cuda"
    if mode == "captured" and not on_gpu:
        raise BadInput("mode captured needs a GPU; use --mode auto")
    if mode == "compiled" and on_gpu and importlib.util.find_spec("triton") is None:
        raise BadInput("mode compiled needs the library triton on a GPU; install it with pip, or use --mode captured")
    if mode == "eager" or not on_gpu:
        return ("eager" if mode == "auto" else mode), ""
    reason = make_capturable(optimizer) if optimizer is not None else ""
    if reason:
        return "eager", f"the step cannot be captured ({reason}); it runs eagerly"
    return ("captured" if mode == "auto" else mode), ""


class StepRunner:
    """Runs the next step of the epoch each time it is called.

    A captured step is captured once per batch size and phase (with or without replay, and the stage where that changes
    shapes): the first such step runs kernel by kernel, which warms up what it uses; the second is captured, then
    replayed like all after it. Its inputs are the epoch's draws, the new examples and the tensors of the run's state,
    none of which ever move. Numbers of the optimizer, as its learning rate, are part of it: if one changes, steps are
    captured again.
    """

    def __init__(
        self,
        state: RunState,
        incoming: Callable[[StepDraws], Incoming],
        views: AnyViews,
        method: Method,
        policy: Policy | None,
        draws: EpochDraws,
        seed: int,
        precision: str,
        mode: str,
        insists: bool = False,
    ) -> None:
        """``incoming`` gives the new examples that go with a step's draws. ``insists``: a step that cannot be captured
        is an error, not run eagerly."""
        self.state, self.incoming, self.views, self.method, self.policy = state, incoming, views, method, policy
        self.draws, self.seed, self.precision = draws, seed, precision
        self.captures = mode != "eager" and state.step.is_cuda
        self.insists = insists
        self.graphs: dict[tuple[int, bool, bool, int], torch.cuda.CUDAGraph | None] = {}  # None: warmed up
        self.graph_pool = torch.cuda.graph_pool_handle() if self.captures else None
        self.captured_with = numbers_of(state.optimizer)
        if mode == "compiled":
            _compile(state.net)

    def __call__(self, size: int, offers: bool = True) -> None:
        """A step on ``size`` new examples; ``offers`` says whether memory is offered them."""
        replaying = self.state.offered  # before that memory holds nothing
        phase = (size, replaying, offers, self.method.shapes_of_stage(self.state.stage))
        if self.captures and self.captured_with != (numbers := numbers_of(self.state.optimizer)):
            if any(self.graphs.values()):
                torch.cuda.synchronize(self.state.step.device)  # a graph may still run
            self.graphs.clear()
            self.graph_pool = torch.cuda.graph_pool_handle()  # torch does not open one again whose graphs are gone
            self.captured_with = numbers
        if not self.captures:
            self._launch(size, replaying, offers)
        elif phase not in self.graphs:
            self._launch(size, replaying, offers)
            self.graphs[phase] = None
        else:
            graph = self.graphs[phase] or self._captured(phase, lambda: self._launch(size, replaying, offers))
            if graph is not None:
                graph.replay()
        self.state.steps += 1
        self.state.epoch_steps += 1
        self.state.offered |= offers

    def _captured(self, phase: tuple[int, bool, bool, int], launch: Callable[[], None]) -> torch.cuda.CUDAGraph | None:
        """The step as a graph; None where it cannot be captured: then it has run eagerly, as all after it will."""
        try:
            graph = self.graphs[phase] = capture(launch, self.state.step.device, self.graph_pool)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            if self.insists:
                raise BadInput(
                    f"the step cannot be captured ({str(error).splitlines()[0]}); use --mode eager"
                ) from error
            warnings.warn(f"the step cannot be captured ({str(error).splitlines()[0]}); it runs eagerly", stacklevel=2)
            self.captures = False
            launch()
            return None
        return graph

    def _launch(self, size: int, replaying: bool, offers: bool) -> None:
        state, device = self.state, self.state.step.device
        with computing(self.precision, device), torch_randomness((self.seed, state.steps), device):
            draws = self.draws.at(state.step, size, replaying)
            train_step(state, self.incoming(draws), self.views, self.method, self.policy, draws, offers)


def _compile(net: Network) -> None:
    if not hasattr(net, "trunk"):
        raise BadInput("mode compiled is for the networks of gcr.models; use --mode captured or eager")
    net.trunk.compile(dynamic=False)
