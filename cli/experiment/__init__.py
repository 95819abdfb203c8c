"""Experiments: description, runner, report, and the hopsum command."""
