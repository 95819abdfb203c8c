"""Where the files are that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
"""The distribution's folder."""

PROGRAMS = ROOT / "tests" / "packet" / "programs"
EVERYTHING_P4 = ROOT / "tests" / "programs" / "everything.p4"
