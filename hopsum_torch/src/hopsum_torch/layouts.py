"""Tensors of any layout: calls, in the switches and over gloo, see contiguous ones only.

What a call reads is copied if it is not contiguous, or has a conjugate or negative bit; what it
writes is copied back when it has ended. gloo would take the memory as it lies, and the switches
would need views that strided tensors do not have.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from hopsum_torch.errors import HopsumError
from hopsum_torch.outer_work import OuterWork


def plain(tensor: torch.Tensor) -> bool:
    """Return whether a tensor's memory holds its elements in order, as they are."""
    if tensor.layout != torch.strided:
        return True
    return tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg()


def _all_plain(argument: Any) -> bool:
    """Return whether an argument's tensors, also those in lists, are all plain."""
    if isinstance(argument, torch.Tensor):
        return plain(argument)
    return not isinstance(argument, list | tuple) or all(map(_all_plain, argument))


def copy(source: torch.Tensor) -> torch.Tensor:
    """Return a contiguous copy of a tensor, without conjugate and negative bits."""
    resolved = source.detach().resolve_conj().resolve_neg()
    return resolved.clone(memory_format=torch.contiguous_format)


def write(target: torch.Tensor, result: torch.Tensor) -> None:
    """Copy a result into a tensor; one made in inference mode can be written only in it."""
    if target.is_inference():
        with torch.inference_mode():
            target.copy_(result)
    else:
        target.copy_(result)


class Copies:
    """Copies of tensors that a call uses in their place."""

    def __init__(self) -> None:
        self.written: list[tuple[torch.Tensor, torch.Tensor]] = []
        """Tensors that the call writes, and their copies."""

    def of(self, argument: Any, *, write: bool) -> Any:
        """Return a call's argument with copies of its tensors, also in lists, where it needs them.

        `write`: the call writes them. Raises HopsumError if one cannot be written.
        """
        if isinstance(argument, torch.Tensor):
            return argument if plain(argument) else self._of(argument, write)
        if isinstance(argument, list | tuple):
            return [self.of(each, write=write) for each in argument]
        return argument

    def _of(self, tensor: torch.Tensor, write: bool) -> torch.Tensor:
        if not write:
            return copy(tensor)
        if torch._debug_has_internal_overlap(tensor) == 1:
            raise HopsumError(
                f"a tensor of shape {list(tensor.shape)} and strides {list(tensor.stride())} has "
                "elements that share memory and cannot take a result; use its clone()"
            )
        copied = copy(tensor)
        self.written.append((tensor, copied))
        return copied

    def copy_back(self) -> None:
        """Copy what the call has written."""
        for target, copied in self.written:
            write(target.detach(), copied)

    def originals(self, results: Any) -> Any:
        """Return results with the tensors in place of their copies, also in lists."""
        if isinstance(results, torch.Tensor):
            found = (target for target, copied in self.written if copied is results)
            return next(found, results)
        if isinstance(results, list | tuple):
            return [self.originals(each) for each in results]
        return results


class CopiedWork(OuterWork):
    """A pending call, `inner`, whose results are copied when it has ended."""

    def __init__(self, inner: Any, copies: Copies) -> None:
        super().__init__(inner)
        self._copies = copies
        # Where the call is over, its future runs `finish` in `get_future`.
        self._lock = threading.RLock()
        self._copied = False
        self._future: Any = None

    def _copy_back(self) -> None:
        with self._lock:
            if not self._copied:
                self._copies.copy_back()
                self._copied = True

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for the call. Raises what it raises."""
        done = super().wait(timeout)
        self._copy_back()
        return done

    def is_completed(self) -> bool:
        """Return whether the call is over, well or not."""
        if not super().is_completed():
            return False
        # `wait` raises its error.
        with contextlib.suppress(RuntimeError):
            self.wait()
        return True

    def is_success(self) -> bool:
        """Return whether the call is over and has a result."""
        return self.is_completed() and super().is_success()

    def result(self) -> Any:
        """Return the tensors."""
        return self._copies.originals(super().result())

    def get_future(self) -> Any:
        """Return the same as a torch future of the tensors."""

        def finish(ended: Any) -> Any:
            results = ended.value()
            self._copy_back()
            return self._copies.originals(results)

        with self._lock:
            if self._future is None:
                self._future = self.inner.get_future().then(finish)
        return self._future


_WRITES: dict[str, Callable[[bool], bool]] = {
    "send": lambda at_root: False,
    "reduce": lambda at_root: at_root,
    "broadcast": lambda at_root: not at_root,
}
"""Calls whose first argument is not written, or at some ranks only."""


def any_layout(method: Callable[..., Any]) -> Callable[..., Any]:
    """Let a method of a group, which writes its first argument, take tensors of any layout."""
    writes: Callable[[bool], bool] = _WRITES.get(method.__name__, lambda at_root: True)

    @functools.wraps(method)
    def call(group: Any, *arguments: Any, **options: Any) -> Any:
        if all(map(_all_plain, arguments)):
            return method(group, *arguments, **options)
        root = getattr(arguments[1], "rootRank", 0) if len(arguments) > 1 else 0
        copies, write = Copies(), writes(group.rank() == root)
        taken = [
            copies.of(argument, write=write and not place)
            for place, argument in enumerate(arguments)
        ]
        work = method(group, *taken, **options)
        return CopiedWork(work, copies) if copies.written else work

    return call
