"""Objects reachable from `main`, in the order of P4Info."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.names import scope
from p4switch.midend.field_lists import field_lists
from p4switch.midend.psa import lower_externs
from p4switch.midend.references import pass_by_reference

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from p4switch.frontend.names.compilation import Compiler
    from p4switch.frontend.names.scope import Unit


class _Walk:
    """Collects what code refers to."""

    def __init__(self) -> None:
        self._in_callable = 0
        self.blocks: dict[ir.Block, None] = {}
        self.callables: dict[ir.Callable, None] = {}
        self.tables: dict[ir.Table, None] = {}
        self.externs: dict[ir.ExternInstance, None] = {}
        self.value_sets: dict[ir.ValueSet, None] = {}
        self.variables: dict[ir.Variable, None] = {}
        self.table_actions: dict[ir.Callable, None] = {}
        self.shown: dict[ir.Callable, None] = {}
        """Actions of tables, and those called outside other actions."""

    def block(self, block: ir.Block) -> None:
        if block in self.blocks:
            return
        self.blocks[block] = None
        for parameter in block.parameters:
            self.variables[parameter.variable] = None
        self.code(block.body)
        for state in block.states.values():
            self.code(state.body)
            if isinstance(state.transition, ir.Select):
                for keysets, _ in state.transition.cases:
                    for keyset in keysets:
                        if isinstance(keyset, ir.InValueSet):
                            self.value_sets[keyset.value_set] = None

    def callable(self, item: ir.Callable) -> None:
        if item in self.callables:
            return
        self.callables[item] = None
        for parameter in item.parameters:
            self.variables[parameter.variable] = None
        if item.result is not None:
            self.variables[item.result] = None
        self._in_callable += 1
        self.code(item.body)
        self._in_callable -= 1

    def table(self, table: ir.Table) -> None:
        if table in self.tables:
            return
        self.tables[table] = None
        self.code(table.key_code)
        for action in table.actions:
            self.code(action.copy_in)
            self.code(action.copy_out)
            self.table_actions[action.action] = None
            self.shown[action.action] = None
            self.callable(action.action)
        for instance in (table.implementation, *table.counters, *table.meters):
            if instance is not None:
                self.externs[instance] = None

    def code(self, statements: Iterable[ir.Statement]) -> None:
        for statement in statements:
            self.statement(statement)

    def statement(self, statement: ir.Statement) -> None:
        if isinstance(statement, ir.Assign):
            self._root(statement.target)
        elif isinstance(statement, ir.Declare):
            self.variables[statement.variable] = None
        elif isinstance(statement, ir.If):
            self.code(statement.then)
            self.code(statement.other)
        elif isinstance(statement, ir.CallExtern):
            if statement.instance is not None:
                self.externs[statement.instance] = None
            if statement.result is not None:
                self.variables[statement.result] = None
            for argument in statement.arguments:
                if argument.direction in ("out", "inout"):
                    self._root(argument.value)
        elif isinstance(statement, ir.Call):
            if isinstance(statement.callee, ir.Block):
                self.block(statement.callee)
            else:
                if statement.callee.is_action and not self._in_callable:
                    self.shown[statement.callee] = None
                self.callable(statement.callee)
            self.code(statement.copy_out)
        elif isinstance(statement, ir.ApplyTable):
            self.table(statement.table)
            for variable in (statement.hit, statement.action_run):
                if variable is not None:
                    self.variables[variable] = None
        elif isinstance(statement, ir.Switch):
            for _, body in statement.cases:
                self.code(body)
            self.code(statement.default)
        elif isinstance(statement, ir.Loop):
            self.code(statement.condition_code)
            self.code(statement.body)
            self.code(statement.update)
        elif isinstance(statement, (ir.Extract, ir.Lookahead, ir.PacketLength)):
            self._root(statement.target)

    def _root(self, target: ir.Expression) -> None:
        while not isinstance(target, ir.Read):
            if not isinstance(target, (ir.Field, ir.Element, ir.Slice, ir.StackNext, ir.StackLast)):
                return
            target = target.base
        self.variables[target.variable] = None


def program(
    compiler: Compiler,
    main: scope.PackageEntity,
    blocks: dict[str, ir.Block],
    units: Sequence[scope.BlockUnit],
    by_reference: bool,
) -> ir.Program:
    """Put the program together out of what `main`'s blocks reach."""
    walk = _Walk()
    shown: dict[ir.Block, list[ir.Callable]] = {}
    for block in blocks.values():
        before = len(walk.shown)
        walk.block(block)
        shown[block] = list(walk.shown)[before:]
    order = _Order(walk)
    order.unit(compiler.top, only_externs=True)
    for unit in units:
        order.block(unit, shown.get(unit.block, ()))
    for action in order.clashes:
        raise compiler.error(
            action.position,
            f"two actions go by the name '{action.name}'; tell them apart with '@name'",
        )
    _check_names(compiler, order.tables, walk.shown)
    gone: set[ir.Variable] = set()
    if by_reference:
        gone = pass_by_reference(walk.blocks, walk.callables, walk.tables)
    declared = compiler.lowering.declared
    package = ir.Package(main.type.name, blocks)
    made = ir.Program(
        package,
        tuple(compiler.errors),
        {name: tuple(kind.members.items()) for name, kind in compiler.enums.items()},
        tuple(order.tables),
        _control_plane_actions(walk, order),
        tuple(order.externs),
        tuple(order.value_sets),
        tuple(walk.blocks),
        tuple(c for c in walk.callables if c not in walk.shown),
        tuple(v for v in walk.variables if v not in gone),
        dict(declared),
        main.annotations,
        field_lists(package),
    )
    lower_externs(made)
    return made


