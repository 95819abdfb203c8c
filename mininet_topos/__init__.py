"""Mininet networks: topologies, switch classes, links, and cleaning up."""
