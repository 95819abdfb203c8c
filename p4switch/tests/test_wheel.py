"""The wheel, in an environment that has only what its dependencies pull in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Sequence
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.paths import PROGRAMS, ROOT

pytestmark = pytest.mark.acceptance

TEST_DISTRIBUTIONS = ("pytest", "hypothesis", "packaging", "pytest-xdist", "finsy")
"""What the tests need besides the wheel."""

RUN = """
import sys
from pathlib import Path

import p4switch
from p4switch.frontend.program import compile_file
from p4switch.stf import engine_factory, run_stf

assert "site-packages" in p4switch.__file__, p4switch.__file__
for executor in ("interpreter", "native"):
    failures = run_stf(engine_factory(executor), compile_file(Path(sys.argv[1])), Path(sys.argv[2]))
    assert not failures, failures
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy: setuptools leaves `build/` and metadata next to the source."""
    folder = tmp_path_factory.mktemp("wheel")
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", ".*")
    shutil.copytree(ROOT, folder / "source", ignore=unwanted)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-w", folder, folder / "source"], check=True)
    [made] = folder.glob("p4switch-*.whl")
    return made


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel and what it depends on.

    Dependencies are copied from the environment that runs this: locked versions, no network.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    binaries = folder / "bin"
    command = [sys.executable, "-m", "pip", "--quiet", "--python", binaries / "python", "install"]
    subprocess.run([*command, "--no-deps", "--no-index", wheel], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    [installed] = metadata.distributions(path=[str(packages)])
    _copy(_dependencies([installed]), packages)
    return binaries


def _copy(distributions: Iterable[metadata.Distribution], packages: Path) -> None:
    """Copy distributions of this environment into a folder of packages."""
    for distribution in distributions:
        for file in distribution.files or ():
            if file.parts[0] != "..":
                (packages / file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file.locate(), packages / file)


def _dependencies(installed: Sequence[metadata.Distribution]) -> list[metadata.Distribution]:
    """All that distributions depend on, and these, and so on."""
    found: dict[str, metadata.Distribution] = {}
    open_ = list(installed)
    while open_:
        for text in open_.pop().requires or ():
            requirement = Requirement(text)
            name = requirement.name.lower()
            if name in found or not (
                requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            ):
                continue
            found[name] = metadata.distribution(name)
            assert requirement.specifier.contains(found[name].version), text
            open_.append(found[name])
    return list(found.values())


def test_all_files_are_in_the_wheel(wheel: Path) -> None:
    source = ROOT / "src"
    expected = {
        str(path.relative_to(source))
        for path in (source / "p4switch").rglob("*")
        if path.suffix in (".py", ".p4", ".h", ".c", ".proto", ".thrift")
    }
    assert any(name.endswith("v1model.p4") for name in expected)
    names = {n for n in zipfile.ZipFile(wheel).namelist() if n.startswith("p4switch/")}
    assert names == expected


def test_the_command_runs(environment: Path) -> None:
    shown = subprocess.run(
        [environment / "p4switch", "--help"], capture_output=True, text=True, check=True
    )
    for command in ("run", "compile", "stf", "explain", "demo"):
        assert command in shown.stdout


def test_the_demo_runs(environment: Path, tmp_path: Path) -> None:
    command = [environment / "p4switch", "demo", "--in-process", "--format", "json"]
    shown = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path)
    assert len(shown.stdout.splitlines()) == 5


def test_a_program_compiles_and_runs(environment: Path, tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(RUN)
    program, packets = PROGRAMS / "router.p4", PROGRAMS / "router.stf"
    subprocess.run(
        [environment / "python", "-I", script, program, packets], cwd=tmp_path, check=True
    )


def test_the_wheel_includes_p4runtime(environment: Path) -> None:
    """Messages and service are imported, without finsy: grpcio and protobuf are there."""
    command = (
        "import sys, p4switch.p4runtime.server, p4switch.device.device;"
        "sys.exit(any(name.startswith('finsy') for name in sys.modules))"
    )
    subprocess.run([environment / "python", "-I", "-c", command], check=True)


def test_the_tests_run_without_the_repository(environment: Path, tmp_path: Path) -> None:
    """All tests can be collected with the wheel and what tests need alone, and a room's pass."""
    needed = [metadata.distribution(name) for name in TEST_DISTRIBUTIONS]
    packages = tmp_path / "packages"
    _copy([*needed, *_dependencies(needed)], packages)
    unwanted = shutil.ignore_patterns("__pycache__", "src")
    shutil.copytree(ROOT, tmp_path / "p4switch", ignore=unwanted)
    command = [environment / "python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    for arguments in (["--collect-only"], ["tests/midend"]):
        shown = subprocess.run(
            [*command, *arguments],
            cwd=tmp_path / "p4switch",
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 0, shown.stdout[-3000:] + shown.stderr
