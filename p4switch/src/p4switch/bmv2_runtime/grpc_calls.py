"""The run-time interface over gRPC, at the address of P4Runtime: for `p4switch cli`.

One method takes a call and returns its result, both as JSON: with P4Runtime's TLS or Unix socket,
and without thriftpy2.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import grpc

from p4switch.bmv2_runtime.records import CODES, Fault, Record
from p4switch.bmv2_runtime.runtime import Runtime

SERVICE = "p4switch.Runtime"
METHOD = "Call"


def encoded(value: Any) -> Any:
    """Return a value in JSON's types."""
    if isinstance(value, Record):
        return {name: encoded(each) for name, each in vars(value).items()}
    if isinstance(value, bytes):
        return {"hex": value.hex()}
    if isinstance(value, list | tuple):
        return [encoded(each) for each in value]
    return value


def decoded(value: Any) -> Any:
    """Return the value that was encoded. Raises LookupError, TypeError, ValueError."""
    if isinstance(value, dict):
        if "hex" in value:
            return bytes.fromhex(value["hex"])
        fields = {name: decoded(each) for name, each in value.items()}
        return Record(**fields) if "kind" in value else fields
    if isinstance(value, list):
        return [decoded(each) for each in value]
    return value


def handler(runtime: Runtime) -> grpc.GenericRpcHandler:
    """Return what serves a runtime in a gRPC server."""

    def call(request: bytes, context: grpc.ServicerContext) -> bytes:
        try:
            asked = json.loads(request)
            result = runtime.call(
                asked["service"], asked["method"], [decoded(each) for each in asked["arguments"]]
            )
        except Fault as fault:
            error = {"kind": fault.kind, "code": int(fault.code), "message": str(fault)}
            return json.dumps({"error": error}).encode()
        except (AttributeError, LookupError, TypeError, ValueError) as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"not a call of {SERVICE}: {error}")
        return json.dumps({"result": encoded(result)}).encode()

    served: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(call)
    return grpc.method_handlers_generic_handler(SERVICE, {METHOD: served})


class GrpcCalls:
    """A client of `handler` on a channel."""

    def __init__(self, channel: grpc.Channel, seconds: float) -> None:
        method = f"/{SERVICE}/{METHOD}"
        self._call: grpc.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
        self._seconds = seconds

    def call(self, service: str, method: str, arguments: Sequence[Any]) -> Any:
        """Call a method. Raises Fault and grpc.RpcError."""
        asked = {"service": service, "method": method, "arguments": encoded(list(arguments))}
        answer = json.loads(self._call(json.dumps(asked).encode(), timeout=self._seconds))
        if "error" in answer:
            error = answer["error"]
            raise Fault(error["kind"], CODES[error["kind"]](error["code"]), error["message"])
        return decoded(answer["result"])
