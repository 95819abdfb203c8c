"""Measurements: `python -m benchmarks.run`."""
