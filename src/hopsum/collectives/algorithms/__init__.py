"""Collective algorithms: pure functions from ranks, elements and a topology to a schedule."""
