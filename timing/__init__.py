"""Durations of collectives from rates, not packets: max-min fair flows on a network."""
