"""Aggregation trees in the switches: one tree (multi-hop) or several (Steiner packing)."""
