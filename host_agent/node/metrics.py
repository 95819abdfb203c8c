"""Metrics of a host's agent for Prometheus, served by a thread of its own.

Names and units follow https://prometheus.io/docs/practices/naming/, as
`hopsum.controller.web.metrics` does. Figures are read while the agent works: each is right, but not
all are of one moment.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import make_wsgi_app
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector, CollectorRegistry

from hopsum.host_agent.node.host import HostAgent
from hopsum.protocol.errors import OperationError
from hopsum.protocol.web_address import WebAddress, refusal_of_host, why_not_bound


class MetricsError(OperationError):
    """Metrics cannot be served; the message says where and why."""


class AgentCollector(Collector):
    """Metrics of the agent of a host."""

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
        again = counter("retransmissions", "Fragments and segments retransmitted.", "job_id")
        features = self._agent.features()
        jobs.add_metric([self._host], len(features))
        for each in features:
            labels = [self._host, str(each.job)]
            summed.add_metric(labels, each.round)
            sent.add_metric(labels, each.sent_bytes)
            again.add_metric(labels, each.retransmissions)
        yield from (jobs, summed, sent, again)
        transmitted = counter(
            "interface_transmit_bytes", "Bytes that the interface of a link has sent.", "peer"
        )
        received = counter(
            "interface_receive_bytes", "Bytes that the interface of a link has received.", "peer"
        )
        for peer, counted in self._agent.counted.items():
            transmitted.add_metric([self._host, peer], counted.sent)
            received.add_metric([self._host, peer], counted.received)
        yield from (transmitted, received)


@contextlib.contextmanager
def served_metrics(host: str, agent: HostAgent, address: WebAddress) -> Iterator[int]:
    """Serve an agent's metrics while the block runs; yield the port. Raises MetricsError."""
    registry = CollectorRegistry()
    registry.register(AgentCollector(host, agent))
    ProcessCollector(registry=registry)
    try:
        server = make_server(
            address.host,
            address.port,
            _guarded(make_wsgi_app(registry), address),
            _Server6 if ":" in address.host else _Server,
            _QuietHandler,
        )
    except OSError as error:
        raise MetricsError(
            f"cannot serve metrics on {address.host}:{address.port}: {why_not_bound(error)}; give "
            "another address, or port 0 for any that is free"
        ) from None
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _Server6(_Server):
    address_family = socket.AF_INET6


class _QuietHandler(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing of requests."""


def _guarded(app: Callable[..., Any], address: WebAddress) -> Callable[..., Any]:
    """Allow requests with the token; without a token, requests for names of this machine only."""

    def guarded(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if not address.token:
            refusal = refusal_of_host(environ.get("HTTP_HOST", ""))
            if refusal is None:
                return app(environ, start_response)
            status, why = refusal
            start_response(f"{status} {HTTPStatus(status).phrase}", [])
            return [f"{why}\n".encode()]
        kind, _, token = environ.get("HTTP_AUTHORIZATION", "").partition(" ")
        if kind == "Bearer" and address.admits(token):
            return app(environ, start_response)
        start_response("401 Unauthorized", [("WWW-Authenticate", "Bearer")])
        return [b"expected the token that the agent logged: `Authorization: Bearer TOKEN`\n"]

    return guarded
