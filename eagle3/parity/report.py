"""Parity for a reader, as Markdown."""

from __future__ import annotations

from eagle3.parity.check import Parity
from eagle3.report.blocks import Text, as_markdown
from eagle3.report.parity import comparison


def page(p: Parity) -> str:
    """Verdict, acceptance by position, text, and what broke."""
    return as_markdown("Parity", [Text(p.said), *comparison(p.record())])
