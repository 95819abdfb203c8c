"""Writes docs/figures.md, all tables of benchmarks/results: `python -m benchmarks.figures`.

And the page's plots, the README's table, and its picture, which shows two of the results.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.overview_picture import overview_svg
from benchmarks.readme_table import readme_with_table
from benchmarks.result_plots import PLOTS

RESULTS = Path(__file__).with_name("results")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "figures.md"
README = PAGE.parents[1] / "README.md"
PICTURE = PAGE.with_name("images") / "overview.svg"
PLOT_FOLDER = PAGE.with_name("images") / "figures"
HEAD = """# Figures

All that the benchmarks have measured, from `benchmarks/results/*.json`.
`python -m benchmarks.figures` writes this page and its plots. Names of columns are
those of the files. The README has the few that matter most.
"""
TARGETS = {
    "switch-": "bench-switch",
    "collectives": "bench-collectives",
    "flow-level": "bench-collectives",
    "job-completion": "bench-jobs",
    "planning": "bench-planning",
    "embedding": "bench-planning",
    "in-network": "bench-planning",
}
"""Commands that measure the files with these prefixes; `make bench` measures the others."""


def figures_page(results: Path = RESULTS) -> str:
    """Return the page, in Markdown, of the results in a folder."""
    parts = [HEAD]
    for file in sorted(results.glob("*.json")):
        content = json.loads(file.read_text())
        parts.append("\n".join(_section(file.stem, content["machine"], content["rows"])))
    return "\n".join(parts)


def picture(results: Path = RESULTS) -> str:
    """Return the README's picture, as SVG."""
    goodput, loss = (
        json.loads((results / f"{name}.json").read_text())["rows"] for name in ("goodput", "loss")
    )
    return overview_svg(goodput, loss)


def plots(results: Path = RESULTS) -> dict[str, str]:
    """Return the page's plots, as SVG, by the name of their file."""
    return {
        f"{name}.svg": plot.svg(json.loads((results / f"{name}.json").read_text())["rows"])
        for name, plot in PLOTS.items()
    }


def _section(name: str, machine: dict[str, Any], rows: list[dict[str, Any]]) -> Iterator[str]:
    target = next((make for start, make in TARGETS.items() if name.startswith(start)), "bench")
    yield f"## {name}\n"
    where = ", ".join(f"{key} {_cell(value)}" for key, value in machine.items())
    yield f"`make {target}`; {where}.\n"
    if name in PLOTS:
        yield f"![{PLOTS[name].title}]({PLOT_FOLDER.relative_to(PAGE.parent)}/{name}.svg)\n"
    columns = list(dict.fromkeys(key for row in rows for key in row))
    yield f"| {' | '.join(column.replace('_', ' ') for column in columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(_cell(row.get(column)) for column in columns)} |"
    yield ""


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "yes" if value else "no"
        case int():
            return f"{value:,}"
        case float():
            return f"{value:,.0f}" if value >= 1e6 and value.is_integer() else f"{value:.4g}"
        case list():
            return ", ".join(map(_cell, value))
        case _:
            return str(value).replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(figures_page())
    PICTURE.write_text(picture())
    PLOT_FOLDER.mkdir(exist_ok=True)
    for name, svg in plots().items():
        (PLOT_FOLDER / name).write_text(svg)
    README.write_text(readme_with_table(README.read_text(), RESULTS))
