"""Passes over the intermediate representation, common to all back ends."""
