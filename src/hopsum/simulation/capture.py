"""Capture files of the switches' ports in virtual time, named as BMv2 and p4switch name them."""

from __future__ import annotations

import contextlib
from pathlib import Path

from hopsum.network.model import Network
from p4switch.packet_io.pcap import PcapWriter
from p4switch.targets.v1model.engine import Engine


class Capture(contextlib.ExitStack):
    """An `Observer` that writes `SWITCH-ethPORT_in.pcap` and `_out.pcap` into a folder.

    Times are virtual seconds, of the last bit's arrival or departure. A frame lost on a link is in
    the sender's file. Use as a context manager.
    """

    def __init__(self, network: Network, folder: Path) -> None:
        super().__init__()
        self._network = network
        self._files = {
            (switch, port, way): self.enter_context(
                PcapWriter(folder / f"{switch}-eth{port}_{way}.pcap")
            )
            for switch in network.switches
            for port in network.ports(switch)
            for way in ("in", "out")
        }

    def left(self, time: float, source: str, target: str, frame: bytes, lost: bool) -> None:
        """See `Observer`."""
        if source in self._network.switches:
            self._files[source, self._network.port(source, target), "out"].write(time, frame)

    def entered(
        self, time: float, node: str, port: int, frame: bytes, engine: Engine | None
    ) -> None:
        """See `Observer`."""
        # Without what the controller sends through the CPU port.
        if (node, port, "in") in self._files:
            self._files[node, port, "in"].write(time, frame)

    def handled(self, time: float, switch: str, frame: bytes, engine: Engine) -> None:
        """See `Observer`."""
