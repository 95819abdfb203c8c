"""What measurements of PyTorch and the ranks they start have in common."""

from __future__ import annotations

SWITCHES, GLOO = "switches", "gloo"
"""The backends."""
LOOPBACK, CLUSTER = "loopback", "cluster"
"""Where operations are tried."""
ALONE = "alone"
"""Steps without communication."""
WAKE_UP, CPU = "wake-up", "CPU"
RANK = "rank"
"""The process that measures."""
FIGURES = "figures "
"""What a line of rank 0 with figures, a JSON object, begins with."""
NAMESPACES = "HOPSUM_BENCH_NAMESPACES"
"""Environment: JSON, by name a process; the CPU time of its whole network namespace is counted."""
PROCESSES = "HOPSUM_BENCH_PROCESSES"
"""Environment: JSON, by name a process, whose CPU time alone is counted."""
SMALL = 256
"""Elements of one fragment."""
