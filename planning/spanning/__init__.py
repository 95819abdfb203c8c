"""Spanning trees of hosts: mtree and multi-tree (document 000)."""
