"""The way of one fragment, read from the capture files of the switches' ports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from files.output import make_folder
from network.loaders import load_network, save_network
from network.model import Network
from p4switch.packet_io.pcap import PcapError, read_pcap
from protocol.errors import InputError
from simulation.fragment_trace import FragmentTrace, Hop

NETWORK = "network.json"


class CaptureError(InputError):
    """A folder without the capture files of a network; the message says what was expected."""


def prepare_captures(network: Network, folder: Path) -> None:
    """Make a folder for a network's captures, with the network in it. Raises OutputError."""
    make_folder(folder)
    save_network(network, folder / NETWORK)


def captured_trace(folder: Path, fragment: int, job: int) -> FragmentTrace:
    """Return the frames of a fragment that crossed the links of switches; raises CaptureError.

    Between switches both ends are known, and a frame that comes out at one and never in at the
    other is lost. Of a link to a host only the switch's end is: `sent` and `arrived` are equal.
    What the switches counted is not in a capture.
    """
    if not (folder / NETWORK).is_file():
        raise CaptureError(
            f"{folder}: expected a folder that `hopsum run --pcap` has written, with {NETWORK}"
        )
    network = load_network(str(folder / NETWORK))
    trace = FragmentTrace(fragment, job)
    for source, target in network.directed_links():
        trace.hops += _crossed(network, folder, trace, source, target)
    trace.hops.sort(key=lambda hop: hop.sent)
    return trace


def _crossed(
    network: Network, folder: Path, trace: FragmentTrace, source: str, target: str
) -> Iterator[Hop]:
    """Yield the frames that one direction of a link was given."""
    sent = list(_frames(network, folder, trace, source, target, "out"))
    arrived = list(_frames(network, folder, trace, target, source, "in"))
    if source in network.hosts or target in network.hosts:
        for seconds, _, hop in sent or arrived:
            yield replace(hop, source=source, target=target, sent=seconds, arrived=seconds)
        return
    # Copies of a frame are alike. Those of one instant belong together: a repetition comes later.
    arrivals: dict[int, float] = {}
    for seconds, frame, _ in arrived:
        alike = [n for n, each in enumerate(sent) if each[1] == frame and n not in arrivals]
        if alike:
            arrivals[min(alike, key=lambda n: abs(sent[n][0] - seconds))] = seconds
    for number, (seconds, _, hop) in enumerate(sent):
        end = arrivals.get(number)
        yield replace(hop, source=source, target=target, sent=seconds, arrived=end)


def _frames(
    network: Network, folder: Path, trace: FragmentTrace, node: str, neighbour: str, way: str
) -> Iterator[tuple[float, bytes, Hop]]:
    """Yield time, frame and meaning of what is of the fragment at a port; of a host's: nothing."""
    if node in network.hosts:
        return
    file = folder / f"{node}-eth{network.port(node, neighbour)}_{way}.pcap"
    try:
        for seconds, frame in read_pcap(file):
            hop = trace.hop_of(frame)
            if hop is not None:
                yield seconds, frame, hop
    except OSError as error:
        raise CaptureError(
            f"{file}: cannot be read: {error.strerror}; expected a capture of each port of "
            f"{NETWORK}"
        ) from None
    except PcapError as error:
        raise CaptureError(str(error)) from None
