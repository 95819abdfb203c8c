"""The IR as text."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from p4switch import ir

_INDENT = "  "


def dump(program: ir.Program) -> str:
    """Show a whole program."""
    lines: list[str] = []
    for instance in program.externs:
        arguments = ", ".join(map(repr, instance.arguments))
        lines.append(f"extern {instance.name}: {instance.extern}({arguments})")
    for callable_ in (*program.functions, *program.actions):
        lines += _callable(callable_)
    for table in program.tables:
        lines += _table(table)
    for block in program.blocks:
        lines += _block(block)
    return "\n".join(lines) + "\n"


def dump_code(code: Iterable[ir.Statement]) -> str:
    """Show statements, one per line."""
    return "\n".join(_code(code, ""))


def _parameters(parameters: Iterable[ir.Parameter]) -> str:
    return ", ".join(
        f"{p.direction} {type_text(p.variable.type)} {p.variable.name}".strip() for p in parameters
    )


def _callable(item: ir.Callable) -> Iterator[str]:
    kind = "action" if item.is_action else "function"
    result = "" if item.result is None else f" -> {item.result.name}"
    yield f"{kind} {item.name}({_parameters(item.parameters)}){result}"
    yield from _code(item.body, _INDENT)


def _block(block: ir.Block) -> Iterator[str]:
    yield f"{block.kind} {block.name}({_parameters(block.parameters)})"
    yield from _code(block.body, _INDENT)
    for state in block.states.values():
        yield f"{_INDENT}state {state.name}"
        yield from _code(state.body, _INDENT * 2)
        if isinstance(state.transition, ir.Goto):
            yield f"{_INDENT * 2}goto {state.transition.state}"
            continue
        subjects = ", ".join(map(text, state.transition.subjects))
        yield f"{_INDENT * 2}select {subjects}"
        for keysets, target in state.transition.cases:
            yield f"{_INDENT * 3}{', '.join(map(_keyset, keysets))}: {target}"


def _keyset(keyset: ir.KeySet) -> str:
    if isinstance(keyset, ir.Exactly):
        return text(keyset.value)
    if isinstance(keyset, ir.Masked):
        return f"{text(keyset.value)} &&& {text(keyset.mask)}"
    if isinstance(keyset, ir.Between):
        return f"{text(keyset.low)} .. {text(keyset.high)}"
    if isinstance(keyset, ir.InValueSet):
        return keyset.value_set.name
    return "_"


def _table(table: ir.Table) -> Iterator[str]:
    yield f"table {table.name}"
    yield from _code(table.key_code, _INDENT * 2)
    for key in table.keys:
        yield f"{_INDENT}key {key.name}: {key.match_kind} = {text(key.expression)}"
    for action in table.actions:
        notes = "".join(f" @{a.name}" for a in action.annotations)
        yield f"{_INDENT}action {action.action.name}{notes}"
        yield from _code(action.copy_in, _INDENT * 2)
        yield from _code(action.copy_out, _INDENT * 2)
    constant = "const " if table.default_constant else ""
    yield f"{_INDENT}{constant}default {_choice(table, table.default_action)}"
    for entry in table.entries:
        keys = ", ".join(_const_key(key) for key in entry.keys)
        priority = "" if entry.priority is None else f"{entry.priority}: "
        yield f"{_INDENT}entry {priority}{keys} -> {_choice(table, entry.action)}"


def _choice(table: ir.Table, choice: ir.ActionChoice) -> str:
    name = table.actions[choice.index].action.name
    return f"{name}({', '.join(map(str, choice.arguments))})"


def _const_key(key: ir.ConstKey) -> str:
    if key.any:
        return "_"
    if key.high is not None:
        return f"{key.value:#x}..{key.high:#x}"
    return f"{key.value:#x}&{key.mask:#x}"


# --- Statements ------------------------------------------------------------------------------


def _code(code: Iterable[ir.Statement], indent: str) -> Iterator[str]:
    for statement in code:
        yield from (indent + line for line in _statement(statement))


def _statement(statement: ir.Statement) -> Iterator[str]:
    match statement:
        case ir.Declare():
            yield f"declare {statement.variable.name}"
        case ir.Assign():
            yield f"{text(statement.target)} = {text(statement.value)}"
        case ir.If():
            yield f"if {text(statement.condition)}"
            yield from _code(statement.then, _INDENT)
            if statement.other:
                yield "else"
                yield from _code(statement.other, _INDENT)
        case ir.Switch():
            yield f"switch {text(statement.subject)}"
            for values, body in statement.cases:
                yield f"case {', '.join(map(str, values))}"
                yield from _code(body, _INDENT)
            if statement.default:
                yield "default"
                yield from _code(statement.default, _INDENT)
        case ir.Loop():
            yield "loop"
            yield from _code(statement.condition_code, _INDENT)
            yield f"while {text(statement.condition)}"
            yield from _code(statement.body, _INDENT)
            yield "update"
            yield from _code(statement.update, _INDENT)
        case ir.Call():
            yield f"call {statement.callee.name}"
            yield from _code(statement.copy_out, _INDENT)
        case ir.ApplyTable():
            hit = "" if statement.hit is None else f" hit={statement.hit.name}"
            run = "" if statement.action_run is None else f" action_run={statement.action_run.name}"
            yield f"apply {statement.table.name}{hit}{run}"
        case ir.CallExtern():
            yield _extern(statement)
        case _:
            yield _simple(statement)


def _extern(statement: ir.CallExtern) -> str:
    arguments = ", ".join(f"{a.direction} {text(a.value)}".strip() for a in statement.arguments)
    base = "" if statement.instance is None else f"{statement.instance.name}."
    result = "" if statement.result is None else f"{statement.result.name} = "
    return f"{result}{base}{statement.method}({arguments})"


def _simple(statement: ir.Statement) -> str:
    match statement:
        case ir.Extract():
            width = "" if statement.varbit_width is None else f", {text(statement.varbit_width)}"
            return f"extract {text(statement.target)}{width}"
        case ir.Lookahead():
            return f"lookahead {text(statement.target)}"
        case ir.Advance():
            return f"advance {text(statement.bits)}"
        case ir.PacketLength():
            return f"length {text(statement.target)}"
        case ir.Emit():
            return f"emit {text(statement.value)}"
        case ir.Verify():
            return f"verify {text(statement.condition)}, {text(statement.error)}"
        case ir.SetValid():
            return f"{'setValid' if statement.valid else 'setInvalid'} {text(statement.header)}"
        case ir.Push():
            return f"push {text(statement.stack)}, {statement.count}"
    return type(statement).__name__.lower()


# --- Expressions and types -------------------------------------------------------------------


def text(expression: ir.Expression) -> str:
    """Show an expression."""
    match expression:
        case ir.Const():
            return _constant(expression)
        case ir.Read():
            return expression.variable.name
        case ir.Field():
            return f"{text(expression.base)}.{expression.name}"
        case ir.Element():
            return f"{text(expression.base)}[{text(expression.index)}]"
        case ir.StackNext():
            return f"{text(expression.base)}.next"
        case ir.StackLast():
            return f"{text(expression.base)}.last"
        case ir.StackLastIndex():
            return f"{text(expression.base)}.lastIndex"
        case ir.Slice():
            return f"{text(expression.base)}[{expression.high}:{expression.low}]"
        case ir.Unary():
            return f"{expression.operator}{text(expression.operand)}"
        case ir.Binary():
            return f"({text(expression.left)} {expression.operator} {text(expression.right)})"
        case ir.Mux():
            return (
                f"({text(expression.condition)} ? {text(expression.then)}"
                f" : {text(expression.other)})"
            )
        case ir.Cast():
            return f"({type_text(expression.type)}){text(expression.operand)}"
        case ir.IsValid():
            return f"{text(expression.header)}.isValid()"
        case ir.Build():
            return "{" + ", ".join(map(text, expression.values)) + "}"
        case ir.Invalid():
            return "{#}"


def _constant(expression: ir.Const) -> str:
    if isinstance(expression.type, ir.Bits):
        return f"{expression.type.width}{'s' if expression.type.signed else 'w'}{expression.value}"
    if isinstance(expression.value, str):
        return repr(expression.value)
    return str(expression.value).lower()


def type_text(kind: ir.Type) -> str:
    """Show a type."""
    match kind:
        case ir.Bits():
            return f"{'int' if kind.signed else 'bit'}<{kind.width}>"
        case ir.Bool():
            return "bool"
        case ir.String():
            return "string"
        case ir.Varbit():
            return f"varbit<{kind.max_width}>"
        case ir.Stack():
            return f"{kind.element.name}[{kind.size}]"
        case _:
            return kind.name
