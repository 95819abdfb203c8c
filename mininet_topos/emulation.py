"""A network of switch processes and host namespaces, up for the time of a `with` block."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import cycle
from math import inf
from pathlib import Path
from types import TracebackType
from typing import IO, Any, TypeVar

from hopsum.mininet_topos.failures import EmulationError
from hopsum.mininet_topos.fork_server import ForkServer, Process
from hopsum.mininet_topos.hosts import EmulatedHosts
from hopsum.mininet_topos.interfaces import (
    neighbour_lines,
    offload_command,
    ordered_command,
    route_lines,
)
from hopsum.mininet_topos.lifetime import END_WITH_STARTER, KEPT
from hopsum.mininet_topos.link_queues import HYSTERESIS, SEND_BUFFER, shaping_lines
from hopsum.mininet_topos.loader import load_mininet
from hopsum.mininet_topos.record import (
    INTERFACES,
    EmulationLock,
    RunRecord,
    end_processes,
    network_namespace,
    state_folder,
    take_down_orphans,
)
from hopsum.network.model import Network, NetworkError
from hopsum.network.paths import PlainRoutes, forwards

LOGGER = logging.getLogger("hopsum.emulation")

ENGINES = ("embedded", "bmv2")
PREFIX_LENGTH = 8
SHOWN_LINES = 15
"""Lines of a log in an error."""
CONGESTION_CONTROL = "reno"
"""Congestion control of the hosts' TCP: the one of every kernel and the simulator.

BBR, the default of some machines, probes for its rate in every round, and uses two thirds of the
links.
"""
RECEIVE_SECONDS = 0.1
"""Size of a TCP receive buffer, in seconds of data at the rate of the host's links.

With Linux's own 6 MB the first connection fills a link's queue: later ones wait behind it for the
time of whole tensors, time out at 0.2 s although nothing is lost, and start slowly.
"""
LEAST_BUFFER = 1 << 16

MOST_LETTERS = 15
"""Characters of an interface's name in Linux."""

PARALLEL_NODES = 8
"""Nodes whose interfaces are configured at the same time, each by a dozen of short commands."""
MANY_SWITCHES = 20
"""A network of that many takes so long that its progress is told."""
HOSTS_FILE = Path("/etc/hosts")
RESOLVER_FILE = Path("/etc/resolv.conf")
"""Of the machine; the hosts of an emulation, with mount namespaces of their own, have others."""


def _note_removal(error: BaseException | None) -> None:
    """Add to an interrupt's message what became of the emulation."""
    if error is not None and not isinstance(error, Exception):
        error.add_note("all processes and interfaces were removed")


Result = TypeVar("Result")
Started = TypeVar("Started", bound=Process)


