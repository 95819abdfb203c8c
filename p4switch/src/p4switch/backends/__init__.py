"""Executors of the intermediate representation."""
