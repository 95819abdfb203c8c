"""An agent's metrics: its jobs' figures, and who may read them."""

from __future__ import annotations

import urllib.request
from typing import Any, ClassVar
from urllib.error import HTTPError

import pytest

from hopsum.host_agent.node.bandwidth import InterfaceCounters
from hopsum.host_agent.node.metrics import MetricsError, served_metrics
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.web_address import WebAddress


class _Busy:
    """An agent with one job."""

    counted: ClassVar = {
        "s1": InterfaceCounters(1000, 2000, 1.0),
        "s2": InterfaceCounters(10, 20, 1.0),
    }

    def features(self) -> list[pb.JobFeatures]:
        return [pb.JobFeatures(job=7, round=3, sent_bytes=99, retransmissions=5)]


def read(port: int, **headers: str) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers=headers)
    with urllib.request.urlopen(request) as answer:
        return str(answer.read().decode())


def test_metrics_of_an_agent() -> None:
    agent: Any = _Busy()
    with served_metrics("h1", agent, WebAddress("127.0.0.1", 0)) as port:
        lines = read(port).splitlines()
    labels = '{host="h1",job_id="7"}'
    assert f"hopsum_agent_tensors_summed_total{labels} 3.0" in lines
    assert f"hopsum_agent_sent_bytes_total{labels} 99.0" in lines
    assert f"hopsum_agent_retransmissions_total{labels} 5.0" in lines
    assert 'hopsum_agent_interface_transmit_bytes_total{host="h1",peer="s1"} 1000.0' in lines
    assert 'hopsum_agent_interface_receive_bytes_total{host="h1",peer="s2"} 20.0' in lines
    assert 'hopsum_agent_jobs{host="h1"} 1.0' in lines
    assert any(line.startswith("process_resident_memory_bytes ") for line in lines)


def test_a_token_is_asked_for() -> None:
    agent: Any = _Busy()
    with served_metrics("h1", agent, WebAddress("127.0.0.1", 0, "a-token")) as port:
        for wrong in ({}, {"Authorization": "Bearer another"}):
            with pytest.raises(HTTPError) as refused:
                read(port, **wrong)
            assert refused.value.code == 401
        assert "hopsum_agent_jobs" in read(port, Authorization="Bearer a-token")


def test_a_port_that_is_taken() -> None:
    agent: Any = _Busy()
    with (
        served_metrics("h1", agent, WebAddress("127.0.0.1", 0)) as port,
        pytest.raises(MetricsError, match=f"cannot serve metrics on 127.0.0.1:{port}"),
        served_metrics("h1", agent, WebAddress("127.0.0.1", port)),
    ):
        pass


def test_other_names_than_this_machines_are_refused() -> None:
    agent: Any = _Busy()
    with served_metrics("h1", agent, WebAddress("127.0.0.1", 0)) as port:
        for host, status in (("evil.example", 403), ("localhost:99999", 400), ("[", 400)):
            with pytest.raises(HTTPError) as refused:
                read(port, Host=host)
            assert refused.value.code == status
        assert "hopsum_agent_jobs" in read(port, Host="localhost:80")
