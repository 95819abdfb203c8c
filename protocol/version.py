"""The version of this hopsum."""

from __future__ import annotations

from functools import cache
from importlib import metadata


@cache
def version() -> str:
    """Return the version of the installed distribution; '' where it runs uninstalled."""
    try:
        return metadata.version("hopsum")
    except metadata.PackageNotFoundError:
        return ""
