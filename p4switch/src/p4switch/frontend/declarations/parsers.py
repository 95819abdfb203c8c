"""Parser states, select expressions and value sets."""

from __future__ import annotations

from typing import TYPE_CHECKING

from p4switch import ir
from p4switch.frontend.constants import constants as folding
from p4switch.frontend.constants import convert
from p4switch.frontend.expressions import evaluation, resolve
from p4switch.frontend.names import scope
from p4switch.frontend.names.compilation import suggestion
from p4switch.frontend.names.operands import EntityOperand
from p4switch.frontend.names.values import ListValue, Value
from p4switch.frontend.statements import bodies
from p4switch.frontend.syntax import ast
from p4switch.frontend.types import types
from p4switch.frontend.types.lower import type_name

if TYPE_CHECKING:
    from p4switch.frontend.names.compilation import Body
    from p4switch.position import Position

_FINAL = ("accept", "reject")


def states(body: Body, declaration: ast.ParserDeclaration) -> dict[str, ir.State]:
    """Lower all states of a parser."""
    assert declaration.states is not None
    compiler = body.compiler
    names: set[str] = set(_FINAL)
    for state in declaration.states:
        if state.name in _FINAL:
            raise body.error(
                state.position, f"'{state.name}' is a state that every parser has already"
            )
        if state.name in names:
            raise body.error(state.position, f"state '{state.name}' is declared twice")
        names.add(state.name)
    if "start" not in names:
        raise body.error(declaration.position, f"parser '{declaration.name}' has no state 'start'")
    made: dict[str, ir.State] = {}
    for state in declaration.states:
        with compiler.recovering():
            made[state.name] = _state(body, state, names)
    if len(made) == len(declaration.states) and not _ends(made):
        raise body.error(
            declaration.position,
            f"parser '{declaration.name}' never ends: no transition leads to accept or reject",
        )
    return made


def _ends(states: dict[str, ir.State]) -> bool:
    """Return whether a way leads from `start` out of the parser; a select may match nothing."""
    seen: set[str] = set()
    waiting = ["start"]
    while waiting:
        name = waiting.pop()
        if name in _FINAL:
            return True
        if name in seen:
            continue
        seen.add(name)
        transition = states[name].transition
        if isinstance(transition, ir.Goto):
            waiting.append(transition.state)
            continue
        if not all(isinstance(keyset, ir.Anything) for keyset in transition.cases[-1][0]):
            return True
        waiting += [target for _, target in transition.cases]
    return False


def _state(body: Body, state: ast.ParserState, names: set[str]) -> ir.State:
    with body.capture() as code, body.nested_scope() as inner:
        body.compiler.symbols.scopes.append((state.position, inner))
        bodies.several(body, state.body)
        transition = state.transition
        lowered: ir.Goto | ir.Select
        if transition is None:
            lowered = ir.Goto("reject")
        elif isinstance(transition, str):
            _check_state(body, transition, names, state.position)
            lowered = ir.Goto(transition)
        else:
            lowered = _select(body, transition, names)
    return ir.State(state.name, code, lowered)


def _check_state(body: Body, name: str, names: set[str], position: Position) -> None:
    if name not in names:
        raise body.error(position, f"no state is called '{name}'{suggestion(name, iter(names))}")


# --- Select ----------------------------------------------------------------------------------


def _select(body: Body, node: ast.Select, names: set[str]) -> ir.Select | ir.Goto:
    operands = evaluation.sequence(body, node.subjects)
    subjects = [convert.plain(body, operand) for operand in operands]
    kinds = [s.type for s in subjects]
    for subject in subjects:
        if types.is_struct(types.resolved(subject.type)):
            raise body.error(
                subject.position,
                f"a select cannot match a struct ('{subject.type}'); list its fields instead",
            )
        if isinstance(subject.type, types.Int):
            raise body.error(subject.position, "this integer has no width; write one, as in '8w5'")
    flat = [e for subject in subjects for e in _flatten(body, subject)]
    made: list[tuple[tuple[ir.KeySet, ...], str]] = []
    for case in node.cases:
        _check_state(body, case.state, names, case.position)
        made.append((_case(body, case, kinds, len(flat)), case.state))
    if made and all(isinstance(k, ir.Anything) for k in made[0][0]):
        return ir.Goto(made[0][1])
    return ir.Select(tuple(flat), made)


