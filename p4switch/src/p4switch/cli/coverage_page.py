"""The page of `p4switch stf --coverage`: the source with counts and unreached points."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from pathlib import Path

from p4switch.backends.reference.coverage import KINDS, Coverage

TITLES = {
    "statement": "statements",
    "branch": "branches",
    "transition": "parser transitions",
    "entry": "table entries",
}

STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 75em; padding: 0 1em; }
table { border-collapse: collapse; } td, th { padding: .15em .8em; text-align: left; }
pre { margin: 0; font-size: 13px; overflow-x: auto; } h2 { margin-top: 1.6em; }
.line { display: block; } .number, .count { display: inline-block; text-align: right; color: #777; }
.number { width: 4em; } .count { width: 5em; margin-right: 1em; }
.hit { background: #e3f6e3; } .part { background: #fff3c4; } .miss { background: #fbdcdc; }
@media (prefers-color-scheme: dark) {
  body { background: #16181b; color: #ddd; }
  .hit { background: #16361c; } .part { background: #453a10; } .miss { background: #4d1d1d; }
}
"""


def summary(coverage: Coverage) -> Iterator[str]:
    """Yield a line for each kind of point with the number reached."""
    for kind in KINDS:
        reached, known = coverage.totals(kind)
        share = f"{100 * reached / known:.0f} %" if known else "none there"
        yield f"{TITLES[kind]}: {reached} of {known} ({share})"


def page(title: str, coverage: Coverage) -> str:
    """Return the HTML page."""
    return "\n".join(_page(title, coverage)) + "\n"


def _page(title: str, coverage: Coverage) -> Iterator[str]:
    yield "<!doctype html>"
    yield f'<html lang="en"><meta charset="utf-8"><title>{escape(title)}</title>'
    yield f"<style>{STYLE}</style><h1>{escape(title)}</h1>"
    yield "<table><tr><th></th><th>reached</th><th>of</th></tr>"
    for kind in KINDS:
        reached, known = coverage.totals(kind)
        yield f"<tr><td>{TITLES[kind]}</td><td>{reached}</td><td>{known}</td></tr>"
    yield "</table>"
    for kind in KINDS[1:]:
        missed = coverage.missed(kind)
        if missed:
            yield f"<h2>{TITLES[kind].capitalize()} never reached</h2><ul>"
            for point in missed:
                where = f"{Path(point.file).name}:{point.line}"
                yield f"<li>{escape(where)}: {escape(point.label)}</li>"
            yield "</ul>"
    for file in sorted({point.file for point in coverage.counts if point.kind == "statement"}):
        yield from _source(file, coverage)
    yield "</html>"


def _source(file: str, coverage: Coverage) -> Iterator[str]:
    """Yield the lines of a file: red if no point was reached, yellow if not all were."""
    counts: dict[int, list[int]] = {}
    for point, count in coverage.counts.items():
        if point.file == file and point.kind in ("statement", "branch"):
            counts.setdefault(point.line, []).append(count)
    try:
        lines = Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = [""] * max(counts)
    yield f"<h2>{escape(file)}</h2><pre>"
    for number, text in enumerate(lines, 1):
        here = counts.get(number, [])
        kind = ""
        if here:
            kind = "hit" if all(here) else "part" if any(here) else "miss"
        shown = max(here) if here else ""
        yield (
            f'<span class="line {kind}"><span class="number">{number}</span>'
            f'<span class="count">{shown}</span>{escape(text)}</span>'
        )
    yield "</pre>"
