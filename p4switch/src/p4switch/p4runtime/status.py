"""gRPC statuses: one error for a whole request, or one p4.v1.Error for each update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import grpc
from finsy.proto import p4r, rpc_code, rpc_status

from p4switch.targets.v1model.engine import ControlError

DETAILS_KEY = "grpc-status-details-bin"
MESSAGE_BUDGET = 4096
"""Maximum bytes of messages in a status: gRPC clients refuse more than 8 kB of metadata."""


def fail(context: grpc.ServicerContext, error: ControlError) -> NoReturn:
    """End a call with an error."""
    context.abort(getattr(grpc.StatusCode, error.code), str(error))
    raise AssertionError("abort does not return")


def fail_parts(context: grpc.ServicerContext, outcome: Sequence[ControlError | None]) -> NoReturn:
    """End a partly failed write: UNKNOWN, with an error (or OK) for each update."""
    failed = [(position, error) for position, error in enumerate(outcome) if error is not None]
    position, first = failed[0]
    message = f"{len(failed)} of {len(outcome)} updates failed; number {position}: {first}"
    status = rpc_status.Status(code=rpc_code.UNKNOWN, message=message)
    left = MESSAGE_BUDGET
    for error in outcome:
        part = p4r.Error(canonical_code=code_of(error))
        if error is not None and left > 0:
            part.message = str(error)
            part.space = "p4switch"
            left -= len(part.message)
        status.details.add().Pack(part)
    context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, message)
    raise AssertionError("abort does not return")


def code_of(error: ControlError | None) -> int:
    """Return the canonical code of an error; OK for none."""
    return rpc_code.OK if error is None else rpc_code.Code.Value(error.code)
