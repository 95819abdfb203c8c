"""Lifetime of an emulation's processes. Standard library only, for `mn --custom`."""

from __future__ import annotations

END_WITH_STARTER = ("setpriv", "--pdeathsig", "KILL", "--")
"""Command prefix: the kernel kills the process when the thread that started it ends.

That thread has to live as long as the process should (prctl(2), PR_SET_PDEATHSIG), so it is no
worker of a pool that may shrink. The setting outlives `exec`, but not `fork`.
"""


def reduced_privileges(*more: str) -> tuple[str, ...]:
    """Return the command prefix that drops privileges of a switch or an agent.

    Of root's privileges (capabilities(7)) it keeps CAP_NET_RAW, for packet sockets, CAP_NET_ADMIN,
    for buffers that hold a burst, CAP_DAC_READ_SEARCH, since the program may lie in the folder of
    who called sudo, and those named. The process is still of user root, and owns root's files.
    """
    kept = ",".join(("-all", "+net_raw", "+net_admin", "+dac_read_search", *more))
    return ("setpriv", "--no-new-privs", "--inh-caps", kept, "--bounding-set", kept, "--")
