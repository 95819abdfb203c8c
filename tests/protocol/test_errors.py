"""One base class for the errors of all of hopsum."""

from __future__ import annotations

import builtins
import re

from tests.support.paths import ROOT, package_files

APART = {"hopsum_scapy", "hopsum_torch", "p4switch"}
"""Distributions of their own, which know nothing of hopsum."""
ON_PURPOSE = {
    "HopsumError",
    # Signals: no `except Exception` may stop them.
    "Interrupted",
    # Standard library only, for `mn --custom`.
    "EmulationError",
    # gRPC's own, in virtual time.
    "AbortError",
}
BUILT_IN = {
    name
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}

DEFINITION = re.compile(r"^class ([A-Za-z]\w*)\(([\w, ]+)\):", re.MULTILINE)


def test_every_error_has_hopsums_base_class() -> None:
    others = []
    for file in package_files(".py"):
        for name, bases in DEFINITION.findall(file.read_text()):
            if set(bases.split(", ")) <= BUILT_IN and name not in ON_PURPOSE:
                others.append(f"{file.relative_to(ROOT)}: {name}")
    assert not others
