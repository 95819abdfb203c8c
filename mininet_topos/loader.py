"""Import of the distribution's Mininet, and nothing else of the distribution.

PyPI's mininet lacks mnexec, so Mininet comes as a system package, outside the virtual environment.
Its folder as a whole on sys.path would shadow or leak other packages; loading that one package by
its own location does not.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path

from hopsum.mininet_topos.failures import MininetUnavailable

CANDIDATES = (
    Path("/usr/lib/python3/dist-packages/mininet"),
    Path("/usr/local/lib/python3/dist-packages/mininet"),
)

ADD_VETH = "ip link add hopsum0 type veth peer name hopsum1"
PROBE_SECONDS = 10.0


def runs_in_namespace(script: str) -> bool:
    """Return whether a shell script of ours succeeds in new network and mount namespaces.

    Mininet makes both for a host, and waits for ever where the kernel or a container refuses them.
    """
    try:
        done = subprocess.run(
            ["unshare", "--net", "--mount", "sh", "-c", script],
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def why_unavailable() -> str | None:
    """Return why Mininet cannot be used here; None if it can."""
    if os.geteuid() != 0:
        return "Mininet needs root (network namespaces); run as root (virtual time needs none)"
    if not any((folder / "net.py").exists() for folder in CANDIDATES):
        return "Mininet is not installed; apt-get install --no-install-recommends mininet"
    for command in ("mnexec", "ethtool", "tc", "ip", "setpriv", "unshare"):
        if shutil.which(command) is None:
            return (
                f"{command} is not installed; apt-get install mininet ethtool iproute2 util-linux"
            )
    if not runs_in_namespace(ADD_VETH):
        return (
            "Mininet cannot make network namespaces and veth pairs here, although this is root; in "
            "a container add --privileged (or CAP_SYS_ADMIN and CAP_NET_ADMIN); virtual time "
            "needs neither"
        )
    return None


def load_mininet() -> None:
    """Make `import mininet.net` and its siblings work. Raises MininetUnavailable."""
    if "mininet" in sys.modules:
        return
    reason = why_unavailable()
    if reason is not None:
        raise MininetUnavailable(reason)
    folder = next(folder for folder in CANDIDATES if (folder / "net.py").exists())
    spec = importlib.util.spec_from_file_location(
        "mininet", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    if spec is None or spec.loader is None:
        raise MininetUnavailable(f"Mininet in {folder} is not a package; reinstall it")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mininet"] = module
    spec.loader.exec_module(module)
