"""Means of integers, which gloo refuses and NCCL rounds to zero."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, run


@pytest.mark.slow
@pytest.mark.parametrize("agent", [True, False])
def test_a_mean_of_integers_is_rounded_to_zero(agent: bool) -> None:
    agents = Agents(2)
    names = list(agents.names.values()) if agent else ["none"] * 2
    run(names, SUPPORT / "integer_means.py")
    agents.close()
