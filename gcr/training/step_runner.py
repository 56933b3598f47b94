"""Three ways to run the same step: kernel by kernel, compiled, or captured as a CUDA graph."""

from __future__ import annotations

import importlib.util

import torch
from torch import Tensor

from gcr.memory import Policy
from gcr.methods import Method
from gcr.scenarios import Scenario
from gcr.select.cuda_graph import capture
from gcr.settings import BadInput
from gcr.training.numerics import computing
from gcr.training.randomness import EpochDraws
from gcr.training.state import RunState
from gcr.training.step import train_step

MODES = ("auto", "eager", "compiled", "captured")


def pick_mode(mode: str, device: torch.device, method: Method) -> tuple[str, str]:
    """The mode to run, and a remark if it is not the one asked for.

    ``auto`` is captured on a GPU and eager on a CPU. A method whose step needs the host says why in ``host_bound``.
    """
    if mode not in MODES:
        raise BadInput(f'mode must be one of {", ".join(MODES)}, got "{mode}"')
    on_gpu = device.type == "cuda"
    if mode == "captured" and not on_gpu:
        raise BadInput("mode captured needs a GPU; use --mode auto")
    if mode == "compiled" and on_gpu and importlib.util.find_spec("triton") is None:
        raise BadInput("mode compiled needs the library triton on a GPU; install it with pip, or use --mode captured")
    reason = method.host_bound
    if reason and mode in ("compiled", "captured"):
        return "eager", f"{method.name} cannot be {mode} ({reason}); it runs eagerly"
    if mode == "auto":
        return ("captured" if on_gpu and not reason else "eager"), ""
    return mode, ""


class StepRunner:
    """Runs the next step of the epoch each time it is called.

    A captured step is captured once per batch size and phase (with or without replay, and the stage where that changes
    shapes): the first such step runs kernel by kernel, which warms up what it uses; the second is captured, then
    replayed like all after it. Its inputs are the epoch's draws, the slot ``images`` and the tensors of the run's
    state, none of which ever move.
    """

    def __init__(
        self,
        state: RunState,
        scenario: Scenario,
        method: Method,
        policy: Policy | None,
        draws: EpochDraws,
        precision: str,
        mode: str,
        images: Tensor | None = None,
    ) -> None:
        self.state, self.scenario, self.method, self.policy = state, scenario, method, policy
        self.draws, self.precision, self.images = draws, precision, images
        self.captures = mode != "eager" and state.step.is_cuda
        self.graphs: dict[tuple[int, bool, bool, int], torch.cuda.CUDAGraph | None] = {}  # None: warmed up
        self.pool = torch.cuda.graph_pool_handle() if self.captures else None
        if mode == "compiled":
            state.net.trunk.compile(dynamic=False)

    def __call__(self, size: int, offers: bool = True) -> None:
        """A step on ``size`` new examples; ``offers`` says whether memory is offered them."""
        replaying = self.state.offered  # before that memory holds nothing
        phase = (size, replaying, offers, self.state.stage if self.method.stage_shapes else 0)
        if not self.captures:
            self._launch(size, replaying, offers)
        elif phase not in self.graphs:
            self._launch(size, replaying, offers)
            self.graphs[phase] = None
        else:
            graph = self.graphs[phase]
            if graph is None:
                graph = self.graphs[phase] = capture(lambda: self._launch(size, replaying, offers), self.pool)
            graph.replay()
        self.state.steps += 1
        self.state.epoch_steps += 1
        self.state.offered |= offers

    def _launch(self, size: int, replaying: bool, offers: bool) -> None:
        state = self.state
        with computing(self.precision, state.step.device):
            draws = self.draws.at(state.step, size, replaying)
            images = None if self.images is None else self.images[:size]
            train_step(state, self.scenario, self.method, self.policy, draws, images, offers)
