"""Options of process groups."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

# The type that device meshes require of their groups' options.
from torch._C._distributed_c10d import Backend
from torch.distributed.constants import default_pg_timeout

from hopsum_torch.names import NAME

NONFINITE, WIRE_BITS = "HOPSUM_NONFINITE", "HOPSUM_WIRE_BITS"
"""Environment variables: the options of groups that are made without them."""
REFUSE, PASS = "refuse", "pass"
POSSIBLE_BITS = (16, 32)


class Options(Backend.Options):
    """Options of a group: `pg_options` of `init_process_group` and `new_group`.

    `nonfinite`: what a NaN or infinity in a sum, and a NaN in a maximum or minimum, leads to.
    "refuse": the call raises SumRefused at every rank. "pass": it is in every rank's result, as
    with gloo; loss scalers need that. None: as HOPSUM_NONFINITE says, "refuse" by default, and for
    a sub-group as for the default group.

    `wire_bits`: that values of floats take in the switches' packets where sums are of more than
    8192 elements. 16: of all types, float32 too; 32: of none fewer; None: as HOPSUM_WIRE_BITS says,
    as many as the type has by default, and for a sub-group as for the default group.

    `timeout`: of the groups of a device mesh, whose `backend_override` may be these options;
    elsewhere the group's own counts.

    All ranks of a group need the same. Raises ValueError.
    """

    def __init__(
        self,
        nonfinite: str | None = None,
        timeout: timedelta = default_pg_timeout,
        wire_bits: int | None = None,
    ) -> None:
        if nonfinite not in (None, REFUSE, PASS):
            raise ValueError(f"nonfinite is {nonfinite!r:.40}: expected {REFUSE!r} or {PASS!r}")
        if wire_bits not in (None, *POSSIBLE_BITS):
            raise ValueError(f"wire_bits is {wire_bits!r:.40}: expected 16 or 32")
        super().__init__(NAME, timeout)
        self.nonfinite = nonfinite
        self.wire_bits = wire_bits

    def __reduce__(self) -> tuple[Any, ...]:
        return Options, (self.nonfinite, self._timeout, self.wire_bits)

    def __repr__(self) -> str:
        return (
            f"Options(nonfinite={self.nonfinite!r}, timeout={self._timeout!r}, "
            f"wire_bits={self.wire_bits!r})"
        )


def nonfinite_of(given: Any, inherited: str | None) -> str:
    """Return the option of a group; a value of the environment is not checked.

    `given`: the group's pg_options, or None; those of another backend are ignored, since PyTorch
    passes the same to all backends of a group. `inherited`: a sub-group's default group's. Raises
    TypeError.
    """
    if not isinstance(given, Backend.Options | None):
        raise TypeError(f"pg_options: {given!r:.80}: expected hopsum_torch.Options")
    if isinstance(given, Options) and given.nonfinite is not None:
        return given.nonfinite
    return inherited or os.environ.get(NONFINITE, REFUSE)


def wire_bits_of(given: Any, inherited: int | None) -> int | str | None:
    """Return the option of a group, None: as the types have it; see `nonfinite_of`.

    A value of the environment that cannot be is returned as it is.
    """
    if isinstance(given, Options) and given.wire_bits is not None:
        return given.wire_bits
    named = os.environ.get(WIRE_BITS)
    if inherited is not None or not named:
        return inherited
    return int(named) if named in map(str, POSSIBLE_BITS) else named
