"""Bounds on the rate of any plan, exact and with certificates."""
