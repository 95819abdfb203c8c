"""Experiments: description, preparation, runners and results."""
