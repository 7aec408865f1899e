"""One report a run: `report.html` (self-contained), `report.md`, `metrics.json`, two pictures."""

from eagle3.report.build import write_report

__all__ = ["write_report"]
