"""Framings that no world of the product has."""

from hopsum.timing.routes import Framing

BARE = Framing(1, 0, 0.0)
"""Data alone, cut through: the alpha-beta model."""
