"""p4runtime-shell on a switch, in a virtual environment of its own.

It pins protobuf below 3.21, which nothing else here can live with, so it is installed into the
user's cache, by `make setup` or on first use; from then on it needs no network.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from hopsum.files.output import write_file
from hopsum.protocol.errors import OperationError
from hopsum.protocol.outcomes import Outcome
from p4switch.packet_io.compile import cache_folder

PACKAGE = "p4runtime-shell==0.0.6"
HELPERS = Path(__file__).with_name("shell_helpers.py")


class ShellError(OperationError):
    """The shell cannot be installed; the message ends with pip's output."""


def environment_folder() -> Path:
    """Return the path of the shell's virtual environment."""
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


def shell_is_ready() -> bool:
    """Return whether the shell is installed, so that it works without Internet access."""
    return (environment_folder() / "ready").exists()


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
    environment = {
        **os.environ,
        "IPYTHONDIR": str(place_helpers(environment_folder())),
        "HOPSUM_OUTCOMES": ",".join(outcome.name.lower() for outcome in Outcome),
    }
    # `python -m` searches the working folder first: it must contain no modules of others, and no
    # package of a checkout.
    done = subprocess.run(command, check=False, cwd=environment_folder(), env=environment)
    return done.returncode


def place_helpers(folder: Path) -> Path:
    """Install the helpers as an IPython startup file; return the value of IPYTHONDIR."""
    home = folder / "ipython"
    write_file(home / "profile_default" / "startup" / "hopsum.py", HELPERS.read_text())
    return home
