"""The page about runs: every figure predicted and measured, goodput and slots over time.

The same for virtual time and Mininet: it shows reports and recorded states of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from hopsum.controller.web.recording import FIRST_SECONDS, Recording
from hopsum.experiment.description import WorldKind
from hopsum.experiment.prepare import PreparedExperiment, prepare
from hopsum.experiment.result import Report, RunMeasurement
from hopsum.network.model import Network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.outcomes import Outcome, packets, sums
from hopsum.reports import page
from hopsum.reports.network_drawing import network_svg
from hopsum.reports.plotting import panels, png
from hopsum.reports.run_series import SwitchSlots, goodput, slots
from hopsum.reports.summary import predicted_figures, reservation, setting

SAMPLES = 80
"""Maximum number of samples over time."""
REAL_SECONDS = 0.5
"""Initial seconds between two samples in Mininet: of 20 switches one costs 40 ms of CPU time."""
COLOURS = {"in-network": "#0b7285", "server": "#e8590c", "ring": "#5f3dc4"}
OTHER_COLOUR = "#364fc7"
PREDICTED_LINE: dict[str, Any] = {"color": "k", "ls": "--", "lw": 1.2}


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run: its report, and the states of its cluster."""

    report: Report
    states: Sequence[pb.ClusterState]

    @property
    def name(self) -> str:
        """The algorithm."""
        return self.report.experiment.algorithm.value

    @property
    def colour(self) -> str:
        """The colour of its lines."""
        return COLOURS.get(self.name, OTHER_COLOUR)

    @property
    def reserved(self) -> int:
        """Predicted slots of its job at the fullest switch."""
        loads = self.report.predicted.switches or {}
        return max((load.slots for load in loads.values()), default=0)

    @property
    def measured(self) -> RunMeasurement:
        """Its measurements."""
        assert self.report.measured is not None
        return self.report.measured


def recording_for(world: WorldKind) -> Recording:
    """Return an empty recording for the page of a run."""
    interval = REAL_SECONDS if world is WorldKind.MININET else FIRST_SECONDS
    return Recording(live=True, interval=interval, most=SAMPLES)


def run_page(run: Run) -> str:
    """Return the page of one run."""
    e, problems = run.report.experiment, run.report.problems
    lead = (
        f"{run.name}: {setting(e)}; "
        f"{'with problems, see below' if problems else 'every sum checked'}."
    )
    return page.page(
        "hopsum: a run", lead, [*problems_section(problems), *sections([run], plots([run]))]
    )


def problems_section(problems: Sequence[str]) -> list[tuple[str, str]]:
    """Return the section of problems, if there are any."""
    return [("Problems", page.bad_list(problems))] if problems else []


def plots(runs: Sequence[Run]) -> dict[str, bytes]:
    """Return the plots of some runs as PNG, by file name."""
    found = {
        "bytes.png": bytes_plot(runs),
        "goodput.png": goodput_plot(runs),
    }
    if len(runs) > 1:
        found["time.png"] = time_plot(runs)
    for run in runs:
        times, switches = slots("run", run.states)
        if switches:
            found[f"slots-{run.name}.png"] = slots_plot(times, switches, run.reserved)
    return found


