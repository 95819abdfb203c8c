"""Planners, which decide where sums are computed, and bounds on the rate of any plan."""
