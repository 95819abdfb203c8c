"""A v1model program's six blocks, run on a packet's headers and metadata (`pipeline.Blocks`)."""

from __future__ import annotations

from contextlib import suppress

from p4switch import ir
from p4switch.backends.reference.code import Code
from p4switch.backends.reference.packet import PacketState
from p4switch.backends.reference.packets import PacketIn, PacketOut
from p4switch.backends.reference.statements import ExitSignal, RejectSignal
from p4switch.backends.reference.values import ParserFault, Value
from p4switch.position import NOWHERE, UnsupportedError

BLOCKS = ("parser", "verify", "ingress", "egress", "compute", "deparser")
"""The parameters of V1Switch, in order."""


class ProgramBlocks:
    """The six blocks of one program.

    All of them work on the packet's own headers and metadata: each block's parameters are
    bound to these objects before it runs, which is what copy-in and copy-out amount to.
    """

    def __init__(self, program: ir.Program, code: Code) -> None:
        """Prepare the blocks. Raises UnsupportedError for another package than V1Switch."""
        blocks = list(program.package.blocks.values())
        if len(blocks) != len(BLOCKS):
            raise UnsupportedError(
                NOWHERE,
                f"package {program.package.name!r} has {len(blocks)} blocks; "
                f"only v1model's V1Switch is supported, which has {len(BLOCKS)}",
            )
        self._errors = {name: index for index, name in enumerate(program.errors)}
        self._code = code
        self._run = [code.callee(block) for block in blocks]
        self._parameters = [
            [code.expressions.cell(parameter.variable) for parameter in block.parameters]
            for block in blocks
        ]
        self._kinds = [parameter.variable.type for parameter in blocks[0].parameters]
        standard = self._kinds[2]
        assert isinstance(standard, ir.Struct)
        self.standard_fields = frozenset(field.name for field in standard.fields)
        self._field_lists = program.field_lists

    def _fresh(self, number: int) -> Value:
        return self._code.expressions.shapes.fresh(self._kinds[number])

    def fresh(self, data: bytes) -> PacketState:
        """See `pipeline.Blocks`."""
        headers, metadata, standard = (self._fresh(number) for number in range(3))
        length = len(data)
        return PacketState(data, PacketIn(data), headers, metadata, standard, length, length, 0)

    def twin(self, packet: PacketState, with_metadata: bool) -> PacketState:
        """See `pipeline.Blocks`."""
        return PacketState(
            packet.data,
            packet.rest,
            packet.headers.copy(),
            packet.metadata.copy() if with_metadata else self._fresh(1),
            packet.standard.copy() if with_metadata else self._fresh(2),
            packet.ingress_length,
            packet.length,
            packet.now_us,
            truncate=packet.truncate,
            work=packet.work,
        )

    def preserve(self, source: PacketState, target: PacketState, field_list: int) -> None:
        """See `pipeline.Blocks`."""
        for root, *path in self._field_lists.get(field_list, ()):
            mine, theirs = getattr(target, root), getattr(source, root)
            for name in path[:-1]:
                mine, theirs = mine.fields[name], theirs.fields[name]
            if not path:
                mine.assign(theirs)
                continue
            value = theirs.fields[path[-1]]
            mine.fields[path[-1]] = value.copy() if hasattr(value, "copy") else value

    def _bind(self, number: int, packet: PacketState) -> None:
        values = (packet.headers, packet.metadata, packet.standard)
        for cell, value in zip(self._parameters[number], values, strict=False):
            cell.value = value

    def _control(self, number: int, packet: PacketState) -> None:
        self._bind(number, packet)
        with suppress(ExitSignal):
            self._run[number]()

    def parse(self, packet: PacketState) -> int:
        """See `pipeline.Blocks`."""
        self._bind(0, packet)
        self._code.packet = packet.rest
        try:
            self._run[0]()
        except ParserFault as fault:
            return self._errors[str(fault)]
        except RejectSignal as reject:
            return reject.error
        return 0

    def verify(self, packet: PacketState) -> None:
        """See `pipeline.Blocks`."""
        self._control(1, packet)

    def ingress(self, packet: PacketState) -> None:
        """See `pipeline.Blocks`."""
        self._control(2, packet)

    def egress(self, packet: PacketState) -> None:
        """See `pipeline.Blocks`."""
        self._control(3, packet)

    def compute(self, packet: PacketState) -> None:
        """See `pipeline.Blocks`."""
        self._control(4, packet)

    def deparse(self, packet: PacketState) -> bytes:
        """See `pipeline.Blocks`."""
        frame = self._code.frame = PacketOut()
        self._control(5, packet)
        return frame.finish(packet.rest)
