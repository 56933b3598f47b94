"""Reporting runs to other tools while they train: TensorBoard event files, an MLflow store."""

from gcr.experiments.tracking.reporter import TRACKERS, tracked, trackers

__all__ = ["TRACKERS", "tracked", "trackers"]
