"""The HTML report."""

from gcr.experiments.report.build import write_report

__all__ = ["write_report"]
