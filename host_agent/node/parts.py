"""What sums the tensors of one job at one host: an exchange for each part that plans divide them
into, the job's worker, and its servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from hopsum.collectives.decomposition import decompose
from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.io.loop import Machine
from hopsum.host_agent.io.tcp_collective import PROGRESS_SECONDS as TCP_SECONDS
from hopsum.host_agent.node.environment import Environment
from hopsum.host_agent.node.exchange import Exchange, ScheduleExchange, TreeExchange
from hopsum.host_agent.node.timing import suitable_options
from hopsum.host_agent.node.work import Work
from hopsum.host_agent.root_worker import RootWorker
from hopsum.host_agent.segment import CallOptions, Tensor
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.worker import Worker
from hopsum.host_agent.workload import PROCESS
from hopsum.network.model import Network

PROCESS_SECONDS = 1e6
"""Deadline of a fragment whose tensors come from processes, which have timeouts of their own."""
PARTS = 64
"""Number of meetings of a job: one for each part of a tensor, and new ones after a boundary."""


class Parts:
    """The parts of tensors of job `job` at `host`.

    `install`: called with the machine that takes the job's frames.
    """

    def __init__(
        self, job: int, host: str, environment: Environment, install: Callable[[Machine], None]
    ) -> None:
        self.worker: Worker | None = None
        self.servers = ServerSet()
        self._job = job
        self._host = host
        self._environment = environment
        self._install = install
        self._tos = 0
        self._exchanges: dict[int, Exchange] = {}
        """By number of the part of a tensor, see `decompose`; none of parts of other hosts."""
        self._schedules: list[ScheduleExchange] = []
        """Those of these exchanges, and earlier ones, whose retransmissions count too."""

    # -- as a plan divides tensors

    def divide(self, network: Network, plan: JobPlan, work: Work, boundary: int = 0) -> None:
        """Have the exchanges of this plan, from a boundary on; `connect` follows.

        Nothing is in flight, here or towards this host.
        """
        self.close()
        self._exchanges.clear()
        sizes = sorted(set(work.task.workload.tensor_sizes())) or [0]
        patience = TCP_SECONDS
        if plan.trees:
            # Its peers begin a part when their parts over trees are in place, late after losses.
            options = suitable_options(network, plan, work.task.options)
            patience = max(patience, options.deadline)
        tensors = [decompose(plan, size) for size in sizes]
        for place, (part, _, _) in enumerate(decompose(plan, 0)):
            if part is None and plan.trees:
                if self._host in plan.workers:
                    self._exchanges[place] = self._over_trees(network, plan, work)
            elif part is None or self._host in part.hosts:
                exchange = ScheduleExchange(
                    work.schedule(network, plan, part),
                    network,
                    self._host,
                    [stop - start for _, start, stop in (parts[place] for parts in tensors)],
                    self._job,
                    place + PARTS * boundary,
                    self._tos,
                    patience,
                )
                self._exchanges[place] = exchange
                self._schedules.append(exchange)
        if self.worker is not None:
            self.worker.cut_as(plan)

    def _over_trees(self, network: Network, plan: JobPlan, work: Work) -> TreeExchange:
        if self.worker is None:
            options = suitable_options(network, plan, work.task.options)
            if work.task.workload.kind == PROCESS:
                options = replace(options, deadline=PROCESS_SECONDS)
            index = plan.workers.index(self._host)
            if self._host in plan.servers:
                self.worker = RootWorker(plan, index, network, options, work.task.key)
                self.servers = self.worker.servers
            else:
                self.worker = Worker(plan, index, network, options, work.task.key)
            self.worker.mark(self._tos)
            self._install(self.worker)
        return TreeExchange(self.worker)

    def connect(self) -> Iterator[None]:
        """Connect to the other hosts of the schedules; yields while that is not done."""
        current = [each for each in self._exchanges.values() if isinstance(each, ScheduleExchange)]
        for exchange in current:
            exchange.connect(self._environment)
        while not all(exchange.done() for exchange in current):
            yield

    def adopt(self, network: Network, plan: JobPlan, key: bytes | None, now: float) -> None:
        """Go on under a new epoch. `key`: of a plan with integrity."""
        if self.worker is not None:
            self.worker.adopt(plan, now)
        if self._host not in plan.workers:
            self.servers.adopt(plan, self._host, network, key)

    # -- tensors

    @property
    def takes_part(self) -> bool:
        """Whether a part of tensors is summed here."""
        return bool(self._exchanges)

    @property
    def several(self) -> bool:
        """Whether several tensors can be summed concurrently."""
        return all(each.several for each in self._exchanges.values())

    @property
    def trees(self) -> TreeExchange | None:
        """The exchange over the plan's trees, if this host takes part in it."""
        first = self._exchanges.get(0)
        return first if isinstance(first, TreeExchange) else None

    def begin(
        self, plan: JobPlan, tensor: Tensor, result: Tensor, options: CallOptions, now: float
    ) -> list[tuple[Exchange, int]]:
        """Submit every part of a tensor to its exchange ([002][], decomposition); return these,
        with the number of the call there."""
        return [
            (exchange, exchange.begin(tensor[start:stop], result[start:stop], now, options))
            for place, (_, start, stop) in enumerate(decompose(plan, len(tensor)))
            if (exchange := self._exchanges.get(place)) is not None
        ]

    # -- packets

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of future packets; servers follow their workers'."""
        self._tos = tos
        if self.worker is not None:
            self.worker.mark(tos)
        for exchange in self._schedules:
            exchange.mark(tos)

    def postpone(self, now: float) -> None:
        """Restart all deadlines: the job waits for a part of the network."""
        if self.worker is not None:
            self.worker.postpone(now)
        for exchange in self._schedules:
            exchange.postpone()

    @property
    def stirred(self) -> bool:
        """Whether received frames may have completed a part."""
        return bool(self._schedules) or (self.worker is not None and self.worker.settled)

    @property
    def sent_bytes(self) -> int:
        """Bytes of payload by TCP that it has sent."""
        return sum(exchange.sent_bytes for exchange in self._schedules)

    @property
    def retransmissions(self) -> int:
        """Retransmitted fragments and segments."""
        fragments = 0 if self.worker is None else self.worker.statistics.retransmissions
        return fragments + sum(exchange.retransmissions for exchange in self._schedules)

    def close(self) -> None:
        """Close the connections, at once or when what is in progress has ended."""
        for exchange in self._schedules:
            exchange.close()
