"""A program's blocks, run on a packet's headers and metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from operator import attrgetter

from p4switch import ir
from p4switch.backends.reference.code import Code
from p4switch.backends.reference.packet import PacketState
from p4switch.backends.reference.packets import PacketIn, PacketOut
from p4switch.backends.reference.statements import Execute, ExitSignal, RejectSignal
from p4switch.backends.reference.values import Cell, ParserFault, Value, is_object
from p4switch.midend.architecture import packet_layout

Places = list[tuple[Cell, Callable[[PacketState], Value]]]
"""Variables of parameters, and what a packet has for them."""


class ProgramBlocks:
    """The blocks of one program, by their roles in its architecture.

    All of them work on the packet's own headers and metadata: each block's parameters are
    bound to these objects before it runs, which is what copy-in and copy-out amount to.
    """

    def __init__(self, program: ir.Program, code: Code) -> None:
        """Prepare the blocks. Raises UnsupportedError for another package's."""
        layout = self._layout = packet_layout(program)
        self.architecture = layout.architecture
        self._errors = {name: index for index, name in enumerate(program.errors)}
        self._code = code
        self._blocks: dict[str, tuple[Execute, Places, list[tuple[Cell, ir.FieldPath]]]] = {}
        for role, block in layout.blocks.items():
            bound = [
                (code.expressions.cell(parameter.variable), place, parameter)
                for parameter, place in layout.parameters(role)
            ]
            back = [
                (cell, place)
                for cell, place, parameter in bound
                if parameter.direction != "in" and not is_object(parameter.variable.type)
            ]
            places = [(cell, _getter(place)) for cell, place, _ in bound]
            self._blocks[role] = code.callee(block), places, back
        self._kinds = layout.roots
        self.standard_fields = frozenset(field.name for field in layout.standard.fields)
        """Names of the declared fields of `standard`."""
        self._field_lists = program.field_lists

    def _fresh(self, root: str) -> Value:
        return self._code.expressions.shapes.fresh(self._kinds[root])

    def fresh(self, data: bytes) -> PacketState:
        """Return a packet with invalid headers and zero metadata."""
        headers, metadata, standard = (self._fresh(root) for root in self._kinds)
        length = len(data)
        return PacketState(data, PacketIn(data), headers, metadata, standard, length, length, 0)

    def twin(self, packet: PacketState, with_metadata: bool) -> PacketState:
        """Return a copy of the packet, with zero metadata unless `with_metadata`."""
        return PacketState(
            packet.data,
            packet.rest,
            packet.headers.copy(),
            packet.metadata.copy() if with_metadata else self._fresh("metadata"),
            packet.standard.copy() if with_metadata else self._fresh("standard"),
            packet.ingress_length,
            packet.length,
            packet.now_us,
            truncate=packet.truncate,
            work=packet.work,
        )

    def preserve(self, source: PacketState, target: PacketState, field_list: int) -> None:
        """Copy the metadata of a field list."""
        for path in self._field_lists.get(field_list, ()):
            copy_place(source, target, path)

    def outputs(self, role: str) -> Iterator[tuple[ir.Parameter, ir.FieldPath]]:
        """Return the out parameters of a block with their places."""
        return ((p, place) for p, place in self._layout.parameters(role) if p.direction == "out")

    def clear(self, packet: PacketState, place: ir.FieldPath, kind: ir.Type) -> None:
        """Reset a field of a root, of that type."""
        root, name = place
        getattr(packet, root).fields[name] = self._code.expressions.shapes.fresh(kind)

    def run(self, role: str, packet: PacketState) -> None:
        """Run a control, or the parser of that role."""
        execute, places, back = self._blocks[role]
        for cell, place in places:
            cell.value = place(packet)
        try:
            with suppress(ExitSignal):
                execute()
        finally:
            for cell, (root, name) in back:
                getattr(packet, root).fields[name] = cell.value

    def parse(self, packet: PacketState, role: str = "parser") -> int:
        """Run a parser; return its P4 error (0: none)."""
        self._code.packet = packet.rest
        try:
            self.run(role, packet)
        except ParserFault as fault:
            return self._errors[str(fault)]
        except RejectSignal as reject:
            return reject.error
        return 0

    def deparse(self, packet: PacketState, role: str = "deparser") -> bytes:
        """Run a deparser and append the payload."""
        frame = self._code.frame = PacketOut()
        self.run(role, packet)
        return frame.finish(packet.rest)


def _getter(place: ir.FieldPath) -> Callable[[PacketState], Value]:
    root = attrgetter(place[0])
    if len(place) == 1:
        return root
    name = place[1]
    return lambda packet: root(packet).fields[name]


def copy_place(source: PacketState, target: PacketState, place: ir.FieldPath) -> None:
    """Copy a part of the metadata of one packet to another."""
    root, *path = place
    mine, theirs = getattr(target, root), getattr(source, root)
    for name in path[:-1]:
        mine, theirs = mine.fields[name], theirs.fields[name]
    if not path:
        mine.assign(theirs)
        return
    value = theirs.fields[path[-1]]
    mine.fields[path[-1]] = value.copy() if hasattr(value, "copy") else value
