"""What both ends of the controller's gRPC channel share."""

from __future__ import annotations

import grpc

MESSAGE_BYTES = 64 << 20
CHANNEL_OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
)


class ControllerError(RuntimeError):
    """The controller refused, or cannot be reached; the message says what and where."""


def in_words(error: grpc.RpcError) -> str:
    """What a failed call says."""
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
