"""Which cases a checkout of p4c has for v1model and PSA, and what each must do."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from p4switch import ir
from p4switch.bmv2_json.reader import bundle, read
from p4switch.frontend.program import compile_file
from p4switch.midend.portability import bmv2_limits
from p4switch.p4runtime.p4info import p4info
from p4switch.position import P4Error, Position
from p4switch.stf import StfError, engine_factory, run_stf

NAMES_CONFLICT = "conflicting control plane name"
"""p4c says so of programs that it translated from P4_14, where actions of one name are usual."""
NO_MAIN = "the program makes no package called 'main'"
"""Many programs of the corpus are libraries; that they make no switch is no reason to refuse."""


_ERROR = re.compile(r"\berror\b|Error\b")
"""Of p4c's messages; warnings have neither."""


@dataclass(frozen=True, slots=True)
class Case:
    """A program, and the file that says what it must do (STF, a P4Info) if there is one."""

    suite: str
    name: str
    program: Path
    expected: Path | None = None

    @property
    def title(self) -> str:
        """Its name in known_failures.txt."""
        return f"{self.suite}/{self.name}"


FOR_PSA = "psa-"
"""Prefix of suites of PSA's programs; the others are v1model's."""


def _includes(program: Path, declarations: str) -> bool:
    """Whether it includes that file; not if it is a link to what the checkout lacks."""
    return program.exists() and declarations in program.read_text(errors="replace")


def _samples(testdata: Path, suite: str) -> Iterator[tuple[str, Path]]:
    """(name, program) of the P4_16 samples, and of the P4_14 ones in p4c's translation."""
    samples = testdata / "p4_16_samples"
    declarations = "bmv2/psa.p4" if suite.startswith(FOR_PSA) else "v1model.p4"
    for program in sorted(samples.rglob("*.p4")):
        if _includes(program, declarations):
            yield str(program.relative_to(samples).with_suffix("")), program
    if suite.startswith(FOR_PSA):
        return
    translated = testdata / "p4_14_samples_outputs"
    for source in sorted((testdata / "p4_14_samples").glob("*.p4")):
        program = translated / source.name
        if _includes(program, declarations):
            yield f"p4_14/{source.stem}", program


def _stf(testdata: Path, suite: str) -> Iterator[Case]:
    for name, program in _samples(testdata, suite):
        stf = program.with_suffix(".stf")
        if name.startswith("p4_14/"):
            stf = testdata / "p4_14_samples" / f"{program.stem}.stf"
        if stf.exists():
            yield Case(suite, name, program, stf)


def _p4infos(testdata: Path, suite: str) -> Iterator[Case]:
    for name, program in _samples(testdata, suite):
        folder = testdata / "p4_16_samples_outputs" / Path(name).parent
        if name.startswith("p4_14/"):
            folder = testdata / "p4_14_samples_outputs"
        golden = folder / f"{program.name}.p4info.txtpb"
        if golden.exists():
            yield Case(suite, name, program, golden)


def _compiled(testdata: Path, suite: str) -> Iterator[Case]:
    """Programs that make a switch: those that p4c's tests of BMv2 take, and main in the text."""
    for name, program in _samples(testdata, suite):
        package = "PSA_Switch" if suite.startswith(FOR_PSA) else "V1Switch"
        if package in program.read_text(errors="replace"):
            yield Case(suite, name, program)


def _refused(testdata: Path, suite: str) -> Iterator[Case]:
    """Those that p4c's front end refuses; of some it only warns, or stops in a back end."""
    for program in sorted((testdata / "p4_16_errors").glob("*.p4")):
        said = testdata / "p4_16_errors_outputs" / f"{program.name}-stderr"
        if said.exists() and _ERROR.search(said.read_text(errors="replace")):
            yield Case(suite, program.stem, program)


