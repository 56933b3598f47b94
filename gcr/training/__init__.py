"""Training: draws, state, step, loop."""

from gcr.training.run import Epoch, Outcome, train
from gcr.training.settings import Training

__all__ = ["Epoch", "Outcome", "Training", "train"]
