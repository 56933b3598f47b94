"""Training: draws, state, step, loop."""

from gcr.training.run import Diverged, Epoch, Outcome, train
from gcr.training.settings import Training

__all__ = ["Diverged", "Epoch", "Outcome", "Training", "train"]
