"""The `hopsum-agent` command: a host's agent; teaching and debugging with Scapy."""

from __future__ import annotations

import contextlib
import logging
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hopsum.files.options_file import config_option
from hopsum.host_agent.interfaces import ONLY_PORT, interfaces_by_port
from hopsum.protocol.errors import HopsumError
from hopsum.protocol.extras import MissingExtraError, require
from hopsum.protocol.version import version_option
from p4switch.packet_io.standard_output import failures_reported

if TYPE_CHECKING:
    from hopsum.host_agent.io.port import FramePort

app = typer.Typer(
    name="hopsum-agent",
    help="The agent of a host, which sums gradients inside the network.",
    rich_markup_mode=None,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    try:
        with failures_reported("hopsum-agent"):
            app()
    except HopsumError as error:
        logging.getLogger("hopsum-agent").error("%s", error)
        sys.exit(error.exit_code)


@app.callback()
def agent(
    version: Annotated[bool, version_option("hopsum-agent")] = False,
) -> None:
    """Take a host's part in summing gradients inside the network."""


@app.command()
def serve(
    controller: Annotated[str, typer.Option(help="Address of the controller's service.")],
    host: Annotated[str, typer.Option(help="This host's name in the network.")],
    interface: Annotated[
        list[str],
        typer.Option(
            help="Network interface to send and receive on; of a host with several links one for "
            "each, as PORT@INTERFACE with the port's number in the network."
        ),
    ],
    packet_io: Annotated[str, typer.Option(help="`fast` or `scapy`.")] = "fast",
    tls_authority: Annotated[
        Path | None,
        typer.Option(help="Authority of the controller's certificate (PEM); implies TLS."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="This agent's certificate, if the controller requires one.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="The private key of that certificate (PEM).")
    ] = None,
    processes: Annotated[
        str,
        typer.Option(
            "--socket",
            help="Socket for tensors of local processes: a path, or @NAME (abstract).",
        ),
    ] = "@hopsum-agent",
    metrics: Annotated[
        str | None, typer.Option(help="Serve metrics for Prometheus here: HOST:PORT.")
    ] = None,
    config: Annotated[Path | None, config_option("agent")] = None,
) -> None:
    """Take this host's part in all jobs of a cluster (CAP_NET_RAW)."""
    from hopsum.host_agent.node.client import NodeClient
    from hopsum.host_agent.node.serve import NodeServer, counters_of
    from hopsum.protocol.channel import Tls
    from hopsum.protocol.web_address import web_address
    from p4switch.packet_io.private_files import UnsafePathError
    from p4switch.packet_io.signals import end_signals
    from p4switch.packet_io.sockets import InterfaceError

    log = logging.getLogger("hopsum-agent")
    files = (tls_authority, tls_certificate, tls_key)
    tls = Tls(*files) if any(files) else None
    try:
        with contextlib.ExitStack() as stack:
            stop = stack.enter_context(end_signals()).noted
            client = NodeClient(controller, host, tls)
            interfaces = _interfaces(interface)
            port = _open_port(interfaces, packet_io)
            server = NodeServer(client, port, counters_of(interfaces), stop, tls, processes)
            if metrics is not None:
                from hopsum.host_agent.node.metrics import served_metrics

                address = web_address("metrics", metrics)
                bound = stack.enter_context(served_metrics(host, server.agent, address))
                token = f", token {address.token}" if address.token else ""
                page = replace(address, token="").url(bound)
                log.info("metrics at %smetrics%s", page, token)
            server.run()
    except (HopsumError, InterfaceError, UnsafePathError) as error:
        log.error("%s", error)
        sys.exit(1)


def _interfaces(texts: Sequence[str]) -> dict[int, str]:
    """Return the interfaces that options name, by port. Raises BadParameter."""
    try:
        return interfaces_by_port(texts)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--interface") from None


def _open_port(interfaces: Mapping[int, str], packet_io: str) -> FramePort:
    """Open a port. Raises InterfaceError, UnsafePathError; BadParameter for an unknown path."""
    from hopsum.host_agent.io.port import PacketPort
    from hopsum.protocol.wire import UDP_PORT

    named = interfaces.get(ONLY_PORT, interfaces)
    if packet_io == "scapy":
        require("hopsum_scapy", "packet-io scapy")
        from hopsum.host_agent.io.scapy_io import ScapyPort

        return ScapyPort(named)
    if packet_io == "fast":
        return PacketPort(named, udp_port=UDP_PORT)
    raise typer.BadParameter(f"packet-io {packet_io!r}: expected `fast` or `scapy`")


def _require_scapy() -> None:
    """End the command with one line where Scapy is not installed."""
    try:
        require("hopsum_scapy", "packets by hand")
    except MissingExtraError as error:
        logging.getLogger("hopsum-agent").error("%s", error)
        sys.exit(error.exit_code)


@app.command()
def send(
    interface: Annotated[str, typer.Option(help="Network interface to send on.")],
    job: Annotated[int, typer.Option(min=0, max=0xFFFF)] = 1,
    tree: Annotated[int, typer.Option(min=0, max=0xFF)] = 0,
    epoch: Annotated[int, typer.Option(min=0, max=0xFFFF)] = 1,
    fragment: Annotated[int, typer.Option(min=0, max=0xFFFFFFFF)] = 0,
    worker: Annotated[int, typer.Option(min=0, max=0xFFFF)] = 0,
    weight: Annotated[int, typer.Option(min=0, max=0xFFFF)] = 1,
    exponent: Annotated[int, typer.Option(min=0, max=0xFF)] = 0,
    kind: Annotated[str, typer.Option(help="contribution, result, replicated.")] = "contribution",
    reduction: Annotated[str, typer.Option(help="sum, and, max, xor.")] = "sum",
    wire_bits: Annotated[int, typer.Option(help="Bits of a value: 32, 16, 8.")] = 32,
    flags: Annotated[
        list[str] | None, typer.Option(help="overflow, stale, bypass, ecn; can be repeated.")
    ] = None,
    hop: Annotated[
        list[str] | None,
        typer.Option(help="Stack entry, as agg,child=0,fan-in=2,port=3; repeat it along the path."),
    ] = None,
    lanes: Annotated[
        int, typer.Option(help="Number of lanes that the switches were compiled for.")
    ] = 32,
    values: Annotated[
        str, typer.Option(help="First values in the lanes, as 1,2,3; the rest are 0.")
    ] = "",
    src_mac: Annotated[str | None, typer.Option(help="Default: the interface's address.")] = None,
    dst_mac: Annotated[str, typer.Option()] = "01:00:5e:00:48:53",
    src_ip: Annotated[str, typer.Option()] = "0.0.0.0",
    dst_ip: Annotated[str, typer.Option()] = "239.0.72.83",
    count: Annotated[int, typer.Option(min=1, help="Number of copies to send.")] = 1,
    show: Annotated[bool, typer.Option("--show", help="Print every field.")] = False,
) -> None:
    """Send a hand-made packet (CAP_NET_RAW)."""
    _require_scapy()
    from hopsum.host_agent.io import scapy_commands as packets
    from hopsum.protocol.wire import Header, Kind, Reduction
    from p4switch.packet_io.sockets import InterfaceError

    try:
        header = Header(
            packets.parse_choice("kind", kind, Kind),
            job,
            tree,
            epoch,
            fragment,
            worker=worker,
            weight=weight,
            flags=packets.parse_flags(flags or []),
            reduction=packets.parse_choice("reduction", reduction, Reduction),
            exponent=exponent,
            width=packets.parse_width(wire_bits),
        )
        mac = src_mac or packets.interface_mac(interface)
        packet = packets.make_packet(
            header,
            [packets.parse_hop(text) for text in hop or []],
            packets.parse_values(values, lanes, header.width),
            {"src_mac": mac, "dst_mac": dst_mac, "src_ip": src_ip, "dst_ip": dst_ip},
        )
        packets.send_packet(interface, packet, count)
    except (packets.CommandError, InterfaceError) as error:
        logging.getLogger("hopsum-agent").error("%s", error)
        sys.exit(1)
    typer.echo(packet.show(dump=True) if show else packets.one_line(packet))


@app.command()
def sniff(
    interface: Annotated[
        str | None, typer.Option(help="Network interface to listen on; or use --read.")
    ] = None,
    read: Annotated[Path | None, typer.Option(help="Read this pcap file instead.")] = None,
    count: Annotated[
        int | None, typer.Option(min=1, max=sys.maxsize, help="Stop after this many packets.")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, max=1e9, help="Stop after this many seconds.")
    ] = None,
    show: Annotated[bool, typer.Option("--show", help="Print every field.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON per packet.")
    ] = False,
) -> None:
    """Print packets of a capture, or of an interface (CAP_NET_RAW)."""
    if timeout is not None and math.isnan(timeout):
        raise typer.BadParameter(
            "nan: expected a number of seconds, 0 or more", param_hint="--timeout"
        )
    _require_scapy()
    from hopsum.host_agent.io import scapy_commands as packets
    from p4switch.packet_io.pcap import PcapError
    from p4switch.packet_io.sockets import InterfaceError

    if (interface is None) == (read is None):
        raise typer.BadParameter("expected either --interface or --read")
    try:
        if read is not None:
            source = packets.packets_of_file(read)
        else:
            source = packets.packets_of_interface(str(interface), timeout)
        for seconds, packet in islice(source, count):
            if as_json:
                typer.echo(packets.as_json(seconds, packet))
            elif show:
                typer.echo(packet.show(dump=True))
            else:
                typer.echo(f"{seconds:.6f} {packets.one_line(packet)}")
    except KeyboardInterrupt:
        return
    except (packets.CommandError, InterfaceError, PcapError) as error:
        logging.getLogger("hopsum-agent").error("%s", error)
        sys.exit(1)
