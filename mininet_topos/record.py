"""A record of what a run has created, so that `hopsum stop` can take down what a crash left.

One JSON file a run, in the state folder, holds process ids with their start times, interfaces and
namespaces; it is deleted when the run has cleaned up after itself.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import asdict, dataclass, field
from pathlib import Path


def state_folder() -> Path:
    """Where the records are: `build/runs` of the working folder."""
    return Path("build") / "runs"


def start_time(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it does not run."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])


@dataclass
class RunRecord:
    """What one run has created; `write()` after every change."""

    path: Path
    owner: int = field(default_factory=os.getpid)
    owner_started: int = field(default_factory=lambda: start_time(os.getpid()) or 0)
    processes: dict[int, int] = field(default_factory=dict)
    """Process id -> start time."""
    interfaces: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    """Kernel parameter's file -> what it was before the run."""

    def write(self) -> None:
        """Save the record."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        values = asdict(self)
        values.pop("path")
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(values, indent=1))
        partial.replace(self.path)

    def add_process(self, pid: int) -> None:
        """Note a process of the run."""
        started = start_time(pid)
        if started is not None:
            self.processes[pid] = started

    def change_setting(self, path: Path, value: str) -> None:
        """Set a kernel parameter for the time of the run, where there is such a parameter."""
        try:
            before = path.read_text().strip()
            if before != value:
                self.settings[str(path)] = before
                self.write()
                path.write_text(value)
        except OSError:
            # An older or newer kernel, or a container that may not: the run works without.
            self.settings.pop(str(path), None)

    def restore_settings(self) -> list[str]:
        """Give kernel parameters their values back; returns a line for each."""
        lines = []
        for path, value in self.settings.items():
            Path(path).write_text(value)
            lines.append(f"set {path} back to {value}")
        self.settings.clear()
        return lines

    def forget(self) -> None:
        """The run has cleaned up: remove the record."""
        self.path.unlink(missing_ok=True)

    @classmethod
    def create(cls, folder: Path | None = None) -> RunRecord:
        """A record for this process."""
        record = cls((folder or state_folder()) / f"{os.getpid()}.json")
        record.write()
        return record

    @classmethod
    def read(cls, path: Path) -> RunRecord:
        """The record in a file."""
        values = json.loads(path.read_text())
        return cls(
            path=path,
            owner=values["owner"],
            owner_started=values["owner_started"],
            processes={int(pid): started for pid, started in values["processes"].items()},
            interfaces=values["interfaces"],
            settings=values.get("settings", {}),
        )


def stop_left_over(folder: Path | None = None) -> list[str]:
    """Take down what runs left that did not end well; returns a line for each thing.

    Runs whose own process still lives are left alone. Only processes whose id and start time are
    those in the record are ended.
    """
    lines: list[str] = []
    for path in sorted((folder or state_folder()).glob("*.json")):
        record = RunRecord.read(path)
        if start_time(record.owner) == record.owner_started:
            lines.append(f"run {record.owner} is still going: left alone")
            continue
        for pid, started in record.processes.items():
            if start_time(pid) == started:
                os.kill(pid, signal.SIGKILL)
                lines.append(f"ended process {pid}")
        for interface in record.interfaces:
            if Path("/sys/class/net", interface).exists():
                done = subprocess.run(
                    ["ip", "link", "delete", interface], capture_output=True, text=True, check=False
                )
                failed = f": {done.stderr.strip()}" if done.returncode else ""
                lines.append(f"deleted interface {interface}{failed}")
        lines += record.restore_settings()
        record.forget()
    return lines
