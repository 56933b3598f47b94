"""Reporting runs to other tools while they train: TensorBoard event files, an MLflow store."""

from gcr.experiments.tracking.reporter import TRACKERS, tracked

__all__ = ["TRACKERS", "tracked"]
