"""Options of process groups."""

from __future__ import annotations

import copy
import json
import pickle
import re
import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

import torch.distributed as dist
from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, start

import hopsum_torch
from hopsum_torch.options import Options, nonfinite_of


def test_the_package_has_options() -> None:
    assert hopsum_torch.Options is Options
    with pytest.raises(AttributeError, match="no attribute 'Option'"):
        _ = hopsum_torch.Option  # type: ignore[attr-defined]


def test_options_can_be_imported_before_torch() -> None:
    """PyTorch imports hopsum_torch, which then cannot have the options yet."""
    code = "import hopsum_torch; print(hopsum_torch.Options('pass').nonfinite)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "pass\n"


@pytest.mark.parametrize("value", ["", "Pass", 1, "x" * 99])
def test_other_values_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"nonfinite is .{1,42}: expected 'refuse' or 'pass'"):
        Options(value)


def test_options_can_be_copied() -> None:
    given = Options("pass", timedelta(seconds=9))
    for each in (copy.deepcopy(given), pickle.loads(pickle.dumps(given))):
        assert (each.nonfinite, each._timeout) == ("pass", timedelta(seconds=9))
        assert repr(each) == repr(given)


@pytest.mark.parametrize(
    ("given", "inherited", "variable", "expected"),
    [
        (None, None, None, "refuse"),
        (None, None, "pass", "pass"),
        (None, "refuse", "pass", "refuse"),
        (Options(), "pass", None, "pass"),
        (Options("refuse"), "pass", "pass", "refuse"),
        (Options("pass"), None, "refuse", "pass"),
        (dist.ProcessGroupGloo._Options(), None, "pass", "pass"),
    ],
)
def test_what_counts_is_the_groups_then_the_default_groups_then_the_environments(
    given: Any, inherited: Any, variable: Any, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOPSUM_NONFINITE", raising=False)
    if variable is not None:
        monkeypatch.setenv("HOPSUM_NONFINITE", variable)
    assert nonfinite_of(given, inherited) == expected


def test_what_are_no_options_is_refused() -> None:
    with pytest.raises(TypeError, match=r"pg_options: \{'nonfinite': 'pass'\}: expected hopsum_t"):
        nonfinite_of({"nonfinite": "pass"}, None)


def met(which: str) -> list[dict[str, str]]:
    """Return what each of four ranks meets."""
    agents = Agents(4)
    processes = start(agents.of_ranks, SUPPORT / "differing.py", which)
    printed = [process.communicate() for process in processes]
    agents.close()
    found = [re.search(r"^met (.*)$", text, re.MULTILINE) for text in printed]
    assert None not in found, printed
    return [json.loads(each[1]) for each in found if each is not None]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "ranks", "error"),
    [
        ("default", 4, "'pass' at rank 0, 2, 3; 'refuse' at rank 1"),
        ("sub-group", 2, "'pass' at rank 0; 'refuse' at rank 1"),
        ("environment", 4, "'refuse' at rank 0, 2, 3; 'allow' at rank 1"),
    ],
)
def test_options_that_differ_are_an_error_at_all_ranks(which: str, ranks: int, error: str) -> None:
    found = met(which)
    for each in found[:ranks]:
        assert each["raised"].startswith(f"HopsumError: nonfinite is {error}: expected 'refuse' at")
    if which == "sub-group":
        assert [each["inherited"] for each in found[:2]] == ["[2.0, nan]"] * 2


@pytest.mark.slow
def test_wire_bits_that_cannot_be_are_an_error_at_all_ranks() -> None:
    for each in met("bits"):
        assert each["raised"].startswith(
            "HopsumError: wire_bits is None at rank 0, 2, 3; '17' at rank 1: expected None at all"
        )


@pytest.mark.slow
def test_dimensions_of_a_mesh_have_options() -> None:
    for each in met("mesh"):
        assert each == {"default": "[4.0, nan]", "rows": "[2.0, nan]", "columns": "SumRefused"}
