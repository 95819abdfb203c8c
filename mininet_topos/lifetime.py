"""Lifetime of an emulation's processes. Standard library only, for `mn --custom`."""

from __future__ import annotations

END_WITH_STARTER = ("setpriv", "--pdeathsig", "KILL", "--")
"""Command prefix: the kernel kills the process when the thread that started it ends.

That thread has to live as long as the process should (prctl(2), PR_SET_PDEATHSIG), so it is no
worker of a pool that may shrink. The setting outlives `exec`, but not `fork`.
"""


CAPABILITIES = {"dac_override": 1, "dac_read_search": 2, "net_admin": 12, "net_raw": 13}
"""Numbers of capabilities (capabilities(7))."""
KEPT = ("net_raw", "net_admin", "dac_read_search")
"""Those of a switch or an agent, of root's: for packet sockets, for buffers that hold a burst, and
since programs may lie in the folder of who called sudo."""


def reduced_privileges(kept: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command prefix that drops all capabilities but these.

    The process is still of user root, and owns root's files.
    """
    named = ",".join(("-all", *(f"+{name}" for name in kept)))
    return ("setpriv", "--no-new-privs", "--inh-caps", named, "--bounding-set", named, "--")
