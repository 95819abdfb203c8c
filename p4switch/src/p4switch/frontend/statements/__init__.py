"""Statements, and the functions and actions they make up."""
