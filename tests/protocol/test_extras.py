"""Packages that only parts of hopsum need."""

from __future__ import annotations

import tomllib

import pytest

from protocol import extras
from protocol.extras import EXTRAS, MissingExtraError, require
from tests.support.paths import ROOT


def test_a_missing_package_is_reported_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    require("matplotlib", "plot")
    monkeypatch.setattr(extras, "find_spec", lambda package: None)
    with pytest.raises(MissingExtraError, match=r"plot: matplotlib .* 'hopsum\[plots\]'"):
        require("matplotlib", "plot")


def test_extras_are_those_of_the_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS.values()) | {"dev"} == set(project["optional-dependencies"])
