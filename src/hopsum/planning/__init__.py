"""Planners, which choose where data are summed, and bounds on the rate of any plan."""
