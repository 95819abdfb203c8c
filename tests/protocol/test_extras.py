"""Packages that only parts of hopsum need."""

from __future__ import annotations

import sys
import tomllib

import pytest

from hopsum.protocol import extras
from hopsum.protocol.extras import EXTRAS, MissingExtraError, require
from tests.support.paths import ROOT


@pytest.mark.parametrize(
    ("prefix", "package", "command"),
    [
        ("/opt/hopsum", "matplotlib", f"`{sys.executable} -m pip install 'hopsum[plots]'`"),
        ("/opt/hopsum", "torch", "--find-links FOLDER 'hopsum[torch]'`, FOLDER being where"),
        (f"{ROOT}/.venv", "hopsum_scapy", "install it with `make setup`"),
        (f"{ROOT}/.venv", "torch", "install it with `make torch`"),
    ],
)
def test_a_missing_package_is_reported_with_how_to_install_it(
    prefix: str, package: str, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", prefix)
    monkeypatch.setattr(extras, "find_spec", lambda package: None)
    with pytest.raises(MissingExtraError) as caught:
        require(package, "plot")
    assert str(caught.value).startswith(f"plot: {package} is not installed; install it with ")
    assert command in str(caught.value)
    assert ("make" in str(caught.value)) == prefix.startswith(str(ROOT))


def test_extras_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS.values()) | {"dev"} == set(project["optional-dependencies"])
