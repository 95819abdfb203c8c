"""gRPC statuses: one error for a whole request, or one p4.v1.Error for each update."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NoReturn

import grpc

from p4switch.proto import p4r, rpc_code, rpc_status
from p4switch.targets.v1model.engine import ControlError

DETAILS_KEY = "grpc-status-details-bin"
STATUS_BYTES = 7900
"""Maximum size of a status: gRPC clients refuse more than 8 KiB of metadata by default, of which
some 250 bytes are taken by keys and by gRPC's accounting."""
LONGEST_ERROR = 4096
"""Characters of the message of an error of a whole request. A longer one is cut."""
LONGEST_MESSAGE = 768
"""Characters of the message of a status with details, which is sent twice: there and outside."""
MORE = len("; and 1000000 more")
MESSAGE_BUDGETS = 2048, 256
"""Maximum bytes of messages in the details of a status, and if these take too much room."""
PREFIX, SHORT_PREFIX = "type.googleapis.com/", "/"
"""Of the type's name in the details. Both are valid (any.proto); the second saves 19 bytes each."""


def fail(context: grpc.ServicerContext, error: ControlError) -> NoReturn:
    """End a call with an error."""
    context.abort(getattr(grpc.StatusCode, error.code), _cut(str(error), LONGEST_ERROR))
    raise AssertionError("abort does not return")


def fail_parts(context: grpc.ServicerContext, outcome: Sequence[ControlError | None]) -> NoReturn:
    """End a partly failed write: UNKNOWN, with the status of `parts_status`."""
    status = parts_status(outcome)
    context.set_trailing_metadata(((DETAILS_KEY, status.SerializeToString()),))
    context.abort(grpc.StatusCode.UNKNOWN, status.message)
    raise AssertionError("abort does not return")


def parts_status(outcome: Sequence[ControlError | None]) -> rpc_status.Status:
    """Return the status of a partly failed write, in STATUS_BYTES with its message.

    It has an error (or OK) for each update (P4Runtime 1.5, section 10.4). If these take too much
    room, it has those up to the last failed update, or none; the message names failed updates.
    """
    message = _summary(outcome)
    room = STATUS_BYTES - len(message.encode())
    for prefix, count, budget in _forms(outcome):
        texts = _texts(outcome, budget)
        status = rpc_status.Status(code=rpc_code.UNKNOWN, message=message)
        for position, error in enumerate(outcome[:count]):
            part = p4r.Error(canonical_code=code_of(error))
            if position in texts:
                part.message = texts[position]
                part.space = "p4switch"
            status.details.add().Pack(part, type_url_prefix=prefix)
        if status.ByteSize() <= room:
            break
    return status


def _failed(outcome: Sequence[ControlError | None]) -> list[tuple[int, ControlError]]:
    """Return positions and errors of failed updates; those rolled back because of others last."""
    failed = [(position, error) for position, error in enumerate(outcome) if error is not None]
    return sorted(failed, key=lambda each: each[1].code == "ABORTED")


def _texts(outcome: Sequence[ControlError | None], left: int) -> dict[int, str]:
    """Return the messages for which `left` bytes suffice, by position."""
    texts: dict[int, str] = {}
    for position, error in _failed(outcome):
        text = str(error)
        left -= len(text.encode())
        if left < 0:
            break
        texts[position] = text
    return texts


def _forms(outcome: Sequence[ControlError | None]) -> Iterator[tuple[str, int, int]]:
    """Yield forms of the details of a status, the best first.

    They are given by the types' prefix, the number of updates, and the bytes of messages.
    """
    last = max(position for position, _ in _failed(outcome))
    most, fewest = MESSAGE_BUDGETS
    yield PREFIX, len(outcome), most
    yield SHORT_PREFIX, len(outcome), most
    yield SHORT_PREFIX, len(outcome), fewest
    yield SHORT_PREFIX, last + 1, fewest
    yield SHORT_PREFIX, 0, 0


def _summary(outcome: Sequence[ControlError | None]) -> str:
    """Return a message that counts the failed updates and names as many as there is room for."""
    failed = _failed(outcome)
    message = f"{len(failed)} of {len(outcome)} updates failed"
    for named, (position, error) in enumerate(failed):
        text = f"; number {position}: {error}"
        full = len(message) + len(text) > LONGEST_MESSAGE - MORE
        if named and (full or error.code == "ABORTED"):
            return f"{message}; and {len(failed) - named} more"
        message += text
    return _cut(message, LONGEST_MESSAGE)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def code_of(error: ControlError | None) -> int:
    """Return the canonical code of an error; OK for none."""
    return rpc_code.OK if error is None else rpc_code.Code.Value(error.code)
