"""p4c, which compiles hopsum.p4 for BMv2."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hopsum.experiment.description import ExperimentError

INFO = "p4info.txtpb"
JSON = "bmv2.json"
MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class CompiledByP4c:
    """Output files of p4c; `messages`: its warnings."""

    info: Path
    json: Path
    messages: str


def compile_by_p4c(program: Path, defines: Mapping[str, str]) -> CompiledByP4c:
    """Compile a program with p4c.

    The result is cached, since p4c takes up to 15 seconds: the files are in the cache of compiled
    programs, keyed on the program's text (not its path) and p4c's version. Raises ExperimentError
    if p4c is missing or fails, P4Error for a program without a text.
    """
    from p4switch.device.bundle import make_bundle
    from p4switch.packet_io.compile import cache_entry, is_intact, locked, seal

    compiler = shutil.which("p4c")
    if compiler is None:
        raise ExperimentError("engine bmv2: p4c is not on PATH; it compiles the P4 for BMv2")
    version = _run([compiler, "--version"], program).stdout
    text = make_bundle(program, defines=defines, root=program.parent).decode()
    entry = cache_entry("p4c", version, text)
    names = (INFO, JSON, MESSAGES)
    with locked(entry):
        if not is_intact(entry, names):
            with tempfile.TemporaryDirectory(dir=entry) as folder:
                _compile(compiler, program, defines, Path(folder))
                for name in names:
                    Path(folder, name).replace(entry / name)
            seal(entry, names)
    return CompiledByP4c(entry / INFO, entry / JSON, (entry / MESSAGES).read_text())


def _compile(compiler: str, program: Path, defines: Mapping[str, str], folder: Path) -> None:
    done = _run(
        [
            compiler, "--target", "bmv2", "--arch", "v1model", "--std", "p4-16",
            *(f"-D{name}={value}" for name, value in defines.items()),
            "--p4runtime-files", str(folder / INFO), "-o", str(folder), str(program),
        ],
        program,
    )  # fmt: skip
    Path(folder, f"{program.stem}.json").replace(folder / JSON)
    (folder / MESSAGES).write_text(done.stderr)


def _run(command: list[str], program: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ExperimentError(f"p4c could not compile {program.name}:\n{done.stderr}")
    return done
