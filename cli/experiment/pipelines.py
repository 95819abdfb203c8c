"""hopsum.p4 compiled for an engine, as the controller pushes it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from cli.experiment.description import Engine, ExperimentError
from controller.dataplane.pipeline import Pipeline, load_pipeline
from network.model import Network
from protocol.wire import HOPS_DEFAULT, check_hops

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAM = CHECKOUT / "p4src" / "hopsum.p4"
BUILD = Path("build")
P4INFO = "hopsum.p4info.txtpb"


def slots_of(network: Network) -> int:
    """Return the register size to compile for: a power of two, enough for every switch's slots."""
    most = max((switch.slots for switch in network.switches.values()), default=1)
    return 1 << (most - 1).bit_length()


def defines_of(lanes: int, slots: int, max_hops: int = HOPS_DEFAULT) -> dict[str, str]:
    """The choices that are made when the program is compiled."""
    defines = {"LANES": str(lanes), "SLOTS": str(slots)}
    return defines if max_hops == HOPS_DEFAULT else {**defines, "MAX_HOPS": str(max_hops)}


def compile_pipeline(
    engine: Engine, lanes: int, slots: int, max_hops: int = HOPS_DEFAULT
) -> Pipeline:
    """Compile hopsum.p4 for an engine; the files lie in `build/` afterwards.

    Raises P4Error from the embedded compiler, ExperimentError if p4c is missing or fails,
    LayoutError for lanes that no packet has.
    """
    check_hops(max_hops, lanes)
    defines = defines_of(lanes, slots, max_hops)
    folder = BUILD / "-".join((engine.value, *defines.values()))
    folder.mkdir(parents=True, exist_ok=True)
    compile_into = _embedded if engine is Engine.EMBEDDED else _bmv2
    # Another process may read these files, or write them, at this moment.
    with tempfile.TemporaryDirectory(dir=folder) as unfinished:
        made = compile_into(Path(unfinished), defines)
        p4info, config = (path.replace(folder / path.name) for path in made)
    return load_pipeline(p4info, config, lanes, slots)


def _embedded(folder: Path, defines: dict[str, str]) -> tuple[Path, Path]:
    """P4Info and configuration of p4switch, in a folder."""
    from p4switch.check.program import compile_file
    from p4switch.control.bundle import make_bundle
    from p4switch.control.p4info import p4info_text

    p4info, config = folder / P4INFO, folder / "hopsum.p4bin"
    config.write_bytes(make_bundle(PROGRAM, defines=defines))
    p4info.write_text(p4info_text(compile_file(PROGRAM, defines=defines)))
    return p4info, config


def _bmv2(folder: Path, defines: dict[str, str]) -> tuple[Path, Path]:
    """P4Info and configuration of BMv2, in a folder."""
    p4info, config = folder / P4INFO, folder / "hopsum.json"
    compiler = shutil.which("p4c")
    if compiler is None:
        raise ExperimentError("engine bmv2: p4c is not on PATH; it compiles the P4 for BMv2")
    done = subprocess.run(
        [
            compiler, "--target", "bmv2", "--arch", "v1model", "--std", "p4-16",
            *(f"-D{name}={value}" for name, value in defines.items()),
            "--p4runtime-files", str(p4info), "-o", str(folder), str(PROGRAM),
        ],
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise ExperimentError(f"p4c could not compile {PROGRAM.name}:\n{done.stderr}")
    return p4info, config
