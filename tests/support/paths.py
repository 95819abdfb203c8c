"""Where the files are that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "hopsum"
SUPPORT = ROOT / "tests" / "support"
EXAMPLES = ROOT / "examples" / "networks"

HOPSUM_P4 = ROOT / "p4src" / "hopsum.p4"
HOPSUM_P4INFO = ROOT / "tests" / "packet" / "hopsum" / "hopsum.p4info.txtpb"


def package_files(suffix: str) -> list[Path]:
    """Return hopsum's files with a suffix, by path; generated ones are not among them.

    Some of its packages are links to folders of the root, which `rglob` follows only as its start.
    """
    found = {path for room in PACKAGE.iterdir() for path in room.rglob(f"*{suffix}")}
    return sorted(
        path for path in found | set(PACKAGE.glob(f"*{suffix}")) if "_pb2" not in path.name
    )
