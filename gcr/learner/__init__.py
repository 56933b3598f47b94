"""A learner for one's own project: any network, any data, in a few lines."""

from gcr.learner.fitting import FitEpoch
from gcr.learner.learner import Learner
from gcr.learner.memory_view import Memory
from gcr.learner.state_folder import StateFolder
from gcr.learner.views import per_sample

__all__ = ["FitEpoch", "Learner", "Memory", "StateFolder", "per_sample"]
