"""The HTML report: a file, or live."""

from gcr.report.build import needs_of_report, write_report
from gcr.report.headline_table import HeadlineTable
from gcr.report.live import serve

__all__ = ["HeadlineTable", "needs_of_report", "serve", "write_report"]
