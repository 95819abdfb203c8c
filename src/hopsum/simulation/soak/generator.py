"""Random fault schedules: a seed is a schedule."""

from __future__ import annotations

import random
from dataclasses import replace

from hopsum.collectives.choices import (
    DEFAULT_PLANNER,
    SCHEDULE_NAMES,
    Algorithm,
    Collective,
    Coordination,
    DataType,
    Results,
)
from hopsum.collectives.workload import DIGITS, PROCESS, RANDOM
from hopsum.network.model import Network
from hopsum.protocol.wire import HOPS_DEFAULT, frame_bytes
from hopsum.simulation.faults import Outage, OutageKind, outage_targets
from hopsum.simulation.soak.inputs import network_of
from hopsum.simulation.soak.schedule import (
    EVERYWHERE,
    Attack,
    ClockDrift,
    ClockJump,
    DiskFault,
    DiskFaultKind,
    Fault,
    FaultSchedule,
    Forgery,
    JobEntry,
    LinkEntry,
    NetworkEntry,
    Noise,
    RankFault,
    RankFaultKind,
)

FRAGMENTS = (10, 30, 100)
"""Approximate packets of a job; they determine the cost of a run."""
REORDERED = 16
"""Packets by which some noise reorders frames, at the rate of the fastest link."""
LANES = 32
PROCESSES = 0.3
"""Fraction of jobs whose tensors come from processes, among those that allow it."""
NARROW = 0.4
"""Fraction of jobs whose values are narrow, or were, among those that allow it."""
FAIR = 0.3
"""Fraction of schedules whose hosts serve their TCP connections in turn."""
UNLIMITED = 0.05
"""Fraction of the schedules on a named network whose links have no rate, and so no queues."""
OVERFLOWING = 0.1
"""Fraction of jobs of int32 with a sum that wraps around."""
WIDTHS = (
    *((each, 0) for each in (DataType.BFLOAT16, DataType.FLOAT16, DataType.INT8)),
    *((DataType.FLOAT32, 16), (DataType.BFLOAT16, 32), (DataType.INT8, 32)),
)
"""Types of these, and bits of their values in packets (0: their own)."""
SPAN = 3.0
"""Seconds in which jobs and faults begin."""
STOPS = (0.02, 0.3, 1.0, 3.5, 6.0, 12.0)
"""Durations of outages in seconds: too short to be noticed, long enough for re-planning, longer."""


def make_schedule(seed: int) -> FaultSchedule:
    """Draw a random schedule."""
    rng = random.Random(f"soak/{seed}")
    if rng.random() < 0.004:
        return _training(rng, seed)
    network = _network(rng)
    built = network_of(network)
    jobs = tuple(_job(rng, built, number) for number in range(rng.choice([1, 1, 2, 2, 3, 5])))
    faults = _faults(rng, built)
    # Of their own, so that all else of a seed stays as it was.
    own = random.Random(f"soak/{seed}/processes")
    jobs = tuple(_of_processes(own, job) if own.random() < PROCESSES else job for job in jobs)
    own = random.Random(f"soak/{seed}/widths")
    jobs = tuple(_narrow(own, job) if own.random() < NARROW else job for job in jobs)
    own = random.Random(f"soak/{seed}/overflow")
    jobs = tuple(_overflowing(own, job) if own.random() < OVERFLOWING else job for job in jobs)
    own = random.Random(f"soak/{seed}/links")
    fair = own.random() < FAIR
    if network.topology and own.random() < UNLIMITED:
        network = replace(network, rate=None, uplink_rate=None)
    if rng.random() < 0.2:
        jobs = tuple(
            replace(
                job,
                integrity=job.algorithm in (Algorithm.IN_NETWORK, Algorithm.SERVER),
                collective=Collective.ALL_REDUCE,
            )
            for job in jobs
        )
        flip = rng.choice([0.0, 0.001, 0.02])
        faults = tuple(replace(f, flip=flip) if isinstance(f, Noise) else f for f in faults)
    return FaultSchedule(
        seed,
        network,
        jobs,
        faults,
        quota=rng.choice([0.25, 0.5, 1.0]),
        every=rng.choice([4, 10, 50]),
        wire_loss=rng.choice([0.0, 0.0, 0.02, 0.1]),
        levels=rng.random() < 0.8,
        fair=fair,
    )


