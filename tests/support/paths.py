"""Where the files are that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SUPPORT = ROOT / "tests" / "support"
EXAMPLES = ROOT / "examples" / "networks"

HOPSUM_P4 = ROOT / "p4src" / "hopsum.p4"
HOPSUM_P4INFO = ROOT / "tests" / "packet" / "hopsum" / "hopsum.p4info.txtpb"
