"""Planners, which decide what sums where, and bounds on what any plan can reach."""
