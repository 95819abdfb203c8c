"""Parsers, controls, tables and packages: declared, instantiated and lowered."""
