"""Tables of results: a column per run, a row per figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from rich.table import Table

from hopsum.experiment.description import Experiment, WorldKind
from hopsum.experiment.result import Report, RunMeasurement


def si(value: float, unit: str) -> str:
    """Return a number with a decimal prefix: `24.1 Mbit/s`."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


WORLDS = {WorldKind.SIMULATION: "in virtual time", WorldKind.MININET: "in Mininet"}


def setting(experiment: Experiment) -> str:
    """Describe an experiment: `8 workers on fat-tree:4, 25 Mbit/s a link, in virtual time`."""
    e = experiment
    parts = [f"{e.workers} worker{'s' if e.workers > 1 else ''} on {e.topology}"]
    if e.link_rate is not None:
        parts.append(f"{si(e.link_rate, 'bit/s')} a link")
    if e.uplink_rate is not None:
        parts.append(f"{si(e.uplink_rate, 'bit/s')} between switches")
    if e.wire_bits or e.dtype.bits < 32:
        parts.append(f"{e.dtype} in {e.wire_bits} bits" if e.wire_bits else str(e.dtype))
    if e.loss:
        parts.append(f"{100 * e.loss:g} % loss on every link")
    if e.outages:
        parts.append("an outage" if len(e.outages) == 1 else f"{len(e.outages)} outages")
    return ", ".join((*parts, WORLDS[e.world]))


def reservation(experiments: Sequence[Experiment]) -> str:
    """Say that predictions are of runs without loss and outages, where there are some; else ''."""
    if not any(each.loss or each.outages for each in experiments):
        return ""
    return "all predictions are for a run without loss and outages"


def _goodput(report: Report, seconds: float) -> str:
    return si(report.tensor_bits / seconds if seconds else 0.0, "bit/s")


def _as_predicted(report: Report, measured: RunMeasurement) -> str:
    """Describe the difference of bytes; it is an error only where every byte is predicted."""
    predicted, differing = report.predicted.links, report.differing_links
    if not differing:
        return "on every link"
    if report.exact_bytes_expected or not all(predicted[link] for link in differing):
        return f"{len(differing)} of {len(measured.links)} differ"
    most = max(abs(measured.links[link] / predicted[link] - 1) for link in differing)
    return f"within {100 * most:.2g} %" if most < 1 else f"up to {most + 1:.2g} times"


ROWS: tuple[tuple[str, Callable[[Report, RunMeasurement], str]], ...] = (
    ("seconds", lambda r, m: f"{m.seconds:.3f}"),
    ("seconds predicted", lambda r, m: f"{r.predicted.seconds:.3f}"),
    ("goodput of a worker", lambda r, m: _goodput(r, m.seconds)),
    ("bytes on all links", lambda r, m: si(sum(m.links.values()), "B")),
    ("bytes on the busiest link", lambda r, m: si(max(m.links.values(), default=0), "B")),
    ("bytes as predicted", _as_predicted),
    ("packets retransmitted", lambda r, m: str(m.retransmissions)),
    ("repairs on links", lambda r, m: str(m.link_repairs)),
    ("elements checked", lambda r, m: f"{m.verdict.checked:,}"),
    ("elements wrong", lambda r, m: str(m.verdict.wrong)),
    ("largest error", lambda r, m: f"{m.verdict.max_error:.3g}"),
    ("largest error bound", lambda r, m: f"{m.verdict.error_bound:.3g}"),
)


NOT_PREDICTED = "not predicted"


def _lossless(report: Report) -> str:
    """Return the predicted retransmissions: none without loss, except over the kernel's TCP."""
    experiment = report.experiment
    none = report.predicted.exact and not experiment.loss and not experiment.outages
    return "0" if none else NOT_PREDICTED


PREDICTED: Mapping[str, Callable[[Report, RunMeasurement], str]] = {
    "seconds": lambda r, m: f"{r.predicted.seconds:.3f}",
    "goodput of a worker": lambda r, m: _goodput(r, r.predicted.seconds),
    "bytes on all links": lambda r, m: si(sum(r.predicted.links.values()), "B"),
    "bytes on the busiest link": lambda r, m: si(max(r.predicted.links.values(), default=0), "B"),
    "packets retransmitted": lambda r, m: _lossless(r),
    "repairs on links": lambda r, m: _lossless(r),
    "elements checked": lambda r, m: f"{r.experiment.workers * r.tensor_elements:,}",
    "elements wrong": lambda r, m: "0",
    "largest error": lambda r, m: f"at most {m.verdict.error_bound:.3g}",
}
"""Predictions of rows. The other rows compare measurements with predictions themselves."""


def figures(reports: Sequence[Report]) -> list[list[str]]:
    """Return the rows of the summary: a label, then a cell a run."""
    rows = [
        [label, *(cell(r, r.measured) if r.measured else "-" for r in reports)]
        for label, cell in ROWS
    ]
    if any(r.measured and "accuracy" in r.measured.outcome for r in reports):
        accuracies = (
            f"{r.measured.outcome['accuracy']:.4f}" if r.measured else "-" for r in reports
        )
        rows.insert(0, ["accuracy", *accuracies])
    return rows


def predicted_figures(reports: Sequence[Report]) -> list[list[str]]:
    """Return a row for each predicted figure: a label, then measurement and prediction a run."""
    return [
        [
            label,
            *(
                text
                for r in reports
                for text in (
                    (cell(r, r.measured), PREDICTED[label](r, r.measured))
                    if r.measured
                    else ("-", "-")
                )
            ),
        ]
        for label, cell in ROWS
        if label in PREDICTED
    ]


def run_table(reports: Sequence[Report]) -> Table:
    """Return the summary of some runs."""
    table = Table()
    table.add_column("")
    for report in reports:
        table.add_column(report.experiment.algorithm.value, justify="right")
    for row in figures(reports):
        table.add_row(*row)
    return table
