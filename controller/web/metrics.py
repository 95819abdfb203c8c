"""The state of a cluster as Prometheus metrics.

Names and units follow https://prometheus.io/docs/practices/naming/: base units (bytes, seconds),
`_total` for what only grows. A job is `job_id` and `job_name`: `job` is Prometheus's own label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from hopsum.controller.dataplane.driver import State
from hopsum.controller.jobs.job_state import JobState
from hopsum.protocol import hopsum_pb2 as pb

JOB = ("job_id", "job_name")
LINK = ("sender", "receiver")


class ClusterCollector(Collector):
    """Metrics of a cluster; `state` returns its current state."""

    def __init__(self, state: Callable[[], pb.ClusterState]) -> None:
        self._state = state

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, those without samples too."""
        state = self._state()
        yield from _jobs(state)
        yield from _switches(state)
        yield from _links(state)
        agents = GaugeMetricFamily(
            "hopsum_agent_attached",
            "Whether the host's agent is attached to the controller.",
            labels=["host"],
        )
        for node in state.nodes:
            agents.add_metric([node.host], node.attached)
        yield agents
        events = CounterMetricFamily(
            "hopsum_events", "Events of jobs, switches and links.", labels=["kind"]
        )
        for kind, count in sorted(state.event_counts.items()):
            events.add_metric([kind], count)
        yield events


def registry_of(state: Callable[[], pb.ClusterState]) -> CollectorRegistry:
    """Return a registry with the metrics of a cluster, and of this process."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(ClusterCollector(state))
    return registry


def _jobs(state: pb.ClusterState) -> Iterator[Metric]:
    by_state = GaugeMetricFamily("hopsum_jobs", "Number of jobs, by state.", labels=["state"])
    for each in JobState:
        by_state.add_metric([each], sum(job.state == each for job in state.jobs))
    yield by_state

    def gauge(name: str, help_: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"hopsum_job_{name}", help_, labels=JOB)

    def counter(name: str, help_: str) -> CounterMetricFamily:
        return CounterMetricFamily(f"hopsum_job_{name}", help_, labels=JOB)

    epoch = gauge("epoch", "Epoch of the job's plan.")
    level = gauge("priority_level", "Priority of the job's packets; 0 is highest.")
    waiting = gauge("waiting", "Whether the job waits for something (`hopsum jobs` says for what).")
    tensors = gauge("tensors", "Number of tensors that the job sums; 0 if unknown.")
    summed = counter("tensors_summed", "Number of tensors whose sums all workers have.")
    sent = counter("sent_bytes", "Bytes of frames that the job's hosts have sent.")
    again = counter("retransmissions", "Fragments and segments that its hosts have retransmitted.")
    submitted = gauge("submit_time_seconds", "When the job was submitted, since 1970.")
    started = gauge("start_time_seconds", "When all its agents were ready, since 1970.")
    for job in state.jobs:
        labels = [str(job.job), job.name]
        summed.add_metric(labels, job.round)
        sent.add_metric(labels, job.sent_bytes)
        again.add_metric(labels, job.retransmissions)
        tensors.add_metric(labels, job.tensors)
        submitted.add_metric(labels, job.submitted)
        if job.started:
            started.add_metric(labels, job.started)
        if not JobState(job.state).over:
            epoch.add_metric(labels, job.epoch)
            level.add_metric(labels, job.level)
            waiting.add_metric(labels, bool(job.reason))
    yield from (epoch, level, waiting, tensors, summed, sent, again, submitted, started)


def _switches(state: pb.ClusterState) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "hopsum_switch_up", "Whether the switch has its program and rules.", labels=["switch"]
    )
    packets = CounterMetricFamily(
        "hopsum_switch_packets",
        "Packets at the switch since it started, by outcome; a packet may count in several.",
        labels=["switch", "outcome"],
    )
    for switch in state.switches:
        up.add_metric([switch.name], switch.state == State.READY)
        for outcome, count in sorted(switch.outcomes.items()):
            packets.add_metric([switch.name, outcome], count)
    slots = GaugeMetricFamily(
        "hopsum_switch_slots", "Aggregation slots of the switch.", labels=["switch"]
    )
    held = GaugeMetricFamily(
        "hopsum_switch_slots_held", "Slots that a job holds there.", labels=["switch", *JOB]
    )
    names = {job.job: job.name for job in state.jobs}
    for use in state.slots:
        slots.add_metric([use.switch], use.slots)
        for job, count in sorted(use.held.items()):
            held.add_metric([use.switch, str(job), names.get(job, "")], count)
    yield from (up, packets, slots, held)


def _links(state: pb.ClusterState) -> Iterator[Metric]:
    up = GaugeMetricFamily(
        "hopsum_link_up", "Whether link and ends are reachable and in use.", labels=LINK
    )
    load = GaugeMetricFamily(
        "hopsum_link_load_bytes_per_second", "Rate on the link, smoothed.", labels=LINK
    )
    capacity = GaugeMetricFamily(
        "hopsum_link_capacity_bytes_per_second",
        "Bandwidth of the link; absent if unlimited.",
        labels=LINK,
    )
    for link in state.links:
        labels = [link.sender, link.receiver]
        up.add_metric(labels, not link.health)
        if link.HasField("age"):
            load.add_metric(labels, link.used / 8)
    for each in state.network.links:
        if each.HasField("bandwidth"):
            for labels in ([each.a, each.b], [each.b, each.a]):
                capacity.add_metric(labels, each.bandwidth / 8)
    yield from (up, load, capacity)
