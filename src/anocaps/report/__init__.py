"""The page made from results: one HTML file that needs nothing but a browser."""

from anocaps.report.page import ReportCell, write_report

__all__ = ["ReportCell", "write_report"]
