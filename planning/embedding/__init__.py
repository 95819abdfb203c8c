"""Embedding plans (002): the logical topologies that a job's tensors use, and their weights.

`demand` says what is asked and what is free; `logical_topologies` and `elastic_tree` make
candidates; `programme` (an integer linear programme) or `heuristic` chooses; `embedding` is the
answer, and checks it.
"""
