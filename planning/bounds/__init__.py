"""Bounds on what any plan can reach, exact and with what proves them."""
