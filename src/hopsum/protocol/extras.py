"""Optional packages, and the extras of the distribution that install them."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from hopsum.protocol.errors import OperationError

EXTRAS = {
    "etcd3gw": "etcd",
    "matplotlib": "plots",
    "pandas": "notebooks",
    "ray": "ray",
    "hopsum_scapy": "scapy",
    "sklearn": "demo",
    "torch": "torch",
}
"""The extra that installs each package, by import name."""
WITH_WHEELS = ("scapy", "torch")
"""Extras that contain a distribution of ours, which no index has."""
IN_CHECKOUT = {
    "torch": "`make torch`",
    "ray": "`make frameworks`, whose commands are in .venv/frameworks/bin",
}
"""How a checkout installs the extras that `make setup` does not."""
CHECKOUT_ENVIRONMENT = Path(__file__).resolve().parents[3] / ".venv"
"""Where `make setup` installs."""


class MissingExtraError(OperationError):
    """A package is missing from this installation of hopsum; the message says how to install it."""


def require(package: str, user: str) -> None:
    """Raise MissingExtraError unless a package of `EXTRAS` is installed; it is not imported.

    `user`: what needs it, as the message's first words.
    """
    if find_spec(package) is None:
        raise MissingExtraError(
            f"{user}: {package} is not installed; install it with "
            f"{install_command(EXTRAS[package])}"
        )


def install_command(extra: str) -> str:
    """Return the command that installs an extra here, in backticks."""
    if Path(sys.prefix).resolve() == CHECKOUT_ENVIRONMENT:
        return IN_CHECKOUT.get(extra, "`make setup`")
    if extra in WITH_WHEELS:
        return (
            f"`{sys.executable} -m pip install --find-links FOLDER 'hopsum[{extra}]'`, FOLDER "
            "being where hopsum's wheels are"
        )
    return f"`{sys.executable} -m pip install 'hopsum[{extra}]'`"
