"""Messages from the definitions in `definitions/`, without generated code.

Generated modules belong to a range of protobuf's versions; these work with all from 3.20 on. The
reader knows as much of the language as the definitions use: messages, enums, oneofs, maps and
services, with whole names of types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import grpc
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.internal import enum_type_wrapper

FOLDER = Path(__file__).with_name("definitions")
ANY = "google/protobuf/any.proto"
TOKEN = re.compile(r'//[^\n]*|"[^"]*"|-?[\w.]+|[{}()=;<>,]')
Field = descriptor_pb2.FieldDescriptorProto
SCALARS = {
    name: getattr(Field, f"TYPE_{name.upper()}")
    for name in ("double", "float", "int64", "uint64", "int32", "bool", "string", "bytes", "uint32")
}


class _Reader:
    """Reads one file."""

    def __init__(self, name: str, text: str) -> None:
        self.file = descriptor_pb2.FileDescriptorProto(name=name, syntax="proto3")
        self._tokens = (t for t in TOKEN.findall(text) if not t.startswith("//"))
        for token in self._tokens:
            if token == "syntax":
                self._take(3)
            elif token == "package":
                self.file.package, _ = self._take(2)
            elif token == "import":
                dependency, _ = self._take(2)
                self.file.dependency.append(dependency.strip('"'))
            elif token == "message":
                self._message(self.file.message_type.add())
            elif token == "enum":
                self._enum(self.file.enum_type.add())
            else:
                self._service(self.file.service.add())

    def _take(self, count: int) -> list[str]:
        return [next(self._tokens) for _ in range(count)]

    def _until_brace(self) -> Iterator[str]:
        while (token := next(self._tokens)) != "}":
            yield token

    def _message(self, message: Any) -> None:
        message.name, _ = self._take(2)
        for token in self._until_brace():
            if token == "message":
                self._message(message.nested_type.add())
            elif token == "enum":
                self._enum(message.enum_type.add())
            elif token == "oneof":
                name, _ = self._take(2)
                message.oneof_decl.add(name=name)
                for kind in self._until_brace():
                    self._field(message, kind).oneof_index = len(message.oneof_decl) - 1
            elif token == "map":
                self._map(message)
            elif token == "repeated":
                self._field(message, next(self._tokens), Field.LABEL_REPEATED)
            else:
                self._field(message, token)

    def _field(self, message: Any, kind: str, label: Any = Field.LABEL_OPTIONAL) -> Any:
        name, _, number, _ = self._take(4)
        return _add_field(message, name, int(number), kind, label)

    def _map(self, message: Any) -> None:
        _, key, _, value, _, name, _, number, _ = self._take(9)
        entry = message.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        _add_field(entry, "key", 1, key)
        _add_field(entry, "value", 2, value)
        package = self.file.package
        kind = f"{package}.{message.name}.{entry.name}"
        _add_field(message, name, int(number), kind, Field.LABEL_REPEATED)

    def _enum(self, enum: Any) -> None:
        enum.name, _ = self._take(2)
        for name in self._until_brace():
            _, number, _ = self._take(3)
            enum.value.add(name=name, number=int(number))

    def _service(self, service: Any) -> None:
        service.name, _ = self._take(2)
        for _ in self._until_brace():
            name = next(self._tokens)
            method = service.method.add(name=name)
            method.client_streaming, method.input_type = self._stream()
            next(self._tokens)
            method.server_streaming, method.output_type = self._stream()
            next(self._tokens)

    def _stream(self) -> tuple[bool, str]:
        words = self._take(2)
        while words[-1] != ")":
            words += self._take(1)
        return words[1] == "stream", f".{words[-2]}"


def _add_field(
    message: Any, name: str, number: int, kind: str, label: Any = Field.LABEL_OPTIONAL
) -> Any:
    added = message.field.add(name=name, number=number, label=label)
    if kind in SCALARS:
        added.type = SCALARS[kind]
    else:
        added.type_name = f".{kind}"  # Whether it is a message or an enum, the pool finds out.
    return added


class Definitions:
    """Definitions, read as they are needed into a pool that no other copy of them disturbs."""

    def __init__(self) -> None:
        make_pool: Any = descriptor_pool.DescriptorPool  # Its types differ between versions.
        self._pool = make_pool()
        self._pool.AddSerializedFile(any_pb2.DESCRIPTOR.serialized_pb)
        self._files: dict[str, Any] = {ANY: None}

    def _add(self, name: str) -> None:
        """Read a file and what it imports, unless that was done."""
        if name in self._files:
            return
        file = _Reader(name, (FOLDER / name).read_text(encoding="utf-8")).file
        self._files[name] = file
        for dependency in file.dependency:
            self._add(dependency)
        self._pool.AddSerializedFile(file.SerializeToString())

    def file(self, name: str) -> Any:
        """Return the descriptor of a file."""
        self._add(f"{name}.proto")
        return self._pool.FindFileByName(f"{name}.proto")

    def module(self, name: str) -> ModuleType:
        """Return the messages and enums of a file, as a generated module has them."""
        made = ModuleType(name)
        found = self.file(name)
        for message in found.message_types_by_name.values():
            setattr(made, message.name, _message_class(self._pool, message))
        for enum in found.enum_types_by_name.values():
            setattr(made, enum.name, enum_type_wrapper.EnumTypeWrapper(enum))
            for value in enum.values:
                setattr(made, value.name, value.number)
        return made

    def services(self, name: str) -> ModuleType:
        """Return the stubs and servicers of a file, as a generated module of gRPC has them."""
        made = ModuleType(f"{name}_grpc")
        self._add(f"{name}.proto")
        for service in self._files[f"{name}.proto"].service:
            methods = {
                method.name: (
                    _message_class(self._pool, self._find(method.input_type)),
                    _message_class(self._pool, self._find(method.output_type)),
                    ("stream" if method.client_streaming else "unary")
                    + ("_stream" if method.server_streaming else "_unary"),
                )
                for method in service.method
            }
            full_name = f"{self._files[f'{name}.proto'].package}.{service.name}"
            setattr(made, f"{service.name}Servicer", type(f"{service.name}Servicer", (), {}))
            setattr(made, f"{service.name}Stub", _stub(full_name, methods))
            setattr(made, f"add_{service.name}Servicer_to_server", _adder(full_name, methods))
        return made

    def _find(self, name: str) -> Any:
        return self._pool.FindMessageTypeByName(name.lstrip("."))


@cache
def shared() -> Definitions:
    """Return the definitions that all modules of a process share."""
    return Definitions()


def fill(module: dict[str, Any], name: str, services: bool = False) -> None:
    """Give a module the messages of a file, or its services, as generated code would."""
    made = shared().services(name) if services else shared().module(name)
    module.update({key: each for key, each in vars(made).items() if not key.startswith("__")})


def _message_class(pool: Any, message: Any) -> Any:
    if hasattr(message_factory, "GetMessageClass"):
        return message_factory.GetMessageClass(message)
    factory: Any = message_factory.MessageFactory(pool)  # protobuf before 4.22
    return factory.GetPrototype(message)


def is_repeated(field: Any) -> bool:
    """Return whether a field is a list or a map, by its descriptor."""
    if hasattr(field, "is_repeated"):
        return bool(field.is_repeated)
    return bool(field.label == field.LABEL_REPEATED)  # protobuf before 6.31


Methods = dict[str, tuple[Any, Any, str]]


def _stub(service: str, methods: Methods) -> type:
    def start(self: Any, channel: Any) -> None:
        for name, (request, answer, kind) in methods.items():
            call = getattr(channel, kind)(
                f"/{service}/{name}",
                request_serializer=request.SerializeToString,
                response_deserializer=answer.FromString,
            )
            setattr(self, name, call)

    return type("Stub", (), {"__init__": start})


def _adder(service: str, methods: Methods) -> Callable[[Any, Any], None]:
    def add(servicer: Any, server: Any) -> None:
        handlers = {
            name: getattr(grpc, f"{kind}_rpc_method_handler")(
                getattr(servicer, name),
                request_deserializer=request.FromString,
                response_serializer=answer.SerializeToString,
            )
            for name, (request, answer, kind) in methods.items()
            if hasattr(servicer, name)
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))

    return add