SUITES: dict[str, tuple[str, Callable[[Path, str], Iterator[Case]]]] = {
    "stf-interpreter": ("packet tests (STF) on the interpreter", _stf),
    "stf-native": ("packet tests (STF) on the native executor", _stf),
    "json-interpreter": ("the same through p4c's JSON, on the interpreter", _stf),
    "json-native": ("the same through p4c's JSON, on the native executor", _stf),
    "p4info": ("P4Info identical to p4c's", _p4infos),
    "compile": ("v1model programs that must compile", _compiled),
    "psa-stf-interpreter": ("PSA: packet tests on the interpreter", _stf),
    "psa-stf-native": ("PSA: packet tests on the native executor", _stf),
    "psa-p4info": ("PSA: P4Info identical to p4c's", _p4infos),
    "psa-compile": ("PSA: programs that must compile", _compiled),
    "refuse": ("programs that `compile` must refuse, or say that p4c does", _refused),
}
"""Suite: (what it is, its cases in a testdata folder)."""


P4C = "p4c-bm2-ss"
"""The compiler for BMv2's JSON; suites that need it are skipped where it is not installed."""


def available() -> list[str]:
    """Return the suites that can run here."""
    return [name for name in SUITES if not name.startswith("json-") or shutil.which(P4C)]


def cases(checkout: Path, suite: str) -> list[Case]:
    """All cases of a suite; raises FileNotFoundError if the checkout has none."""
    found = list(SUITES[suite][1](checkout / "testdata", suite))
    if not found:
        raise FileNotFoundError(
            f"{checkout}: no case of suite {suite}: expected a checkout of p4lang/p4c, whole"
        )
    return found


def run(case: Case) -> list[str]:
    """Return what is wrong with a case; P4Error and StfError are, other exceptions are raised."""
    try:
        return _run(case)
    except (P4Error, StfError) as error:
        return [f"{type(error).__name__}: {error}"]


def _run(case: Case) -> list[str]:
    suite = case.suite.removeprefix(FOR_PSA)
    if suite == "refuse":
        return _accepted(case.program)
    if suite.startswith("json-"):
        assert case.expected is not None
        factory = engine_factory(suite.removeprefix("json-"))
        return run_stf(factory, _through_p4c(case.program), case.expected)
    program = compile_file(case.program)
    if suite == "compile":
        return []
    assert case.expected is not None
    if suite == "p4info":
        golden = text_format.Parse(case.expected.read_text(), p4i.P4Info())
        return _first_difference(golden, p4info(program))
    executor = suite.removeprefix("stf-")
    return run_stf(engine_factory(executor), program, case.expected)


def _through_p4c(path: Path) -> ir.Program:
    """Return a program as p4c's JSON has it, and its P4Info unless p4c cannot write one.

    Raises P4Error if p4c refuses it.
    """
    with tempfile.TemporaryDirectory() as folder:
        made, info = Path(folder, "program.json"), Path(folder, "program.p4info.txtpb")
        command = [P4C, "--arch", "v1model", "-o", made, path]
        with_info = [*command, "--p4runtime-files", info]
        done = subprocess.run(with_info, capture_output=True, text=True, check=False)
        if done.returncode and NAMES_CONFLICT in done.stderr:
            info.unlink(missing_ok=True)
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise P4Error(Position(str(path), 1, 1), f"p4c: {done.stderr[-1000:]}")
        text = info.read_text() if info.exists() else ""
        return read(bundle(made.read_bytes(), str(path), text))


def _accepted(path: Path) -> list[str]:
    try:
        if list(bmv2_limits(compile_file(path))):
            return []  # `p4switch compile` says that p4c refuses it.
    except P4Error as error:
        if NO_MAIN not in str(error):
            return []
    return ["it is accepted"]


def _first_difference(golden: p4i.P4Info, ours: p4i.P4Info) -> list[str]:
    if golden == ours:
        return []
    theirs, mine = str(golden).splitlines(), str(ours).splitlines()
    for number, (want, have) in enumerate(zip(theirs, mine, strict=False), 1):
        if want != have:
            return [f"line {number} is {have.strip()!r}, p4c has {want.strip()!r}"]
    return [f"{len(mine)} lines, p4c has {len(theirs)}"]