def _check_names(
    compiler: Compiler, tables: Iterable[ir.Table], actions: Iterable[ir.Callable]
) -> None:
    """Check that no two tables or different actions have one name for the control plane.

    Actions of one name and with the same data pass: programs translated from P4_14 have them.
    """
    seen: dict[tuple[str, str], tuple[object, ...]] = {}
    found: list[tuple[str, ir.Table | ir.Callable, tuple[object, ...]]] = [
        *(("table", table, (table,)) for table in tables),
        *(
            ("action", action, tuple((p.name, p.variable.type) for p in action.data))
            for action in actions
        ),
    ]
    for what, item, form in found:
        if seen.setdefault((what, item.name), form) != form:
            raise compiler.error(
                item.position,
                f"two {what}s of the program go by the name '{item.name}'; tell them apart with "
                "'@name'",
            )


def _control_plane_actions(walk: _Walk, order: _Order) -> tuple[ir.Callable, ...]:
    """Give the actions that P4Info lists: of tables, and those that an apply block calls.

    The latter get no data from the control plane.
    """
    for action in walk.shown:
        if action not in walk.table_actions:
            for parameter in action.parameters:
                parameter.direction = parameter.direction or "in"
    return tuple(
        action for action in dict.fromkeys((*order.actions, *walk.shown)) if action in walk.shown
    )


class _Order:
    """Puts what is reached in order of declaration, instance by instance."""

    def __init__(self, walk: _Walk) -> None:
        self.walk = walk
        self.tables: dict[ir.Table, None] = {}
        self.actions: dict[ir.Callable, None] = {}
        self.externs: dict[ir.ExternInstance, None] = {}
        self.value_sets: dict[ir.ValueSet, None] = {}
        self.clashes: list[ir.Callable] = []
        """Actions that are used, and have the name of another one of their block that is."""

    def block(self, unit: scope.BlockUnit, shown: Iterable[ir.Callable]) -> None:
        """Put a block of the package in order, with the blocks inside it.

        `shown`: actions that it is the first to use.
        """
        # p4c has inlined the blocks inside by then: actions of the top level come before all
        # others, first those of tables, in their order, then those that are called.
        contents = list(self._contents(unit.unit))
        own = {item for item in contents if isinstance(item, ir.Callable)}
        for item in contents:
            if isinstance(item, ir.Table) and item in self.walk.tables:
                for action in item.actions:
                    if action.action not in own:
                        self.actions[action.action] = None
        self.actions.update(dict.fromkeys(action for action in shown if action not in own))
        self.unit(unit.unit)

    def _contents(self, unit: Unit) -> Iterator[object]:
        """Yield what a unit declares, and blocks inside it where they are declared."""
        for item in unit.contents:
            yield item
            if isinstance(item, scope.BlockEntity):
                for made in self._reached(item):
                    yield from self._contents(made.unit)

    def _reached(self, entity: scope.BlockEntity) -> Iterator[scope.BlockUnit]:
        return (made for made in entity.blocks.values() if made.block in self.walk.blocks)

    def unit(self, unit: Unit, only_externs: bool = False) -> None:
        names: dict[str, ir.Callable] = {}
        for item in unit.contents:
            if isinstance(item, ir.ExternInstance):
                self.externs[item] = None
            elif only_externs:
                continue
            elif isinstance(item, ir.Table):
                if item in self.walk.tables:
                    self.tables[item] = None
            elif isinstance(item, ir.Callable):
                if item in self.walk.callables:
                    self.actions[item] = None
                    if item.is_action and names.setdefault(item.name, item) is not item:
                        self.clashes.append(item)
            elif isinstance(item, ir.ValueSet):
                if item in self.walk.value_sets:
                    self.value_sets[item] = None
            elif isinstance(item, scope.BlockEntity):
                for made in self._reached(item):
                    self.unit(made.unit)
