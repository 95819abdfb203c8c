"""Identities of this machine's processes, which no later process shares (Linux)."""

from __future__ import annotations

from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MACHINE_ID = Path("/etc/machine-id")
PID_NAMESPACE = Path("/proc/self/ns/pid")


def start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


def boot_id() -> str:
    """Return the identity of this boot of the machine, shared by its containers; else ''."""
    return _text(BOOT_ID)


def machine_id() -> str:
    """Return the identity of the installed system, the same after a reboot; '' if it has none."""
    return _text(MACHINE_ID)


def pid_namespace() -> str:
    """Return the identity of the namespace of this process's number; '' if unknown."""
    try:
        return str(PID_NAMESPACE.readlink())
    except OSError:
        return ""


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
