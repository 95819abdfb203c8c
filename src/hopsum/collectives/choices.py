"""Choices that options, tasks and plans share, by the names that users give them.

Imports nothing heavy: every command loads it to declare its options.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from string import ascii_lowercase

LEVEL_WISE = "level-wise"
SCHEDULE_NAMES = ("ring", "halving-doubling", "tree", "double-tree", LEVEL_WISE)
"""All-reduces among hosts, of `hopsum.collectives.algorithms.catalogue`."""
MULTI_TREE = "multi-tree"
"""On trees with shares that a planner chose ([000][]): of switches, or of hosts."""
DEFAULT_PLANNER = "multi-hop"
MOST_WINDOW = 1 << 16
"""Maximum number of fragments in flight; switches have fewer slots."""
WEIGHT_STEPS = 64
"""Default of `WeightSteps.steps`: smaller parts of a tensor are not worth a connection."""
MOST_WEIGHT_STEPS = 1024
EMBEDDING = "embedding"
"""Over several logical topologies, of switches and of hosts, with weights ([002][])."""
MTREE = "mtree"
"""On trees of hosts that grow link by link ([000][])."""
PLANNER_NAMES = (DEFAULT_PLANNER, MULTI_TREE, EMBEDDING, MTREE)
"""Of `hopsum.planning.registry`."""


def window_fault(window: int) -> str:
    """Return what is wrong with a job's window, or an empty string."""
    if 1 <= window <= MOST_WINDOW and not window & (window - 1):
        return ""
    return f"window {window}: expected a power of two, at most {MOST_WINDOW}"


class Algorithm(StrEnum):
    """How gradients are summed."""

    IN_NETWORK = "in-network"
    """In the switches, hop by hop."""
    SERVER = "server"
    """By a parameter server; no switch aggregates."""
    RING = "ring"
    """By a ring all-reduce among the workers, over TCP; like those below."""
    HALVING_DOUBLING = "halving-doubling"
    """Recursive halving and doubling."""
    TREE = "tree"
    """Up and down a balanced binary tree of the workers."""
    DOUBLE_TREE = "double-tree"
    """On two binary trees, half of the tensor each."""
    LEVEL_WISE = "level-wise"
    """Level by level on the tree of the network."""
    MULTI_TREE = "multi-tree"
    """On trees of the planner multi-tree or mtree: in switches, or without any by TCP."""

    EMBEDDING = "embedding"
    """By the planner embedding: parts of a tensor in the switches, others among hosts over TCP."""

    @property
    def among_hosts(self) -> bool:
        """Whether the workers sum by a schedule over TCP, without planner, servers or switches."""
        return self not in (Algorithm.IN_NETWORK, Algorithm.SERVER, Algorithm.EMBEDDING)


class Collective(StrEnum):
    """Collective of a job; all but all-reduces need trees with roots at the workers."""

    ALL_REDUCE = "all-reduce"
    """Every worker gets the sum."""
    REDUCE_SCATTER = "reduce-scatter"
    """Worker w gets part w of the sum."""
    ALL_GATHER = "all-gather"
    """Every worker gets part w of worker w's tensor, for all w."""
    REDUCE = "reduce"
    """Worker 0 gets the sum."""
    BROADCAST = "broadcast"
    """Every worker gets worker 0's tensor."""

    @property
    def sums(self) -> bool:
        """Whether values are added."""
        return self not in (Collective.ALL_GATHER, Collective.BROADCAST)


class DataType(StrEnum):
    """Element type of tensors."""

    FLOAT32 = "float32"
    INT32 = "int32"
    FLOAT16 = "float16"
    BFLOAT16 = "bfloat16"
    INT8 = "int8"
    """Sums are modulo 256."""

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return int(self.strip(ascii_lowercase))

    @property
    def scaled(self) -> bool:
        """Whether sums in switches are of integers to which values are scaled."""
        return "float" in self


class Results(StrEnum):
    """How results reach the workers."""

    REPLICATED = "replicated"
    """One packet a link: switches copy it (multicast groups)."""
    UNICAST = "unicast"
    """One packet a worker, with its own stack ([001 S4][001])."""


class Siblings(StrEnum):
    """How the leaves of one group exchange."""

    RING = "ring"
    """In p - 1 turns around a ring, combining on the way (claim 2)."""
    HIERARCHICAL = "hierarchical"
    """In one step: each sends every other child its target part (claims 3 and 4)."""


class Shape(StrEnum):
    """Whether ranks exchange level by level."""

    AUTO = "auto"
    """Level by level where a link between levels binds, else flat."""
    LEVELS = "levels"
    """Level by level, as in [003][]."""
    FLAT = "flat"
    """All ranks as siblings, in the order of the tree."""


class Coordination(StrEnum):
    """How the bit vectors of workers that agree on an order are combined ([004][])."""

    AUTO = "auto"
    """On a virtual ring where the network has one, else on the tree."""
    TREE = "tree"
    """Up and down the tree of the processes."""
    RING = "ring"
    """Around a ring of them: the network's, or by number where it has none."""
    SWITCHES = "switches"
    """In the switches, by a job of its own whose reduction is the bitwise and."""


@dataclass(frozen=True, slots=True)
class FormOptions:
    """Requested form; `siblings` None: chosen for links and tensor."""

    shape: Shape = Shape.AUTO
    siblings: Siblings | None = None

    def to_dict(self) -> dict[str, str | None]:
        """As an object of JSON."""
        return {"form": self.shape, "siblings": self.siblings}


DEFAULT_FORM = FormOptions()


class Engine(StrEnum):
    """Switch that runs the P4 program."""

    EMBEDDED = "embedded"
    BMV2 = "bmv2"
