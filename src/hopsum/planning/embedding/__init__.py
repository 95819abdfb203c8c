"""Embedding plans ([002][]): the logical topologies that a job's tensors use, and their weights.

`demand` describes jobs and free resources; `logical_topologies` and `elastic_tree` make candidates;
`program` (an integer linear program) or `heuristic` chooses among them; `embedding_plan` is the
answer and checks it.
"""
