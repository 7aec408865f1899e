"""What a report is made of, and the two ways to write it down."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3.report import markdown


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Code:
    text: str


@dataclass(frozen=True)
class Picture:
    name: str
    caption: str


@dataclass(frozen=True)
class Table:
    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


Block = Heading | Text | Code | Picture | Table


def as_markdown(title: str, blocks: list[Block]) -> str:
    """One document; pictures are files beside it."""
    out = [f"# {_escaped(title)}"]
    for block in blocks:
        match block:
            case Heading(text):
                out.append(f"## {text}")
            case Text(text):
                out.append(_escaped(text))
            case Code(text):
                out.append(f"```\n{text}\n```")
            case Picture(name, caption):
                out.append(f"![{caption}]({name}.png)")
            case Table(head, rows):
                cells = [[_escaped(cell) for cell in row] for row in rows]
                out.append("\n".join(markdown.table(head, cells)))
    return "\n\n".join(out) + "\n"


def _escaped(text: str) -> str:
    """Names of others must not become markup."""
    for mark, plain in (("&", "&amp;"), ("<", "&lt;"), ("`", "\\`"), ("\n", " ")):
        text = text.replace(mark, plain)
    return text


_STYLE = """body{font:16px/1.5 system-ui,sans-serif;max-width:54rem;margin:2rem auto;padding:0 1rem;
color:#1f2933}h1{font-size:1.6rem}h2{font-size:1.15rem;margin-top:2rem}table{border-collapse:collapse}
td,th{padding:.25rem .9rem .25rem 0;border-bottom:1px solid #e4e7eb;text-align:left;
overflow-wrap:anywhere}pre{background:#f5f7fa;padding:.8rem;overflow-x:auto}img{max-width:100%}
figcaption{color:#616e7c;font-size:.9rem}figure{margin:1rem 0}"""


def as_html(title: str, blocks: list[Block], folder: Path) -> str:
    """One document; pictures, SVG files of `folder`, are in it."""
    body = [f"<h1>{html.escape(title)}</h1>"]
    for block in blocks:
        match block:
            case Heading(text):
                body.append(f"<h2>{html.escape(text)}</h2>")
            case Text(text):
                body.append(f"<p>{html.escape(text)}</p>")
            case Code(text):
                body.append(f"<pre>{html.escape(text)}</pre>")
            case Picture(name, caption):
                data = base64.b64encode((folder / f"{name}.svg").read_bytes()).decode()
                body.append(
                    f'<figure><img alt="{html.escape(caption)}" '
                    f'src="data:image/svg+xml;base64,{data}">'
                    f"<figcaption>{html.escape(caption)}</figcaption></figure>"
                )
            case Table(head, rows):
                body.append("<table>" + _row("th", head) if any(head) else "<table>")
                body.append("".join(_row("td", row) for row in rows) + "</table>")
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        f"<title>{html.escape(title)}</title><style>{_STYLE}</style>"
        f"<body>{''.join(body)}</body></html>\n"
    )


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"
