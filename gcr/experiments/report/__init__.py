"""The HTML report: a file, or live."""

from gcr.experiments.report.build import needs_of_report, write_report
from gcr.experiments.report.first_table import FirstTable
from gcr.experiments.report.live import serve

__all__ = ["FirstTable", "needs_of_report", "serve", "write_report"]
