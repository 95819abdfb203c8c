"""Generates hopsum_pb2.py, hopsum_pb2_grpc.py and type stubs: `python -m hopsum.protocol.generate`.

They are not kept in the repository, because they belong to one version of grpcio-tools.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from google.protobuf import descriptor_pb2

from hopsum.protocol.errors import OperationError

PACKAGE = Path(__file__).resolve().parent
SOURCES = PACKAGE.parents[1]
PROTO = "hopsum/protocol/hopsum.proto"


class GenerateError(OperationError):
    """The protocol compiler failed; the message says why."""


def generate(sources: Path = SOURCES, output: Path = SOURCES) -> None:
    """Write the generated modules of `sources`/hopsum/protocol into `output`/hopsum/protocol.

    Raises GenerateError.
    """
    descriptors = output / "hopsum.descriptors"
    compiler = subprocess.run(
        [
            sys.executable,
            "-m",
            "grpc_tools.protoc",
            f"--proto_path={sources}",
            f"--python_out={output}",
            f"--pyi_out={output}",
            f"--grpc_python_out={output}",
            f"--descriptor_set_out={descriptors}",
            PROTO,
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if compiler.returncode:
        raise GenerateError(
            f"{PROTO}: {compiler.stderr.strip()} (status {compiler.returncode}; "
            "grpcio-tools must be installed)"
        )
    try:
        files = descriptor_pb2.FileDescriptorSet.FromString(descriptors.read_bytes())
    finally:
        descriptors.unlink(missing_ok=True)
    messages = output / "hopsum" / "protocol" / "hopsum_pb2.pyi"
    # protoc writes a bare Mapping, which strict type checking refuses.
    messages.write_text(
        '# mypy: disable-error-code="type-arg"\n' + messages.read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    stub = output / "hopsum" / "protocol" / "hopsum_pb2_grpc.pyi"
    stub.write_text(_grpc_stub(files.file[0]), encoding="utf-8")


def _grpc_stub(file: descriptor_pb2.FileDescriptorProto) -> str:
    """Return type stubs of the gRPC module, which grpcio-tools does not write."""
    lines = [
        "from collections.abc import AsyncIterator, Awaitable, Iterator",
        "",
        "import grpc",
        "",
        "from hopsum.protocol import hopsum_pb2 as pb",
        "",
    ]
    for service in file.service:
        methods = [
            (
                method.name,
                f"pb.{method.input_type.rpartition('.')[2]}",
                f"pb.{method.output_type.rpartition('.')[2]}",
                method.client_streaming,
                method.server_streaming,
            )
            for method in service.method
        ]
        lines += [f"class {service.name}Stub:"]
        lines += ["    def __init__(self, channel: grpc.Channel | grpc.aio.Channel) -> None: ..."]
        for name, request, reply, streams_in, streams_out in methods:
            kind = ("Stream" if streams_in else "Unary") + ("Stream" if streams_out else "Unary")
            lines += [f"    {name}: grpc.{kind}MultiCallable[{request}, {reply}]"]
        lines += ["", f"class {service.name}Servicer:"]
        for name, request, reply, streams_in, streams_out in methods:
            given = f"AsyncIterator[{request}]" if streams_in else request
            result = f"AsyncIterator[{reply}]" if streams_out else f"Awaitable[{reply}]"
            context = f"grpc.aio.ServicerContext[{request}, {reply}]"
            lines += [
                f"    def {name}(self, request: {given}, context: {context}) -> {result}: ..."
            ]
        lines += [
            "",
            f"def add_{service.name}Servicer_to_server(",
            f"    servicer: {service.name}Servicer, server: grpc.Server | grpc.aio.Server",
            ") -> None: ...",
            "",
        ]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        generate()
    except GenerateError as error:
        sys.exit(str(error))
