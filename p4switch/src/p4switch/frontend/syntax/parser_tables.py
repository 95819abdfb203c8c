"""Tables of P4_16: keys, actions, entries and further properties."""

from __future__ import annotations

from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.parser_statements import StatementParser


class TableParser(StatementParser):
    """Parses table declarations."""

    def table(self, annotations: list[ast.Annotation]) -> ast.TableDeclaration:
        """Parse `table name { properties }`."""
        position = self.position()
        start = self.index
        self.index += 1
        name = self.name("the name of a table")
        self.expect("{", f" before the properties of table '{name}'")
        table = ast.TableDeclaration(position, annotations, name, None, [], [], False, [])
        seen: set[str] = set()
        while not self.take("}"):
            self._property(table, seen)
        if "actions" not in seen:
            raise self.error(f"table '{name}' needs a property 'actions'", start)
        self.declare(name, is_type=False)
        return table

    def _property(self, table: ast.TableDeclaration, seen: set[str]) -> None:
        annotations = self.annotations()
        position = self.position()
        constant = self.take("const")
        index = self.index
        name = self.name(f"a property of table '{table.name}' or '}}'")
        if name in seen:
            raise self.error(f"table '{table.name}' has two properties named '{name}'", index)
        seen.add(name)
        self.expect("=", f" after property '{name}'")
        if name in ("key", "actions") and (annotations or constant):
            word = "annotated" if annotations else "const"
            raise self.error(f"property '{name}' cannot be {word}", index)
        if name == "default_action" and "actions" not in seen:
            raise self.error(f"'{name}' of table '{table.name}' must come after its actions", index)
        match name:
            case "key":
                table.keys = self._keys()
            case "actions":
                table.actions = self._actions()
            case "entries":
                table.entries_constant = constant
                table.entries = self._entries()
                if table.entries and table.keys is None:
                    raise self.error(
                        f"the entries of table '{table.name}' must come after its key", index
                    )
            case _:
                value = self.expression()
                self.expect(";", f" after property '{name}'")
                table.properties.append(
                    ast.TableProperty(position, annotations, name, value, constant)
                )

    def _keys(self) -> list[ast.KeyElement]:
        self.expect("{", " before the key of a table")
        keys: list[ast.KeyElement] = []
        while not self.take("}"):
            position = self.position()
            expression = self.expression()
            self.expect(":", " after an expression of a table's key")
            match_kind = self.name("a match kind")
            annotations = self.annotations()
            self.expect(";", " after an element of a table's key")
            keys.append(ast.KeyElement(position, annotations, expression, match_kind))
        return keys

    def _actions(self) -> list[ast.ActionRef]:
        self.expect("{", " before the actions of a table")
        actions: list[ast.ActionRef] = []
        while not self.take("}"):
            actions.append(self._action_ref(self.annotations()))
            self.expect(";", " after an action of a table")
        return actions

    def _action_ref(self, annotations: list[ast.Annotation]) -> ast.ActionRef:
        position = self.position()
        absolute = self.take(".")
        name = self.name("the name of an action")
        arguments = self.arguments() if self.kinds[self.index] == "(" else None
        return ast.ActionRef(position, annotations, name, absolute, arguments)

    def _entries(self) -> list[ast.TableEntry]:
        self.expect("{", " before the entries of a table")
        entries: list[ast.TableEntry] = []
        while not self.take("}"):
            position = self.position()
            constant = self.take("const")
            priority = None
            if self.kinds[self.index] == "priority" and self.kinds[self.index + 1] == "=":
                self.index += 2
                priority = self.expression()
                self.expect(":", " after the priority of an entry")
            keys = self.keyset()
            self.expect(":", " after the keys of an entry")
            action = self._action_ref([])
            annotations = self.annotations()
            self.expect(";", " after an entry")
            entries.append(ast.TableEntry(position, annotations, keys, action, constant, priority))
        return entries
