"""The journey of one fragment, read from the capture files of the switches' ports.

Embedded switches in Mininet also write a trace of the fragment's packets next to the captures: a
line of JSON per packet, in order of arrival.
"""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from hopsum.files.output import make_folder
from hopsum.mininet_topos.addresses import trace_file
from hopsum.network.loaders import load_network, save_network
from hopsum.network.model import Network
from hopsum.protocol.errors import InputError
from hopsum.protocol.outcomes import Outcome
from hopsum.simulation.fragment_trace import COUNTER, FragmentTrace, Hop
from p4switch.packet_io.pcap import PcapError, read_pcap, read_state, state_file

NETWORK = "network.json"

Counted = defaultdict[tuple[int, bytes], deque[tuple[Outcome, ...]]]
"""By port and frame: the outcomes that a switch counted for each of these frames in order."""


class CaptureError(InputError):
    """A folder lacks the capture files of a network."""


def prepare_captures(network: Network, folder: Path) -> None:
    """Make a folder for a network's captures, with the network's file. Raises OutputError.

    The next run overwrites captures of an earlier one; its traces, and what was missing in its
    captures, are removed now.
    """
    make_folder(folder)
    for switch in network.switches:
        trace_file(folder, switch).unlink(missing_ok=True)
    for interface in _captured_interfaces(network):
        state_file(folder, interface).unlink(missing_ok=True)
    save_network(network, folder / NETWORK)


def _captured_interfaces(network: Network) -> Iterator[str]:
    for switch in network.switches:
        for port in network.ports(switch):
            yield f"{switch}-eth{port}"


def capture_holes(folder: Path) -> list[str]:
    """Return a line for each captured port whose frames are not all in its files.

    Only p4switch in Mininet reports such losses. Raises CaptureError.
    """
    lines = []
    for interface in _captured_interfaces(_captured_network(folder)):
        try:
            lost, ended = read_state(folder, interface)
        except PcapError as error:
            raise CaptureError(str(error)) from None
        if lost:
            lines.append(
                f"the capture of {interface} has holes: {lost} frames lost, the machine was too "
                "slow; choose a lower --link-rate"
            )
        if ended:
            lines.append(
                f"the capture of {interface} ended early: it could not be written (the disk was "
                "full?)"
            )
    return lines


def _captured_network(folder: Path) -> Network:
    if not (folder / NETWORK).is_file():
        raise CaptureError(
            f"{folder}: expected a folder written by `hopsum run --pcap`, with {NETWORK}"
        )
    return load_network(str(folder / NETWORK))


def trace_conditions(fragment: int, job: int | None = None) -> tuple[str, ...]:
    """Return the filter of packets that a switch traces; without `job`: of every job."""
    conditions = (f"hdr.hopsum.fragment={fragment}",)
    return conditions if job is None else (*conditions, f"hdr.hopsum.job={job}")


def captured_trace(folder: Path, fragment: int, job: int) -> FragmentTrace:
    """Return the frames of a fragment that crossed the links of switches; raises CaptureError.

    Of links between switches both ends are captured: a frame that leaves one and never enters the
    other is lost. Of a link to a host only the switch's end is captured: `sent` and `arrived` are
    equal. Outcomes come from the switches' traces; without a trace they are unknown.
    """
    network = _captured_network(folder)
    trace = FragmentTrace(fragment, job)
    counted = {switch: _counted(trace_file(folder, switch)) for switch in network.switches}
    for source, target in network.directed_links():
        trace.hops += _crossed(network, folder, trace, counted, source, target)
    trace.hops.sort(key=lambda hop: hop.sent)
    return trace


def _counted(file: Path) -> Counted:
    """Return the outcomes in a switch's trace; empty if it has no trace."""
    counted: Counted = defaultdict(deque)
    if not file.exists():
        return counted
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            packet = json.loads(line)
            cells = [
                event["arguments"]["index"]
                for event in packet["events"]
                if event["kind"] == "extern" and event["name"].endswith(f"{COUNTER}.count")
            ]
            key = packet["port"], bytes.fromhex(packet["frame"])
            counted[key].append(tuple(sorted(set(map(Outcome, cells)))))
    except OSError as error:
        raise CaptureError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, TypeError, LookupError) as error:
        raise CaptureError(
            f"{file}: expected a line of `p4switch run --trace json` for each packet: {error}"
        ) from None
    return counted


def _crossed(
    network: Network,
    folder: Path,
    trace: FragmentTrace,
    counted: dict[str, Counted],
    source: str,
    target: str,
) -> Iterator[Hop]:
    """Yield the frames sent in one direction of a link."""
    sent = list(_frames(network, folder, trace, source, target, "out"))
    arrived = list(_frames(network, folder, trace, target, source, "in"))
    if target in network.switches:
        # A port's packets are in the same order in capture and trace.
        of_switch, port = counted[target], network.port(target, source)
        for number, (seconds, frame, hop) in enumerate(arrived):
            if of_switch[port, frame]:
                outcomes = of_switch[port, frame].popleft()
                arrived[number] = seconds, frame, replace(hop, outcomes=outcomes)
    if source in network.hosts or target in network.hosts:
        for seconds, _, hop in sent or arrived:
            yield replace(hop, source=source, target=target, sent=seconds, arrived=seconds)
        return
    # Copies of a frame are equal. Those of one instant belong together: repetitions are later.
    arrivals: dict[int, tuple[float, tuple[Outcome, ...]]] = {}
    for seconds, frame, hop in arrived:
        alike = [n for n, each in enumerate(sent) if each[1] == frame and n not in arrivals]
        if alike:
            nearest = min(alike, key=lambda n: abs(sent[n][0] - seconds))
            arrivals[nearest] = seconds, hop.outcomes
    for number, (seconds, _, hop) in enumerate(sent):
        end, outcomes = arrivals.get(number, (None, ()))
        yield replace(
            hop, source=source, target=target, sent=seconds, arrived=end, outcomes=outcomes
        )


def _frames(
    network: Network, folder: Path, trace: FragmentTrace, node: str, neighbour: str, way: str
) -> Iterator[tuple[float, bytes, Hop]]:
    """Yield time, frame and hop of the fragment's frames at a port; none at a host's port."""
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
