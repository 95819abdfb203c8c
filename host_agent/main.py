"""The `hopsum-agent` command: a host's part in a job; teaching and debugging with Scapy."""

from __future__ import annotations

import logging
import sys
from typing import Annotated

import typer

app = typer.Typer(
    name="hopsum-agent",
    help="A host's part in summing gradients inside the network.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def main() -> None:
    """Run the command."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    app()


@app.callback()
def agent() -> None:
    """A host's part in summing gradients inside the network."""


@app.command()
def attend(
    controller: Annotated[str, typer.Option(help="Address of the controller's service.")],
    job: Annotated[int, typer.Option(help="Job number.")],
    host: Annotated[str, typer.Option(help="This host's name in the network.")],
    interface: Annotated[str, typer.Option(help="Network interface to send and receive on.")],
    packet_io: Annotated[str, typer.Option(help="`fast` or `scapy`.")] = "fast",
) -> None:
    """Attend a controller and play this host's part in its job."""
    from controller.client import ControllerClient, ControllerError
    from host_agent.agent import PeerGone
    from host_agent.agent import attend as attend_job
    from host_agent.failure import JobFailed
    from host_agent.tcp_collective import PeerLost
    from packet_io import FramePort, InterfaceError, PacketPort
    from protocol.wire import UDP_PORT

    log = logging.getLogger("hopsum-agent")
    try:
        port: FramePort
        if packet_io == "scapy":
            from host_agent.scapy_io import ScapyPort

            port = ScapyPort(interface)
        elif packet_io == "fast":
            port = PacketPort(interface, udp_port=UDP_PORT)
        else:
            raise typer.BadParameter(f"packet-io {packet_io!r}: expected `fast` or `scapy`")
    except InterfaceError as error:
        log.error("%s", error)
        sys.exit(1)
    try:
        with ControllerClient(controller, job, host) as client:
            attend_job(client, port)
    except (ControllerError, JobFailed, PeerGone, PeerLost) as error:
        log.error("%s", error)
        sys.exit(1)
    finally:
        port.close()
