"""`p4switch shims`: BMv2's command names in a folder of their own, which run p4switch."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from p4switch.cli.options import fail, print_line, write_file

SHIMS = {
    "simple_switch_grpc": "p4switch.cli.bmv2_switch:simple_switch_grpc",
    "simple_switch": "p4switch.cli.bmv2_switch:simple_switch",
    "simple_switch_CLI": "p4switch.cli.bmv2_switch:simple_switch_cli",
    "p4c": "p4switch.cli.bmv2_compilers:p4c",
    "p4c-bm2-ss": "p4switch.cli.bmv2_compilers:p4c_bm2_ss",
}
"""Commands, and the functions that they run."""
PYTHON = "python"
"""The folder, below, of the modules that controllers import, of p4lang and of p4-utils."""
_FILLED = "from {} import fill\n\nfill(globals(), {})\n"
_MESSAGES = partial(_FILLED.format, "p4switch.proto.definitions")
_THRIFT = partial(_FILLED.format, "p4switch.bmv2_runtime.bindings")
MODULES = {
    "p4/config/v1/p4info_pb2.py": _MESSAGES('"p4info"'),
    "p4/config/v1/p4types_pb2.py": _MESSAGES('"p4types"'),
    "p4/tmp/p4config_pb2.py": _MESSAGES('"p4config"'),
    "p4/v1/p4data_pb2.py": _MESSAGES('"p4data"'),
    "p4/v1/p4runtime_pb2.py": _MESSAGES('"p4runtime"'),
    "p4/v1/p4runtime_pb2_grpc.py": _MESSAGES('"p4runtime", services=True'),
    "bm_runtime/simple_pre/SimplePre.py": _THRIFT('"simple_pre"'),
    "bm_runtime/simple_pre_lag/SimplePreLAG.py": _THRIFT('"simple_pre_lag"'),
    "bm_runtime/standard/Standard.py": _THRIFT('"standard"'),
    "bm_runtime/standard/ttypes.py": _THRIFT(None),
    "sswitch_runtime/SimpleSwitch.py": _THRIFT('"simple_switch"'),
    "sswitch_runtime/ttypes.py": _THRIFT(None),
    "bmpy_utils.py": "from p4switch.bmv2_runtime.bindings import *\n",
}
"""Modules that PyPI lacks or has in part, and their text."""
MARK = "# Written by `p4switch shims`"
LONGEST_INTERPRETER = 250
"""Bytes of a script's first line that Linux reads, less some."""


def shims(
    folder: Annotated[Path, typer.Argument(help="Folder to write the commands into.")],
) -> None:
    """Write simple_switch_grpc, p4c and so on, which run p4switch, into a folder for PATH."""
    folder = folder.absolute()
    interpreter = sys.executable
    if len(interpreter) > LONGEST_INTERPRETER or set(interpreter) & set(" \t"):
        fail(f"{interpreter}: a script cannot name an interpreter with spaces or so long a path")
    for name in SHIMS:
        path = folder / name
        if path.exists() and MARK.encode() not in path.read_bytes():
            fail(f"{path}: exists and is none of these commands; choose another folder")
    for name, target in SHIMS.items():
        module, _, function = target.partition(":")
        text = (
            f"#!{interpreter}\n{MARK}: BMv2's command name, which runs p4switch.\n"
            f"from {module} import {function}\n\n{function}()\n"
        )
        write_file(folder / name, text.encode())
        (folder / name).chmod(0o755)
    for module, text in MODULES.items():
        for package in Path(module).parents[:-1]:
            write_file(folder / PYTHON / package / "__init__.py", b"")
        write_file(folder / PYTHON / module, text.encode())
    print_line(f'export PATH="{folder}:$PATH"')
