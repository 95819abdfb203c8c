"""Pipelines of hopsum.p4 for an engine, as the controller pushes them."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from hopsum.collectives.choices import Engine
from hopsum.controller.dataplane.pipeline import Pipeline, load_pipeline
from hopsum.controller.jobs.settings import ClusterSettings
from hopsum.network.model import Network
from hopsum.protocol.wire import HOPS_DEFAULT, check_hops

PACKAGE = Path(__file__).resolve().parents[1]
PROGRAM = PACKAGE / "p4src" / "hopsum.p4"


def slots_of(network: Network) -> int:
    """Return the register size to compile for: a power of two that holds every switch's slots."""
    most = max((switch.slots for switch in network.switches.values()), default=1)
    return 1 << (most - 1).bit_length()


def defines_of(lanes: int, slots: int, max_hops: int = HOPS_DEFAULT) -> dict[str, str]:
    """Return the compile-time options of the program."""
    defines = {"LANES": str(lanes), "SLOTS": str(slots)}
    return defines if max_hops == HOPS_DEFAULT else {**defines, "MAX_HOPS": str(max_hops)}


def compile_pipeline(
    engine: Engine, lanes: int, slots: int, max_hops: int = HOPS_DEFAULT
) -> Pipeline:
    """Compile hopsum.p4 for an engine.

    Raises P4Error from the embedded compiler, ExperimentError if p4c is missing or fails,
    LayoutError for an invalid number of lanes.
    """
    check_hops(max_hops, lanes)
    compiled = _bmv2 if engine is Engine.BMV2 else embedded_pipeline
    return compiled(lanes, slots, max_hops)


@cache
def embedded_pipeline(lanes: int, slots: int, max_hops: int) -> Pipeline:
    """Return the pipeline for the embedded switch, compiled once per process and cache."""
    from finsy.proto import p4i

    from p4switch.backends.native.build import package_hash
    from p4switch.packet_io.compile import cache_entry, is_intact, locked, replace_file, seal
    from p4switch.packet_io.private_files import UnsafePathError

    defines = defines_of(lanes, slots, max_hops)
    # Compiling takes as long as a short run: the result is cached with the switches' code.
    sources = [path.read_text() for path in sorted(PROGRAM.parent.rglob("*.p4"))]
    parts = (package_hash(), repr(sorted(defines.items())), *sources)
    try:
        entry = cache_entry("pipeline", *parts)
        with locked(entry):
            info, config = entry / "p4info", entry / "config"
            names = [info.name, config.name]
            if not is_intact(entry, names):
                made = _compile_embedded(defines)
                for path, data in zip((info, config), made, strict=True):
                    replace_file(path, data)
                seal(entry, names)
            kept = info.read_bytes(), config.read_bytes()
    except (OSError, UnsafePathError):
        kept = _compile_embedded(defines)
    return Pipeline(p4i.P4Info.FromString(kept[0]), kept[1], lanes, slots)


def _compile_embedded(defines: dict[str, str]) -> tuple[bytes, bytes]:
    """Return the serialized P4Info and the bundle for switches."""
    from p4switch.device.bundle import make_bundle
    from p4switch.frontend.program import compile_file
    from p4switch.p4runtime.p4info import p4info

    program = compile_file(PROGRAM, defines=defines)
    serialized = p4info(program).SerializeToString(deterministic=True)
    # The same wherever hopsum is: its size decides when messages of a simulation arrive.
    return serialized, make_bundle(PROGRAM, defines=defines, root=PROGRAM.parent)


def pipeline_for(network: Network, engine: Engine, settings: ClusterSettings) -> Pipeline:
    """Compile hopsum.p4 for the switches of a cluster; raises as `compile_pipeline`."""
    return compile_pipeline(engine, settings.lanes, slots_of(network), settings.max_hops)


def _bmv2(lanes: int, slots: int, max_hops: int) -> Pipeline:
    from hopsum.experiment.p4c import compile_by_p4c

    made = compile_by_p4c(PROGRAM, defines_of(lanes, slots, max_hops))
    return load_pipeline(made.info, made.json, lanes, slots)
