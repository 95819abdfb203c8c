"""Metrics: their names, what a real Prometheus makes of them, and the Grafana dashboard of them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest
from prometheus_client.registry import Collector

from hopsum.controller.web.metrics import ClusterCollector
from hopsum.host_agent.node.metrics import AgentCollector, served_metrics
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.web_address import WebAddress
from p4switch.backends.reference.interpreter import Interpreter
from p4switch.cli.demo import ROUTER
from p4switch.device.bundle import make_bundle
from p4switch.device.device import Device
from p4switch.device.loading import Loader
from p4switch.device.metrics import exposition
from p4switch.frontend.program import compile_file
from p4switch.targets.v1model.engine import CounterValue, EngineOptions, EngineStatistics
from tests.support.cluster_world import World, ring
from tests.support.machine import own_port, until
from tests.support.paths import ROOT

LOCAL = WebAddress("127.0.0.1", 0)
DASHBOARD = ROOT / "controller" / "web" / "grafana.json"
DOCUMENT = ROOT / "docs" / "metrics.md"


class _Idle:
    """An agent without jobs."""

    counted: ClassVar = {}

    def features(self) -> list[pb.JobFeatures]:
        return []


def names(collector: Collector) -> set[str]:
    """Return what Prometheus calls the samples of a collector."""
    return {
        f"{metric.name}_total" if metric.type == "counter" else metric.name
        for metric in collector.collect()
    }


def all_names() -> set[str]:
    idle: Any = _Idle()
    return names(ClusterCollector(pb.ClusterState)) | names(AgentCollector("h1", idle))


def expressions() -> Iterator[str]:
    """Every query of the Grafana dashboard, its variables' too."""
    dashboard = json.loads(DASHBOARD.read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    queries = list(expressions())
    assert len(queries) >= 10
    for query in queries:
        asked = set(re.findall(r"\b(?:hopsum|process)_\w+", query))
        assert asked, query
        assert asked <= all_names() | {"process_cpu_seconds_total"}, query


def test_the_dashboard_shows_every_metric_of_jobs_switches_and_links() -> None:
    shown = " ".join(expressions())
    for name in sorted(names(ClusterCollector(pb.ClusterState))):
        if not name.endswith(("_time_seconds", "_job_tensors")):
            assert re.search(rf"\b{name}\b", shown), name


def switch_names() -> set[str]:
    """Return what a switch's page calls its metrics, once each of them has a sample."""
    engine = Interpreter(compile_file(ROUTER))
    engine.write_counter("RouterIngress.routed", 0, CounterValue(1, 64))
    text = exposition(EngineStatistics(), engine, {1: "lo"}, {1: 0})
    return set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))


def test_the_document_has_every_metric() -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", DOCUMENT.read_text(), re.MULTILINE))
    assert documented == all_names() | switch_names()


def test_units_and_suffixes() -> None:
    units = ("_seconds", "_bytes", "_per_second", "_total")
    for name in all_names() | switch_names():
        assert not re.search(r"_(bits|ms|kb|count|number)(_|$)", name)
        assert "bytes" not in name or name.endswith(units), name


def hand_made() -> pb.ClusterState:
    made = pb.ClusterState(date=100.0, event_counts={"failover": 2})
    made.network.links.add(a="h1", b="s1", bandwidth=8e6)
    made.network.links.add(a="h2", b="s1")
    made.links.add(sender="h1", receiver="s1", used=8e3, age=1.0)
    made.links.add(sender="s1", receiver="h1", health="link h1-s1 down")
    made.nodes.add(host="h1", attached=True)
    made.nodes.add(host="h2")
    made.switches.add(name="s1", state="ready", outcomes={"completed": 3})
    made.switches.add(name="s2", state="unreachable")
    made.slots.add(switch="s1", slots=64, held={1: 8})
    made.jobs.add(
        job=1, name="mine", state="running", epoch=2, level=3, reason="h2 cut off", round=5,
        tensors=10, sent_bytes=77, retransmissions=6, submitted=90.0, started=95.0,
    )  # fmt: skip
    made.jobs.add(job=2, name="done", state="finished", round=4, submitted=80.0)
    return made


