"""Spanning trees of hosts: mtree and multi-tree ([000][])."""
