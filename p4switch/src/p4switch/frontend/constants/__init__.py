"""Compile-time values, and conversions between types."""