class Emulation(EmulatedHosts):
    """A running Mininet network.

    `engine`: `embedded` or `bmv2`. Links with a bandwidth are shaped at both ends and send by the
    class selector of IP (`link_queues`); latency cannot be emulated here. `pcap`: folder for
    capture files of the switches' ports, `SWITCH-ethPORT_in.pcap`, `_out`; embedded switches also
    write there what they do with the packets that meet the conditions `trace`. `progress`: called
    with lines of what is being done, for networks that take a while. Use as a context
    manager: on leaving, however that happens, every process, namespace and interface is gone. When
    this process is killed the others end too, and the next emulation, or `hopsum stop`, takes down
    the rest. Raises MininetUnavailable, EmulationError, SwitchFailed.
    """

    def __init__(
        self,
        network: Network,
        *,
        engine: str = "embedded",
        log_folder: Path = Path("logs"),
        pcap: Path | None = None,
        trace: Sequence[str] = (),
        progress: Callable[[str], None] = lambda line: None,
    ) -> None:
        if engine not in ENGINES:
            raise EmulationError(f"engine {engine!r}: expected one of {', '.join(ENGINES)}")
        for node in (*network.hosts, *network.switches):
            longest = f"{node}-eth{max(network.ports(node), default=0)}"
            if len(longest) > MOST_LETTERS:
                raise NetworkError(
                    f"node {node!r}: its interface {longest} has a name longer than the "
                    f"{MOST_LETTERS} characters of Linux; use a shorter name"
                )
        super().__init__(network)
        self.engine = engine
        self._log_folder = log_folder
        self._pcap = pcap
        self._trace = tuple(trace)
        self._progress = progress
        self._net: Any = None
        self._record: RunRecord | None = None
        self._lock: EmulationLock | None = None
        self._starter: ThreadPoolExecutor | None = None
        self._marking = contextlib.ExitStack()
        self._logs: list[IO[bytes]] = []
        self._processes: list[Process] = []
        self._forks: ForkServer | None = None
        self._processors: Iterator[int] = cycle((0,))
        """What receives the frames of the next interface (`_keep_order`)."""
        self._logged: set[str] = set()
        """Hosts whose programs have printed something since the network's start."""

    # --- up and down

    def __enter__(self) -> Emulation:
        load_mininet()
        folder = state_folder()
        self._lock = EmulationLock(folder)
        try:
            for line in take_down_orphans(folder):
                LOGGER.warning("left by a run that was killed: %s", line)
            self._record = RunRecord.create(folder)
            self._marking.enter_context(self._record.marking())
            # Processes end with the thread that started them: this one lives until we tear down.
            self._starter = ThreadPoolExecutor(1, thread_name_prefix="starter of processes")
            # It imports while the network is made.
            self._in_starter(self._fork_server)
            switches, hosts = len(self.network.switches), len(self.network.hosts)
            self._say(f"{self.network.name}: making {switches} switches and {hosts} hosts")
            self._build()
            self._prepare_interfaces()
            self._prepare_names()
            self._say(f"{self.network.name}: starting {switches} switches")
            self._start_switches()
            self._say(f"{self.network.name}: installing rules, and starting {hosts} agents")
        except BaseException as error:
            self._tear_down()
            _note_removal(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._tear_down()
        _note_removal(error)

    def _say(self, line: str) -> None:
        if len(self.network.switches) >= MANY_SWITCHES:
            self._progress(line)

    def temporary_folder(self) -> contextlib.AbstractContextManager[Path]:
        """Yield a temporary folder; `hopsum stop` removes that of a killed run."""
        assert self._record is not None
        return self._record.temporary_folder()

    def _build(self) -> None:
        from mininet.link import Link
        from mininet.log import setLogLevel
        from mininet.net import Mininet

        from hopsum.mininet_topos.switches import SWITCHES

        setLogLevel("critical")
        net = Mininet(controller=None, link=Link, waitConnected=False)
        self._net = net
        assert self._record is not None
        for number, name in enumerate(self.network.switches, start=1):
            net.addSwitch(
                name,
                cls=SWITCHES[self.engine],
                device_id=number,
                log_folder=str(self._log_folder),
                send_buffer=SEND_BUFFER,
                pcap=None if self._pcap is None else str(self._pcap),
                trace=self._trace,
                launch=self._launch_switch if self.engine == "embedded" else None,
            )
        for host in self.network.hosts.values():
            net.addHost(host.name, ip=f"{host.ip}/{PREFIX_LENGTH}", mac=host.mac)
        self._record.interfaces = {
            f"{switch}-eth{port}": self._mac(switch, port)
            for switch in self.network.switches
            for port in self.network.ports(switch)
        }
        for name in self._record.interfaces:
            if (INTERFACES / name).exists():
                raise EmulationError(
                    f"interface {name} exists already, and no run of hopsum left it behind; "
                    "end what it belongs to (another Mininet: `mn -c`)"
                )
        self._record.write()
        for link in self.network.links:
            net.addLink(
                link.a,
                link.b,
                port1=link.a_port,
                port2=link.b_port,
                addr1=self._mac(link.a, link.a_port),
                addr2=self._mac(link.b, link.b_port),
            )
        net.build()

    def _mac(self, node: str, port: int) -> str:
        host = self.network.hosts.get(node)
        if host is not None:
            return host.mac
        number = list(self.network.switches).index(node) + 1
        return f"02:ff:{number >> 8:02x}:{number & 0xFF:02x}:00:{port:02x}"

    def _prepare_interfaces(self) -> None:
        """Switch off offloads and IPv6, add neighbours and shape links; several nodes at a time."""
        self._processors = cycle(sorted(os.sched_getaffinity(0)))
        with ThreadPoolExecutor(PARALLEL_NODES) as nodes:
            for done in (
                nodes.map(self._prepare_switch, self.network.switches),
                nodes.map(self._prepare_host, self.network.hosts),
            ):
                list(done)
        self._route_hosts()
        assert self._record is not None
        self._record.change_setting(HYSTERESIS, "1")

    def _prepare_switch(self, switch: str) -> None:
        ports = self.network.ports(switch).items()
        interfaces = [f"{switch}-eth{port}" for port, _ in ports]
        settings = [f"net.ipv6.conf.{interface}.disable_ipv6=1" for interface in interfaces]
        self._check(["sysctl", "-qw", *settings])
        up = [f"link set {interface} arp off up" for interface in interfaces]
        self._check(["ip", "-batch", "-"], stdin="\n".join(up))
        shaping: list[str] = []
        for interface, (_, neighbour) in zip(interfaces, ports, strict=True):
            self._offloads_off(interface, None)
            self._keep_order(interface, None)
            rate = self.network.link(switch, neighbour).bandwidth
            if rate is not None:
                shaping += shaping_lines(interface, rate)
        self._check(["tc", "-batch", "-"], stdin="\n".join(shaping))

    def _prepare_host(self, name: str) -> None:
        settings = [
            "net.ipv6.conf.all.disable_ipv6=1",
            f"net.ipv4.tcp_congestion_control={CONGESTION_CONTROL}",
        ]
        links = [self.network.link(name, peer) for peer in self.network.ports(name).values()]
        fastest = max((link.bandwidth or inf for link in links), default=inf)
        if fastest < inf:
            buffer = max(LEAST_BUFFER, int(fastest * RECEIVE_SECONDS / 8))
            settings.append(f"net.ipv4.tcp_rmem=4096 {LEAST_BUFFER} {buffer}")
        self._check(["sysctl", "-qw", *settings], host=name)
        others = [(o.ip, o.mac) for o in self.network.hosts.values() if o.name != name]
        neighbours: list[str] = []
        shaping: list[str] = []
        for port, peer in self.network.ports(name).items():
            interface = f"{name}-eth{port}"
            self._offloads_off(interface, name)
            self._keep_order(interface, name)
            # Mininet gives the first interface the address, and takes up that one only.
            neighbours.append(f"link set {interface} up")
            neighbours += neighbour_lines(interface, others)
            rate = self.network.link(name, peer).bandwidth
            if rate is not None:
                shaping += shaping_lines(interface, rate)
        self._check(["ip", "-batch", "-"], host=name, stdin="\n".join(neighbours))
        self._check(["tc", "-batch", "-"], host=name, stdin="\n".join(shaping))

    def _route_hosts(self) -> None:
        """Add routes for hosts with several links; without switches hosts forward."""
        hosts = self.network.hosts
        several = [name for name in hosts if len(self.network.ports(name)) > 1]
        routes: dict[str, list[tuple[str, str, str]]] = {name: [] for name in several}
        plain = PlainRoutes(self.network)
        for target in hosts.values() if several else ():
            for node, hop in plain.next_hops(target.name).items():
                if node in routes:
                    gateway = hosts[hop].ip if hop in hosts else target.ip
                    routes[node].append((target.ip, gateway, self.interface(node, hop)))
        for name in several:
            settings = ["net.ipv4.conf.all.rp_filter=0", "net.ipv4.conf.all.send_redirects=0"]
            interfaces = [f"{name}-eth{port}" for port in self.network.ports(name)]
            # The kernel takes the stricter of an interface's own and the general setting.
            settings += [f"net.ipv4.conf.{interface}.rp_filter=0" for interface in interfaces]
            settings.append(f"net.ipv4.ip_forward={int(forwards(self.network, name))}")
            self._check(["sysctl", "-qw", *settings], host=name)
            lines = route_lines(hosts[name].ip, routes[name])
            self._check(["ip", "-batch", "-"], host=name, stdin="\n".join(lines))

    def _prepare_names(self) -> None:
        """Give hosts each other's names, and no name server: the machine's is out of reach.

        Every look-up would wait for it for seconds, as its address may be one of the hosts' own.
        """
        assert self._record is not None
        known = HOSTS_FILE.read_text() if HOSTS_FILE.exists() else "127.0.0.1 localhost\n"
        names = [f"{host.ip} {host.name}" for host in self.network.hosts.values()]
        texts = {
            HOSTS_FILE: "\n".join([known, *names, ""]),
            RESOLVER_FILE: "# The hosts of an emulation reach no name server.\n",
        }
        # The hosts keep the files that are bound; their names go with the folder.
        with self._record.temporary_folder() as folder:
            for place, text in texts.items():
                if not place.exists():
                    continue
                file = folder / place.name
                file.write_text(text)
                file.chmod(0o644)
                for host in self.network.hosts:
                    self._check(["mount", "--bind", str(file), str(place)], host=host)

    def _keep_order(self, interface: str, host: str | None) -> None:
        """Receive an interface's frames on one processor; processors are assigned in turn."""
        self._check(ordered_command(interface, next(self._processors)), host=host)

    def _offloads_off(self, interface: str, host: str | None) -> None:
        # Some features are fixed on some kernels: ethtool then says so and sets the others.
        subprocess.run(
            self.command(offload_command(interface), host), capture_output=True, check=False
        )

    def _start_switches(self) -> None:
        for switch in self._net.switches:
            self._in_starter(partial(switch.start, []))
        for switch in self._net.switches:
            switch.wait_until_ready()

    def _in_starter(self, start: Callable[[], Result]) -> Result:
        """Start a process that ends with the emulation (`END_WITH_STARTER`)."""
        assert self._starter is not None
        return self._starter.submit(start).result()

    def _tear_down(self) -> None:
        if self._starter is not None:
            self._starter.submit(self._end_all).result()
            self._starter.shutdown()
            self._starter = None
        if self._net is not None:
            for link in self._net.links:
                link.stop()
            namespaces = {network_namespace(host.pid) for host in self._net.hosts}
            for node in (*self._net.hosts, *self._net.switches):
                node.terminate()
            self._net = None
            if self._record is not None:
                # What programs on hosts have started, and left when they were killed.
                end_processes(self._record.token, namespaces - {network_namespace(os.getpid()), ""})
        self._marking.close()
        if self._record is not None:
            self._record.restore_settings()
            self._record.forget()
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def _end_all(self) -> None:
        """End all processes, once none can be started any more."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
        for process in self._processes:
            process.wait()
        if self._net is not None:
            # Each takes its time: all at once.
            for switch in self._net.switches:
                switch.ask_to_end()
            for switch in self._net.switches:
                switch.end_process()
        if self._forks is not None:
            self._forks.close()
        for log in self._logs:
            log.close()

    # --- commands

    def pid(self, host: str) -> int:
        """Return the process of a host's shell."""
        pid: int = self._net.get(host).pid
        return pid

    def _check(self, arguments: Sequence[str], *, host: str | None = None, stdin: str = "") -> None:
        done = subprocess.run(
            self.command(arguments, host), input=stdin, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            where = f" in {host}" if host else ""
            raise EmulationError(
                f"`{' '.join(arguments)}`{where} failed: {done.stderr.strip() or done.stdout}"
            )

    def popen(self, host: str, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a program in a host's namespace; its output goes to `<log folder>/<host>.log`.

        After what the host's programs before it have printed there.

        It is ended with the emulation, if it has not ended by then.
        """
        command = [*END_WITH_STARTER, *self.command(arguments, host)]

        def start(log: IO[bytes]) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

        return self._start_on(host, start)

    def start_agent(self, host: str, arguments: Sequence[str]) -> Process:
        """Start an agent (`hopsum-agent`, with arguments) on a host, as `popen` does a program.

        It is a fork of a process that has imported what agents need, with few privileges.
        """
        return self._start_on(
            host,
            lambda log: self._fork_server().start(
                ["hopsum-agent", *arguments], log, namespaces_of=self.pid(host), kept=KEPT
            ),
        )

    def _start_on(self, host: str, start: Callable[[IO[bytes]], Started]) -> Started:
        self._log_folder.mkdir(parents=True, exist_ok=True)
        self._forget_ended()
        log = (self._log_folder / f"{host}.log").open("ab" if host in self._logged else "wb")
        self._logged.add(host)
        self._logs.append(log)
        process = self._in_starter(partial(start, log))
        self._processes.append(process)
        return process

    def _launch_switch(
        self, command: Sequence[str], output: IO[str], kept: Sequence[str]
    ) -> Process:
        """Start p4switch as `switches.run_program` does."""
        name = Path(command[0]).name
        return self._fork_server().start([name, *command[1:]], output, kept=kept)

    def _fork_server(self) -> ForkServer:
        """Return the fork server, which ends with the thread that starts processes."""
        if self._forks is None:
            switches = ("p4switch",) if self.engine == "embedded" else ()
            self._forks = ForkServer(("hopsum-agent", *switches))
        return self._forks

    def _forget_ended(self) -> None:
        """Close the logs of programs that have ended: some are restarted often."""
        running = []
        for process, log in zip(self._processes, self._logs, strict=False):
            if process.poll() is None:
                running.append((process, log))
            else:
                log.close()
        self._processes = [process for process, _ in running]
        self._logs = [log for _, log in running]

    def log_tail(self, name: str) -> str:
        """Return the end of what a switch or a host's program printed."""
        try:
            text = (self._log_folder / f"{name}.log").read_text(errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(text.splitlines()[-SHOWN_LINES:])

    # --- switches

    @property
    def grpc_addresses(self) -> dict[str, str]:
        """Each switch's P4Runtime address."""
        return {switch.name: switch.grpc_address for switch in self._net.switches}

    @property
    def device_ids(self) -> dict[str, int]:
        """Each switch's P4Runtime device id."""
        return {switch.name: switch.device_id for switch in self._net.switches}

    def switch_process(self, name: str) -> Process:
        """Return the process of a switch, which may have ended."""
        process: Process = self._net.get(name).process
        return process

    def ended_switches(self) -> dict[str, int]:
        """Return the switches whose process has ended by itself, with its exit code."""
        processes = {s.name: s.process for s in self._net.switches if s.process is not None}
        codes = {name: process.poll() for name, process in processes.items()}
        return {name: code for name, code in codes.items() if code is not None}

    def restart_switch(self, name: str) -> None:
        """Start a switch process that has ended, without waiting until it answers.

        Raises SwitchFailed if its port is taken.
        """
        switch = self._net.get(name)
        self._in_starter(partial(switch.start, []))
