"""Training: draws, state, step, checkpoints, loop, packs."""

from gcr.training.checkpoint import Checkpoints
from gcr.training.loop import Diverged, Epoch, How, Outcome, Run, Stopped, own_cuda_stream, train
from gcr.training.settings import Training
from gcr.training.sgd import Sgd

__all__ = [
    "Checkpoints",
    "Diverged",
    "Epoch",
    "How",
    "Outcome",
    "Run",
    "Sgd",
    "Stopped",
    "Training",
    "own_cuda_stream",
    "train",
]
