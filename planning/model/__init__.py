"""Shared by all planners: graphs, requests, trees with rates, slots, and the solver."""