def test_the_samples_of_a_state() -> None:
    samples = {
        (sample.name.removeprefix("hopsum_"), *sample.labels.values()): sample.value
        for metric in ClusterCollector(hand_made).collect()
        for sample in metric.samples
        if sample.name != "hopsum_jobs" or sample.value
    }
    assert samples == {
        ("jobs", "running"): 1,
        ("jobs", "finished"): 1,
        ("job_epoch", "1", "mine"): 2,
        ("job_priority_level", "1", "mine"): 3,
        ("job_waiting", "1", "mine"): 1,
        ("job_tensors", "1", "mine"): 10,
        ("job_tensors", "2", "done"): 0,
        ("job_tensors_summed_total", "1", "mine"): 5,
        ("job_tensors_summed_total", "2", "done"): 4,
        ("job_sent_bytes_total", "1", "mine"): 77,
        ("job_sent_bytes_total", "2", "done"): 0,
        ("job_retransmissions_total", "1", "mine"): 6,
        ("job_retransmissions_total", "2", "done"): 0,
        ("job_submit_time_seconds", "1", "mine"): 90.0,
        ("job_submit_time_seconds", "2", "done"): 80.0,
        ("job_start_time_seconds", "1", "mine"): 95.0,
        ("switch_up", "s1"): 1,
        ("switch_up", "s2"): 0,
        ("switch_packets_total", "s1", "completed"): 3,
        ("switch_slots", "s1"): 64,
        ("switch_slots_held", "s1", "1", "mine"): 8,
        ("link_up", "h1", "s1"): 1,
        ("link_up", "s1", "h1"): 0,
        ("link_load_bytes_per_second", "h1", "s1"): 1e3,
        ("link_capacity_bytes_per_second", "h1", "s1"): 1e6,
        ("link_capacity_bytes_per_second", "s1", "h1"): 1e6,
        ("agent_attached", "h1"): 1,
        ("agent_attached", "h2"): 0,
        ("events_total", "failover"): 2,
    }


# -- A real Prometheus

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="prometheus is not installed (`make test-tools` installs it)",
)


def read(url: str) -> str:
    with urllib.request.urlopen(url) as answer:
        return str(answer.read().decode())


@contextmanager
def prometheus(folder: Path, targets: Iterable[str]) -> Iterator[str]:
    """Run a Prometheus that scrapes some addresses; gives its own."""
    (folder / "prometheus.yml").write_text(
        json.dumps(
            {
                "global": {"scrape_interval": "200ms", "scrape_timeout": "200ms"},
                "scrape_configs": [
                    {"job_name": "hopsum", "static_configs": [{"targets": list(targets)}]}
                ],
            }
        )
    )
    address = f"127.0.0.1:{own_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yml",
             f"--storage.tsdb.path={folder}/data", f"--web.listen-address={address}"],
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        yield address
    finally:
        process.terminate()
        process.wait(60)


def query(address: str, expression: str) -> list[dict[str, Any]]:
    """Return the samples that an expression gives; none while Prometheus starts."""
    asked = urllib.parse.urlencode({"query": expression})
    try:
        found = json.loads(read(f"http://{address}/api/v1/query?{asked}"))
    except urllib.error.URLError as error:
        if isinstance(error, urllib.error.HTTPError) and error.code != 503:
            raise
        return []
    assert found["status"] == "success", expression
    samples: list[dict[str, Any]] = found["data"]["result"]
    return samples


def value(address: str, expression: str) -> float | None:
    samples = query(address, expression)
    return float(samples[0]["value"][1]) if samples else None


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, link_rate=1e8, web=LOCAL)
    yield made
    made.close()


@needs_prometheus
@pytest.mark.slow
def test_a_real_prometheus_scrapes_controller_agent_and_switch(
    world: World, tmp_path: Path
) -> None:
    world.agents("h1", "h2")
    switch = Device(
        (),
        Loader("interpreter", EngineOptions()),
        device_config=make_bundle(ROUTER),
        metrics_address="127.0.0.1:0",
    )
    with switch, served_metrics("h1", world.nodes[0].agent, LOCAL) as port:
        assert switch.metrics is not None
        ports = (port, switch.metrics.port)
        pages = [f"{world.url}metrics", *(f"http://127.0.0.1:{each}/metrics" for each in ports)]
        targets = [urllib.parse.urlsplit(page).netloc for page in pages]
        with prometheus(tmp_path, targets) as address:
            until(lambda: value(address, "sum(up)") == 3, "three scrapes")
            assert value(address, "p4switch_parser_errors_total") == 0
            world.queries.submit(ring("mine", "h1,h2"))
            world.exact("mine")
            summed = 'hopsum_job_tensors_summed_total{job_name="mine"}'
            until(lambda: value(address, summed) == 3, summed)
            # The last scrape may have come between the last sum and the end of the job.
            finished = 'hopsum_jobs{state="finished"}'
            until(lambda: value(address, finished) == 1, finished)
            assert value(address, "sum(hopsum_agent_attached)") == 2
            capacity = 2 * len(world.network.links) * 1e8 / 8
            assert value(address, "sum(hopsum_link_capacity_bytes_per_second)") == capacity
            assert value(address, "count(process_resident_memory_bytes)") == 2
            until(lambda: bool(query(address, "hopsum_agent_jobs")), "the agent's metrics")
            for expression in expressions():
                filled = expression.replace("$job", ".*").replace("$__rate_interval", "1m")
                query(address, re.sub(r"^label_values\((\w+), *\w+\)$", r"\1", filled))
        for page in pages:
            linted = subprocess.run(
                ["promtool", "check", "metrics"], input=read(page), capture_output=True, text=True
            )
            assert linted.returncode == 0, linted.stdout + linted.stderr
