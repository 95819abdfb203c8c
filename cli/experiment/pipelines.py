"""hopsum.p4 compiled for an engine, as the controller pushes it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from cli.experiment.description import Engine
from controller.dataplane.pipeline import Pipeline, load_pipeline
from controller.jobs.settings import ClusterSettings
from network.model import Network
from protocol.wire import HOPS_DEFAULT, check_hops

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "p4src" / "hopsum.p4"


def slots_of(network: Network) -> int:
    """Return the register size to compile for: a power of two, enough for every switch's slots."""
    most = max((switch.slots for switch in network.switches.values()), default=1)
    return 1 << (most - 1).bit_length()


def defines_of(lanes: int, slots: int, max_hops: int = HOPS_DEFAULT) -> dict[str, str]:
    """Return the choices that are made when the program is compiled."""
    defines = {"LANES": str(lanes), "SLOTS": str(slots)}
    return defines if max_hops == HOPS_DEFAULT else {**defines, "MAX_HOPS": str(max_hops)}


def compile_pipeline(
    engine: Engine, lanes: int, slots: int, max_hops: int = HOPS_DEFAULT
) -> Pipeline:
    """Compile hopsum.p4 for an engine.

    Raises P4Error from the embedded compiler, ExperimentError if p4c is missing or fails,
    LayoutError for lanes that no packet has.
    """
    check_hops(max_hops, lanes)
    compiled = _bmv2 if engine is Engine.BMV2 else _embedded
    return compiled(lanes, slots, max_hops)


@cache
def _embedded(lanes: int, slots: int, max_hops: int) -> Pipeline:
    from p4switch.device.bundle import make_bundle
    from p4switch.frontend.program import compile_file
    from p4switch.p4runtime.p4info import p4info

    defines = defines_of(lanes, slots, max_hops)
    program = compile_file(PROGRAM, defines=defines)
    return Pipeline(p4info(program), make_bundle(PROGRAM, defines=defines), lanes, slots)


def pipeline_for(network: Network, engine: Engine, settings: ClusterSettings) -> Pipeline:
    """Compile hopsum.p4 for the switches of a cluster; raises as `compile_pipeline`."""
    return compile_pipeline(engine, settings.lanes, slots_of(network), settings.max_hops)


def _bmv2(lanes: int, slots: int, max_hops: int) -> Pipeline:
    from cli.experiment.p4c import compile_by_p4c

    made = compile_by_p4c(PROGRAM, defines_of(lanes, slots, max_hops))
    return load_pipeline(made.info, made.json, lanes, slots)
