"""Packages that only parts of hopsum need, and the extras of the distribution that bring them."""

from __future__ import annotations

from importlib.util import find_spec

from protocol.errors import OperationError

EXTRAS = {
    "etcd3gw": "etcd",
    "matplotlib": "plots",
    "hopsum_scapy": "scapy",
    "sklearn": "demo",
    "torch": "torch",
}
"""The extra that brings each package, by the name it is imported with."""
WITH_WHEELS = ("scapy", "torch")
"""Extras with a distribution of ours in them, which no index has."""


class MissingExtraError(OperationError):
    """A package that this installation of hopsum lacks; the message says how to install it."""


def require(package: str, user: str) -> None:
    """Raise MissingExtraError unless a package of `EXTRAS` is installed; it is not imported.

    `user`: what needs it, as the message's first words.
    """
    if find_spec(package) is None:
        extra = EXTRAS[package]
        ours = extra in WITH_WHEELS
        raise MissingExtraError(
            f"{user}: {package} is not installed; install it with "
            f"`pip install {'--find-links dist ' if ours else ''}'hopsum[{extra}]'`"
            + (", dist being the folder of `make wheels`" if ours else "")
        )
