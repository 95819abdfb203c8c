"""Commands that start a cluster or its controller."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from hopsum.cli.command_options import (
    DashboardOption,
    EngineOption,
    HostsOption,
    LargestPieceOption,
    LinkRateOption,
    LossOption,
    NetworkOption,
    PcapOption,
    PlainOption,
    RateOption,
    ServersOption,
    TopologyArgument,
    UplinkOption,
    WebOption,
    WorkersOption,
    link_rate_of,
    web_option,
)
from hopsum.cli.console import notify
from hopsum.cli.option_groups import PacketGroup, with_groups
from hopsum.collectives.choices import Engine
from hopsum.collectives.plan import WINDOW_BMV2, WINDOW_EMBEDDED
from hopsum.collectives.workload import MOST_TENSORS
from hopsum.controller.api.serving import listen_and_publish
from hopsum.controller.ha.election import Election, name_of_process
from hopsum.controller.ha.etcd import etcd_address, is_etcd
from hopsum.controller.jobs.priorities import (
    EARLY_ITERATIONS,
    ONE_LEVEL,
    PriorityPolicy,
    suitable_policy,
)
from hopsum.controller.jobs.replanning import ReplanningPolicy
from hopsum.controller.jobs.settings import ATTEND_LIMIT, ClusterSettings
from hopsum.controller.jobs.sharing import SharingPolicy
from hopsum.experiment.cluster import run_controller, run_emulated_cluster, switch_drivers
from hopsum.files.options_file import config_option
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.network.units import parse_size
from hopsum.planning.model.stack_depth import stack_depth
from hopsum.protocol.channel import Tls, tls_of_environment
from hopsum.protocol.errors import InputError

app = typer.Typer(
    help="The controller as a long-running process.",
    rich_markup_mode=None,
    no_args_is_help=True,
    add_completion=False,
)

_ADDRESS = r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}"

PrioritiesOption = Annotated[
    bool,
    typer.Option(
        "--priorities/--no-priorities",
        help="Prioritize jobs in their first iterations, then those that have sent least; or share "
        "links fairly.",
    ),
]
EarlyIterationsOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_TENSORS,
        help="Number of first iterations of a job that have the highest priority.",
    ),
]

QueueThresholdsOption = Annotated[
    str | None,
    typer.Option(
        metavar="SIZES",
        help="Sent bytes at which a job's priority drops a level, ascending: up to six sizes, "
        "separated by commas, e.g. 10MB,100MB,1GB. Default: what the slowest link carries in 1, 4, "
        "16, ... s.",
    ),
]
ReplanEveryOption = Annotated[
    int,
    typer.Option(
        min=0,
        max=MOST_TENSORS,
        help="Iterations between two looks at a job's plan; 0: look only when links change.",
    ),
]


QuotaOption = Annotated[
    float, typer.Option(help="Share of a switch's slots that one job may hold, above 0 to 1.")
]

UserQuotaOption = Annotated[
    float,
    typer.Option(
        help="Share of a switch's slots that all jobs of a user who is no operator may hold, at "
        "least --quota."
    ),
]
AttendLimitOption = Annotated[
    float,
    typer.Option(
        min=1.0,
        max=1e6,
        metavar="SECONDS",
        help="Fail a job of processes, such as a training's, if they do not attend it within "
        "this time of its start: it holds slots.",
    ),
]


@dataclass(frozen=True)
class SharingGroup:
    """How jobs share switches and links."""

    priorities: PrioritiesOption = True
    early_iterations: EarlyIterationsOption = EARLY_ITERATIONS
    queue_thresholds: QueueThresholdsOption = None
    replan_every: ReplanEveryOption = ReplanningPolicy().every
    quota: QuotaOption = float(SharingPolicy().quota)
    user_quota: UserQuotaOption = float(SharingPolicy().user_quota)
    loss: LossOption = 0.0
    attend_limit: AttendLimitOption = ATTEND_LIMIT

    def settings(
        self, network: Network, packets: PacketGroup, *, bmv2: bool, journal: Path | None = None
    ) -> ClusterSettings:
        """Return the settings of a cluster. Raises InputError, BadParameter."""
        priorities = self._priorities(network)
        try:
            sharing = SharingPolicy(Fraction(str(self.quota)), Fraction(str(self.user_quota)))
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--quota, --user-quota") from None
        try:
            return ClusterSettings(
                packets.lanes,
                stack_depth(network, packets.lanes, packets.max_hops),
                sharing,
                priorities,
                replanning=ReplanningPolicy(every=self.replan_every),
                journal=journal,
                loss=self.loss,
                attend_limit=self.attend_limit,
                most_window=WINDOW_BMV2 if bmv2 else WINDOW_EMBEDDED,
            )
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--loss") from None

    def _priorities(self, network: Network) -> PriorityPolicy:
        """Return how jobs' levels follow from their progress. Raises InputError, BadParameter."""
        if self.priorities:
            if self.queue_thresholds is None:
                return suitable_policy(network, self.early_iterations)
            try:
                sizes = tuple(map(parse_size, self.queue_thresholds.split(",")))
                return PriorityPolicy(self.early_iterations, sizes)
            except ValueError as error:
                raise typer.BadParameter(str(error), param_hint="--queue-thresholds") from None
        for name, given in (
            ("early-iterations", self.early_iterations != EARLY_ITERATIONS),
            ("queue-thresholds", self.queue_thresholds is not None),
        ):
            if given:
                raise InputError(
                    f"{name}: jobs have no priorities with --no-priorities; omit one of the two"
                )
        return ONE_LEVEL


