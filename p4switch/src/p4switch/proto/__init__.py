"""P4Runtime's and gNMI's messages: finsy's where it is installed, else of `definitions`.

finsy has them as generated code, which needs a protobuf as new; other programs in the environment,
such as p4runtime-shell, need an old one. Where finsy is there, messages are its own, so that a
controller in the same process can pass them on.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

if TYPE_CHECKING or find_spec("finsy") is not None:
    from finsy.proto import (
        U128,
        gnmi,
        gnmi_grpc,
        p4d,
        p4i,
        p4r,
        p4r_grpc,
        p4t,
        rpc_code,
        rpc_status,
    )
else:
    from p4switch.proto.definitions import Definitions

    _definitions = Definitions()
    gnmi, gnmi_grpc = _definitions.module("gnmi"), _definitions.services("gnmi")
    p4d, p4i, p4t = (_definitions.module(name) for name in ("p4data", "p4info", "p4types"))
    p4r, p4r_grpc = _definitions.module("p4runtime"), _definitions.services("p4runtime")
    rpc_code, rpc_status = _definitions.module("code"), _definitions.module("status")

    class U128:
        """Conversion of election ids, as in finsy."""

        @staticmethod
        def encode(value: int) -> p4r.Uint128:
            """Return a number as a message."""
            return p4r.Uint128(high=value >> 64, low=value & (1 << 64) - 1)

        @staticmethod
        def decode(value: p4r.Uint128) -> int:
            """Return a message as a number."""
            return value.high << 64 | value.low


__all__ = [
    "U128",
    "gnmi",
    "gnmi_grpc",
    "p4d",
    "p4i",
    "p4r",
    "p4r_grpc",
    "p4t",
    "rpc_code",
    "rpc_status",
]
