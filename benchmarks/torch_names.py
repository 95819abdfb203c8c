"""Names shared by measurements of PyTorch and the ranks that they start."""

from __future__ import annotations

SWITCHES, GLOO = "switches", "gloo"
"""The backends."""
LOOPBACK, CLUSTER = "loopback", "cluster"
"""Where operations are tested."""
ALONE = "alone"
"""Steps without communication."""
WAKE_UP, CPU = "wake-up", "CPU"
RANK = "rank"
"""The measuring process itself."""
FIGURES = "figures "
"""Prefix of rank 0's line with figures, a JSON object."""
NAMESPACES = "HOPSUM_BENCH_NAMESPACES"
"""Environment variable: JSON, name -> process; counts the CPU time of its network namespace."""
PROCESSES = "HOPSUM_BENCH_PROCESSES"
"""Environment variable: JSON, name -> process; counts only the process's CPU time."""
SMALL = 256
"""Elements of one fragment."""
