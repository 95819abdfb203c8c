"""Architectures: their declarations in P4, and the parts around a program's blocks."""
