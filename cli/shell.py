"""p4runtime-shell on a switch, in a virtual environment of its own.

It pins protobuf below 3.21, which nothing else here can live with, so it is installed on first
use into the user's cache.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from p4switch.packet_io.compile import cache_folder
from protocol.errors import OperationError

PACKAGE = "p4runtime-shell==0.0.6"


class ShellError(OperationError):
    """The shell cannot be installed; the message has pip's last words."""


def environment_folder() -> Path:
    """Where the shell's virtual environment is, or will be."""
    return cache_folder() / PACKAGE.replace("==", "-")


def install_shell(folder: Path | None = None) -> Path:
    """Install the shell unless it is there; return its Python. Raises ShellError."""
    folder = folder or environment_folder()
    python = folder / "bin" / "python"
    if (folder / "ready").exists():
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(python), "-m", "pip", "install", "--quiet", PACKAGE],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            words = (done.stderr or done.stdout).strip().splitlines()[-3:]
            raise ShellError(f"{PACKAGE} could not be installed in {folder}:\n" + "\n".join(words))
    (folder / "ready").touch()
    return python


def shell_command(python: Path, address: str, device_id: int, election_id: int) -> list[str]:
    """Return the command line of the shell on a switch.

    An election id below the controller's makes a backup, which reads but does not write.
    """
    command = [str(python), "-m", "p4runtime_sh", "--grpc-addr", address]
    command += ["--device-id", str(device_id), "--election-id", f"0,{election_id}"]
    return command


def run_shell(address: str, device_id: int, election_id: int) -> int:
    """Open the shell on a switch and wait for its end; returns its exit code."""
    command = shell_command(install_shell(), address, device_id, election_id)
    # `python -m` looks for modules in the working folder first: it must hold nobody else's, and
    # no package of a checkout.
    return subprocess.run(command, check=False, cwd=environment_folder()).returncode