@dataclass(frozen=True)
class TlsGroup:
    """The controller's certificate, and the switches that it shows it to."""

    tls_certificate: Annotated[
        Path | None, typer.Option(help="Accept only TLS, with this certificate (PEM).")
    ] = None
    tls_key: Annotated[
        Path | None, typer.Option(help="The private key of that certificate (PEM).")
    ] = None
    tls_authority: Annotated[
        Path | None, typer.Option(help="Accept only clients with a certificate of this authority.")
    ] = None
    switch_tls: Annotated[
        bool,
        typer.Option(
            "--switch-tls",
            help="Use TLS to switches at HOST:PORT, with the controller's certificate.",
        ),
    ] = False

    def resolve(self, address: str) -> tuple[Tls | None, Tls | None]:
        """Return the certificates to listen with at an address, and those for switches.

        Without options those of the environment. Raises InputError.
        """
        files = (self.tls_authority, self.tls_certificate, self.tls_key)
        unix = address.startswith("unix:")
        tls = Tls(*files) if any(files) else None
        if tls is None and (self.switch_tls or not unix):
            tls = tls_of_environment()
        if not self.switch_tls:
            return tls, None
        if tls is None or tls.authority is None:
            raise InputError(
                "switch-tls: expected --tls-authority too, whose certificates the switches have, "
                "and --tls-certificate and --tls-key where they ask for one"
            )
        return None if unix else tls, tls


def switch_addresses(network: Network, given: Sequence[str]) -> dict[str, str]:
    """Return the addresses of switches by name; empty if none is given. Raises InputError."""
    addresses: dict[str, str] = {}
    for text in given:
        name, equals, address = text.partition("=")
        if not equals or (not address.startswith("unix:") and not re.fullmatch(_ADDRESS, address)):
            raise InputError(f"switch {text!r:.80}: expected NAME=HOST:PORT or NAME=unix:PATH")
        known_switches(network, [name])
        if name in addresses:
            raise InputError(f"switch {name}: two addresses; expected one")
        addresses[name] = address
    missing = [name for name in network.switches if name not in addresses]
    if addresses and missing:
        raise InputError(
            f"switch {', '.join(missing)}: no address; expected addresses for all switches of "
            f"{network.name}, or for none"
        )
    return addresses


def known_switches(network: Network, names: Sequence[str]) -> Sequence[str]:
    """Return the names. Raises InputError for an unknown switch."""
    for name in names:
        if name not in network.switches:
            raise InputError(
                f"switch {name!r:.80}: {network.name} has none of this name, but "
                f"{', '.join(network.switches)}"
            )
    return names


@app.callback()
def controller() -> None:
    """Run the controller as a long-running process."""


