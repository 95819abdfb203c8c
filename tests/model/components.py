"""The product's own workers and servers, and the reference switch, as automata of a finite model.

A state is a number. What a component does in a state on an event is worked out once: on a copy,
with its clock standing still, so that only the model decides what is late.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from hopsum.collectives.plan import JobPlan
from hopsum.host_agent.codec import Frames
from hopsum.host_agent.options import WorkerOptions
from hopsum.host_agent.root_worker import RootWorker
from hopsum.host_agent.segment import Call
from hopsum.host_agent.server import Server
from hopsum.host_agent.server_set import ServerSet
from hopsum.host_agent.stream import Stream
from hopsum.host_agent.worker import Worker
from hopsum.network.model import Network
from hopsum.protocol.wire import ROOT_REDUCTIONS, Reduction
from tests.oracles import reference_state, reference_switch
from tests.oracles.reference_switch import ReferenceSwitch
from tests.packet.hopsum.switches import Build
from tests.support.protocol_world import LANES, install
from tests.support.server_state import finished_at

Event = tuple[Hashable, ...]
Sent = tuple[tuple[int, bytes], ...]
"""Port and frame of what a component sends; a host has port 0."""

FIXED = {
    "statistics", "_network", "plan", "_cut", "_all", "build", "admission", "replication", "groups",
    "routes", "l2", "counts",
}  # fmt: skip
"""Counters, and attributes that follow from the plans held so far, which are part of a state."""
OPEN = (Worker, Call, ServerSet)
"""Objects whose attributes are state; those of the reference are recognised by their module."""
REFERENCE = (reference_switch.__name__, reference_state.__name__)


class Unsafe(AssertionError):
    """A component has got something wrong."""


def key_of(value: Any) -> Hashable:
    """Return what tells states apart."""
    if value is None or isinstance(value, (int, float, str, bytes)):
        return value
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, dict):
        return tuple(sorted((str(name), key_of(each)) for name, each in value.items()))
    if isinstance(value, (list, tuple)):
        return tuple(map(key_of, value))
    if isinstance(value, (set, frozenset)):
        return tuple(sorted(value))
    if isinstance(value, Server):
        return value.plan.epoch, value.state_bytes()
    if isinstance(value, Stream):
        return value.plan.epoch, value.state_key()
    if isinstance(value, OPEN) or type(value).__module__ in REFERENCE:
        names = getattr(value, "__dict__", None) or {
            name: getattr(value, name) for name in type(value).__slots__
        }
        return tuple(
            (name, key_of(each)) for name, each in sorted(names.items()) if name not in FIXED
        )
    return None


class Automaton:
    """Components of one kind at one place. `shared`: what copies have in common."""

    def __init__(self, shared: Iterable[object]) -> None:
        self._objects: list[Any] = []
        self._numbers: dict[Hashable, int] = {}
        self._known: dict[tuple[int, Event], tuple[int, Sent]] = {}
        self._shared = {id(each): each for each in shared}

    def add(self, component: Any) -> int:
        """Return the number of the state that a component is in."""
        epoch = getattr(getattr(component, "plan", None), "epoch", None)
        key = (epoch, getattr(component, "installed", None), key_of(component))
        number = self._numbers.setdefault(key, len(self._objects))
        if number == len(self._objects):
            self._objects.append(component)
        return number

    def __getitem__(self, state: int) -> Any:
        return self._objects[state]

    def __len__(self) -> int:
        return len(self._objects)

    @property
    def transitions(self) -> Iterator[tuple[int, Event, int, Sent]]:
        """All that were worked out: a state, what happened, the state after it, what was sent."""
        for (state, event), (after, sent) in self._known.items():
            yield state, event, after, sent

    def _copied(self, component: Any) -> Any:
        if isinstance(component, ReferenceSwitch):
            # Ten times as fast as deepcopy, of objects that share nothing.
            return pickle.loads(pickle.dumps(component, pickle.HIGHEST_PROTOCOL))
        return copy.deepcopy(component, dict(self._shared))

    def step(self, state: int, event: Event, act: Callable[[Any], Sent]) -> tuple[int, Sent]:
        """Return the state after an event, and what is sent."""
        known = self._known.get((state, event))
        if known is None:
            component = self._copied(self._objects[state])
            sent = act(component)
            known = self._known[state, event] = self.add(component), sent
        return known


# -- Switches


def new_switch(plan: JobPlan, name: str, slots: int) -> ReferenceSwitch:
    """A switch that holds its part of a plan."""
    switch = ReferenceSwitch(Build(lanes=LANES, slots=slots))
    set_plan(switch, plan, name)
    return switch


def set_plan(switch: ReferenceSwitch, plan: JobPlan, name: str) -> None:
    """Let a switch hold a plan's rules.

    It may have missed earlier plans, and so lack their replication entries.
    """
    install(switch, plan, name)
    switch.installed = plan.epoch  # type: ignore[attr-defined]
    switch.granted = (*getattr(switch, "granted", ()), plan.epoch)  # type: ignore[attr-defined]


# -- Hosts


@dataclass(frozen=True)
class Tensors:
    """The tensors of a job's workers, one after the other: fragments of each, and reductions.

    Of integers of some `bits`; sums of 8, of two workers at most, wrap around. `grown_from`: the
    first tensor that a worker more takes part in, from the second plan on; 0: none joins.
    `counts`: of the plans' workers.
    """

    fragments: int
    reductions: tuple[Reduction, ...] = (Reduction.SUM,)
    bits: int = 32
    grown_from: int = 0
    counts: tuple[int, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the elements."""
        return np.dtype(f"int{self.bits}")

    @property
    def values(self) -> int:
        """Values of a fragment."""
        return LANES * 32 // self.bits

    def of(self, worker: int) -> Iterator[tuple[np.ndarray[Any, Any], Reduction]]:
        """A worker's, of values of which any that is missing, or there twice, shows in a total."""
        for number, reduction in enumerate(self.reductions):
            first = number * self.fragments
            values = self._factor(worker) * np.arange(first + 1, first + self.fragments + 1)
            yield np.repeat(values, self.values).astype(self.dtype), reduction

    def _factor(self, worker: int) -> int:
        return 70 + 5 * worker if self.bits == 8 else 16**worker

    def totals(self, plan: JobPlan, fragment: int) -> dict[int, int]:
        """What a fragment may come to, and of how many workers that is.

        Of those that are there with the newest plan, or of all: who joined may have left again.
        """
        if not self.grown_from:
            counts: Sequence[int] = (len(plan.workers),)
        else:
            joined = fragment >= self.grown_from * self.fragments
            counts = self.counts[1:] if joined else self.counts[:1]
        return {self.total(plan, fragment, count): count for count in counts}

    def total(self, plan: JobPlan, fragment: int, count: int) -> int:
        """Each value of the result of `count` workers: their sum, or the root's in a broadcast."""
        workers: Iterable[int] = range(count)
        if self.reduction_of(fragment) is Reduction.BROADCAST:
            workers = [plan.workers.index(plan.trees[0].server)]
        total = sum(self._factor(worker) * (fragment + 1) for worker in workers)
        return int(np.array(total).astype(self.dtype))

    def reduction_of(self, fragment: int) -> Reduction:
        """How a fragment is combined."""
        return self.reductions[fragment // self.fragments]


def new_worker(
    plan: JobPlan, index: int, network: Network, tensors: Tensors, first: int = 0
) -> Worker:
    """A worker that has sent what fits its window; with the server if that is at its host.

    `first`: the tensor that it begins with.
    """
    [tree] = plan.trees
    role = RootWorker if tree.server == plan.workers[index] else Worker
    options = WorkerOptions(
        deadline=1e9,
        first_fragment=first * tensors.fragments,
        scale_workers=max(tensors.counts, default=None),
    )
    worker = role(plan, index, network, options)
    worker.first_tensor = first  # type: ignore[attr-defined]
    # Those of the larger set only once they are all agreed on it.
    submit(worker, index, tensors, None if first else tensors.grown_from or None)
    return worker


def submitted(worker: Worker) -> int:
    """How many tensors a worker has submitted, or others before it joined."""
    return int(worker.first_tensor) + len(worker._calls)  # type: ignore[attr-defined]


def submit(worker: Worker, index: int, tensors: Tensors, end: int | None) -> None:
    """Submit a worker's next tensors, up to one."""
    for tensor, reduction in islice(tensors.of(index), submitted(worker), end):
        worker.submit(tensor, 0.0, out=np.zeros_like(tensor), reduction=reduction)


def sent_by(host: Worker | Server) -> Sent:
    """Take what a host has to send, frame by frame."""
    return tuple((0, row.tobytes()) for batch in host.take_output() for row in batch)


def rows(frame: bytes) -> Frames:
    """One frame in the form that hosts receive."""
    return np.frombuffer(frame, dtype=np.uint8)[None, :].copy()


def stream_of(worker: Worker) -> Stream:
    """The worker's one stream."""
    [stream] = worker._all
    return stream


def in_flight(worker: Worker) -> list[int]:
    """The slots of fragments whose result is missing."""
    return stream_of(worker).slots_in_flight


def send_again(worker: Worker, slot: int, how: str) -> None:
    """Time out (`again`), the last time before bypass (`bypass`), or probe the server (`ask`)."""
    stream_of(worker).retry(slot, 0.0, bypass=how == "bypass", ask=how == "ask")


def hand_over(worker: Worker) -> None:
    """Send the results again that a new server may lack."""
    stream_of(worker).hand_over(0.0)


def check_worker(worker: Worker, tensors: Tensors) -> None:
    """Raise Unsafe for a result that is not what all workers' tensors come to."""
    if worker.failure is not None:
        raise Unsafe(f"worker {worker.host} failed: {worker.failure}")
    if isinstance(worker, RootWorker):
        for server in worker.servers:
            check_server(server, tensors)
    for fragment, got in results_of(worker, tensors):
        _check(f"worker {worker.host}", got, worker.plan, tensors, fragment)


def results_of(worker: Worker, tensors: Tensors) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
    """The fragments whose results a worker has, with their values."""
    stream, window = stream_of(worker), len(stream_of(worker).next_fragments)
    began: int = worker.first_tensor  # type: ignore[attr-defined]
    for following in stream.next_fragments:
        for done in range(following - window, began * tensors.fragments - 1, -window):
            is_root = isinstance(worker, RootWorker)
            if tensors.reduction_of(done) in ROOT_REDUCTIONS and not is_root:
                continue
            number, part = divmod(done, tensors.fragments)
            call = worker._calls[number - began]
            yield done, np.asarray(call.result).reshape(-1, tensors.values)[part]


def check_server(server: Server, tensors: Tensors) -> None:
    """Raise Unsafe for a finished fragment whose total is not that of the tensors."""
    for fragment, got in finished_at(server):
        values = np.asarray(got, np.int32).view(tensors.dtype)
        _check("the server", values, server.plan, tensors, fragment)


def _check(
    who: str, got: np.ndarray[Any, Any], plan: JobPlan, tensors: Tensors, fragment: int
) -> None:
    totals = tensors.totals(plan, fragment)
    if int(got[0]) not in totals or (got != got[0]).any():
        expected = " or ".join(map(str, totals))
        raise Unsafe(f"{who} has {got[0]} for fragment {fragment}; the total is {expected}")
