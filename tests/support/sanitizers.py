"""Run Python with the compiled data path under AddressSanitizer and UndefinedBehaviorSanitizer.

python -m tests.support.sanitizers -m pytest tests/host_agent/datapath
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.compiler import recompiled

FLAGS = "-O0 -g -fsanitize=address,undefined -fno-sanitize-recover=undefined"
"""For the compiler; a finding ends the process."""
LIBRARIES = ("libasan.so", "libubsan.so")


def missing() -> str | None:
    """Return the first of the sanitizers' libraries that the compiler has not."""
    return next((name for name in LIBRARIES if not Path(_file_of(name)).is_absolute()), None)


def environment() -> dict[str, str]:
    """Return the environment of a process under sanitizers. Python itself frees little at exit."""
    return {
        **recompiled(FLAGS),
        "LD_PRELOAD": " ".join(map(_file_of, LIBRARIES)),
        "ASAN_OPTIONS": "detect_leaks=0",
    }


def _file_of(name: str) -> str:
    found = subprocess.run(
        ["cc", f"-print-file-name={name}"], capture_output=True, text=True, check=True
    )
    return found.stdout.strip()


if __name__ == "__main__":
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], environment())
