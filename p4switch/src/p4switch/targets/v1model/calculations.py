"""The hashes of a program whose CRC the control plane can set, as BMv2's `calculations`."""

from __future__ import annotations

from dataclasses import dataclass

from p4switch import ir
from p4switch.midend.architecture import hash_algorithms
from p4switch.midend.walk import extern_calls
from p4switch.targets.v1model.hashes import CRC16, CRC32, CrcConfig

DEFAULTS = {"crc16_custom": CRC16, "crc32_custom": CRC32}
"""Parameters at first, by algorithm: those of the standard CRCs, as in BMv2."""


@dataclass(frozen=True, slots=True)
class Calculation:
    """A call of `hash` with a custom CRC: its name, algorithm and place in the program."""

    name: str
    algorithm: str
    call: ir.CallExtern

    @property
    def default(self) -> CrcConfig:
        """Return the parameters at first."""
        return DEFAULTS[self.algorithm]


def custom_calculations(program: ir.Program) -> list[Calculation]:
    """Return the calls of `hash` with a custom CRC.

    All calls of `hash` count for the names, which are p4c's: calc, calc_0, calc_1, ...
    """
    names = hash_algorithms(program)
    found: list[Calculation] = []
    number = -1
    for call in extern_calls(program):
        if call.method != "hash" or call.instance is not None:
            continue
        algorithm = next((a.value for a in call.arguments if a.name == "algo"), None)
        if isinstance(algorithm, ir.Const) and names.get(int(algorithm.value)) in DEFAULTS:
            name = "calc" if number < 0 else f"calc_{number}"
            found.append(Calculation(name, names[int(algorithm.value)], call))
        number += 1
    return found
