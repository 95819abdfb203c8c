from __future__ import annotations

import os
from pathlib import Path

import pytest

from hopsum.host_agent.node.bandwidth import (
    BandwidthError,
    InterfaceCounters,
    has_carrier,
    rates_between,
    read_counters,
)

TEXT = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:       0       0    0    0    0     0          0         0        0       0    0
h1-eth0: 1234567     999    0    0    0     0          0         0    76543     210    0
"""


def test_counters_are_read_from_the_kernels_table(tmp_path: Path) -> None:
    file = tmp_path / "dev"
    file.write_text(TEXT)
    assert read_counters("h1-eth0", 5.0, file) == InterfaceCounters(
        sent=76543, received=1234567, at=5.0
    )
    with pytest.raises(BandwidthError, match="no interface 'h2-eth0'; interfaces: lo, h1-eth0"):
        read_counters("h2-eth0", 5.0, file)
    assert read_counters("lo", 1.0).at == 1.0


def test_rates_and_what_they_leave() -> None:
    used = rates_between(InterfaceCounters(0, 1000, 1.0), InterfaceCounters(500, 3000, 3.0), 5000.0)
    assert (used.sent, used.received) == (2000.0, 8000.0)
    assert (used.free_sent, used.free_received) == (3000.0, 0.0)
    unlimited = rates_between(InterfaceCounters(0, 0, 1.0), InterfaceCounters(500, 0, 2.0), 0.0)
    assert (unlimited.free_sent, unlimited.free_received) == (None, None)


def test_counters_that_start_again_are_no_traffic() -> None:
    used = rates_between(InterfaceCounters(5000, 5000, 1.0), InterfaceCounters(10, 10, 2.0), 1000.0)
    assert (used.sent, used.received) == (0.0, 0.0)
    with pytest.raises(ValueError, match="expected the second to be later"):
        rates_between(InterfaceCounters(0, 0, 1.0), InterfaceCounters(0, 0, 1.0), None)


@pytest.mark.parametrize(
    "name", ["é1".encode(), b"\xff\xfe", b"a\x1cb", "h\u2028".encode()], ids=ascii
)
def test_interfaces_may_have_any_names(name: bytes, tmp_path: Path) -> None:
    """The kernel refuses only `/`, `:` and its own spaces; a container may have any other name."""
    file = tmp_path / "dev"
    file.write_bytes(TEXT.encode() + name + b": 5 0 0 0 0 0 0 0 7 0 0\n")
    assert read_counters("h1-eth0", 5.0, file) == InterfaceCounters(
        sent=76543, received=1234567, at=5.0
    )
    own = os.fsdecode(name)
    assert read_counters(own, 5.0, file) == InterfaceCounters(sent=7, received=5, at=5.0)
    assert not has_carrier(own)
    with pytest.raises(BandwidthError) as error:
        read_counters("h2", 5.0, file)
    # The message goes to terminals, logs and the controller.
    str(error.value).encode()
