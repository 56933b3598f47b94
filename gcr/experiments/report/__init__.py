"""The HTML report."""

from gcr.experiments.report.build import needs_of_report, write_report

__all__ = ["needs_of_report", "write_report"]
