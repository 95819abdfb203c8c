"""Passes over the intermediate representation, whatever runs it."""