def _flatten(body: Body, value: Value) -> list[ir.Expression]:
    """Take structs and tuples apart; a select matches their fields."""
    kind = types.resolved(value.type)
    if types.is_struct(kind) or isinstance(kind, types.Tuple):
        return [
            expression
            for name, part in types.parts(kind)
            for expression in _flatten(body, convert.part(body, value, name, part))
        ]
    bare = types.underlying(kind)
    if isinstance(bare, (types.Bits, types.Enum)) or bare in (types.BOOL, types.ERROR):
        return [convert.lowered(body, value)]
    if isinstance(bare, types.Parameter):
        return [convert.lowered(body, value)]
    raise body.error(value.position, f"a value of type '{value.type}' cannot be matched")


def _width(kind: types.Type) -> int:
    """Count the values a type flattens to."""
    kind = types.resolved(kind)
    if types.is_struct(kind) or isinstance(kind, types.Tuple):
        return sum(_width(part) for _, part in types.parts(kind))
    return 1


def _case(
    body: Body, case: ast.SelectCase, kinds: list[types.Type], total: int
) -> tuple[ir.KeySet, ...]:
    keys = case.keys
    if len(keys) == 1:
        only = keys[0]
        if isinstance(only, (ast.DontCare, ast.DefaultKeyset)):
            return tuple(ir.Anything() for _ in range(total))
        entity = body.scope.find(only.name) if isinstance(only, ast.Name) else None
        if isinstance(entity, scope.ValueSetEntity):
            wanted = kinds[0] if len(kinds) == 1 else types.Tuple(tuple(kinds))
            _check_value_set(body, entity, wanted, only.position)
            return (ir.InValueSet(entity.value_set),)
        if isinstance(only, ast.TupleKeyset) and (len(kinds) > 1 or len(only.elements) == 1):
            keys = only.elements
    if len(keys) != len(kinds):
        raise body.error(
            case.position,
            f"the select has {len(kinds)} subject{'s' * (len(kinds) != 1)}, this case has "
            f"{len(keys)} key sets",
        )
    found: list[ir.KeySet] = []
    for key, kind in zip(keys, kinds, strict=True):
        found.extend(keyset(body, key, kind))
    return tuple(found)


def _check_value_set(
    body: Body, entity: scope.ValueSetEntity, wanted: types.Type, position: Position
) -> None:
    have = [ir_type for _, ir_type in _leaves(entity.type)]
    want = [ir_type for _, ir_type in _leaves(wanted)]
    if [types.underlying(a) for a in have] != [types.underlying(b) for b in want]:
        raise body.error(
            position,
            f"the value set holds values of type '{entity.type}', the select is on '{wanted}'",
        )


def _leaves(kind: types.Type, name: str = "") -> list[tuple[str, types.Type]]:
    kind = types.resolved(kind)
    if types.is_struct(kind) or isinstance(kind, types.Tuple):
        return [leaf for part, k in types.parts(kind) for leaf in _leaves(k, part)]
    return [(name, kind)]


def keyset(body: Body, key: ast.Expression, kind: types.Type) -> list[ir.KeySet]:
    """Lower a key set for a subject of a type, to one for each value it flattens to."""
    if isinstance(key, (ast.DontCare, ast.DefaultKeyset)):
        return [ir.Anything() for _ in range(_width(kind))]
    bare = types.resolved(kind)
    if isinstance(key, ast.TupleKeyset) and len(key.elements) == 1 and _width(kind) == 1:
        return keyset(body, key.elements[0], kind)
    if isinstance(key, (ast.TupleKeyset, ast.ListExpression)) and (
        types.is_struct(bare) or isinstance(bare, types.Tuple)
    ):
        wanted = list(types.parts(bare))
        if len(wanted) != len(key.elements):
            raise body.error(
                key.position, f"'{kind}' has {len(wanted)} parts, not {len(key.elements)}"
            )
        return [
            found
            for element, (_, part) in zip(key.elements, wanted, strict=True)
            for found in keyset(body, element, part)
        ]
    if isinstance(key, (ast.MaskKeyset, ast.RangeKeyset)):
        return [_pair(body, key, kind)]
    value = _constant_code(body, key, kind)
    return [ir.Exactly(e) for e in _flatten(body, value)]


