"""From the syntax tree to the intermediate representation."""

from p4switch.check.program import compile_file, compile_program

__all__ = ["compile_file", "compile_program"]
