"""Many runs in virtual time, side by side: in processes of this machine, or on a Ray cluster.

`in_processes` and `on_ray` return a `Parallel`: a function that applies another one, which is
importable (of a module, or a `functools.partial` of such a one), to many items.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import islice
from typing import Any, Protocol, TypeVar

from hopsum.protocol.errors import InputError, OperationError
from hopsum.protocol.extras import require
from hopsum.protocol.version import version

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

AHEAD = 2
"""Items that are submitted for each process, so that none waits for its next one."""

ANSWER_SECONDS = 10.0
"""How long a cluster may take to accept a connection."""


class ClusterError(OperationError):
    """A Ray cluster cannot be used; the message says why."""


class Parallel(Protocol):
    """Applies functions to many items."""

    def __call__(
        self, function: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> Iterator[_Result]:
        """Yield the results as they come. Raises what `function` raises."""


def in_processes(number: int) -> Parallel:
    """Return what uses this many processes of this machine; 1: only this one."""

    def apply(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        if number == 1:
            yield from map(function, items)
            return
        context = multiprocessing.get_context("forkserver")
        with ProcessPoolExecutor(number, context, _leave_interrupts_to_the_parent) as pool:
            yield from as_they_come(lambda item: pool.submit(function, item), items, AHEAD * number)

    return apply


def on_ray(address: str) -> Parallel:
    """Return what uses all CPUs of the Ray cluster at an address, as `ray.init` takes it.

    `local` starts one on this machine. The machines need this version of hopsum, of Python and of
    Ray. Items of a machine that is lost are run on another one.

    Raises MissingExtraError without Ray, InputError for an empty address; the function that is
    returned raises ClusterError too.
    """
    require("ray", "ray")
    if not address:
        raise InputError("ray: expected an address, such as 192.0.2.1:6379, auto or local")

    def apply(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        import ray

        with contextlib.ExitStack() as ours:
            if not ray.is_initialized():
                # Ray prints what it has to say of its machines, among results in JSON.
                ours.enter_context(contextlib.redirect_stdout(sys.stderr))
                # It ends what is still running.
                ours.callback(ray.shutdown)
                _join(address)
            try:
                yield from _on_all_cpus(function, items)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, (InputError, OperationError)):
                    raise error.cause from None
                raise ClusterError(f"ray: {error}") from error
            except ray.exceptions.RayError as error:
                raise ClusterError(f"ray: {error}") from error

    return apply


def _join(address: str) -> None:
    import ray

    try:
        host, colon, port = address.removeprefix("ray://").rpartition(":")
        if colon:
            # Ray itself would try for many minutes.
            socket.create_connection((host.strip("[]"), int(port)), ANSWER_SECONDS).close()
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ClusterError(
            f"ray: no cluster at {address:.200}: {error}; start one with `ray start --head`, or "
            "leave --ray out to use this machine"
        ) from error


def _on_all_cpus(function: Callable[[_Item], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
    import ray

    cpus = int(ray.cluster_resources().get("CPU", 0))
    if not cpus:
        raise ClusterError("ray: the cluster has no CPU; expected one at least (`ray status`)")
    remote = ray.remote(_apply_there)

    def submit(item: _Item) -> Future[_Result]:
        future: Future[_Result] = remote.remote(version(), function, item).future()
        return future

    yield from as_they_come(submit, items, AHEAD * cpus)


def _apply_there(theirs: str, function: Callable[[Any], Any], item: Any) -> Any:
    """Apply a function on a machine of the cluster; `theirs`: the version that asks."""
    if theirs != version():
        raise ClusterError(
            f"ray: {os.uname().nodename} has hopsum {version()}, expected {theirs} as on the "
            "machine that asks; install the same on all"
        )
    return function(item)


def as_they_come(
    submit: Callable[[_Item], Future[_Result]], items: Iterable[_Item], most: int
) -> Iterator[_Result]:
    """Yield the results of items as they come; at most `most` are submitted at a time."""
    waiting = iter(items)
    going: set[Future[_Result]] = set()
    while True:
        going.update(map(submit, islice(waiting, most - len(going))))
        if not going:
            return
        done, going = wait(going, return_when=FIRST_COMPLETED)
        for future in done:
            yield future.result()


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # One thread per process: arrays here are small.
    os.environ["OMP_NUM_THREADS"] = "1"
