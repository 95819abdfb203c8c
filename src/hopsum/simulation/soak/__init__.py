"""Soak tests: random networks, jobs and faults in virtual time, checked against invariants."""
