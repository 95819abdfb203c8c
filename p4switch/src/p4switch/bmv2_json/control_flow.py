"""Pipelines: restores nested code from a graph of tables and conditions.

The branches of a condition, or of a table's actions, join at their nearest common post-dominator;
the code up to that node belongs to the branches.
"""

from __future__ import annotations

from collections.abc import Callable

from p4switch import ir
from p4switch.bmv2_json.document import Document, Part
from p4switch.bmv2_json.expressions import Expressions
from p4switch.bmv2_json.tables import Tables

MOST_NODES = 100_000
"""Maximum number of nodes of the nested code; unstructured graphs repeat nodes."""

END = None
Name = str | None


class ControlFlow:
    """Translates the pipelines of a file."""

    def __init__(
        self,
        document: Document,
        expressions: Expressions,
        tables: Tables,
        variables: Callable[[str, ir.Type], ir.Variable],
    ) -> None:
        self._document = document
        self._expressions = expressions
        self._tables = tables
        self._variables = variables
        self._nodes: dict[str, Part] = {}
        self._joins: dict[str, Name] = {}
        self._count = 0

    def code(self, pipeline: Part) -> list[ir.Statement]:
        """Return the code of a pipeline."""
        self._nodes = {
            part["name"]: part
            for kind in ("tables", "conditionals", "action_calls")
            for part in pipeline.get(kind) or []
        }
        first: Name = pipeline["init_table"]
        self._joins = self._post_dominators(first)
        self._count = 0
        return self._until(first, END)

    # --- the graph

    def _node(self, name: str) -> Part:
        if name not in self._nodes:
            raise self._document.error(f"the pipeline has no node {name!r}")
        return self._nodes[name]

    def _following(self, name: str) -> list[Name]:
        part = self._node(name)
        if "expression" in part:
            return [part["true_next"], part["false_next"]]
        if "next_node" in part:
            return [part["next_node"]]
        return list(dict.fromkeys(self._table_following(part).values()))

    def _table_following(self, part: Part) -> dict[str, Name]:
        """Return the next node by action, or by `__HIT__` and `__MISS__`."""
        following: dict[str, Name] = part.get("next_tables") or {}
        base = part.get("base_default_next")
        if "__HIT__" in following or "__MISS__" in following:
            return {side: following.get(side, base) for side in ("__HIT__", "__MISS__")}
        table = self._tables.tables[part["name"]]
        return {item.action.name: following.get(item.action.name, base) for item in table.actions}

    def _post_dominators(self, first: Name) -> dict[str, Name]:
        """Return the immediate post-dominator of each node."""
        joins: dict[str, Name] = {}
        depth: dict[Name, int] = {END: 0}
        for name in self._successors_first(first):
            following = self._following(name)
            join = following[0]
            for other in following[1:]:
                while join != other:
                    if depth[join] >= depth[other]:
                        join = joins[join] if join is not None else END
                    else:
                        other = joins[other] if other is not None else END
            joins[name] = join
            depth[name] = depth[join] + 1
        return joins

    def _successors_first(self, first: Name) -> list[str]:
        """Return the reachable nodes, each after all its successors."""
        order: list[str] = []
        done: dict[str, bool] = {}
        stack: list[tuple[str, bool]] = [(first, False)] if first is not None else []
        while stack:
            name, left = stack.pop()
            if left:
                done[name] = True
                order.append(name)
                continue
            if name in done:
                continue
            done[name] = False
            stack.append((name, True))
            for other in self._following(name):
                if other is None or done.get(other):
                    continue
                if other in done and any(item == (other, True) for item in stack):
                    raise self._document.error(f"the pipeline returns to {other!r}")
                stack.append((other, False))
        return order

    # --- code

    def _until(self, name: Name, end: Name) -> list[ir.Statement]:
        code: list[ir.Statement] = []
        while name != end and name is not None:
            self._count += 1
            if self._count > MOST_NODES:
                raise self._document.unsupported("a pipeline whose nested code would be too large")
            part = self._node(name)
            if "expression" in part:
                self._condition(part, self._joins[name], code)
            elif "next_node" in part:
                action = self._tables.action(part["action_id"], part)
                code.append(ir.Call(action, [], position=self._document.position(part)))
            else:
                self._table(part, self._joins[name], code)
            name = self._joins[name]
        return code

    def _condition(self, part: Part, join: Name, code: list[ir.Statement]) -> None:
        condition = self._expressions.boolean(part["expression"])
        then = self._until(part["true_next"], join)
        other = self._until(part["false_next"], join)
        code.append(ir.If(condition, then, other, position=self._document.position(part)))

    def _table(self, part: Part, join: Name, code: list[ir.Statement]) -> None:
        table = self._tables.tables[part["name"]]
        position = self._document.position(part)
        following = self._table_following(part)
        if "__HIT__" in following:
            hit = self._variables("hit", ir.BOOL)
            code.append(ir.ApplyTable(table, hit, position=position))
            then = self._until(following["__HIT__"], join)
            other = self._until(following["__MISS__"], join)
            code.append(ir.If(ir.Read(ir.BOOL, hit), then, other, position=position))
            return
        nodes = set(following.values())
        if len(nodes) <= 1:
            code.append(ir.ApplyTable(table, position=position))
            return
        run = self._variables("action_run", ir.BIT32)
        code.append(ir.ApplyTable(table, None, run, position=position))
        cases: dict[Name, list[int]] = {}
        for index, item in enumerate(table.actions):
            cases.setdefault(following[item.action.name], []).append(index)
        code.append(
            ir.Switch(
                ir.Read(ir.BIT32, run),
                [(tuple(indices), self._until(node, join)) for node, indices in cases.items()],
                [],
                position=position,
            )
        )
