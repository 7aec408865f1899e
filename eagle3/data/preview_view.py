"""A preview for a terminal, and as a web page that stands on its own."""

from __future__ import annotations

import html
from itertools import groupby

from eagle3.data.pieces import Kind, Piece, Shown
from eagle3.data.preview import Preview

LEGEND: dict[Kind, str] = {
    "prompt": "read only",
    "first": "an answer's first token: the target gives it, the draft reads it",
    "answer": "what the draft learns to propose",
    "outside": "the same, but not in the draft vocabulary",
    "cut": "beyond the longest sample",
}
ANSI: dict[Kind, str] = {
    "prompt": "2",
    "first": "36;4",
    "answer": "32",
    "outside": "31;4",
    "cut": "9;2",
}
MARKS: dict[Kind, tuple[str, str]] = {
    "prompt": ("", ""),
    "first": ("‹", "›"),
    "answer": ("«", "»"),
    "outside": ("«!", "»"),
    "cut": ("✂", ""),
}
"""What colours stand for where there are none."""

LONGEST_READ = 400
"""Characters of text that is read only, or cut, in a row; the middle of more is left out."""


def terminal(preview: Preview, colour: bool) -> str:
    """Figures, warnings and samples as text."""
    width = max(len(name) for name, _ in preview.facts())
    lines = [f"{name:>{width}}  {value}" for name, value in preview.facts()]
    lines += [_paint(f"{'warning':>{width}}  {text}", "33", colour) for text in preview.warnings]
    lines += ["", "  ".join(_marked(text, kind, colour) for kind, text in LEGEND.items())]
    for shown in preview.shown:
        lines += ["", f"── {shown.id} ({shown.split}, {_size(shown)} tokens)"]
        lines.append("".join(_runs(shown.pieces, colour)))
    return "\n".join(lines) + "\n"


def _runs(pieces: list[Piece], colour: bool) -> list[str]:
    found = []
    for kind, run in groupby(pieces, key=lambda piece: piece.kind):
        text = "".join(piece.text for piece in run)
        if kind in ("prompt", "cut") and len(text) > LONGEST_READ:
            half = LONGEST_READ // 2
            left_out = len(text) - 2 * half
            text = f"{text[:half]} …({left_out:,} characters)… {text[-half:]}"
        found.append(_marked(_harmless(text), kind, colour))
    return found


def _harmless(text: str) -> str:
    """Without characters that steer a terminal."""
    return "".join(c if c in "\n\t" or c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def _marked(text: str, kind: Kind, colour: bool) -> str:
    if colour:
        return _paint(text, ANSI[kind], colour)
    before, after = MARKS[kind]
    return f"{before}{text}{after}"


def _paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def _size(shown: Shown) -> int:
    return sum(len(piece.ids) for piece in shown.pieces)


STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;
color:#1b1f24;background:#fff}
table{border-collapse:collapse}td{padding:.15rem .8rem .15rem 0;vertical-align:top}
td:first-child{color:#57606a}
.warning{background:#fff8c5;border-left:4px solid #d4a72c;padding:.4rem .8rem;margin:.4rem 0}
pre{white-space:pre-wrap;overflow-wrap:anywhere;border:1px solid #d0d7de;border-radius:6px;
padding:.8rem;font:13px/1.6 ui-monospace,monospace}
.prompt{color:#6e7781}.first{background:#ddf4ff}.answer{background:#dafbe1}
.outside{background:#ffebe9;text-decoration:underline wavy #cf222e}
.cut{color:#8c959f;text-decoration:line-through}
.legend span{padding:0 .3rem;margin-right:.6rem}
@media(prefers-color-scheme:dark){body{color:#e6edf3;background:#0d1117}
pre{border-color:#30363d}.warning{background:#3a2d0b}.first{background:#0c2d4d}
.answer{background:#12361c}.outside{background:#4a1b19}}
"""


def page(preview: Preview) -> str:
    """Figures, warnings and samples as HTML; nothing is fetched. A token's id is its tooltip."""
    title = f"What is supervised: {html.escape(preview.target)}"
    rows = "".join(
        f"<tr><td>{html.escape(name)}</td><td>{html.escape(value)}</td></tr>"
        for name, value in preview.facts()
    )
    warnings = "".join(f'<p class="warning">{html.escape(text)}</p>' for text in preview.warnings)
    legend = "".join(
        f'<span class="{kind}">{html.escape(text)}</span>' for kind, text in LEGEND.items()
    )
    samples = "".join(
        f"<h2>{html.escape(shown.id)}</h2><p>{shown.split}, {_size(shown):,} tokens</p>"
        f"<pre>{''.join(map(_span, shown.pieces))}</pre>"
        for shown in preview.shown
    )
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1><table>{rows}</table>{warnings}"
        f'<p class="legend">{legend}</p>{samples}</html>\n'
    )


def _span(piece: Piece) -> str:
    ids = " ".join(map(str, piece.ids))
    return f'<span class="{piece.kind}" title="{ids}">{html.escape(piece.text)}</span>'
