"""Reporting runs to other tools while they train: TensorBoard event files, an MLflow store, Weights & Biases."""

from gcr.runs.tracking.reporter import TRACKERS, tracked, trackers

__all__ = ["TRACKERS", "tracked", "trackers"]
