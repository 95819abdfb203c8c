"""Processes that end with the one that started them. Standard library only, for `mn --custom`."""

from __future__ import annotations

END_WITH_STARTER = ("setpriv", "--pdeathsig", "KILL", "--")
"""In front of a command: the kernel kills its process when the thread that started it is gone.

That thread has to live as long as the process should (prctl(2), PR_SET_PDEATHSIG), so it is no
worker of a pool that may shrink. The setting outlives `exec`, but not `fork`.
"""