def sections(runs: Sequence[Run], images: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Return headings and HTML: summary, trees, tables of links and switches, and the `plots`."""
    head = ["", *(text for run in runs for text in (run.name, "predicted"))]
    prepared = prepare(runs[0].report.experiment)
    network = prepared.network
    return [
        (
            "Measured and predicted",
            page.table(head, predicted_figures([r.report for r in runs])) + _reservation(runs),
        ),
        (
            "Time and bytes" if "time.png" in images else "Bytes",
            "".join(
                page.figure(page.image(images[name], alt), caption)
                for name, alt, caption in (
                    ("time.png", "seconds", "Time spent in all-reduce"),
                    ("bytes.png", "bytes", "Bytes on every link; dashed: predicted"),
                )
                if name in images
            ),
        ),
        (
            "Goodput over time",
            page.figure(
                page.image(images["goodput.png"], "goodput over time"),
                "Goodput of a worker in each step, from when all workers have submitted a tensor: "
                "mean and range of the workers; dashed: predicted. Between steps workers compute",
            ),
        ),
        ("Slots over time", "".join(_slots(run, images) for run in runs)),
        *_tree(runs[0], prepared),
        (
            "Each switch",
            "".join(page.folded(run.name, switch_table(run, network)) for run in runs),
        ),
        (
            "Bytes on each link",
            "".join(
                page.folded(r.name, page.links_table(r.report.to_dict(), network.label))
                for r in runs
            ),
        ),
    ]


def _reservation(runs: Sequence[Run]) -> str:
    said = reservation([run.report.experiment for run in runs])
    return f"<p>{said[0].upper()}{said[1:]}.</p>" if said else ""


def time_plot(runs: Sequence[Run]) -> bytes:
    """Return seconds in all-reduce, as bars with the prediction."""
    figure, [axes] = panels()
    bars = axes.bar(
        [run.name for run in runs],
        [run.measured.seconds for run in runs],
        color=[run.colour for run in runs],
        width=0.55,
    )
    axes.hlines(
        [run.report.predicted.seconds for run in runs],
        [x - 0.34 for x in range(len(runs))],
        [x + 0.34 for x in range(len(runs))],
        colors="k",
        ls="--",
        lw=1.2,
        label="predicted",
    )
    axes.bar_label(bars, fmt="%.2f s", padding=3)
    axes.set_ylabel("seconds in all-reduce")
    axes.legend(frameon=False)
    return png(figure)


def bytes_plot(runs: Sequence[Run]) -> bytes:
    """Return bytes of link directions, the busiest first, measured and predicted."""
    figure, [axes] = panels()
    for run in runs:
        for links, style, label in (
            (run.measured.links, {"color": run.colour}, run.name),
            (run.report.predicted.links, {"color": "k", "ls": "--", "lw": 0.9}, None),
        ):
            loads = sorted((count / 1e6 for count in links.values()), reverse=True)
            axes.step(range(len(loads)), loads, where="post", label=label, **style)
    axes.set_xlabel("link directions, busiest first")
    axes.set_ylabel("megabytes sent")
    axes.legend(frameon=False)
    return png(figure)


def goodput_plot(runs: Sequence[Run]) -> bytes:
    """Return the workers' goodput over time, a panel a run: mean, range, and prediction."""
    figure, axes = panels(len(runs), 2.8 * len(runs) + 1.2)
    for run, each in zip(runs, axes, strict=True):
        steps = [step for step in goodput(run.report) if step.workers]
        for step in steps:
            rates = [rate / 1e6 for rate in step.workers]
            across, mean = (step.start, step.finish), sum(rates) / len(rates)
            each.fill_between(across, min(rates), max(rates), color=run.colour, alpha=0.25, lw=0)
            each.plot(across, (mean, mean), color=run.colour, lw=1.5)
        seconds = run.report.predicted.seconds
        if seconds:
            predicted = run.report.tensor_bits / seconds / 1e6
            each.axhline(predicted, **PREDICTED_LINE)
        each.set(xlabel="seconds since the first step", title=run.name)
    axes[0].set_ylim(0, 1.1 * axes[0].get_ylim()[1])
    axes[0].set_ylabel("goodput of a worker, Mbit/s")
    return png(figure)


def slots_plot(times: Sequence[float], switches: dict[str, SwitchSlots], reserved: int) -> bytes:
    """Return a job's slots at each switch over time; `reserved`: predicted, at the fullest one."""
    figure, [left, right] = panels(2, 9.6, common=False)
    for name, each in switches.items():
        left.step(times, each.held, where="post", lw=1.2)
        waiting = [float("nan") if count is None else count for count in each.waiting]
        right.plot(times, waiting, "o-", ms=2.5, lw=1, label=name)
    left.axhline(reserved, **PREDICTED_LINE)
    left.set(title="reserved", ylabel="slots of a switch")
    right.set(title="with a sum that waits for its result")
    for axes in (left, right):
        axes.set(xlabel="seconds since the job was submitted")
        axes.set_ylim(bottom=0)
    figure.legend(*right.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return png(figure)


def _slots(run: Run, images: Mapping[str, bytes]) -> str:
    """Return the section of a run's slots: plot, and what bounds them."""
    picture = images.get(f"slots-{run.name}.png")
    if picture is None:
        why = "it ended before the first sample" if run.reserved else "no switch sums for it"
        return f"<p>{run.name}: no slots to show, {why}.</p>"
    window = run.report.experiment.window
    assert window is not None
    times, _ = slots("run", run.states)
    apart = median(later - sooner for sooner, later in pairwise(times))
    caption = (
        f"{run.name}: slots of each switch. Reserved: a window of {window} for each tree that the "
        "switch sums; dashed: predicted, at the fullest switch. How many of them have a sum whose "
        f"result has not passed yet is not predicted; at most {max(1, window // 2)} fragments of a "
        f"tree are in flight. A sample every {apart:.2g} s"
    )
    return page.figure(page.image(picture, "slots over time"), caption)


def _tree(first: Run, prepared: PreparedExperiment) -> list[tuple[str, str]]:
    if prepared.plan is None:
        return []
    picture = network_svg(prepared.network, prepared.plan, link_bytes=dict(first.measured.links))
    caption = "Switches that sum are filled; the trees' links are bold"
    return [("The aggregation trees", page.figure(picture, caption))]


def switch_table(run: Run, network: Network) -> str:
    """Return the table of slots, packets and sums of each switch, measured and predicted."""
    loads = run.report.predicted.switches
    if loads is None:
        return "<p>Hosts sum over TCP: how many packets that takes is not predicted.</p>"
    _, sampled = slots("run", run.states)
    rows = []
    for name, load in loads.items():
        counted = run.measured.switches.get(name)
        # What plain tables forward is not the plan's.
        counts: dict[Outcome, int] = {o: (counted or {}).get(o.name.lower(), 0) for o in Outcome}
        counts[Outcome.PLAIN] = 0
        # None: it was unreachable at the end of the run.
        known = counted is not None
        # A run may end before its first sample.
        held = max(sampled[name].held) if name in sampled else None if load.slots else 0
        rows.append(
            (
                network.label(name),
                *page.compared(held, load.slots),
                *page.compared(packets(counts) if known else None, load.packets),
                *page.compared(sums(counts) if known else None, load.sums),
            )
        )
    head = ("switch", *(t for what in ("slots", "packets", "sums") for t in (what, "predicted")))
    return page.table(head, rows)
