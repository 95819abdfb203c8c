"""A model's gradients, each summed as soon as all ranks have it, in an order that they agree on.

Ranks whose gradients become ready in different orders cannot just call all-reduce: they would wait
for each other, or sum what does not belong together. (DistributedDataParallel waits for the order
of its buckets instead.) Here each parameter is an operator of the coordination (004): the first
iteration is negotiated, later ones go by bit vectors.

An iteration is what lies between two calls of `wait`, on each rank. Gradients of different
iterations are never summed: if a parameter has a gradient on some ranks and not on others, or twice
on one, `wait` raises IterationMismatch on every rank, in that iteration.

    dist.init_process_group("hopsum")
    gradients = OrderedGradients(model)
    for images, targets in batches:
        optimizer.zero_grad()
        loss(model(images), targets).backward()
        gradients.wait()  # every gradient is the mean over all ranks now
        optimizer.step()
    gradients.close()
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

from coordination.failure import CoordinationError
from coordination.operators import Operator
from coordination.tree import balanced_tree
from host_agent.io.coordination import Coordinator
from host_agent.torch_backend import BackendError, HopsumGroup


class OrderedGradients:
    """The gradients of `model` at this rank of `group` (None: of the default group).

    All ranks make one of the same model, whose parameters have the same names, and call `backward`
    once before each `wait`; a parameter without a gradient has none on any rank. While it is open,
    nobody else makes calls of the group at some ranks and not at others. `order`: the names of the
    parameters as their sums began since the last wait.
    """

    def __init__(self, model: torch.nn.Module, group: HopsumGroup | None = None) -> None:
        group = group or dist.group.WORLD
        if not isinstance(group, HopsumGroup):
            raise BackendError(
                f"ordered gradients need a process group of backend hopsum; got {group!r}"
            )
        self.order: list[str] = []
        self._group = group
        self._size = group.size()
        self._parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
        self._changed = threading.Condition()
        self._arisen = self._summed = 0
        self._failure: Exception | None = None
        self._raised = False
        """Whether the caller knows what ended it."""
        self._iteration = 0
        self._coordinator = _coordinator(group)
        try:
            self._coordinator.start()
            # Others may have begun already, and failed.
            self._begin()
        except BaseException:
            self._coordinator.close()
            raise
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._hook(name))
            for name, parameter in self._parameters.items()
        ]
        self._thread = threading.Thread(target=self._sum, name="ordered gradients", daemon=True)
        self._thread.start()

    def _begin(self) -> None:
        self._iteration += 1
        self._arisen = self._summed = 0
        self._coordinator.begin_iteration(self._iteration)

    def _hook(self, name: str) -> Any:
        def ready(parameter: torch.Tensor) -> None:
            with self._changed:
                if self._arisen == 0:
                    self.order = []
                self._arisen += 1
            kind = str(parameter.dtype).removeprefix("torch.")
            with self._raising():
                self._coordinator.ready(Operator(name, tuple(parameter.shape), kind))

        return ready

    @contextlib.contextmanager
    def _raising(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError:
            raise
        except Exception:
            self._raised = True
            raise

    def _sum(self) -> None:
        try:
            while True:
                name = self._coordinator.next_start().name
                gradient = self._parameters[name].grad
                assert gradient is not None
                self._group.allreduce([gradient]).wait()
                gradient /= self._size
                with self._changed:
                    self.order.append(name)
                    self._summed += 1
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - `wait` raises it
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until every gradient of this iteration is the mean over all ranks.

        Returns once all ranks have ended the iteration with the same gradients. Raises what ended
        it, such as ProcessLost with the name of a rank, IterationMismatch with those of ranks whose
        gradients are others, OperatorError for a parameter whose shape differs between ranks;
        TimeoutError after `timeout` seconds, and then it may be called again.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        # What ended the coordination is raised below, unless it does not concern this iteration.
        with contextlib.suppress(CoordinationError):
            self._coordinator.end_iteration()
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._summed == self._arisen, timeout
            )
            missing = self._arisen - self._summed
            if missing and self._failure is not None:
                with self._raising():
                    raise self._failure
            if missing:
                raise TimeoutError(
                    f"{missing} of {self._arisen} gradients are not ready at all ranks after "
                    f"{timeout:g} s"
                )
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        with self._raising():
            self._coordinator.wait_over(left)
        with contextlib.suppress(CoordinationError):
            self._begin()

    def close(self) -> None:
        """Leave; returns when all ranks have. Raises what ended it, unless that has been raised."""
        for hook in self._hooks:
            hook.remove()
        try:
            if not self._raised:
                with self._raising():
                    if self._failure is not None:
                        raise self._failure
                    self._coordinator.leave()
                    self._coordinator.wait_done()
        finally:
            self._coordinator.close()
            self._thread.join()


def _coordinator(group: HopsumGroup) -> Coordinator:
    """Return the coordination of a group's ranks; each tells the others where it listens."""
    server, addresses = group.meet("gradients")
    tree = balanced_tree([f"rank {rank}" for rank in range(len(addresses))])
    return Coordinator(tree, group.rank(), addresses, server=server)
