"""Training: draws, state, step, checkpoints, loop, packs."""

from gcr.training.checkpoint import Checkpoints
from gcr.training.loop import Diverged, Epoch, How, Outcome, Run, Stopped, own_stream, train
from gcr.training.settings import Training

__all__ = [
    "Checkpoints",
    "Diverged",
    "Epoch",
    "How",
    "Outcome",
    "Run",
    "Stopped",
    "Training",
    "own_stream",
    "train",
]
