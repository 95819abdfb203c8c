"""Names shared by measurements of PyTorch and the ranks that they start."""

from __future__ import annotations

SWITCHES, GLOO = "switches", "gloo"
"""The backends."""
SWITCHES_16 = "switches, 16 bits"
"""A group through the switches in which float32 too takes 16 bits in packets."""
TYPES = {"bfloat16": 16, "float16": 16, "float32": 32, "int8": 8, "uint8": 8}
"""PyTorch's types that are compared, and the bits that a value takes in packets by default."""
LOOPBACK, CLUSTER = "loopback", "cluster"
"""Where operations are tested."""
BUCKETS, ORDERED = "DDP's buckets", "ordered"
"""How gradients are reduced: by DistributedDataParallel, or by OrderedGradients."""
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
