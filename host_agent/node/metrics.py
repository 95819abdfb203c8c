"""How a host's agent fares, for Prometheus: served by a thread of its own.

Names and units follow https://prometheus.io/docs/practices/naming/, as `controller.web.metrics`
does. Figures are read while the agent works: each is right, but not all are of one moment.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import make_wsgi_app, start_wsgi_server
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from host_agent.node.host import HostAgent
from protocol.errors import OperationError
from protocol.web_address import WebAddress


class MetricsError(OperationError):
    """Metrics cannot be served; the message says where and why."""


class AgentCollector(Collector):
    """What the agent of a host does."""

    def __init__(self, host: str, agent: HostAgent) -> None:
        self._host = host
        self._agent = agent

    def collect(self) -> Iterable[Metric]:
        """Return all metrics, those without samples too."""

        def counter(name: str, help_: str, *labels: str) -> CounterMetricFamily:
            return CounterMetricFamily(f"hopsum_agent_{name}", help_, labels=("host", *labels))

        jobs = GaugeMetricFamily(
            "hopsum_agent_jobs", "Jobs that the host attends.", labels=("host",)
        )
        summed = counter("tensors_summed", "Tensors of the job summed here.", "job_id")
        sent = counter("sent_bytes", "Bytes of frames sent for the job.", "job_id")
        again = counter("retransmissions", "Fragments and segments sent again.", "job_id")
        features = self._agent.features()
        jobs.add_metric([self._host], len(features))
        for each in features:
            labels = [self._host, str(each.job)]
            summed.add_metric(labels, each.round)
            sent.add_metric(labels, each.sent_bytes)
            again.add_metric(labels, each.retransmissions)
        yield from (jobs, summed, sent, again)
        away = counter("interface_transmit_bytes", "Bytes that the host's interface has sent.")
        here = counter("interface_receive_bytes", "Bytes that the host's interface has received.")
        counted = self._agent.counted
        if counted is not None:
            away.add_metric([self._host], counted.sent)
            here.add_metric([self._host], counted.received)
        yield from (away, here)


@contextlib.contextmanager
def served_metrics(host: str, agent: HostAgent, address: WebAddress) -> Iterator[int]:
    """Serve an agent's metrics while the block runs; gives the port. Raises MetricsError."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(host, agent))
    ProcessCollector(registry=registry)
    try:
        server, thread = start_wsgi_server(address.port, address.host, registry)
    except OSError as error:
        raise MetricsError(
            f"cannot serve metrics on {address.host}:{address.port}: {error.strerror}; give "
            "another address, or port 0 for any that is free"
        ) from None
    if address.token:
        server.set_app(_guarded(make_wsgi_app(registry), address.token))
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _guarded(app: Callable[..., Any], token: str) -> Callable[..., Any]:
    """Let in who has the token."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        given = environ.get("HTTP_AUTHORIZATION", "").encode()
        if hmac.compare_digest(given, f"Bearer {token}".encode()):
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b"expected the token that the agent logged: `Authorization: Bearer TOKEN`\n"]

    return guarded
