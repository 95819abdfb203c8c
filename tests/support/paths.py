"""Where the files are that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
PROGRAMS = ROOT / "tests" / "packet" / "programs"
EXAMPLES = ROOT / "examples" / "networks"

HOPSUM_P4 = ROOT / "p4src" / "hopsum.p4"
HOPSUM_P4INFO = ROOT / "tests" / "p4switch" / "golden" / "hopsum.p4info.txtpb"
EVERYTHING_P4 = ROOT / "tests" / "p4switch" / "programs" / "everything.p4"
