"""Optional packages, and the extras of the distribution that install them."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from protocol.errors import OperationError

EXTRAS = {
    "etcd3gw": "etcd",
    "matplotlib": "plots",
    "hopsum_scapy": "scapy",
    "sklearn": "demo",
    "torch": "torch",
}
"""The extra that installs each package, by import name."""
WITH_WHEELS = ("scapy", "torch")
"""Extras that contain a distribution of ours, which no index has."""


class MissingExtraError(OperationError):
    """A package is missing from this installation of hopsum; the message says how to install it."""


def require(package: str, user: str) -> None:
    """Raise MissingExtraError unless a package of `EXTRAS` is installed; it is not imported.

    `user`: what needs it, as the message's first words.
    """
    if find_spec(package) is None:
        extra = EXTRAS[package]
        ours = extra in WITH_WHEELS
        links = "--find-links dist " if ours else ""
        raise MissingExtraError(
            f"{user}: {package} is not installed; install it with "
            f"`{sys.executable} -m pip install {links}'hopsum[{extra}]'`"
            + (", dist being the folder of `make wheels`" if ours else "")
        )
