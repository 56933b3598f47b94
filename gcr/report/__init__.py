"""The HTML report: a file, or live."""

from gcr.report.against_paper import HeadlineTable
from gcr.report.build import needs_of_report, write_report
from gcr.report.live import serve

__all__ = ["HeadlineTable", "needs_of_report", "serve", "write_report"]
