"""The wheels, those of hopsum and p4switch in an environment with what they depend on alone."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.machine import PATIENCE
from tests.support.paths import PACKAGE, ROOT, package_files
from tests.support.wireshark import DISSECTOR

pytestmark = pytest.mark.acceptance

EXTRAS = ("hopsum-scapy", "hopsum-torch", "matplotlib", "scapy", "scikit-learn", "torch")
SOURCES = (".py", ".p4", ".c", ".proto", ".lua", ".json", ".js", ".css", ".html")


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """All wheels, as `make wheels` builds them, by name."""
    folder = tmp_path_factory.mktemp("dist")
    environment = {**os.environ, "PYTHON": sys.executable}
    subprocess.run([ROOT / "tools" / "build-wheels", folder], check=True, env=environment)
    return sorted(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def binaries(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheels.

    Their dependencies are linked to from this environment: locked versions, no network.
    """
    return _environment(wheels, tmp_path_factory.mktemp("environment"))


@pytest.fixture(scope="module")
def binaries_with_demo(wheels: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with what the extra `demo` needs."""
    return _environment(wheels, tmp_path_factory.mktemp("demo"), "demo")


def _environment(wheels: list[Path], folder: Path, extra: str = "") -> Path:
    venv.create(folder, symlinks=True)
    made = folder / "bin"
    command = [sys.executable, "-m", "pip", "--quiet", "--python", str(made / "python"), "install"]
    subprocess.run([*command, "--no-deps", "--no-index", wheels[0], wheels[-1]], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    for distribution in _dependencies("hopsum", extra):
        for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
            if not (packages / top).exists():
                (packages / top).symlink_to(Path(str(distribution.locate_file(top))))
    return made


def _dependencies(name: str, extra: str = "") -> list[metadata.Distribution]:
    """All that a distribution depends on with an extra, p4switch left out, and these, and so on.

    Read from pyproject.toml by the wheel's own metadata, which this environment has too.
    """
    found: dict[str, metadata.Distribution] = {}
    open_ = [(metadata.distribution(name), extra)]
    seen = {(name, extra)}
    while open_:
        distribution, wanted = open_.pop()
        for text in distribution.requires or ():
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is not None and not marker.evaluate({"extra": wanted}):
                continue
            needed = metadata.distribution(requirement.name)
            assert requirement.specifier.contains(needed.version), text
            found[requirement.name] = needed
            for each in {(requirement.name, also) for also in ("", *requirement.extras)} - seen:
                seen.add(each)
                open_.append((needed, each[1]))
    for ours in ("hopsum", "p4switch"):
        found.pop(ours, None)
    return list(found.values())


def run(
    binaries: Path, folder: Path, *arguments: str, path: str | None = None
) -> subprocess.CompletedProcess[str]:
    """The result of a command of the environment, in a folder; nothing refers to the checkout.

    `path`: instead of this environment's PATH.
    """
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name != "VIRTUAL_ENV"
    }
    if path is not None:
        environment["PATH"] = path
    return subprocess.run(
        [binaries / arguments[0], *arguments[1:]],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
        timeout=PATIENCE,
    )


def test_the_data_path_is_compiled_and_the_tag_says_for_what(
    wheels: list[Path], binaries: Path, tmp_path: Path
) -> None:
    """A machine without a compiler runs agents, too."""
    _, libc = platform.libc_ver()
    tag = f"py3-none-manylinux_{libc.replace('.', '_')}_{platform.machine()}.whl"
    assert wheels[0].name.endswith(tag)
    code = "from hopsum.host_agent.datapath.library import library; print(library()._name)"
    done = run(binaries, tmp_path, "python", "-c", code, path="")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).is_relative_to(binaries.parent)


def test_all_sources_are_in_the_wheel(wheels: list[Path]) -> None:
    assert [wheel.name.split("-")[0] for wheel in wheels] == [
        "hopsum", "hopsum_scapy", "hopsum_torch", "p4switch",
    ]  # fmt: skip
    hopsum = wheels[0]
    names = set(zipfile.ZipFile(hopsum).namelist())
    assert {name.split("/")[0].split("-")[0] for name in names} == {"hopsum"}
    expected = {
        str(path.relative_to(PACKAGE.parent)) for kind in SOURCES for path in package_files(kind)
    }
    generated = {"hopsum/protocol/hopsum_pb2.py", "hopsum/protocol/hopsum_pb2_grpc.py"}
    assert expected | generated == {name for name in names if Path(name).suffix in SOURCES}
    assert {"hopsum/p4src/hopsum.p4", "hopsum/protocol/hopsum_pb2_grpc.pyi"} <= names


def test_the_core_pulls_no_extra(wheels: list[Path]) -> None:
    hopsum = wheels[0]
    archive = zipfile.ZipFile(hopsum)
    [path] = [name for name in archive.namelist() if name.endswith("dist-info/METADATA")]
    lines = archive.read(path).decode().splitlines()
    required = [line.partition(": ")[2] for line in lines if line.startswith("Requires-Dist")]
    core = {Requirement(text).name for text in required if "extra ==" not in text}
    assert core == {
        Requirement(text).name
        for text in metadata.requires("hopsum") or ()
        if "extra ==" not in text
    }, "this environment's metadata is old: run `make setup`"
    assert "p4switch" in core
    assert not core & set(EXTRAS)


def test_a_run_in_virtual_time(binaries: Path, tmp_path: Path) -> None:
    done = run(
        binaries, tmp_path, "hopsum", "run", "--topology", "star:2", "--workers", "2",
        "--elements", "2000", "--rounds", "1", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["problems"] == []
    assert (report["checked_elements"], report["wrong_elements"]) == (4000, 0)


def test_the_demo_with_its_extra(binaries_with_demo: Path, tmp_path: Path) -> None:
    command = ("hopsum", "demo", "--world", "simulation", "--epochs", "1", "--json")
    done = run(binaries_with_demo, tmp_path, *command)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [run["problems"] for run in report["runs"]] == [[], [], []]
    assert report["training"]["accuracy"] > 0.8
    assert "<title>" in (tmp_path / "out" / "run" / "index.html").read_text()


def test_missing_extras_are_named(binaries: Path, tmp_path: Path) -> None:
    for command, extra in (
        (["hopsum", "run", "--train", "digits"], "demo"),
        (["hopsum", "demo"], "demo"),
        (["hopsum-agent", "sniff", "--read", "x.pcap"], "scapy"),
        (["hopsum", "simulate", "--topology", "star:2", "--plot", "x.png"], "plots"),
    ):
        done = run(binaries, tmp_path, *command)
        assert done.returncode == 1, (command, done.stderr)
        ours = "--find-links FOLDER " if extra == "scapy" else ""
        assert f"`{binaries / 'python'} -m pip install {ours}'hopsum[{extra}]'`" in done.stderr
        assert "Traceback" not in done.stderr
        assert "make" not in done.stderr


def test_man_finds_its_pages(wheels: list[Path], binaries: Path) -> None:
    names = zipfile.ZipFile(wheels[0]).namelist()
    pages = {Path(name).name for name in names if "/data/share/man/man1/" in name}
    assert pages == {"hopsum.1", "hopsum-agent.1"}
    if shutil.which("man") is None:
        pytest.skip("man is not installed: whether it finds them is not tested")
    path = f"{binaries}{os.pathsep}{os.environ['PATH']}"
    environment = {name: value for name, value in os.environ.items() if name != "MANPATH"}
    for program in ("hopsum", "hopsum-agent"):
        done = subprocess.run(
            ["man", "-w", program],
            capture_output=True,
            text=True,
            check=False,
            env={**environment, "PATH": path},
        )
        assert done.stdout.strip() == str(binaries.parent / f"share/man/man1/{program}.1")


def test_the_dashboards_page_is_in_the_wheel(binaries: Path, tmp_path: Path) -> None:
    script = (
        "from hopsum.controller.web.server import PAGE; print((PAGE / 'index.html').read_text())"
    )
    done = run(binaries, tmp_path, "python", "-I", "-c", script)
    assert "<title>hopsum</title>" in done.stdout, done.stderr


def test_dissector_and_grafana_dashboard_are_exported(binaries: Path, tmp_path: Path) -> None:
    done = run(binaries, tmp_path, "hopsum", "export", "here")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == (
        "here/hopsum.lua: wireshark -X lua_script:here/hopsum.lua CAPTURE"
    )
    assert (tmp_path / "here/hopsum.lua").read_bytes() == DISSECTOR.read_bytes()
    assert json.loads((tmp_path / "here/hopsum-grafana.json").read_text())["title"] == "hopsum"


def test_hopsum_finds_its_commands(binaries: Path, tmp_path: Path) -> None:
    script = "from hopsum.mininet_topos.addresses import program; print(program('p4switch'))"
    done = run(binaries, tmp_path, "python", "-I", "-c", script)
    assert Path(done.stdout.strip()).samefile(binaries / "p4switch"), done.stderr
    assert shutil.which(done.stdout.strip())


def test_notebooks_run_beside_files_of_any_name(binaries: Path, tmp_path: Path) -> None:
    """Their cells as a script, with what the wheels need alone: without pandas and plots."""
    for name in ("cli", "controller", "files", "network", "protocol", "simulation"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('not hopsum')")
    cells = json.loads((ROOT / "examples/notebooks/1-first-plan-and-sum.ipynb").read_text())[
        "cells"
    ]
    script = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    (tmp_path / "notebook.py").write_text(script)
    done = run(binaries, tmp_path, "python", "notebook.py")
    assert done.returncode == 0, done.stderr
    assert "times as long" in done.stdout
