"""Training: draws, state, step, loop."""

from gcr.training.run import Diverged, Epoch, How, Outcome, Run, Stopped, train
from gcr.training.settings import Training

__all__ = ["Diverged", "Epoch", "How", "Outcome", "Run", "Stopped", "Training", "train"]
