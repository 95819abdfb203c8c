"""Roots with several links, each replaced by one root a link while trees are packed.

An agent that serves a tree sends its results over one link, so a tree reaches its root over one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hopsum.planning.model.forest import Certificate, Forest, RatedTree
from hopsum.planning.model.graph import Edge, PlanningGraph


class SplitRoots:
    """A planning graph in which each root has one link; roots that are workers stay whole."""

    def __init__(self, graph: PlanningGraph, roots: Sequence[str]) -> None:
        self._whole: dict[str, str] = {}
        """The root that a part is of."""
        parts: dict[str, dict[str, str]] = {}
        for root in roots:
            near = graph.neighbours.get(root, ())
            if root not in graph.workers and len(near) > 1:
                # No name of a node has an @.
                parts[root] = {peer: f"{root}@{peer}" for peer in near}
                self._whole |= dict.fromkeys(parts[root].values(), root)
        self.roots = tuple(
            part for root in roots for part in (parts[root].values() if root in parts else [root])
        )
        nodes = tuple(
            part
            for node in graph.nodes
            for part in (parts[node].values() if node in parts else [node])
        )
        index = {name: i for i, name in enumerate(nodes)}

        def split(edge: Edge) -> Edge:
            u, v = edge
            ends = parts.get(u, {}).get(v, u), parts.get(v, {}).get(u, v)
            first, second = sorted(ends, key=index.__getitem__)
            return first, second

        self.graph = graph
        if parts:
            self.graph = replace(
                graph,
                nodes=nodes,
                capacity={split(edge): rate for edge, rate in graph.capacity.items()},
                latency={split(edge): delay for edge, delay in graph.latency.items()},
            )

    def joined(self, forest: Forest) -> Forest:
        """Return a forest of the split graph with the roots' own names."""
        return replace(
            forest,
            trees=tuple(self._tree(tree) for tree in forest.trees),
            certificate=self._certificate(forest.certificate),
        )

    def _tree(self, tree: RatedTree) -> RatedTree:
        name = self._whole.get
        parents = {node: name(parent, parent) for node, parent in tree.parents.items()}
        return replace(tree, root=name(tree.root, tree.root), parents=parents)

    def _certificate(self, certificate: Certificate) -> Certificate:
        text = certificate.text
        # The longest first: one part's name may begin with another's.
        for part in sorted(self._whole, key=len, reverse=True):
            text = text.replace(part, self._whole[part])
        parts = tuple(
            tuple(dict.fromkeys(self._whole.get(node, node) for node in part))
            for part in certificate.parts
        )
        return replace(certificate, parts=parts, text=text)
