"""Expressions and types as written, checked and lowered."""
