"""Outputs that cannot be written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
from p4switch.packet_io.standard_output import failures_reported
with failures_reported("program"):
    print("x" * {length})
"""


def test_a_full_disk_is_one_line_of_error_also_for_what_is_still_in_the_buffer() -> None:
    for length in (10, 100_000):
        with Path("/dev/full").open("w") as full:
            ended = subprocess.run(
                [sys.executable, "-c", CODE.format(length=length)],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                check=False,
            )
        assert ended.stderr == "program: cannot write the output: No space left on device\n"
        assert ended.returncode == 1


def test_a_reader_that_has_gone_ends_the_program_in_silence() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", "input()" + CODE.format(length=100_000)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.close()
    program.stdout = None
    assert program.communicate("\n")[1] == ""
    assert program.returncode == 1


def test_other_errors_pass() -> None:
    failing = CODE.replace("print", "open('/nowhere/at/all').read").format(length=1)
    ended = subprocess.run([sys.executable, "-c", failing], capture_output=True, text=True)
    assert "FileNotFoundError" in ended.stderr
