"""Architectures: the blocks of a package, and what of a packet's state is passed to each.

The state of a packet has three roots, `headers`, `metadata` and `standard`. A parameter of a block
is bound to a place in it: to a root, or to a field of one. Executors read all that differs between
architectures here, but for a packet's way from block to block and the externs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from p4switch import ir
from p4switch.position import NOWHERE, UnsupportedError

ROOTS = ("headers", "metadata", "standard")


@dataclass(frozen=True, slots=True)
class Architecture:
    """An architecture: v1model or PSA."""

    name: str
    """As in P4Info."""
    package: str
    blocks: Mapping[str, tuple[str, ...]]
    """Blocks of the package in order, by role: the places of their parameters."""
    standard: Mapping[str, str]
    """Fields of `standard` that executors set or read, by v1model's names."""
    watched: frozenset[str]
    """Fields whose assignments decide where a packet goes."""
    hashes: Mapping[str, str]
    """Hash algorithms by member of `hash_enum`."""
    hash_enum: str


_V1MODEL_FIELDS = (
    "ingress_port",
    "egress_spec",
    "egress_port",
    "instance_type",
    "packet_length",
    "enq_timestamp",
    "enq_qdepth",
    "deq_timedelta",
    "deq_qdepth",
    "ingress_global_timestamp",
    "egress_global_timestamp",
    "mcast_grp",
    "egress_rid",
    "checksum_error",
    "parser_error",
    "priority",
)
V1MODEL_HASHES = (
    "crc32",
    "crc32_custom",
    "crc16",
    "crc16_custom",
    "random",
    "identity",
    "csum16",
    "xor16",
)
"""Members of v1model.p4's HashAlgorithm, in order."""

V1MODEL = Architecture(
    name="v1model",
    package="V1Switch",
    blocks={
        "parser": ROOTS,
        "verify": ROOTS[:2],
        "ingress": ROOTS,
        "egress": ROOTS,
        "compute": ROOTS[:2],
        "deparser": ROOTS[:1],
    },
    standard={name: name for name in _V1MODEL_FIELDS},
    watched=frozenset({"egress_spec", "mcast_grp"}),
    hashes={name: name for name in V1MODEL_HASHES},
    hash_enum="HashAlgorithm",
)

PSA = Architecture(
    name="psa",
    package="PSA_Switch",
    blocks={
        "ingress_parser": (
            "headers.ingress",
            "metadata.ingress",
            "standard.ingress_parser_input",
            "metadata.resubmit",
            "metadata.recirculate",
        ),
        "ingress": (
            "headers.ingress",
            "metadata.ingress",
            "standard.ingress_input",
            "standard.ingress_output",
        ),
        "ingress_deparser": (
            "metadata.clone_i2e",
            "metadata.resubmit",
            "metadata.normal",
            "headers.ingress",
            "metadata.ingress",
            "standard.ingress_output",
        ),
        "egress_parser": (
            "headers.egress",
            "metadata.egress",
            "standard.egress_parser_input",
            "metadata.normal",
            "metadata.clone_i2e",
            "metadata.clone_e2e",
        ),
        "egress": (
            "headers.egress",
            "metadata.egress",
            "standard.egress_input",
            "standard.egress_output",
        ),
        "egress_deparser": (
            "metadata.clone_e2e",
            "metadata.recirculate",
            "headers.egress",
            "metadata.egress",
            "standard.egress_output",
            "standard.egress_deparser_input",
        ),
    },
    standard={
        "ingress_port": "ingress_parser_input.ingress_port",
        "instance_type": "egress_parser_input.packet_path",
        "mcast_grp": "ingress_output.multicast_group",
        "egress_rid": "egress_input.instance",
        "priority": "egress_input.class_of_service",
    },
    watched=frozenset({"clone", "drop", "egress_port", "multicast_group", "resubmit"}),
    hashes={
        "IDENTITY": "identity",
        "CRC32": "crc32",
        "CRC32_CUSTOM": "crc32_custom",
        "CRC16": "crc16",
        "CRC16_CUSTOM": "crc16_custom",
        "ONES_COMPLEMENT16": "csum16",
        "TARGET_DEFAULT": "crc16",
    },
    hash_enum="PSA_HashAlgorithm_t",
)


def architecture_of(package: ir.Package) -> Architecture:
    """Return the architecture that a package belongs to; other packages count as v1model's."""
    return PSA if package.name == PSA.package else V1MODEL


def hash_algorithms(program: ir.Program) -> dict[int, str]:
    """Return the hash algorithms by the value that selects them, in v1model's names."""
    found = architecture_of(program.package)
    members = program.enums.get(found.hash_enum, ())
    return {value: found.hashes[name] for name, value in members if name in found.hashes}


@dataclass(frozen=True, slots=True)
class PacketLayout:
    """The state of a program's packets, and its blocks by role."""

    architecture: Architecture
    blocks: Mapping[str, ir.Block]
    roots: Mapping[str, ir.Type]

    @property
    def standard(self) -> ir.Struct:
        """Return the type of `standard`."""
        found = self.roots["standard"]
        assert isinstance(found, ir.Struct)
        return found

    def parameters(self, role: str) -> Iterator[tuple[ir.Parameter, ir.FieldPath]]:
        """Return the parameters of a block with their places."""
        places = self.architecture.blocks[role]
        for parameter, place in zip(self.blocks[role].parameters, places, strict=False):
            yield parameter, tuple(place.split("."))


def packet_layout(program: ir.Program) -> PacketLayout:
    """Return the layout of a program's packets. UnsupportedError for a package of others."""
    architecture = architecture_of(program.package)
    blocks = list(program.package.blocks.values())
    if len(blocks) != len(architecture.blocks) or blocks[0].kind != "parser":
        raise UnsupportedError(
            NOWHERE,
            f"package {program.package.name!r} has {len(blocks)} blocks: expected {V1MODEL.package}"
            f" (v1model) or {PSA.package} (PSA), which have {len(architecture.blocks)}, the first "
            "a parser",
        )
    layout = PacketLayout(architecture, dict(zip(architecture.blocks, blocks, strict=True)), {})
    return PacketLayout(architecture, layout.blocks, _roots(layout))


def _roots(layout: PacketLayout) -> dict[str, ir.Type]:
    """Return the types of the roots. UnsupportedError if two blocks differ about a place."""
    places: dict[ir.FieldPath, ir.Type] = {}
    for role, block in layout.blocks.items():
        for parameter, place in layout.parameters(role):
            kind = parameter.variable.type
            if places.setdefault(place, kind) != kind:
                raise UnsupportedError(
                    NOWHERE, f"{block.name}: {parameter.name} has another type than elsewhere"
                )
    found = {place[0]: kind for place, kind in places.items() if len(place) == 1}
    for root in ROOTS:
        if root not in found:
            fields = [ir.FieldType(p[1], kind) for p, kind in places.items() if p[0] == root]
            found[root] = ir.Struct(f"{layout.architecture.name}_{root}", tuple(fields))
    return found