def _pair(
    body: Body, key: ast.MaskKeyset | ast.RangeKeyset, kind: types.Type
) -> ir.Masked | ir.Between:
    bits = types.underlying(kind)
    if not isinstance(bits, (types.Bits, types.Parameter)):
        what = "masks" if isinstance(key, ast.MaskKeyset) else "ranges"
        raise body.error(key.position, f"{what} need numbers, not values of type '{kind}'")
    if isinstance(key, ast.MaskKeyset):
        first, second = key.value, key.mask
    else:
        first, second = key.low, key.high
    low = convert.lowered(body, _known(body, first, kind))
    high = convert.lowered(body, _known(body, second, kind))
    return ir.Masked(low, high) if isinstance(key, ast.MaskKeyset) else ir.Between(low, high)


def _known(body: Body, key: ast.Expression, kind: types.Type) -> Value:
    """Evaluate a bound of a range, or a value or mask: they must be known when compiling."""
    value = _constant_code(body, key, kind)
    if not folding.is_known(value):
        raise body.error(key.position, "masks and ranges must be known when compiling")
    return value


def _constant_code(body: Body, key: ast.Expression, kind: types.Type) -> Value:
    """Evaluate a value of a key set; it may not do anything."""
    with body.capture() as code:
        operand = evaluation.evaluate(body, key)
    if code:
        raise body.error(key.position, "a key set cannot have side effects")
    if isinstance(operand, EntityOperand) and isinstance(operand.entity, scope.ValueSetEntity):
        raise body.compiler.unsupported(
            key.position, "a value set among other key sets is not supported; use it alone"
        )
    if isinstance(operand, Value):
        bare = types.underlying(kind)
        # A number stands for itself in a key set of a newtype or of a serialisable enum.
        if (
            isinstance(operand.type, types.Int)
            and isinstance(bare, types.Bits)
            and operand.constant is not None
        ):
            return folding.convert(operand.constant, kind, operand.position)
        if not types.same(operand.type, kind) and types.same(types.underlying(operand.type), bare):
            return convert.retyped(operand, kind)
    elif isinstance(operand, ListValue) and _width(kind) == 1 and len(operand.elements) == 1:
        return convert.to_type(body, operand.elements[0], kind, "a key set")
    return convert.to_type(body, operand, kind, "a key set")


# --- Value sets ------------------------------------------------------------------------------


def value_set(body: Body, node: ast.ValueSetDeclaration) -> scope.ValueSetEntity:
    """Lower a value set's declaration."""
    kind = resolve.type_of(body.compiler, node.type, body.scope)
    size = folding.integer(body, node.size, "the size of a value set")
    annotations = resolve.folded_annotations(body.compiler, node.annotations, body.scope)
    leaves = _leaves(kind)
    match_kinds = []
    fields = kind.fields if isinstance(kind, types.StructLike) else {}
    for name, _ in leaves:
        found = "exact"
        for annotation in fields[name].annotations if name in fields else ():
            if annotation.name == "match" and annotation.arguments:
                found = str(annotation.arguments[0])
        match_kinds.append(found)
    made = ir.ValueSet(
        body.unit.qualified(node.name, annotations),
        body.lower(kind, node.position),
        size,
        tuple(match_kinds),
        annotations,
        tuple(name for name, _ in leaves),
        tuple(type_name(part) for _, part in leaves),
    )
    body.unit.contents.append(made)
    entity = scope.ValueSetEntity(kind, made)
    entity.position = node.position
    return entity
