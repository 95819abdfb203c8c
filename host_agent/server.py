"""The parameter server of one (job, tree): datapath/server.c under the plans of its job."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from hopsum.collectives.plan import JobPlan, PlanError, Results, TreePlan
from hopsum.host_agent.c_structures import c_fields
from hopsum.host_agent.codec import Form, Frames
from hopsum.host_agent.counters import ServerStatistics as ServerStatistics
from hopsum.host_agent.datapath.library import GAPS, NESTED, library, receive, shared_output
from hopsum.host_agent.plan_checks import check_job, check_key, check_same_job
from hopsum.host_agent.server_forms import ServerForms
from hopsum.network.model import Network
from hopsum.protocol.wire import serial_newer

_MOST_SINGLES = 4096
"""Bypassed contributions that a server keeps, or one of each worker."""
_NOBODY = -1


class _State(ctypes.Structure):
    """`struct server` of datapath/server.h."""

    _fields_ = c_fields(
        "datapath/server.h", "server", {**NESTED, "server_counters": ServerStatistics}
    )


class _Form(ctypes.Structure):
    """`struct server_form`."""

    _fields_ = c_fields("datapath/server.h", "server_form")


class Missing(NamedTuple):
    """The oldest unfinished fragment: its number, opening time (seconds), and missing workers."""

    fragment: int
    since: float
    workers: tuple[str, ...]


class _Bound(NamedTuple):
    """A server's state under one plan, and what its pointers point to."""

    state: _State
    memory: NDArray[np.uint8]
    kept: tuple[object, ...]


def _bind(plan: JobPlan, tree: TreePlan, network: Network, key: bytes | None) -> _Bound:
    """Return the empty state of a tree's server. Raises PlanError."""
    key = check_key(plan, key)
    workers = len(plan.workers)
    groups = [len(group) for group in tree.server_children]
    sizes = np.array([size or _NOBODY for size in groups], dtype=np.int64)
    child_of = np.full(workers, _NOBODY, dtype=np.int64)
    for child, covered in enumerate(tree.server_children):
        child_of[list(covered)] = child
    if (child_of == _NOBODY).any() or sum(groups) != workers:
        raise PlanError(
            f"job {plan.job}, tree {tree.tree}: the server's children "
            f"{tree.server_children} do not cover its {workers} workers exactly once"
        )
    direct = np.array([tree.direct(worker) for worker in range(workers)], dtype=np.int64)
    forms = ServerForms(plan, tree, network)
    replicated = _c_forms([forms.replicated])
    unicast, questions = _c_forms(forms.unicast), _c_forms(forms.questions)
    replicates = plan.results is Results.REPLICATED
    to_all = replicated if replicates else unicast
    key_bytes = np.frombuffer(key, np.uint8) if key is not None else np.empty(0, np.uint8)
    state = _State(
        job=plan.job,
        tree=tree.tree,
        epoch=plan.epoch,
        window=plan.in_flight,
        lanes=plan.lanes,
        workers=workers,
        children=len(groups),
        lanes_at=forms.lanes_at,
        most_singles=(
            0 if tree.singles else max(workers, min(plan.in_flight * workers, _MOST_SINGLES))
        ),
        most_output=GAPS + max(len(to_all), len(questions)),
        all_single=tree.singles,
        replicates=replicates,
        verifies=key is not None,
        contributions=forms.contributions,
        requests=forms.requests,
        replicated=ctypes.addressof(replicated),
        unicast=ctypes.addressof(unicast),
        questions=ctypes.addressof(questions),
        to_all=ctypes.addressof(to_all),
        to_all_count=len(to_all),
        sizes=sizes.ctypes.data,
        child_of=child_of.ctypes.data,
        direct=direct.ctypes.data,
        key=key_bytes.ctypes.data,
    )
    address = ctypes.addressof(state)
    memory = np.zeros(library().server_layout(address, None), np.uint8)
    library().server_layout(address, memory.ctypes.data)
    library().server_restart(address)
    return _Bound(
        state, memory, (forms, replicated, unicast, questions, sizes, child_of, direct, key_bytes)
    )


def _c_forms(forms: Sequence[Form]) -> ctypes.Array[_Form]:
    """Return an array of `struct server_form`, to be kept together with the forms."""
    each = [_Form(form.prefix.ctypes.data, form.lanes_start) for form in forms]
    return (_Form * len(forms))(*each)


class AnsweringMachine:
    """A machine (`hopsum.host_agent.io.loop`) that only answers: it has no timers of its own."""

    deadline: float | None = None
    deferrable = 0
    """Each answer is awaited."""

    def tick(self, now: float) -> None:
        """Do nothing."""


