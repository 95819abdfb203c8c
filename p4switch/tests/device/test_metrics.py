"""Metrics: their text, and the server that a switch has for them."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from p4switch.backends.reference.interpreter import Interpreter
from p4switch.device.bundle import make_bundle
from p4switch.device.device import Device, PortName
from p4switch.device.loading import Loader
from p4switch.device.metrics import (
    CONTENT_TYPE,
    MetricsAddressError,
    MetricsServer,
    exposition,
    sample,
)
from p4switch.frontend.program import compile_file
from p4switch.packet_io import sockets
from p4switch.targets.v1model.engine import CounterValue, EngineOptions, EngineStatistics
from tests.support.paths import EVERYTHING_P4


def test_labels_are_escaped() -> None:
    assert sample("m", (("a", 'x"\\\n'),), 1) == 'm{a="x\\"\\\\\\n"} 1'
    assert sample("m", (), 2) == "m 2"


def test_displayed_text() -> None:
    engine = Interpreter(compile_file(EVERYTHING_P4))
    engine.write_counter("TestIngress.seen", 3, CounterValue(4, 500))
    statistics = EngineStatistics(7, 8, {"over_budget": 9})
    lines = exposition(
        statistics, engine, {1: "lo", 2: "no-such-interface"}, {1: 5, 2: 0}
    ).splitlines()
    assert 'p4switch_events_total{reason="queue_full"} 7' in lines
    assert 'p4switch_events_total{reason="over_budget"} 9' in lines
    assert 'p4switch_port_receive_full_total{port="1",interface="lo"} 5' in lines
    assert "p4switch_parser_errors_total 8" in lines
    assert 'p4switch_table_entries{table="TestIngress.const_table"} 2' in lines
    cell = '{counter="TestIngress.seen",index="3"}'
    assert f"p4switch_counter_packets_total{cell} 4" in lines
    assert f"p4switch_counter_bytes_total{cell} 500" in lines
    assert not any('index="2"' in line for line in lines)
    assert any(
        line.startswith('p4switch_port_packets_total{port="1",interface="lo"') for line in lines
    )
    assert not any("packets" in line and "no-such-interface" in line for line in lines)
    for line in lines:
        if line.startswith("# TYPE"):
            assert line.split()[3] in ("counter", "gauge")


def test_without_a_program_there_is_less() -> None:
    text = exposition(EngineStatistics(), None, {}, {})
    assert "p4switch_parser_errors_total 0" in text
    assert "table" not in text


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    made = MetricsServer("127.0.0.1:0", lambda: "a 1\n")
    yield made
    made.close()


def test_the_server(server: MetricsServer) -> None:
    address = f"http://127.0.0.1:{server.port}"
    with urllib.request.urlopen(f"{address}/metrics") as answer:
        assert answer.read() == b"a 1\n"
        assert answer.headers["Content-Type"] == CONTENT_TYPE
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{address}/other")


@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:x", "127.0.0.1:70000"])
def test_an_address_is_host_and_port(address: str) -> None:
    with pytest.raises(MetricsAddressError, match=r"expected HOST:PORT, as in 127\.0\.0\.1:9101"):
        MetricsServer(address, str)


def test_an_address_that_is_taken(server: MetricsServer) -> None:
    with pytest.raises(MetricsAddressError, match="cannot listen there: Address already in use"):
        MetricsServer(f"127.0.0.1:{server.port}", str)


@pytest.mark.parametrize("executor", ["interpreter", "native"])
def test_a_switch_serves_them(executor: str) -> None:
    device = Device(
        (),
        Loader(executor, EngineOptions()),
        device_config=make_bundle(EVERYTHING_P4),
        metrics_address="127.0.0.1:0",
    )
    with device:
        assert device.metrics is not None
        with urllib.request.urlopen(f"http://127.0.0.1:{device.metrics.port}/metrics") as answer:
            assert b'p4switch_table_entries{table="TestIngress.const_table"} 2\n' in answer.read()


@pytest.mark.network
@pytest.mark.parametrize("frames", [64, 0])
def test_frames_for_which_there_was_no_room_are_counted(
    frames: int, veth: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a program nothing takes frames from a ring, or from a socket's small buffer."""
    monkeypatch.setattr(sockets, "BUFFER_BYTES", 4096)
    sent = 500
    device = Device(
        (PortName(3, veth[0]),),
        Loader("native", EngineOptions(receive_ring=frames)),
        metrics_address="127.0.0.1:0",
    )
    with device, socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as peer:
        assert device.metrics is not None
        peer.bind((veth[1], 0))
        for _ in range(sent):
            peer.send(bytes(14) + b"x" * 1000)
        for _ in range(2):  # Reading does not reset it.
            address = f"http://127.0.0.1:{device.metrics.port}/metrics"
            with urllib.request.urlopen(address) as answer:
                text = answer.read().decode()
            name = f'p4switch_port_receive_full_total{{port="3",interface="{veth[0]}"}} '
            [count] = [int(line[len(name) :]) for line in text.splitlines() if name in line]
            assert sent - 100 <= count <= sent
