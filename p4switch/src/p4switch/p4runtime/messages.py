"""Import of P4Runtime's messages without the rest of their package."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def import_messages() -> None:
    """Import `finsy.proto` without `finsy` itself, whose import takes longer than all else.

    For processes that only run a switch: no other thread may be importing finsy. It can still be
    imported afterwards. Does nothing if it is already imported, or not installed.
    """
    if "finsy" in sys.modules:
        return
    spec = find_spec("finsy")
    if spec is None or spec.submodule_search_locations is None:
        return
    parent = sys.modules["finsy"] = ModuleType("finsy")
    parent.__path__ = spec.submodule_search_locations
    try:
        import_module("finsy.proto")
    finally:
        del sys.modules["finsy"]