@app.command()
@with_groups
def serve(
    network: TopologyArgument,
    *,
    listen: Annotated[
        str | None,
        typer.Option(
            help="unix:PATH, or host:port (port 0: any) with TLS; default: a socket of this user's."
        ),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Let users of this group submit jobs and cancel their own."),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let anyone who reaches host:port operate the cluster."),
    ] = False,
    engine: EngineOption = Engine.EMBEDDED,
    packets: PacketGroup,
    link_rate: RateOption = None,
    uplink_rate: UplinkOption = None,
    workers: WorkersOption = None,
    servers: ServersOption = 1,
    plain: PlainOption = None,
    hosts_per_switch: HostsOption = 1,
    largest_piece: LargestPieceOption = False,
    certificates: TlsGroup,
    jobs: Annotated[
        str | None,
        typer.Option(
            metavar="FILE|etcd://HOST:PORT[,HOST:PORT...]/NAME",
            help="Where jobs are recorded, so that they survive a restart of the controller. With "
            "etcd several controllers may serve one cluster, of which one leads.",
        ),
    ] = None,
    sharing: SharingGroup,
    switch: Annotated[
        list[str] | None,
        typer.Option(
            help="P4Runtime address of a switch: NAME=HOST:PORT or NAME=unix:PATH (one per "
            "switch). Default: the sockets of `mn --custom`."
        ),
    ] = None,
    bmv2: Annotated[
        list[str] | None,
        typer.Option(help="A switch that is BMv2, among those of --engine embedded (repeatable)."),
    ] = None,
    dashboard: DashboardOption = False,
    web: WebOption = None,
    topology: NetworkOption = None,
    config: Annotated[Path | None, config_option("controller")] = None,
) -> None:
    """Serve jobs on running switches, until interrupted."""
    loaded = load_network(
        network,
        link_rate=link_rate,
        uplink_rate=uplink_rate,
        workers=workers,
        servers=servers,
        plain=plain or (),
        hosts_per_switch=hosts_per_switch,
        largest_piece=largest_piece,
    )
    from hopsum.controller.api.listening import check_access
    from hopsum.controller.api.rendezvous import default_address

    address = default_address() if listen is None else listen
    own, for_switches = certificates.resolve(address)
    check_access(address, own, insecure=insecure, group=group)
    etcd = etcd_address(jobs) if jobs is not None and is_etcd(jobs) else None
    journal = Path(jobs) if jobs is not None and etcd is None else None
    settings = sharing.settings(
        loaded, packets, bmv2=engine is Engine.BMV2 or bool(bmv2), journal=journal
    )
    run_controller(
        loaded,
        settings,
        switch_drivers(
            loaded,
            engine,
            settings,
            switch_addresses(loaded, switch or []),
            known_switches(loaded, bmv2 or []),
            for_switches,
        ),
        listen_and_publish(address, own, group=group),
        notify,
        web_option(dashboard, web),
        None if etcd is None else Election(etcd, name_of_process(address), notify),
    )


@app.command()
def recover(
    journal: Annotated[Path, typer.Argument(help="The file given to --jobs.")],
) -> None:
    """Recover the readable records of a damaged journal.

    A journal that a controller uses is left alone. Jobs that were not over have failed then; the
    damaged file is kept as FILE.damaged.
    """
    from hopsum.controller.jobs.journal_recovery import recover as recover_journal

    found = recover_journal(journal)
    if found.kept_as is None:
        notify(f"{journal}: not damaged, {found.jobs} jobs")
        return
    notify(
        f"{journal}: damaged at line {', '.join(map(str, found.damaged))}; {found.jobs} jobs kept; "
        f"job numbers up to {found.reserved} are not reused; damaged file: {found.kept_as}"
    )
    if found.ended:
        notify(f"ended, because their outcome is not known: {', '.join(found.ended)}")


@with_groups
def cluster(
    network: TopologyArgument,
    *,
    engine: EngineOption = Engine.EMBEDDED,
    packets: PacketGroup,
    link_rate: LinkRateOption = None,
    uplink_rate: UplinkOption = None,
    workers: WorkersOption = None,
    servers: ServersOption = 1,
    plain: PlainOption = None,
    largest_piece: LargestPieceOption = False,
    sharing: SharingGroup,
    dashboard: DashboardOption = False,
    web: WebOption = None,
    pcap: PcapOption = None,
    trace_fragment: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=0xFFFF_FFFF,
            help="With --pcap: switches also write there what they do with this fragment of "
            "every job, for `hopsum trace` (not on BMv2).",
        ),
    ] = None,
    topology: NetworkOption = None,
) -> None:
    """Bring up a cluster in Mininet that jobs can be submitted to, until interrupted (root)."""
    loaded = load_network(
        network,
        link_rate=link_rate_of(network, link_rate),
        uplink_rate=uplink_rate,
        workers=workers,
        servers=servers,
        plain=plain or (),
        largest_piece=largest_piece,
    )
    settings = sharing.settings(loaded, packets, bmv2=engine is Engine.BMV2)
    if trace_fragment is not None and (pcap is None or engine is Engine.BMV2):
        raise InputError("trace-fragment: give --pcap DIR too, and leave --engine bmv2 out")
    trace: tuple[str, ...] = ()
    if pcap is not None:
        from hopsum.experiment.captured_trace import (
            capture_holes,
            prepare_captures,
            trace_conditions,
        )

        prepare_captures(loaded, pcap)
        trace = () if trace_fragment is None else trace_conditions(trace_fragment)
    web_address = web_option(dashboard, web)
    run_emulated_cluster(loaded, engine, settings, notify, web_address, pcap, trace)
    if pcap is not None:
        for line in capture_holes(pcap):
            notify(line)
