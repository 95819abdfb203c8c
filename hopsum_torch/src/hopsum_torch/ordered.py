"""Gradients reduced one by one, each as soon as all ranks have it, in an order they agree on.

DistributedDataParallel reduces buckets of gradients in one order, fixed beforehand: where gradients
become ready in different orders at different ranks (experts, early exits), a bucket waits for the
slowest, and all behind it too. Here the ranks agree while they compute (`hopsum_torch.agreement`):

    ordered = hopsum_torch.ordered.OrderedGradients(module)
    for inputs, targets in batches:
        optimizer.zero_grad()
        loss(module(inputs), targets).backward()
        ordered.synchronize()  # every gradient is the mean over all ranks now
        optimizer.step()
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hopsum_torch.agreement import Agreement, Decision
from hopsum_torch.errors import GroupLost, HopsumError, NoAgreement, SumRefused
from hopsum_torch.group import HopsumGroup
from hopsum_torch.options import Options
from hopsum_torch.roll_call import RollCall
from hopsum_torch.work import LOST_SECONDS, GlooWork

CYCLE_SECONDS = 0.005
"""Interval of the vectors of a rank that has nothing new to say, but gradients to be reduced."""
LOOK_SECONDS = 1.0
"""Interval at which a rank that waits for nothing looks for lost ones."""
WHOSE = "ordered gradients"


class OrderedGradients:
    """The gradients of a module's parameters, which `synchronize` replaces by means over all ranks.

    All ranks of the group make one, of modules whose parameters have the same names, shapes and
    types, in the same order among the group's other calls; like DistributedDataParallel, it copies
    rank 0's parameters and buffers to all. Parameters that need no gradient now are left alone.
    `process_group`: None: the default group; of any backend that reduces tensors on CPUs. It makes
    a group of its own of the same ranks, so that other calls do not mix with its. `iteration`: the
    number of the first one, equal at all ranks: of a training that resumes, its step.

    No sum ever has gradients of two iterations, an iteration being what lies between two calls of
    `synchronize` at a rank. Raises NoAgreement, at every rank, if modules or iterations differ, and
    ValueError for parameters that are not on the CPU.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        process_group: dist.ProcessGroup | None = None,
        *,
        iteration: int = 0,
    ) -> None:
        self._parameters = {
            name: each for name, each in module.named_parameters() if each.requires_grad
        }
        elsewhere = [name for name, each in self._parameters.items() if not each.is_cpu]
        if elsewhere:
            raise ValueError(f"{WHOSE}: {elsewhere[0]} is not on the CPU, expected all there")
        given = dist.group.WORLD if process_group is None else process_group
        self._group, self._observer = _own_group(given)
        rank, self._size = self._group.rank(), self._group.size()
        self._compare({name: _form(each) for name, each in self._parameters.items()}, iteration)
        self._copy_from_first(module)
        # As they become ready in most models.
        self._agreement = Agreement([*self._parameters][::-1], rank, self._size, iteration)
        self._gradients: dict[str, torch.Tensor] = {}
        """Those of this iteration, as they became ready."""
        self._accumulated: set[str] = set()
        """Parameters whose gradients became ready under `no_sync` alone."""
        self._synchronizing = True
        self._reductions: list[tuple[str, Any, torch.Tensor, torch.Tensor]] = []
        self._changed = threading.Condition()
        self._news = self._closed = False
        self._finished: list[Exception | None] = []
        """What came of the iteration that has been ended, until `synchronize` takes it."""
        self._lost: Exception | None = None
        """Why no more iterations are possible."""
        self._hooks = [
            each.register_post_accumulate_grad_hook(self._hook(name))
            for name, each in self._parameters.items()
        ]
        self._thread = threading.Thread(target=self._run, name=WHOSE, daemon=True)
        self._thread.start()

    @property
    def iteration(self) -> int:
        """The number of this rank's iteration."""
        return self._agreement.iteration

    @property
    def order(self) -> tuple[str, ...]:
        """The order table: names of parameters, after the first iteration as they were reduced."""
        return self._agreement.table

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of a block at this rank, as DistributedDataParallel does.

        The next backward pass outside, or `synchronize`, lets the sums be reduced.
        """
        before, self._synchronizing = self._synchronizing, False
        try:
            yield
        finally:
            self._synchronizing = before

    def synchronize(self) -> None:
        """Wait until the gradients of this iteration are means over all ranks, and end it.

        Every rank calls it once a step, before the optimizer's. A parameter that this rank has not
        used takes part with zeros (or what is in its `grad`) if another rank has a gradient, and
        is left alone if none has. Raises, at every rank, SumRefused if the iteration has failed,
        with the ranks and parameters at fault: gradients are undefined then, and the next iteration
        works; GroupLost and NoAgreement, after which none does, as after a KeyboardInterrupt;
        RuntimeError after `close`.
        """
        with self._changed:
            if self._closed:
                raise self._lost or RuntimeError(f"{WHOSE}: closed")
            for name in sorted(self._accumulated):
                if not self._agreement.holds(name) and self._parameters[name].grad is not None:
                    self._make_ready(name)
            for name, gradient in self._gradients.items():
                if self._parameters[name].grad is not gradient:
                    self._agreement.refuse(f"{name}.grad was replaced before synchronize()")
            self._agreement.end()
            self._changed.notify_all()
            try:
                self._changed.wait_for(lambda: self._finished or self._lost or self._closed)
            except BaseException:
                # This rank's next gradients would join the iteration that it has ended.
                self._lost = GroupLost(f"{WHOSE}: iteration {self.iteration} was interrupted")
                self._closed = True
                raise
            if not self._finished:
                raise self._lost or RuntimeError(f"{WHOSE}: closed")
            error = self._finished.pop()
        if error is not None:
            raise error

    def close(self) -> None:
        """Leave the module's gradients alone from now on; every rank does so between iterations."""
        for hook in self._hooks:
            hook.remove()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # -- in the threads of back-propagation

    def _hook(self, name: str) -> Callable[[torch.Tensor], None]:
        def became_ready(_: torch.Tensor) -> None:
            with self._changed:
                if self._closed:
                    return
                if not self._synchronizing and not self._agreement.holds(name):
                    self._accumulated.add(name)
                    return
                self._make_ready(name)
                self._changed.notify_all()

        return became_ready

    def _make_ready(self, name: str) -> None:
        agreement, gradient = self._agreement, self._parameters[name].grad
        assert gradient is not None
        if gradient.layout != torch.strided:
            agreement.refuse(f"{name} has a sparse gradient, expected a dense one")
        else:
            agreement.ready(name)
            self._gradients[name] = gradient
        self._news = True

    # -- in the thread that makes all calls

    def _run(self) -> None:
        try:
            while self._has_vector():
                self._cycle()
        except Exception as error:  # noqa: BLE001 - `synchronize` raises it
            # Other ranks may wait for this one's answer.
            named = isinstance(error, HopsumError)
            lost = error if named else self._observer.lost(LOST_SECONDS) or error
            lost.__cause__ = None if lost is error else error
            self._lost = self._lost or lost
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _has_vector(self) -> bool:
        """Wait until this rank has a vector to contribute; return False at the end."""
        # Until the group is destroyed.
        while self._group in dist.distributed_c10d._world.pg_map:
            with self._changed:
                agreement = self._agreement
                again = agreement.pending
                if not (self._news or agreement.ended or self._closed):
                    self._changed.wait(CYCLE_SECONDS if again else LOOK_SECONDS)
                if self._closed:
                    return False
                if agreement.ended or (not agreement.failed and (self._news or again)):
                    self._news = False
                    return True
            if lost := self._observer.lost():
                raise lost
        return False

    def _cycle(self) -> None:
        with self._changed:
            vector = torch.from_numpy(self._agreement.contribution())
        self._all_reduce(vector, dist.ReduceOp.BAND).wait()
        with self._changed:
            decision = self._agreement.conclude(vector.numpy())
        if decision.apart:
            self._compare({}, self._agreement.iteration)
        for name in decision.start:
            self._reduce(name)
        if decision.over or decision.at_fault:
            self._finish(decision)

    def _reduce(self, name: str) -> None:
        """Start to reduce a gradient; this rank has it, or has ended the iteration without."""
        parameter = self._parameters[name]
        with self._changed:
            gradient = self._gradients.get(name)
        if gradient is None:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            gradient = parameter.grad
        # gloo returns wrong values for tensors that are not contiguous.
        values = gradient.detach().contiguous()
        values.div_(self._size)
        self._reductions.append((name, self._all_reduce(values), values, gradient))

    def _all_reduce(self, values: torch.Tensor, op: Any = dist.ReduceOp.SUM) -> Any:
        work = dist.all_reduce(values, op, group=self._group, async_op=True)
        return work if self._names_lost else GlooWork(work, self._observer)

    @property
    def _names_lost(self) -> bool:
        """Whether the group's own errors name lost ranks."""
        return not isinstance(self._observer, RollCall)

    def _finish(self, decision: Decision) -> None:
        """End the iteration at this rank: all ranks have made the same calls in it."""
        error = self._faults(decision.at_fault) if decision.at_fault else None
        with self._changed:
            self._changed.wait_for(lambda: self._agreement.ended or self._closed)
        for name, work, values, gradient in self._reductions:
            try:
                work.wait()
            except SumRefused as refused:
                where = f"{WHOSE}, iteration {self._agreement.iteration}: {name}"
                error = error or SumRefused(f"{where}: {refused}")
            if values.data_ptr() != gradient.data_ptr():
                gradient.copy_(values)
        self._reductions.clear()
        with self._changed:
            self._agreement.begin()
            self._gradients.clear()
            self._accumulated.clear()
            self._news = False
            self._finished.append(error)
            self._changed.notify_all()

    def _faults(self, ranks: tuple[int, ...]) -> SumRefused:
        """Return the error of an iteration, with what ranks say of their faults."""
        told = self._told(self._agreement.fault)
        whose = "; ".join(f"rank {rank}: {told[rank]}" for rank in ranks)
        return SumRefused(f"{WHOSE}, iteration {self._agreement.iteration}: {whose}")

    def _told(self, mine: Any) -> list[Any]:
        """Return what each rank says, the same at all."""
        told: list[Any] = [None] * self._size
        dist.all_gather_object(told, mine, group=self._group)
        return told

    def _compare(self, forms: dict[str, str], iteration: int) -> None:
        """Raise NoAgreement, at every rank, if ranks have other parameters or iterations."""
        told = self._told((forms, iteration))
        first, _ = told[0]
        for rank, (others, number) in enumerate(told):
            if number != told[0][1]:
                raise NoAgreement(
                    f"{WHOSE}: rank 0 is in iteration {told[0][1]}, rank {rank} in {number}; "
                    "expected the same at all ranks"
                )
            for name in first | others:
                one, other = first.get(name, "none"), others.get(name, "none")
                if one != other:
                    raise NoAgreement(
                        f"{WHOSE}: parameter {name}: {one} at rank 0, {other} at rank {rank}; "
                        "expected the same model at all ranks"
                    )

    def _copy_from_first(self, module: torch.nn.Module) -> None:
        root = dist.get_global_rank(self._group, 0)
        for each in itertools.chain(module.parameters(), module.buffers()):
            values = each.detach().contiguous()
            dist.broadcast(values, root, group=self._group)
            if values.data_ptr() != each.data_ptr():
                each.detach().copy_(values)


def _form(parameter: torch.Tensor) -> str:
    return f"{str(parameter.dtype).removeprefix('torch.')}, shape {list(parameter.shape)}"


def _own_group(given: Any) -> tuple[dist.ProcessGroup, Any]:
    """Return a new group of a group's ranks, with its options, and who knows of lost ranks."""
    timeout: timedelta = given._get_backend(torch.device("cpu")).options._timeout
    options = (
        Options(nonfinite=given._nonfinite, wire_bits=given._wire_bits)
        if isinstance(given, HopsumGroup)
        else None
    )
    everyone = given is dist.group.WORLD
    group: Any = dist.new_group(
        None if everyone else dist.get_process_group_ranks(given),
        timeout,
        dist.get_backend_config(given) if options is None else dist.get_backend(given),
        options,
        use_local_synchronization=not everyone,
    )
    agent = group._observer if isinstance(group, HopsumGroup) else None
    return group, agent or RollCall(group)
