"""How a process runs native code that was compiled with ASan and UBSan."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-g")
"""Additional flags of the compiler; the process must preload the address sanitizer's library."""


def address_sanitizer() -> Path | None:
    """Return the library that a process must preload for sanitized code; None if there is none."""
    compiler = shutil.which(os.environ.get("CC") or "cc")
    if compiler is None:
        return None
    command = [compiler, "-print-file-name=libasan.so"]
    path = Path(subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip())
    return path if path.is_absolute() else None


def sanitized_environment(library: Path) -> dict[str, str]:
    """Return the environment of a process that loads sanitized code."""
    return {
        **os.environ,
        "LD_PRELOAD": str(library),
        "ASAN_OPTIONS": "detect_leaks=0",
        "UBSAN_OPTIONS": "halt_on_error=1",
        "PYTHONMALLOC": "malloc",  # so that what Python hands over has red zones too
    }
