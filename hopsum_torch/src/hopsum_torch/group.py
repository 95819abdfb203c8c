"""The process group: supported calls go through the switches, all others over gloo.

| call | of | goes |
| --- | --- | --- |
| all_reduce, reduce, | SUM of float32, float16, bfloat16, int32, int8, uint8 | switches |
| reduce_scatter | AVG of float32, float16, bfloat16 | switches |
| | MAX, MIN of float32, float16, bfloat16, int32, int8, uint8 | switches |
| | BAND, BOR, BXOR of int32, int8, uint8 | switches |
| | PRODUCT | gloo |
| | float64, int64, bool, complex numbers, sparse tensors | gloo |
| all_gather | of any type, where that takes fewer bytes (`gathers`) | switches |
| broadcast | 4 KiB or more, of any type, to three ranks or more | switches |
| barrier | | switches |
| everything else | | gloo |

Where the job's trees have no roots at the ranks' hosts (`AgentClient.rooted`), the switches make
all-reduces of reduce, reduce_scatter and broadcast: those of two ranks, and all_gather, go over
gloo then.

That is so for every group whose ranks have agents, on more than one host. A sub-group has a job of
its own, if the switches have slots for it when it is made, and otherwise goes over gloo.

*Errors of sums.* With N ranks, S the exact sum, and 2^e above every magnitude in a fragment (256
elements, the first window of them together) of all ranks, s = ceil(log2 N):

- float32: at most N c 2^(e+s-31) (1 + 2^-24) + 2^-24 |S| + 2^-150, c = 1/2 for N <= 256, else 1
  (docs/protocol.md; gloo's own N - 1 additions err by up to (N - 1) 2^-24 times the sum of
  magnitudes).
- float32 where hosts have several ranks, R at most, and tensors of more than 8192 elements: N is
  the number of hosts, 2^e is above the magnitudes of each host's sum, and (R - 1) 2^-24
  (1 + 2^-24) times the sum of all magnitudes comes on top.
- float32 in 16 bits (`Options.wire_bits`), of more than 8192 elements and up to 16 hosts: c is 1,
  and 15 takes the place of 31; fragments have 512 elements, and 4 of the first window count as
  one.
- float16, bfloat16: as float32 in 16 bits, unless the group has wire_bits 32, and one rounding of
  the result: 2^-11 |S| + 2^-25 and 2^-8 |S| + 2^-134. (gloo rounds after every addition.)
- int32: exact. A sum beyond 32 bits is an error at every rank; gloo's wraps.
- int8, uint8: exact, modulo 256, as gloo's.
- AVG: the sum's bound divided by N, and 2^-24 of the quotient.

MAX, MIN, BAND, BOR and BXOR are exact. MAX and MIN of floating-point numbers take infinities, and
put -0 before 0 (gloo's take either).

*Values that are not finite.* A NaN, and in a sum an infinity, is an error of the call at every
rank, unless the group has `Options(nonfinite="pass")`. Then an element's sum is NaN where a rank
has a NaN or ranks have infinities of both signs, and otherwise infinite where a rank's value is;
such a call sends twice as many values. A maximum or minimum is NaN where a rank has a NaN (gloo's
keep or lose it as the order of the ranks has it).
"""

from __future__ import annotations

import atexit
import functools
import itertools
import os
import socket
import warnings
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hopsum_torch.agent import ALL, PARTS, AgentClient
from hopsum_torch.compression import compressed_bits
from hopsum_torch.errors import NoAgreement
from hopsum_torch.layouts import any_layout
from hopsum_torch.names import NAME
from hopsum_torch.options import PASS, REFUSE, nonfinite_of, wire_bits_of
from hopsum_torch.profiler import recorded
from hopsum_torch.rendezvous import Group, attempt_prefix, listed, meet
from hopsum_torch.tensors import (
    LEAST_RANKS,
    Part,
    PartOfCall,
    broadcast,
    broadcasts,
    gather,
    gathers,
    in_switches,
    into,
    matches,
    reduce,
)
from hopsum_torch.work import GlooWork, HopsumWork, naming, until_gloo_rests, watched

