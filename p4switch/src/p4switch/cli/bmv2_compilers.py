"""p4c's programs `p4c` and `p4c-bm2-ss`, for scripts that compile before they start a switch."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import typer

P4C, BACK_END = "p4c", "p4c-bm2-ss"
LANGUAGES = ("16", "p4-16", "p4_16")
TARGETS = ("bmv2", "bmv2-ss-p4org", "bmv2-simple-switch")
P4INFO_SUFFIXES = {"text": "", "json": ".json", "binary": ".bin"}
# Their values, if any, are attached by `=`, so that the next word is another argument.
_DIAGNOSTICS = re.compile(r"--(?:Wdisable|Wwarn|Werror|Winfo|disable-annotations)(?:=.*)?")
_WITHOUT_EFFECT = (
    "-g",
    "-S",
    "-v",
    "--debug",
    "--emit-externs",
    "--ndebug",
    "--nocpp",
    "--parser-inline-opt",
    "--loopsUnroll",
)
_WITHOUT_EFFECT_WITH_VALUE = ("-T", "-U", "--maxErrorCount", "--top4", "--dump", "--pp")


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(1, f"{self.prog}: {message}; {self.prog} --help lists the options\n")


def compile_as(program: str, words: Sequence[str]) -> bytes:
    """Compile as `p4c` or `p4c-bm2-ss` does; return the program. Errors end the process with 1."""
    given = _parser(program).parse_args([w for w in words if not _DIAGNOSTICS.fullmatch(w)])
    if given.std not in LANGUAGES:
        sys.exit(f"{program}: p4switch compiles P4_16 only, not --std {given.std}")
    if given.arch not in (None, "v1model"):
        sys.exit(f"{program}: p4switch compiles for v1model only, not --arch {given.arch}")
    if given.target not in (None, *TARGETS):
        sys.exit(f"{program}: p4switch compiles for bmv2 only, not --target {given.target}")
    source = Path(given.source)
    output = None if given.output is None else Path(given.output)
    if program == P4C:  # The driver takes a folder.
        output = (output or Path()) / f"{source.stem}.json"
    information = [
        Path(name) for text in given.p4runtime_files or () for name in text.split(",") if name
    ]
    from p4switch.cli.compile_command import compile_files

    try:
        return compile_files(
            source,
            output,
            information,
            defines=given.define,
            includes=[Path(folder) for folder in given.include or ()],
            as_json=True,
            p4info_form=P4INFO_SUFFIXES.get(given.p4runtime_format or ""),
        )
    except typer.Exit as end:
        sys.exit(end.exit_code)


def _parser(program: str) -> _Parser:
    parser = _Parser(
        prog=program,
        description="p4switch's compiler with p4c's options. The JSON serves p4switch, and tools "
        "that read BMv2's for tables and actions; BMv2 itself cannot run it.",
    )
    add = parser.add_argument
    add("source", metavar="PROGRAM.p4")
    folder = " (a folder)" if program == P4C else ""
    add("-o", dest="output", metavar="OUTPUT", help=f"where to write the JSON{folder}")
    add("-I", dest="include", action="append", metavar="FOLDER")
    add("-D", dest="define", action="append", metavar="NAME[=VALUE]")
    add("--p4v", "--std", "-x", dest="std", default="16", metavar="VERSION")
    add("-a", "--arch", metavar="v1model")
    add("-b", "-t", "--target", metavar="bmv2")
    add(
        "--p4runtime-files",
        "--p4runtime-file",
        action="append",
        metavar="FILES",
        help="where to write the P4Info: .json as JSON, .bin as binary, else as text",
    )
    add("--p4runtime-format", choices=list(P4INFO_SUFFIXES))
    add("--version", action="version", version=f"{program} 1.2.5 (p4switch)")
    for name in _WITHOUT_EFFECT:
        add(name, action="store_true", help=argparse.SUPPRESS)
    for name in _WITHOUT_EFFECT_WITH_VALUE:
        add(name, help=argparse.SUPPRESS)
    return parser


def p4c() -> None:
    """Run `p4c` with the arguments of this process."""
    _run(P4C)


def p4c_bm2_ss() -> None:
    """Run `p4c-bm2-ss` with the arguments of this process."""
    _run(BACK_END)


def _run(program: str) -> None:
    """Compile; then build native code, which switches would do while p4-utils waits for 10 s."""
    config = compile_as(program, sys.argv[1:])
    from p4switch.device.loading import warm

    warm(config)