# -- Networks


def _network(rng: random.Random) -> NetworkEntry:
    rate = rng.choice([5e4, 2e5, 1e6, 1e7])
    topology = rng.choices(
        [
            f"star:{rng.randint(2, 6)}",
            f"line:{rng.randint(2, 5)}x{rng.randint(1, 2)}",
            f"leaf-spine:2x2x{rng.randint(1, 3)}",
            f"leaf-spine:3x{rng.randint(1, 2)}x2",
            "fat-tree:4",
            "dragonfly:1",
            f"random-regular:{rng.choice([4, 6])}x3x{rng.randint(1, 99)}",
            "",
        ],
        [20, 12, 20, 8, 1, 2, 2, 25],
    )[0]
    entry = NetworkEntry(
        topology,
        rate,
        rng.choice([None, None, rate / 2]),
        rng.choice([1e-5, 1e-4, 2e-3]),
        slots=rng.choice([16, 64, 256]),
    )
    if not topology:
        entry = replace(entry, links=_graph(rng, rate), rate=None, uplink_rate=None, latency=0.0)
    switches = [*network_of(entry).switches]
    plain = tuple(name for name in switches if rng.random() < 0.5) if rng.random() < 0.15 else ()
    return replace(entry, plain=plain)


def _graph(rng: random.Random, rate: float) -> tuple[LinkEntry, ...]:
    """Draw a connected graph of switches with hosts at some of them and links that differ."""

    def link(a: str, b: str) -> LinkEntry:
        return LinkEntry(
            a, b, rate * rng.choice([0.5, 1, 1, 2]), rng.choice([1e-5, 1e-4, 1e-3, 2e-2])
        )

    switches = [f"s{number}" for number in range(1, rng.randint(2, 6) + 1)]
    links = [link(rng.choice(switches[:n]), switches[n]) for n in range(1, len(switches))]
    pairs = {(each.a, each.b) for each in links}
    for _ in range(rng.randint(0, len(switches))):
        a, b = sorted(rng.sample(switches, 2))
        if (a, b) not in pairs:
            pairs.add((a, b))
            links.append(link(a, b))
    hosts = [*(f"h{number}" for number in range(1, rng.randint(2, 6) + 1)), "ps"]
    for host in hosts:
        homes = rng.sample(switches, 2 if rng.random() < 0.1 else 1)
        links += [link(host, home) for home in homes]
    return tuple(links)


# -- Jobs


