"""Mininet topologies and switch classes."""
