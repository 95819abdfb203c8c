"""Parts of a self-contained HTML page: tables, figures, lists."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from typing import Any

STYLE = """
:root { --ink: #1d2733; --soft: #5b6b7b; --line: #d5dde5; --accent: #0b7285; --good: #2b8a3e;
        --bad: #c92a2a; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); margin: 2rem auto;
       max-width: 72rem; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .2rem; } h2 { margin-top: 2.2rem; font-size: 1.2rem; }
p.lead { color: var(--soft); margin-top: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .8rem; border-bottom: 1px solid var(--line); text-align: right; }
th:first-child, td:first-child { text-align: left; }
th { color: var(--soft); font-weight: 600; }
.good { color: var(--good); } .bad { color: var(--bad); font-weight: 600; }
figure { margin: 1rem 0; overflow-x: auto; } figcaption { color: var(--soft); }
img { max-width: 100%; }
details { margin: .8rem 0; } summary { cursor: pointer; color: var(--accent); }
@media (max-width: 40rem) {
  body { margin: 1rem auto; overflow-wrap: anywhere; }
  tr, td:first-child { display: block; } tr { border-bottom: 1px solid var(--line); }
  tr.head { display: none; }
  td { display: flex; justify-content: space-between; gap: 1rem; border: none; padding: .1rem 0; }
  td:first-child { font-weight: 600; } td:not(:first-child)::before { content: attr(data-head); }
  td::before { color: var(--soft); } table { width: 100%; } tbody { display: block; }
}
"""


def page(title: str, lead: str, sections: Sequence[tuple[str, str]]) -> str:
    """Return a whole page; `sections` are headings with their HTML."""
    body = "\n".join(f"<h2>{html.escape(h)}</h2>\n{content}" for h, content in sections)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{html.escape(title)}</title><style>{STYLE}</style></head>\n"
        f'<body><h1>{html.escape(title)}</h1><p class="lead">{html.escape(lead)}</p>\n'
        f"{body}\n</body></html>\n"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table; cells that start with `<` are HTML already.

    On a narrow screen each row becomes a list of cells, each labelled with its column's name.
    """

    def cell(value: object, name: str) -> str:
        text = str(value)
        shown = text if text.startswith("<") else html.escape(text)
        return f'<td data-head="{html.escape(name)}">{shown}</td>'

    lines = ['<tr class="head">' + "".join(f"<th>{html.escape(h)}</th>" for h in head) + "</tr>"]
    lines += ["<tr>" + "".join(map(cell, row, head)) + "</tr>" for row in rows]
    return "<table>" + "\n".join(lines) + "</table>"


def links_table(run: Mapping[str, Any], label: Callable[[str], str]) -> str:
    """Return a table of predicted and measured bytes on links; `label`: a node's name."""
    rows = []
    for link in run["links"]:
        expected, measured = link["predicted_bytes"], link["measured_bytes"]
        if not expected and not measured:
            continue
        same = expected == measured
        difference = (
            '<span class="good">equal</span>'
            if same
            else f'<span class="{"bad" if run["problems"] else ""}">{measured - expected:+,}</span>'
        )
        rows.append(
            (
                f"{label(link['from'])} → {label(link['to'])}",
                f"{expected:,}",
                f"{measured:,}",
                difference,
            )
        )
    return table(("link", "predicted bytes", "measured bytes", "difference"), rows)


def compared(measured: int | None, predicted: int) -> tuple[str, str]:
    """Return two cells of a table; the prediction is marked if it is right. None: unknown."""
    text = f"{predicted:,}"
    right = f'<span class="good">{text}</span>' if measured == predicted else text
    return "-" if measured is None else f"{measured:,}", right


def bad_list(lines: Sequence[str]) -> str:
    """Return a list of problems."""
    return f'<ul class="bad">{"".join(f"<li>{html.escape(line)}</li>" for line in lines)}</ul>'


def image(png: bytes, alt: str) -> str:
    """Return an image that is part of the page."""
    encoded = base64.b64encode(png).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{encoded}">'


def figure(content: str, caption: str) -> str:
    """Return a figure with a caption; `content` is SVG or an image element."""
    return f"<figure>{content}<figcaption>{html.escape(caption)}</figcaption></figure>"


def folded(summary: str, content: str) -> str:
    """Return content that opens on demand."""
    return f"<details><summary>{html.escape(summary)}</summary>{content}</details>"
