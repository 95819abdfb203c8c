"""Memory of this machine available to jobs (Linux)."""

from __future__ import annotations

from pathlib import Path

from hopsum.network.units import format_bytes

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")


def total_memory() -> int:
    """Return the bytes that processes here may use together, 0 if unknown."""
    return _least(_meminfo("MemTotal"), _limit())


def available_memory() -> int:
    """Return the bytes that are free now, page cache included; 0 if unknown."""
    limit = _limit()
    return _least(_meminfo("MemAvailable"), None if limit is None else max(1, limit - _used()))


def too_much(needed: int, what: str) -> str | None:
    """Return why `what`, which needs these bytes, cannot be done here; None if it can."""
    available = available_memory()
    if not available or needed <= available:
        return None
    return (
        f"{what} needs {format_bytes(needed)} of memory, and {format_bytes(available)} are "
        "available here"
    )


def _limit() -> int | None:
    """Return the memory limit of this machine's or container's control group."""
    return _number(CGROUP / "memory.max") or _number(CGROUP / "memory/memory.limit_in_bytes")


def _used() -> int:
    """Return its memory use, without reclaimable page cache."""
    used = _number(CGROUP / "memory.current") or _number(CGROUP / "memory/memory.usage_in_bytes")
    cached = _field(_text(CGROUP / "memory.stat"), "inactive_file") or _field(
        _text(CGROUP / "memory/memory.stat"), "total_inactive_file"
    )
    return (used or 0) - (cached or 0)


def _meminfo(name: str) -> int | None:
    kibibytes = _field(_text(MEMINFO), f"{name}:")
    return None if kibibytes is None else kibibytes << 10


def _least(*values: int | None) -> int:
    return min((value for value in values if value is not None), default=0)


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _field(text: str, name: str) -> int | None:
    """Return the number behind a name at the beginning of a line."""
    for line in text.splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
