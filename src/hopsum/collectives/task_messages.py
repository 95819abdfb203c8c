"""Workloads and options of a task as control messages; converting back gives an equal value.

Apart from `hopsum.collectives.messages`, so that a command that submits a job loads no numpy.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import Enum
from typing import Any, TypeVar

from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper
from google.protobuf.message import Message

from hopsum.collectives.choices import Collective, DataType, FormOptions, Shape, Siblings
from hopsum.collectives.workload import WorkloadError, WorkloadSpec
from hopsum.protocol import hopsum_pb2 as pb

Kind = TypeVar("Kind", bound=Enum)


def workload_message(spec: WorkloadSpec) -> pb.Workload:
    """Return the message of a workload."""
    names = {"dtype": spec.dtype.name, "collective": spec.collective.name}
    return pb.Workload(**asdict(spec) | names)


def workload_from(message: pb.Workload) -> WorkloadSpec:
    """Return the workload of a message. ValueError, or WorkloadError, that names the field."""
    fields = given(message)
    needed = [field.name for field in pb.Workload.DESCRIPTOR.fields if field.has_presence]
    for name in needed:
        if name not in fields:
            raise WorkloadError(f"workload: {name} is missing; it has {', '.join(needed)}")
    fields["dtype"] = choice("workload: dtype", message.dtype, pb.DataType, DataType)
    fields["ranks"] = tuple(message.ranks)
    fields["collective"] = choice(
        "workload: collective", message.collective, pb.Collective, Collective
    )
    return WorkloadSpec(**fields)


def given(message: Message) -> dict[str, Any]:
    """Return the fields that are set in a message, by name."""
    return {field.name: value for field, value in message.ListFields()}


def form_message(form: FormOptions) -> pb.LevelWise:
    """Return the message of level-wise options."""
    siblings = None if form.siblings is None else form.siblings.name
    return pb.LevelWise(form=form.shape.name, siblings=siblings)


def form_from(message: pb.LevelWise) -> FormOptions:
    """Return the level-wise options of a message. Raises ValueError."""
    siblings = choice("siblings", message.siblings, pb.LevelWise.Siblings, Siblings)
    return FormOptions(
        choice("form", message.form, pb.LevelWise.Shape, Shape),
        siblings if message.HasField("siblings") else None,
    )


def choice(field: str, number: int, numbers: EnumTypeWrapper, kinds: type[Kind]) -> Kind:
    """Return the enum member for a protobuf number, which may be invalid."""
    if number not in numbers.values():
        raise ValueError(f"{field} {number}: expected one of {', '.join(numbers.keys())}")
    return kinds[numbers.Name(number)]