class Server(AnsweringMachine):
    """The server of one tree of a job: frames in, frames out.

    Results carry the IP ToS byte of the sums that come in: their job's priority.
    """

    def __init__(
        self, plan: JobPlan, tree: int, network: Network, key: bytes | None = None
    ) -> None:
        """`key`: for a plan with integrity."""
        check_job(plan)
        self.plan = plan
        self.tree = _tree_of(plan, tree)
        self._key = key
        self._network = network
        self._output: list[Frames] = []
        self._bound = _bind(plan, self.tree, network, key)
        self.joined = False
        """Whether the worker of this host is joined to it (`hopsum.host_agent.root`)."""
        self.repeats_history = False
        """Whether its last epoch began with sending the history to all, as some may miss it."""
        self._take_view()

    def _take_view(self) -> None:
        self.address = ctypes.addressof(self._bound.state)
        self.statistics: ServerStatistics = self._bound.state.counters

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        copied = type(self).__new__(type(self))
        copied.__dict__.update(self.__dict__)
        copied._output = [batch.copy() for batch in self._output]
        copied.joined = False
        state, memory, kept = self._bound
        copied._bound = _Bound(_State.from_buffer_copy(state), memory.copy(), kept)
        copied._take_view()
        library().server_layout(copied.address, copied._bound.memory.ctypes.data)
        return copied

    @property
    def most_output(self) -> int:
        """The most frames that one received frame makes."""
        return int(self._bound.state.most_output)

    @property
    def state(self) -> Any:
        """`struct server`, which stays where it is."""
        return self._bound.state

    def state_bytes(self) -> bytes:
        """Return the bytes that distinguish states under one plan: all but times and counters."""
        size = library().server_state(self.address, None)
        state = np.empty(size, np.uint8)
        library().server_state(self.address, state.ctypes.data)
        return state.tobytes()

    # -- frames and time

    def receive(self, frames: Frames, now: float) -> None:
        """Process frames (n, length) of any kind and content."""
        function = library().server_receive
        self._output += receive(function, self.address, frames, now, self.most_output, False)

    def enter(self) -> list[int]:
        """Leave frames to a flow (flow.h) until `leave`; return its address."""
        return [self.address]

    def leave(self, now: float) -> int:
        """Return the bytes that the flow has sent."""
        flow = self._bound.state.flow
        sent: int = flow.sent_bytes
        flow.sent_bytes = 0
        return sent

    def mark(self, tos: int) -> None:
        """Set the IP ToS byte of results, until contributions arrive with another one."""
        self._bound.state.tos = tos

    def take_output(self) -> list[Frames]:
        """Return the frames to send, in order; each batch has one length."""
        taken, self._output = self._output, []
        return taken

    # -- epochs and status

    def adopt(self, plan: JobPlan) -> None:
        """Continue under a newer epoch: drop unfinished fragments, and send the history again.

        An older or the same epoch is ignored. Raises PlanError for a plan that changes what is
        fixed for a job's life.
        """
        if not serial_newer(plan.epoch, self.plan.epoch, 16):
            return
        check_same_job(self.plan, plan)
        tree = _tree_of(plan, self.tree.tree)
        state, memory, kept = _bind(plan, tree, self._network, self._key)
        # Another server may have been at work in epochs between.
        same = (plan.epoch - self.plan.epoch) & 0xFFFF == 1
        library().server_adopt(ctypes.addressof(state), self.address, same)
        # The state stays where it is, for statistics and flow.
        ctypes.memmove(self.address, ctypes.addressof(state), ctypes.sizeof(state))
        self._bound = self._bound._replace(memory=memory, kept=kept)
        self.plan, self.tree = plan, tree
        summed = any(hop.aggregate for stack in tree.up for hop in stack[:-1])
        self.repeats_history = summed or plan.results is Results.REPLICATED
        if not self.joined and self.repeats_history:
            position = 0
            while position >= 0:
                output = shared_output(self.most_output)
                into = output.begin(whole=False)
                position = library().server_send_history(self.address, position, into)
                self._output += output.take()

    def missing(self) -> Missing | None:
        """Return the missing workers of the oldest unfinished fragment; None if there is none."""
        fragment, since = ctypes.c_int64(), ctypes.c_double()
        references = ctypes.addressof(fragment), ctypes.addressof(since)
        slot = library().server_oldest(self.address, *references)
        if slot < 0:
            return None
        heard = library().server_heard
        names = enumerate(self.plan.workers)
        missing = tuple([name for w, name in names if not heard(self.address, slot, w)])
        return Missing(fragment.value, since.value, missing)


def _tree_of(plan: JobPlan, number: int) -> TreePlan:
    """Return a tree of a plan. Raises PlanError."""
    trees = {tree.tree: tree for tree in plan.trees}
    if number not in trees:
        raise PlanError(f"job {plan.job} has no tree {number}; its trees: {sorted(trees)}")
    return trees[number]
