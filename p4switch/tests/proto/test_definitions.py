"""The messages of our definitions: those of finsy's generated code, and a switch that uses them."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from finsy.proto import gnmi, p4d, p4i, p4r, p4t, rpc_code, rpc_status
from google.protobuf import descriptor_pb2

from p4switch.proto.definitions import Definitions
from tests.support.paths import EVERYTHING_P4, ROOT

FILES = {
    "code": rpc_code,
    "gnmi": gnmi,
    "p4data": p4d,
    "p4info": p4i,
    "p4runtime": p4r,
    "p4types": p4t,
    "status": rpc_status,
}
definitions = Definitions()


def shape(message: Any) -> dict[str, Any]:
    """What a message's descriptor says, with all that is in it; of gNMI without extensions."""
    made = descriptor_pb2.DescriptorProto()
    message.CopyToProto(made)
    fields = [
        (
            f.name,
            f.number,
            f.label,
            f.type,
            f.type_name,
            f.HasField("oneof_index") and f.oneof_index,
        )
        for f in made.field
        if "gnmi_ext" not in f.type_name
    ]
    return {
        "fields": fields,
        "oneofs": [each.name for each in made.oneof_decl],
        "enums": {e.name: list(e.values_by_number) for e in message.enum_types},
        "names": {e.name: sorted(e.values_by_name) for e in message.enum_types},
        "nested": {each.name: shape(each) for each in message.nested_types},
        "map": made.options.map_entry,
    }


@pytest.mark.parametrize("name", FILES)
def test_messages_are_those_of_generated_code(name: str) -> None:
    ours, theirs = definitions.module(name), FILES[name].DESCRIPTOR
    for message in theirs.message_types_by_name.values():
        assert shape(getattr(ours, message.name).DESCRIPTOR) == shape(message), message.name
    for enum in theirs.enum_types_by_name.values():
        assert dict(getattr(ours, enum.name).items()) == {
            value.name: value.number for value in enum.values
        }


@pytest.mark.parametrize("name", ["p4runtime", "gnmi"])
def test_services_are_those_of_generated_code(name: str) -> None:
    def calls(file: Any) -> list[tuple[Any, ...]]:
        made = descriptor_pb2.FileDescriptorProto()
        file.CopyToProto(made)
        return [
            (s.name, m.name, m.input_type, m.output_type, m.client_streaming, m.server_streaming)
            for s in made.service
            for m in s.method
        ]

    assert calls(definitions.file(name)) == calls(FILES[name].DESCRIPTOR)


WITHOUT_FINSY = f"""
import importlib.util, sys
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "finsy" else found(name, *rest)
import grpc
from pathlib import Path
from p4switch.device.bundle import make_bundle
from p4switch.device.device import Device
from p4switch.device.loading import Loader
from p4switch.proto import U128, p4r, p4r_grpc
from p4switch.targets.v1model.engine import EngineOptions

bundle = make_bundle(Path({str(EVERYTHING_P4)!r}))
address = f"unix:{{sys.argv[1]}}"
with Device([], Loader("interpreter", EngineOptions()), device_config=bundle, address=address):
    with grpc.insecure_channel(address) as channel:
        stub = p4r_grpc.P4RuntimeStub(channel)
        config = stub.GetForwardingPipelineConfig(
            p4r.GetForwardingPipelineConfigRequest(device_id=1)).config
        [register] = [r for r in config.p4info.registers if r.preamble.name.endswith("totals")]
        asked = p4r.RegisterEntry(register_id=register.preamble.id, index=p4r.Index(index=2))
        request = p4r.ReadRequest(device_id=1, entities=[p4r.Entity(register_entry=asked)])
        [answer] = stub.Read(request)
        print(answer.entities[0].register_entry.data.bitstring)
        asked.data.bitstring = b"\\x07"
        update = p4r.Update(type=p4r.Update.MODIFY, entity=p4r.Entity(register_entry=asked))
        try:
            stub.Write(p4r.WriteRequest(device_id=1, election_id=U128.encode(1), updates=[update]))
        except grpc.RpcError as error:
            print(error.code().name)
print(any(name.startswith("finsy") for name in sys.modules))
"""


@pytest.mark.slow
def test_a_switch_serves_p4runtime_without_finsy(tmp_path: Any) -> None:
    command = [sys.executable, "-c", WITHOUT_FINSY, str(tmp_path / "s1")]
    shown = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert shown.split("\n") == ["b'\\x00'", "PERMISSION_DENIED", "False", ""]
