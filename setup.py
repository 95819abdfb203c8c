"""Build step of hopsum's wheel: what is not kept in git, protobuf modules, man pages, and the
compiled data path."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

SOURCES = Path(__file__).resolve().parent / "src"
MANUAL = "from hopsum.cli.main import main; main()"
COMPILE = """
import shutil
from hopsum.host_agent.datapath.library import datapath, program
from hopsum.simulation.compiled.library import network
for each in (datapath(program()), network()):
    shutil.copy(each.shared(), each.packaged())
"""
COMPILED = "hopsum/*/*/*.so"


class BuildWithGenerated(build_py):
    """Copy the packages, generate `hopsum_pb2*` next to the copies, and the man pages."""

    def run(self) -> None:
        """Build; a checkout that is installed with `-e` gets its modules from `make setup`."""
        super().run()
        if not self.editable_mode:
            sys.path.insert(0, str(SOURCES))
            from hopsum.protocol.generate import generate

            generate(SOURCES, Path(self.build_lib))
            self._write_manual()
            self._compile()

    def _run(self, code: str, *arguments: str) -> str:
        """Run Python code on the built packages; return the last line of its error, if any.

        They need what hopsum depends on, which a build apart from all else does not have.
        """
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, *arguments],
            env={**os.environ, "PYTHONPATH": str(Path(self.build_lib).resolve())},
            capture_output=True,
            text=True,
            check=False,
        )
        [*_, reason] = done.stderr.strip().splitlines() or ["no reason given"]
        return reason if done.returncode else ""

    def _compile(self) -> None:
        """Let the wheel carry the compiled data path, for machines without a compiler."""
        if reason := self._run(COMPILE):
            self.warn(f"the wheel has no compiled data path: {reason}")

    def _write_manual(self) -> None:
        """Let the built commands write their man pages, for share/man of an installation."""
        folder = Path(self.build_lib).resolve().parent / "man"
        folder.mkdir(parents=True, exist_ok=True)
        if reason := self._run(MANUAL, "manual", "--folder", str(folder)):
            self.warn(f"the wheel has no man pages: {reason}")
            return
        pages = sorted(str(page) for page in folder.glob("*.1"))
        self.distribution.data_files = [("share/man/man1", pages)]


class PlatformWheel(bdist_wheel):
    """A wheel with a compiled data path is for this processor, and a C library as new as ours."""

    def get_tag(self) -> tuple[str, str, str]:
        """Return the wheel's tag, which names the C library (PEP 600)."""
        if not any(Path(self.bdist_dir).glob(COMPILED)):
            return super().get_tag()
        self.root_is_pure = False
        name, version = platform.libc_ver()
        system = f"manylinux_{version.replace('.', '_')}" if name == "glibc" else "linux"
        return "py3", "none", f"{system}_{platform.machine()}"


setup(cmdclass={"build_py": BuildWithGenerated, "bdist_wheel": PlatformWheel})
