"""Build step of hopsum's wheel: generate the protobuf modules, which are not kept in git."""

from __future__ import annotations

import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent


class BuildWithProtobuf(build_py):
    """Copy the packages, then generate `protocol/hopsum_pb2*` beside the copies."""

    def run(self) -> None:
        """Build; a checkout that is installed with `-e` gets its modules from `make setup`."""
        super().run()
        if not self.editable_mode:
            sys.path.insert(0, str(ROOT))
            from protocol.generate import generate

            generate(ROOT, Path(self.build_lib))


setup(cmdclass={"build_py": BuildWithProtobuf})
