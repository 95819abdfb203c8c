"""Metrics of a running switch in Prometheus' text format over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from p4switch.targets.v1model.engine import Engine, EngineStatistics

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""https://prometheus.io/docs/instrumenting/exposition_formats/"""

MOST_CELLS = 4096
"""Maximum cells of one counter that are exported, without those that are 0."""

INTERFACE_COUNTS = {
    "p4switch_port_packets_total": ("rx_packets", "tx_packets"),
    "p4switch_port_bytes_total": ("rx_bytes", "tx_bytes"),
    "p4switch_port_dropped_total": ("rx_dropped", "tx_dropped"),
}
"""The kernel's counters of a port's interface, received and sent."""

Labels = Sequence[tuple[str, str]]


class MetricsAddressError(OSError):
    """Metrics cannot be served at their address; the message gives the reason."""


def sample(name: str, labels: Labels, value: float) -> str:
    """Return a line: a metric's name, its labels and its value."""
    pairs = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    return f"{name}{{{pairs}}} {value}" if pairs else f"{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _family(
    name: str, kind: str, text: str, samples: Sequence[tuple[Labels, float]]
) -> Iterator[str]:
    """Yield a metric with its description and samples; nothing if there are none."""
    if samples:
        yield f"# HELP {name} {text}"
        yield f"# TYPE {name} {kind}"
        for labels, value in samples:
            yield sample(name, labels, value)


def exposition(
    statistics: EngineStatistics,
    engine: Engine | None,
    interfaces: Mapping[int, str],
    full: Mapping[int, int],
) -> str:
    """Return all metrics: the switch's, its ports', and the program's tables and counters.

    `full`: frames of each port for which there was no room (`sockets.FullCounts`).
    """
    lines: list[str] = []
    reasons = {"queue_full": statistics.queue_drops, **statistics.extra}
    lines += _family(
        "p4switch_events_total",
        "counter",
        "Packets that the switch, not the program, dropped or reported, by reason.",
        [((("reason", reason),), count) for reason, count in sorted(reasons.items())],
    )
    lines += _family(
        "p4switch_parser_errors_total",
        "counter",
        "Packets whose parser ended in reject.",
        [((), statistics.parser_errors)],
    )
    lines += _family(
        "p4switch_port_receive_full_total",
        "counter",
        "Frames lost because the port's receive ring or socket was full.",
        [
            ((("port", str(port)), ("interface", interfaces[port])), count)
            for port, count in sorted(full.items())
        ],
    )
    for name, files in INTERFACE_COUNTS.items():
        lines += _family(
            name,
            "counter",
            "Counted by the kernel at the port's interface.",
            list(_interface_samples(interfaces, files)),
        )
    if engine is not None:
        lines += _program(engine)
    return "\n".join(lines) + "\n"


def _interface_samples(
    interfaces: Mapping[int, str], files: tuple[str, str]
) -> Iterator[tuple[Labels, float]]:
    """Yield the samples of each port; an interface that is gone has none."""
    for port, interface in sorted(interfaces.items()):
        for direction, file in zip(("in", "out"), files, strict=True):
            path = Path("/sys/class/net", interface, "statistics", file)
            try:
                count = int(path.read_text())
            except (OSError, ValueError):
                continue
            labels = (("port", str(port)), ("interface", interface), ("direction", direction))
            yield labels, count


def _program(engine: Engine) -> Iterator[str]:
    yield from _family(
        "p4switch_table_entries",
        "gauge",
        "Entries of a table, those of the program included.",
        [((("table", name),), len(engine.entries(name))) for name in engine.table_names()],
    )
    packets: list[tuple[Labels, float]] = []
    octets: list[tuple[Labels, float]] = []
    for instance in engine.program.externs:
        if instance.extern == "counter":
            for index in range(min(instance.number(0), MOST_CELLS)):
                value = engine.read_counter(instance.name, index)
                labels = (("counter", instance.name), ("index", str(index)))
                if value.packets or value.bytes:
                    packets.append((labels, value.packets))
                    octets.append((labels, value.bytes))
    yield from _family(
        "p4switch_counter_packets_total", "counter", "Packets in a cell of a P4 counter.", packets
    )
    yield from _family(
        "p4switch_counter_bytes_total", "counter", "Bytes in a cell of a P4 counter.", octets
    )


class MetricsServer:
    """Serves `/metrics` until closed. `port` is the actual port, for addresses that end in `:0`.

    Raises MetricsAddressError.
    """

    def __init__(self, address: str, collect: Callable[[], str]) -> None:
        host, colon, port = address.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65_535:
            raise MetricsAddressError(
                f"--metrics-addr {address!r}: expected HOST:PORT, as in 127.0.0.1:9101"
            )
        try:
            self._server = ThreadingHTTPServer((host.strip("[]"), int(port)), _handler(collect))
        except OSError as error:
            raise MetricsAddressError(
                f"--metrics-addr {address}: cannot listen there: {error.strerror}; choose another"
            ) from error
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler(collect: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """Answers GET /metrics."""

        def do_GET(self) -> None:
            """Send the metrics; 404 for another path."""
            if self.path.partition("?")[0] != "/metrics":
                self.send_error(404, "there is /metrics only")
                return
            body = collect().encode()
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Log nothing: scrapes come every few seconds."""

    return Handler