ALL_REDUCE = "all-reduce"
SINGLE, COALESCED, GATHER_SINGLE, GATHER_COALESCED = (
    name if hasattr(dist.ProcessGroup, name) else before
    for name, before in (
        ("reduce_scatter_single", "_reduce_scatter_base"),
        ("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        ("all_gather_single", "_allgather_base"),
        ("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
    )
)
"""Names in this version of torch."""

_groups: weakref.WeakSet[HopsumGroup] = weakref.WeakSet()
"""The process's groups."""


class HopsumGroup(dist.ProcessGroup):
    """The ranks of a group; `gloo` is their gloo backend, which does all if `agent` is None.

    `whose`: of a sub-group, added to the names of calls in messages. `observer`: the default
    group's agent, which names lost ranks where the group has none of its own. `nonfinite`,
    `wire_bits`: as of Options.
    """

    def __init__(
        self,
        rank: int,
        size: int,
        gloo: Any,
        agent: AgentClient | None,
        whose: str = "",
        observer: AgentClient | None = None,
        nonfinite: str = REFUSE,
        wire_bits: int | None = None,
    ) -> None:
        super().__init__(rank, size)
        self._agent = agent
        self._observer = agent or observer
        self._whose = whose
        self._nonfinite = nonfinite
        self._wire_bits = wire_bits
        self._gloo = gloo
        self._numbers = itertools.count()
        # A method that is not overridden dispatches to the backend of the tensor's device.
        _set_backend(self, gloo)
        self._plain = dist.ProcessGroup(rank, size)
        _set_backend(self._plain, gloo)
        _groups.add(self)

    def getBackendName(self) -> str:
        """Return the name by which the backend is registered."""
        return NAME

    # -- what the switches do

    @recorded
    @any_layout
    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce each tensor over all ranks, in place."""
        opts = opts or dist.AllreduceOptions()
        if opts.reduceOp == dist.ReduceOp.AVG and all(map(_integral, _list(tensors))):
            return self._integer_means(tensors, opts)
        return self._allreduce(tensors, opts) or self._pass_on("allreduce", _list(tensors), opts)

    def _integer_means(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        """Replace integers by their means, rounded to zero as NCCL does; gloo raises an error.

        Lightning means its batch sizes so. The call is over when this returns, asynchronous or not.
        """
        sums = dist.AllreduceOptions()
        sums.timeout = opts.timeout
        work = self._pass_on("allreduce", _list(tensors), sums)
        work.wait()
        for tensor in _list(tensors):
            tensor.div_(self.size(), rounding_mode="trunc")
        return work

    @recorded
    @any_layout
    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce each of several tensors over all ranks, in place."""
        opts = opts or dist.AllreduceCoalescedOptions()
        work = self._allreduce(tensors, opts)
        return work or self._pass_on("allreduce_coalesced", _list(tensors), opts)

    def _allreduce(self, tensors: Sequence[torch.Tensor], opts: Any) -> HopsumWork | None:
        parts = [Part([tensor], into(tensor)) for tensor in _list(tensors)]
        return self._reduced(ALL_REDUCE, parts, opts, _list(tensors))

    @recorded
    @any_layout
    def reduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Reduce a tensor over all ranks, in place at the root; the others keep theirs."""
        opts = opts or dist.ReduceOptions()
        root = self.rank() == opts.rootRank
        take = [into(tensor) if root else None for tensor in tensors]
        parts = [Part([one], each, opts.rootRank) for one, each in zip(tensors, take, strict=True)]
        work = self._reduced("reduce", parts, opts, list(tensors))
        return work or self._pass_on("reduce", tensors, opts)

    @recorded
    @any_layout
    def reduce_scatter(
        self,
        outputs: Sequence[torch.Tensor],
        inputs: Sequence[Sequence[torch.Tensor]],
        opts: Any = None,
    ) -> Any:
        """Reduce a list of tensors over all ranks; rank r gets the one at place r."""
        opts = opts or dist.ReduceScatterOptions()
        work = self._reduce_scatter(outputs, inputs, opts)
        return work or self._pass_on("reduce_scatter", outputs, inputs, opts)

    @recorded
    @any_layout
    def reduce_scatter_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        """Reduce a tensor over all ranks; rank r gets part r."""
        opts = opts or dist.ReduceScatterOptions()
        work = self._reduce_scatter([output], [self._parts(source)], opts)
        return work or self._pass_on(SINGLE, output, source, opts)

    @recorded
    @any_layout
    def reduce_scatter_single_coalesced(
        self, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Reduce several tensors over all ranks; rank r gets part r of each."""
        opts = opts or dist.ReduceScatterOptions()
        work = self._reduce_scatter(outputs, [self._parts(each) for each in sources], opts)
        return work or self._pass_on(COALESCED, outputs, sources, opts)

    # Their names in torch before 2.13, which has both.
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def _parts(self, source: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return each rank's part of a tensor; one that cannot be divided stays whole."""
        whole = source.numel() % self.size()
        return [source] if whole else source.view(-1).chunk(self.size())

    def _reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any
    ) -> HopsumWork | None:
        parts, rank = [], self.rank()
        for output, each in zip(outputs, inputs, strict=True):
            # gloo raises the error for tensors that do not fit.
            if len(each) != self.size() or each[rank].numel() != output.numel():
                return None
            if any(tensor.dtype != output.dtype for tensor in each):
                return None
            if len({tensor.numel() for tensor in each}) == 1:
                parts.append(Part(each, into(output), PARTS))
                continue
            start = sum(tensor.numel() for tensor in each[:rank])
            parts.append(Part(each, into(output, start), ALL))
        return self._reduced("reduce-scatter", parts, opts, list(outputs))

    def _reduced(
        self, kind: str, parts: Sequence[Part], opts: Any, results: list[torch.Tensor]
    ) -> HopsumWork | None:
        """Start a call if the switches support all its parts."""
        agent, op = self._agent, opts.reduceOp
        if agent is None or not parts:
            return None
        reduction = in_switches(parts[0], op)
        if reduction is None or any(in_switches(part, op) != reduction for part in parts[1:]):
            return None
        if kind != ALL_REDUCE and self.size() < LEAST_RANKS and not agent.rooted:
            return None
        divisor = self.size() if op == dist.ReduceOp.AVG else None
        name = self._name(kind)
        work = HopsumWork(name, len(parts), results, self._time(opts), agent)
        bits = compressed_bits() or self._wire_bits
        passes = self._nonfinite == PASS
        for place, part in enumerate(parts):
            what = PartOfCall(name, place if len(parts) > 1 else None, part)
            reduce(agent, what, part, reduction, divisor, work.ended, passes=passes, wire_bits=bits)
        return work

    @recorded
    @any_layout
    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Broadcast the root's tensor to all ranks."""
        opts = opts or dist.BroadcastOptions()
        agent, tensor = self._agent, tensors[0]
        if agent is None or len(tensors) > 1 or not broadcasts(tensor, self.size()):
            return self._pass_on("broadcast", tensors, opts)
        name = self._name("broadcast")
        work = HopsumWork(name, 1, [tensor], self._time(opts), agent)
        what = PartOfCall(name, None, Part([tensor]))
        broadcast(agent, what, tensor, opts.rootRank, work.ended)
        return work

    @recorded
    @any_layout
    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Copy each rank's tensor to all ranks, into a list of tensors."""
        if isinstance(inputs, torch.Tensor):
            return self._pass_on("allgather", outputs, inputs, *([opts] if opts else []))
        opts = opts or dist.distributed_c10d.AllgatherOptions()
        work = self._gather(outputs, inputs, opts, list(outputs[0]) if outputs else [])
        return work or self._pass_on("allgather", outputs, inputs, opts)

    @recorded
    @any_layout
    def all_gather_single(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None
    ) -> Any:
        """Copy each rank's tensor to all ranks, into the parts of one."""
        opts = opts or dist.distributed_c10d.AllgatherOptions()
        work = self._gather([self._parts(output)], [source], opts, [output])
        return work or self._pass_on(GATHER_SINGLE, output, source, opts)

    @recorded
    @any_layout
    def all_gather_single_coalesced(
        self, outputs: Sequence[torch.Tensor], sources: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Copy several tensors of each rank to all ranks, each into the parts of one."""
        opts = opts or dist.distributed_c10d.AllgatherOptions()
        work = self._gather([self._parts(each) for each in outputs], sources, opts, list(outputs))
        return work or self._pass_on(GATHER_COALESCED, outputs, sources, opts)

    # Their names in torch before 2.13, which has both.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def _gather(
        self,
        outputs: Sequence[Sequence[torch.Tensor]],
        sources: Sequence[torch.Tensor],
        opts: Any,
        results: list[torch.Tensor],
    ) -> HopsumWork | None:
        """Start an all-gather if all its tensors go through the switches."""
        agent, size = self._agent, self.size()
        if agent is None or not agent.rooted or not sources or len(outputs) != len(sources):
            return None
        for targets, source in zip(outputs, sources, strict=True):
            # gloo raises the error for tensors that do not fit.
            if len(targets) != size or not gathers(source, size):
                return None
            if any(not matches(target, source) for target in targets):
                return None
        name = self._name("all-gather")
        work = HopsumWork(name, len(sources), results, self._time(opts), agent)
        for targets, source in zip(outputs, sources, strict=True):
            what = PartOfCall(name, None, Part([source]))
            gather(agent, what, source, targets, work.ended)
        return work

    @recorded
    def barrier(self, opts: Any = None) -> Any:
        """Wait until all ranks have reached the barrier."""
        opts = opts or dist.BarrierOptions()
        agent = self._agent
        if agent is None:
            return self._pass_on("barrier", opts)
        name = self._name("barrier")
        work = HopsumWork(name, 1, [], self._time(opts), agent)
        agent.barrier(name, work.ended)
        return work

    def monitored_barrier(
        self, timeout: timedelta | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Wait until all ranks have reached the barrier, over gloo.

        `wait_all_ranks`: name all that have not, not the first alone. Raises RuntimeError, at rank
        0 with their numbers, after the timeout, and GroupLost. The function of torch.distributed
        refuses all groups but gloo's by the backend's name.
        """
        within = self._gloo.options._timeout if timeout is None else timeout
        call = functools.partial(self._plain.monitored_barrier, within, wait_all_ranks)
        if self._observer is None:
            call()
        else:
            watched(call, self._observer)

    def _name(self, kind: str) -> str:
        """Return the name of a new call, for messages."""
        return f"{kind} {next(self._numbers)}{self._whose}"

    def _time(self, opts: Any) -> timedelta:
        """Return the call's own timeout, if it has one, or the group's."""
        given: timedelta = opts.timeout
        # PyTorch changes that of the group at its backend.
        of_group: timedelta = self._gloo.options._timeout
        return given if given.total_seconds() > 0 else of_group

    def _pass_on(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the plain group, over gloo."""
        call, observer = getattr(self._plain, name), self._observer
        if observer is None:
            return call(*arguments, **options)
        with naming(observer):
            work = call(*arguments, **options)
            return work if name in TO_ONE else GlooWork(work, observer)

    # -- the end

    def shutdown(self) -> None:
        """Leave the job, which ends when all ranks have left."""
        if self._agent is not None:
            self._agent.close()
        self._gloo.shutdown()

    def abort(self) -> None:
        """Shut the group down."""
        self.shutdown()


def _set_backend(group: Any, gloo: Any) -> None:
    kind = dist.ProcessGroup.BackendType.GLOO
    group._set_default_backend(kind)
    group._register_backend(torch.device("cpu"), kind, gloo)
    if torch.cuda.is_available():
        group._register_backend(torch.device("cuda"), kind, gloo)


TO_ONE = ("send", "recv", "recv_anysource")
"""Point-to-point calls, in whose errors gloo names the peer's address."""
OVER_GLOO = (
    *TO_ONE,
    "all_to_all_single",
    "allgather_coalesced",
    "alltoall",
    "alltoall_base",
    "gather",
    "scatter",
)
"""Delegated calls.

A subclass written in Python may not inherit most of them either: PyProcessGroup.hpp (WORK_OVERRIDE)
looks for an override with the GIL held, and if there is none calls the base class without releasing
it. A thread of gloo that releases a tensor then waits for the GIL with gloo's queue locked, for
which the base class waits: both hang.
"""


def _over_gloo(name: str) -> Callable[..., Any]:
    """Return a method that calls the same of a group that is not a Python subclass."""

    def method(self: HopsumGroup, *arguments: Any, **options: Any) -> Any:
        return self._pass_on(name, *arguments, **options)

    method.__name__ = name
    return recorded(any_layout(method))


for _name in OVER_GLOO:
    # torch before 2.13 has fewer.
    if hasattr(dist.ProcessGroup, _name):
        setattr(HopsumGroup, _name, _over_gloo(_name))


def create(options: Any, given: Any = None) -> HopsumGroup:
    """Return a group; `options` as PyTorch gives them to backends (_DistributedBackendOptions).

    `given`: the caller's pg_options. Raises HopsumError, at all ranks, where their agents or
    options do not fit together, and TypeError.
    """
    numbers, world = options.global_ranks_in_group, dist.GroupMember.WORLD
    parent = world if numbers and isinstance(world, HopsumGroup) else None
    nonfinite = nonfinite_of(given, None if parent is None else parent._nonfinite)
    wire_bits = wire_bits_of(given, None if parent is None else parent._wire_bits)
    rank, size = options.group_rank, options.group_size
    gloo_options = dist.ProcessGroupGloo._Options()
    gloo_options._timeout = options.timeout
    gloo_options._devices = _gloo_devices()
    prefix = attempt_prefix(options.store, rank, size, options.timeout.total_seconds())
    store = dist.PrefixStore(prefix, options.store)
    gloo_store = dist.PrefixStore("gloo/", store)
    gloo = dist.ProcessGroupGloo(gloo_store, rank, size, gloo_options)
    gloo.options.global_ranks_in_group = options.global_ranks_in_group
    gloo.options.group_name = options.group_id
    gloo._set_sequence_number_for_group()
    observer = None if parent is None else parent._agent
    agent = _find_agent(store, options, observer, nonfinite, wire_bits)
    # Ranks have compared them.
    assert not isinstance(wire_bits, str)
    whose = f" of ranks {listed(numbers)}" if numbers else ""
    return HopsumGroup(rank, size, gloo, agent, whose, observer, nonfinite, wire_bits)


def _find_agent(
    store: dist.Store,
    options: Any,
    parent: AgentClient | None,
    nonfinite: str,
    wire_bits: int | str | None,
) -> AgentClient | None:
    """Return the agent of this rank, which attends the group's job; None: all goes over gloo.

    `parent`: a sub-group's default group's, if it has one. Raises HopsumError, and for the default
    group alone if the agents do not fit together.
    """
    # The default group has no list of its ranks.
    numbers = options.global_ranks_in_group
    ranks = numbers or range(options.group_size)
    group = Group(options.group_rank, ranks, nonfinite=nonfinite, wire_bits=wire_bits)
    if numbers:
        job_name = "" if parent is None else parent.job_name
        group = replace(group, name=options.group_id, parent=job_name)
    try:
        met = meet(store, group, options.timeout.total_seconds())
    except NoAgreement as error:
        if not numbers:
            raise
        if group.rank == 0:
            which = f"the group of ranks {listed(numbers)}"
            warnings.warn(f"hopsum: {which} goes over gloo: {error}", stacklevel=3)
        return None
    if isinstance(met, AgentClient):
        return met
    if group.rank == 0 and not numbers and os.environ.get("HOPSUM_AGENT") != "none":
        warnings.warn(f"hopsum: all goes over gloo: {met}", stacklevel=3)
    return None


@atexit.register
def _end_groups() -> None:
    """Shut all groups down at exit: a script may end without destroying them."""
    groups = list(_groups)
    for group in groups:
        if group._agent is not None:
            group._agent.close()
    if groups:
        until_gloo_rests()


def _gloo_devices() -> list[Any]:
    """Return gloo's network devices, at the address by which the other ranks reach this one.

    GLOO_SOCKET_IFNAME names them, as for gloo's own backend. By default gloo would take the address
    of the host's name, often 127.0.1.1; the address from which the ranks' store is reached works
    better.
    """
    names, master = os.environ.get("GLOO_SOCKET_IFNAME"), os.environ.get("MASTER_ADDR")
    if names:
        return [dist.ProcessGroupGloo.create_device(interface=name) for name in names.split(",")]
    if not master:
        return [dist.ProcessGroupGloo.create_default_device()]
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            # Nothing is sent: connecting only chooses the route.
            probe.connect(address)
            return [dist.ProcessGroupGloo.create_device(hostname=probe.getsockname()[0])]
    except OSError:
        return [dist.ProcessGroupGloo.create_default_device()]


def _integral(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _list(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
