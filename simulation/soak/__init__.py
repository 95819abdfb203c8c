"""Soak: random networks, jobs and faults in virtual time, and what must hold whatever happens."""
