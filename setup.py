"""Build step of hopsum's wheel: what is not kept in git, protobuf modules and man pages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SOURCES = Path(__file__).resolve().parent / "src"
MANUAL = "from hopsum.cli.main import main; main()"


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

    def _write_manual(self) -> None:
        """Let the built commands write their man pages, for share/man of where they are installed.

        They need what hopsum depends on, which a build apart from all else does not have.
        """
        folder = Path(self.build_lib).resolve().parent / "man"
        folder.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(
            [sys.executable, "-P", "-c", MANUAL, "manual", "--folder", str(folder)],
            env={**os.environ, "PYTHONPATH": str(Path(self.build_lib).resolve())},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            [*_, reason] = done.stderr.strip().splitlines() or ["no reason given"]
            self.warn(f"the wheel has no man pages: {reason}")
            return
        pages = sorted(str(page) for page in folder.glob("*.1"))
        self.distribution.data_files = [("share/man/man1", pages)]


setup(cmdclass={"build_py": BuildWithGenerated})
