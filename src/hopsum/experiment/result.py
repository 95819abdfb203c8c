"""Results of a run: predicted, measured and checked values, as in the JSON report."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from math import inf
from pathlib import Path
from typing import Any

from hopsum.collectives.choices import Coordination
from hopsum.experiment.description import Experiment, WorldKind
from hopsum.files.output import write_file
from hopsum.host_agent.workload import Interval, Verdict, call_seconds
from hopsum.protocol.errors import OperationError
from hopsum.protocol.outcomes import Outcome
from hopsum.timing.work import SwitchLoad

DirectedLink = tuple[str, str]


class RunFailed(OperationError):
    """A run ended without a result; the message names the host and the reason."""


@dataclass(frozen=True, slots=True)
class RunPrediction:
    """Predicted bytes on every link by direction, and seconds.

    `exact`: without loss, bytes are exactly these; otherwise hosts sum over TCP and bytes are an
    estimate. `switches`: loads of the switches of the plan's trees, exact likewise; None where
    hosts sum.
    """

    links: Mapping[DirectedLink, int]
    seconds: float
    exact: bool = True
    switches: Mapping[str, SwitchLoad] | None = None


@dataclass(slots=True)
class RunMeasurement:
    """Measurements. `links`: bytes by direction, from the interfaces' own counters.

    `seconds`: time spent in all-reduces; virtual time in simulation; 0 if a worker's `intervals`
    are missing. `switches`: outcome counters by switch. `retransmissions`: fragments (or segments)
    that agents sent again; of a ring over the kernel's TCP, as the kernel counts them. `intervals`:
    start and end of each all-reduce, by worker (none of very many), on one clock, but not that of
    `events`: events of the job, switches and links, in seconds since its submission.
    """

    seconds: float
    links: Mapping[DirectedLink, int]
    switches: Mapping[str, Mapping[str, int]]
    retransmissions: int
    verdict: Verdict
    outcome: Mapping[str, Any] = field(default_factory=dict)
    intervals: Sequence[Sequence[Interval]] = ()
    events: Sequence[tuple[float, str]] = ()

    @property
    def calls(self) -> list[float]:
        """Seconds of each all-reduce in turn."""
        return call_seconds(self.intervals)

    @property
    def link_repairs(self) -> int:
        """Return the switches' requests for lost frames and the repairs they have sent.

        Frames may be lost or reordered on a link. A request between two switches counts at both.
        """
        repairs = [outcome.name.lower() for outcome in (Outcome.REQUESTED, Outcome.REPEATED)]
        return sum(counts.get(each, 0) for counts in self.switches.values() for each in repairs)


@dataclass(frozen=True, slots=True)
class Report:
    """A run's experiment, its prediction and, afterwards, its measurement."""

    experiment: Experiment
    tensor_elements: int
    """Elements that a worker submits over all rounds."""
    predicted: RunPrediction
    measured: RunMeasurement | None = None
    forms: tuple[str, ...] = ()
    """Forms of the algorithm level-wise."""
    steps: int = 1
    """Rounds of the same tensors: of a training its steps."""

    @property
    def tensor_bits(self) -> int:
        """Bits that a worker submits over all rounds, as its elements are in memory."""
        return self.experiment.dtype.bits * self.tensor_elements

    @property
    def differing_links(self) -> list[DirectedLink]:
        """Return the links whose measured bytes differ from the prediction."""
        if self.measured is None:
            return []
        measured = self.measured.links
        return [
            link for link, expected in self.predicted.links.items() if measured[link] != expected
        ]

    @property
    def exact_bytes_expected(self) -> bool:
        """Return whether bytes must be as predicted: no faults, no retransmissions, no ring."""
        return self._predicted_at_least and not self._coordination_on_links

    @property
    def _coordination_on_links(self) -> bool:
        """Return whether coordination messages are on the links in addition to the sums.

        In simulation only those through the switches are.
        """
        experiment = self.experiment
        return experiment.coordinated and (
            experiment.world is WorldKind.MININET
            or experiment.coordination is Coordination.SWITCHES
        )

    @property
    def _predicted_at_least(self) -> bool:
        return (
            self.measured is not None
            and self.predicted.exact
            and self.experiment.loss == 0
            and not self.experiment.outages
            and self.measured.retransmissions == 0
            and not (self.experiment.world is WorldKind.MININET and self.measured.link_repairs)
        )

    @property
    def missed_outages(self) -> list[str]:
        """Messages about outages scheduled for after the job's end."""
        if self.measured is None or not self.measured.events:
            return []
        end = max(seconds for seconds, _ in self.measured.events)
        return [
            f"outage {outage.trouble.replace(' ', '-')}:{outage.what}@{outage.start:g} did not "
            f"happen: the job ended after {end:.3f} s; choose an earlier time, or more --elements "
            "or --rounds"
            for outage in self.experiment.outages
            if outage.start > end
        ]

    @property
    def problems(self) -> list[str]:
        """Return the reasons why the run has failed; empty if it has not."""
        if self.measured is None:
            return ["the run did not finish"]
        problems = []
        verdict = self.measured.verdict
        if verdict.wrong:
            problems.append(f"{verdict.wrong} of {verdict.checked} checked elements are wrong")
        if self.exact_bytes_expected and self.differing_links:
            u, v = self.differing_links[0]
            problems.append(
                f"bytes differ from the prediction on {len(self.differing_links)} links; first "
                f"{u} -> {v}: predicted {self.predicted.links[u, v]}, "
                f"measured {self.measured.links[u, v]}"
            )
        elif self._predicted_at_least and self._coordination_on_links:
            short = [
                (u, v)
                for u, v in self.differing_links
                if self.measured.links[u, v] < self.predicted.links[u, v]
            ]
            if short:
                u, v = short[0]
                problems.append(
                    f"fewer bytes than predicted on {len(short)} links; first {u} -> {v}: "
                    f"predicted {self.predicted.links[u, v]}, "
                    f"measured {self.measured.links[u, v]}"
                )
        return problems

    def to_dict(self) -> dict[str, Any]:
        """Return the report object; measured values are null before the run."""
        measured = self.measured
        return {
            **self._input(),
            "predicted_seconds": self.predicted.seconds,
            **self._outcome(),
            "links": [
                {
                    "from": u,
                    "to": v,
                    "predicted_bytes": expected,
                    "measured_bytes": None if measured is None else measured.links[u, v],
                }
                for (u, v), expected in self.predicted.links.items()
            ],
            "switches": (
                None
                if measured is None
                else {name: dict(counts) for name, counts in measured.switches.items()}
            ),
            "problems": self.problems,
        }

    def _input(self) -> dict[str, Any]:
        """Return what was run."""
        e = self.experiment
        return {
            "world": e.world.value,
            "engine": e.engine.value,
            "algorithm": e.algorithm.value,
            "topology": e.topology,
            "largest_piece": e.largest_piece,
            "workers": e.workers,
            "servers": e.servers,
            "collective": e.collective.value,
            "elements": e.elements if e.train is None else None,
            "train": e.train,
            "coordinated": e.coordinated,
            "coordination": e.coordination.value if e.coordinated else None,
            "coordination_tree": asdict(e.coordination_limits) if e.coordinated else None,
            "rounds": e.rounds,
            "tensor_elements": self.tensor_elements,
            "dtype": e.dtype.value,
            "wire_bits": e.wire_bits,
            "results": None if e.results is None else e.results.value,
            "lanes": e.lanes,
            "integrity": e.integrity,
            "window": e.window,
            "max_hops": e.max_hops,
            "packet_io": e.packet_io.value,
            "planner": e.planner,
            "planner_options": dict(e.planner_options),
            "level_wise": {**e.form.to_dict(), "used": list(self.forms)} if self.forms else None,
            "link_rate": e.link_rate,
            "uplink_rate": e.uplink_rate,
            "latency": e.latency,
            "loss": e.loss,
            "outages": [
                {
                    "trouble": x.trouble.value,
                    "what": x.what,
                    "start": x.start,
                    "stop": x.stop if x.stop < inf else None,
                }
                for x in e.outages
            ],
            "seed": e.seed,
        }

    def _outcome(self) -> dict[str, Any]:
        """Return what was measured of the run as a whole; null before it."""
        measured = self.measured
        if measured is None:
            names = ("seconds", "goodput_bits_per_second", "checked_elements", "wrong_elements")
            more = ("max_error", "error_bound", "retransmissions", "events")
            return dict.fromkeys((*names, *more))
        bits = self.tensor_bits
        return {
            "seconds": measured.seconds,
            "goodput_bits_per_second": bits / measured.seconds if measured.seconds else 0.0,
            "checked_elements": measured.verdict.checked,
            "wrong_elements": measured.verdict.wrong,
            "max_error": measured.verdict.max_error,
            "error_bound": measured.verdict.error_bound,
            "retransmissions": measured.retransmissions,
            "events": [{"seconds": s, "text": text} for s, text in measured.events],
            **measured.outcome,
        }

    def write(self, path: Path) -> None:
        """Save as JSON."""
        write_json(path, self.to_dict())


def write_json(path: Path, values: Any) -> None:
    """Save JSON. Raises OutputError."""
    write_file(path, json.dumps(values, indent=1) + "\n")
