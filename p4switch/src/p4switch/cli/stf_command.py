"""`p4switch stf`: packet tests and their coverage of a program."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from p4switch.cli.executors import chosen_executor, executor_of_externs
from p4switch.cli.options import (
    Defines,
    Executor,
    Externs,
    Includes,
    P4InfoFile,
    fail,
    parse_defines,
    write_file,
)

if TYPE_CHECKING:
    from p4switch.stf import EngineFactory
    from p4switch.targets.v1model.engine import Engine, EngineOptions


def stf(
    program: Annotated[Path, typer.Argument(help="P4 source, or BMv2 JSON.")],
    scripts: Annotated[list[Path], typer.Argument(help="Packets and expectations, in STF.")],
    executor: Executor = None,
    coverage: Annotated[
        Path | None,
        typer.Option(
            help="Write an HTML page with the statements, branches, parser transitions and table "
            "entries that the tests reached. Runs the interpreter."
        ),
    ] = None,
    externs: Externs = None,
    p4info: P4InfoFile = None,
    defines: Defines = None,
    includes: Includes = None,
) -> None:
    """Run STF packet tests (the format of p4c's tests) against a program."""
    from p4switch.packet_io.private_files import UnsafePathError
    from p4switch.position import P4Error
    from p4switch.programs import compile_path
    from p4switch.stf import StfError, engine_factory, run_stf
    from p4switch.targets.v1model.engine import EngineOptions, ExternError

    if externs is not None:
        executor = executor_of_externs(externs, executor)
    if coverage is not None and executor == "native":
        fail("coverage is counted by the interpreter: leave --executor native out")
    failures = []
    try:
        checked = compile_path(
            program,
            include_paths=includes or [],
            defines=parse_defines(defines),
            p4info=p4info,
        )
        options = EngineOptions(externs=externs)
        factory: EngineFactory
        if coverage is not None:
            factory, write_page = _covering(coverage, program, options)
        else:
            maker: Callable[..., Engine] = engine_factory(chosen_executor(executor))
            factory = partial(maker, options=options)
        for script in scripts:
            found = run_stf(factory, checked, script)
            failures += found
            if not found:
                typer.echo(f"{script}: passed")
        if coverage is not None:
            write_page()
    except (P4Error, StfError, UnsafePathError, ExternError) as error:
        fail(str(error))
    if failures:
        fail("\n".join(failures))


def _covering(
    path: Path, program: Path, options: EngineOptions
) -> tuple[EngineFactory, Callable[[], None]]:
    """Return a factory of counting engines, and a function that writes page and summary."""
    from p4switch.backends.reference.coverage import Coverage
    from p4switch.backends.reference.interpreter import Interpreter
    from p4switch.cli.coverage_page import page, summary

    counted = Coverage()

    def write_page() -> None:
        write_file(path, page(f"Coverage of {program.name}", counted).encode())
        for line in summary(counted):
            typer.echo(line)

    return lambda checked: Interpreter(checked, options, coverage=counted), write_page
