"""Architectures: their declarations in P4, and what surrounds the blocks of a program."""
