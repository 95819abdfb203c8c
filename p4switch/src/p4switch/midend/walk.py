"""Iteration over a program's statements."""

from __future__ import annotations

from collections.abc import Iterator

from p4switch.ir import CallExtern, If, Loop, Program, Statement, Switch


def statements(body: list[Statement]) -> Iterator[Statement]:
    """Yield every statement of a body in order, including nested ones."""
    for statement in body:
        yield statement
        match statement:
            case If():
                yield from statements(statement.then)
                yield from statements(statement.other)
            case Switch():
                for _, case_body in statement.cases:
                    yield from statements(case_body)
                yield from statements(statement.default)
            case Loop():
                yield from statements(statement.condition_code)
                yield from statements(statement.body)
                yield from statements(statement.update)


def program_statements(program: Program) -> Iterator[Statement]:
    """Yield every statement of a program."""
    for block in program.blocks:
        yield from statements(block.body)
        for state in block.states.values():
            yield from statements(state.body)
    for item in (*program.functions, *program.actions):
        yield from statements(item.body)


def extern_calls(program: Program) -> Iterator[CallExtern]:
    """Yield every call of an extern function or method."""
    for statement in program_statements(program):
        if isinstance(statement, CallExtern):
            yield statement