def _job(rng: random.Random, network: Network, number: int) -> JobEntry:
    hosts = [*network.hosts]
    workers = rng.sample(hosts, min(len(hosts), rng.choice([1, 2, 2, 3, 3, 4, 5, 6])))
    others = [host for host in hosts if host not in workers]
    if not others:
        others = [workers.pop()] if len(workers) > 1 else []
    algorithm, planner = _algorithm(rng, network, len(workers))
    servers = rng.sample(others, min(len(others), rng.choice([1, 1, 1, 2])))
    collective = Collective.ALL_REDUCE
    suits = planner == DEFAULT_PLANNER and algorithm in (Algorithm.IN_NETWORK, Algorithm.SERVER)
    if suits and len(workers) > 1 and rng.random() < 0.25:
        # Some or all of the workers are the servers.
        servers = rng.choice([workers, workers, workers, workers[:1]])
        if servers is workers:
            collective = rng.choice([*Collective])
    elements = rng.choice([1, 32, 100, 600, 1500])
    fragments = rng.choice(FRAGMENTS)
    start = rng.choice([0.0, SPAN * rng.random()])
    return JobEntry(
        f"job{number}",
        round(start, 3),
        tuple(workers),
        tuple(servers),
        algorithm,
        planner,
        RANDOM,
        rng.choice([DataType.INT32, DataType.INT32, DataType.FLOAT32]),
        elements,
        max(1, min(20, fragments * 32 // max(elements, 32))),
        window=rng.choice([0, 0, 1, 4, 8]),
        trees=rng.choice([0, 0, 2]) if planner == "multi-tree" else 0,
        results=rng.choice([None, None, None, Results.UNICAST])
        if algorithm is Algorithm.IN_NETWORK
        else None,
        first_fragment=rng.choice([0] * 9 + [(1 << 32) - 64]),
        seed=rng.randrange(1 << 16),
        cancel=round(start + 3 * rng.random(), 3) if rng.random() < 0.08 else 0.0,
        collective=collective,
    )


def _of_processes(rng: random.Random, job: JobEntry) -> JobEntry:
    """Return a job whose tensors come from processes, if switches or a server can sum them."""
    if job.algorithm not in (Algorithm.IN_NETWORK, Algorithm.SERVER):
        return job
    if job.planner == "embedding":
        # Its plans may have parts among hosts, which such jobs refuse.
        return job
    ranks: list[str] = []
    if rng.random() < 0.6:
        most = rng.choice([2, 3])
        ranks = [host for host in job.workers for _ in range(rng.randint(1, most))]
        if rng.random() < 0.2:
            rng.shuffle(ranks)
    calls = rng.choice([3, 12, 30, 60])
    longest = [1, 32, 100] if calls > 12 else [1, 32, 100, 600, 1500]
    number = len(ranks or job.workers)
    mishaps = [
        RankFault(rng.randrange(number), rng.randrange(calls), rng.choice([*RankFaultKind]))
        for _ in range(rng.choice([0, 0, 1, 3]))
    ]
    servers = () if job.rooted and rng.random() < 0.5 else job.servers
    if not job.rooted and len(job.workers) > 1 and job.planner == DEFAULT_PLANNER:
        # One root, whose host takes calls, too.
        servers = job.workers[:1] if rng.random() < 0.2 else servers
    return replace(
        job,
        kind=PROCESS,
        servers=servers,
        ranks=tuple(ranks),
        elements=rng.choice(longest),
        rounds=calls,
        outstanding=rng.choice([1, 1, 1, 4]),
        mishaps=tuple(mishaps),
        collective=Collective.ALL_REDUCE,
    )


def _narrow(rng: random.Random, job: JobEntry) -> JobEntry:
    """Return a job of other types, of as many packets, if switches or a server sum its tensors."""
    if job.kind != RANDOM or job.algorithm not in (Algorithm.IN_NETWORK, Algorithm.SERVER):
        return job
    if job.planner == "embedding":
        return job
    dtype, wire_bits = rng.choice(WIDTHS)
    elements = job.elements * 32 // (wire_bits or dtype.bits) - rng.randrange(2)
    return replace(job, dtype=dtype, wire_bits=wire_bits, elements=max(1, elements))


def _overflowing(rng: random.Random, job: JobEntry) -> JobEntry:
    """Return a job with a sum beyond int32, if switches or a server sum its tensors for all."""
    summed = (
        job.algorithm in (Algorithm.IN_NETWORK, Algorithm.SERVER) and job.planner != "embedding"
    )
    suits = job.kind == RANDOM and job.dtype is DataType.INT32 and len(job.workers) > 1
    if not summed or not suits or job.collective is not Collective.ALL_REDUCE:
        return job
    return replace(job, overflow=rng.randint(1, job.rounds))


def _algorithm(rng: random.Random, network: Network, workers: int) -> tuple[Algorithm, str]:
    if not network.switches or rng.random() < 0.12:
        choices = [Algorithm(name) for name in SCHEDULE_NAMES]
        if workers & (workers - 1):
            choices.remove(Algorithm.HALVING_DOUBLING)
        return rng.choice(choices), DEFAULT_PLANNER
    return rng.choices(
        [
            (Algorithm.IN_NETWORK, DEFAULT_PLANNER),
            (Algorithm.IN_NETWORK, "multi-tree"),
            (Algorithm.IN_NETWORK, "embedding"),
            (Algorithm.SERVER, DEFAULT_PLANNER),
        ],
        [70, 10, 8, 6],
    )[0]


def _training(rng: random.Random, seed: int) -> FaultSchedule:
    """Draw a training of a classifier, whose operators need an agreed order."""
    network = NetworkEntry("star:4", rng.choice([2e7, 1e8]), latency=1e-5, slots=256)
    job = JobEntry(
        "training",
        0.0,
        ("h1", "h2"),
        ("ps",),
        kind=DIGITS,
        dtype=DataType.FLOAT32,
        elements=0,
        rounds=1,
        coordinate=rng.random() < 0.8,
        coordination=rng.choice([*Coordination]),
    )
    noise = _noise(rng, network_of(network), 0.5)
    return FaultSchedule(seed, network, (job,), (noise,), lanes=256)


# -- Faults


def _faults(rng: random.Random, network: Network) -> tuple[Fault, ...]:
    """Draw no faults, only noise, only outages, or some of each."""
    kind = rng.choices(["none", "noise", "breakdowns", "attacks", "all"], [8, 22, 25, 10, 35])[0]
    faults: list[Fault] = []
    if kind in ("noise", "all"):
        faults += [_noise(rng, network, _start(rng)) for _ in range(rng.randint(1, 3))]
    if kind in ("breakdowns", "all"):
        faults += [_outage(rng, network) for _ in range(rng.randint(1, 4))]
    if kind == "attacks" or (kind == "all" and rng.random() < 0.5):
        faults += [_attack(rng, network) for _ in range(rng.randint(1, 3))]
    if kind == "all" and rng.random() < 0.3:
        faults.append(_disk(rng))
    if kind in ("noise", "all") and rng.random() < 0.2:
        by = rng.choice([-86400.0, -1.0, 0.5, 3600.0])
        faults.append(ClockJump(_start(rng), by))
    if rng.random() < 0.15:
        pace = rng.choice([0.5, 0.99, 0.9999, 1.0001, 1.01, 2.0])
        faults.append(ClockDrift(rng.choice([*network.hosts]), _start(rng), pace))
    return tuple(faults)


def _start(rng: random.Random) -> float:
    return round(SPAN * rng.random(), 3)


def _span(rng: random.Random) -> tuple[float, float]:
    start = _start(rng)
    return start, round(start + rng.choice(STOPS), 3)


def _noise(rng: random.Random, network: Network, start: float) -> Noise:
    link = EVERYWHERE
    if rng.random() < 0.4:
        chosen = rng.choice(network.links)
        link = f"{chosen.a}-{chosen.b}"
    rates = [each.bandwidth for each in network.links if each.bandwidth]
    packets = (
        round(REORDERED * 8 * frame_bytes(LANES, HOPS_DEFAULT) / max(rates), 6) if rates else 0.005
    )
    noise = Noise(link, start, round(start + rng.choice([0.5, 2.0, 8.0, 20.0]), 3))
    while noise == replace(noise, loss=0.0, corrupt=0.0, duplicate=0.0, reorder=0.0):
        loss = rng.choice([0.0, 0.001, 0.01, 0.05, 0.2])
        noise = replace(
            noise,
            loss=loss,
            burst=rng.choice([1.0, 1.0, 4.0]) if loss else 1.0,
            corrupt=rng.choice([0.0, 0.0, 0.01]),
            duplicate=rng.choice([0.0, 0.0, 0.02, 0.2]),
            reorder=rng.choice([0.0, 0.0, 0.02, 0.2]),
            hold=rng.choice([0.005, 0.05, 0.5, packets]),
        )
    return noise


def _outage(rng: random.Random, network: Network) -> Outage:
    targets = outage_targets(network)
    weights = [28, 10, 22, 10, 10, 8, 7, 5]
    trouble = rng.choices([*targets], weights)[0]
    if not targets[trouble]:
        trouble = OutageKind.LINK_CUT
    return Outage(trouble, rng.choice(targets[trouble]), *_span(rng))


def _attack(rng: random.Random, network: Network) -> Attack:
    start = _start(rng)
    return Attack(
        rng.choice([*Forgery]),
        rng.choice([*network.hosts]),
        start,
        start + rng.choice([1.0, 4.0]),
        every=rng.choice([0.01, 0.05]),
        seed=rng.randrange(1 << 16),
    )


def _disk(rng: random.Random) -> DiskFault:
    room = rng.choice([0, 1, 40, 1000])
    return DiskFault(rng.choice([*DiskFaultKind]), *_span(rng), room)
