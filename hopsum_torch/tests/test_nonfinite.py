"""NaNs and infinities in groups that let them pass: every rank sees what gloo gives it."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="hopsum_torch needs torch")

import numpy as np  # noqa: E402
from tests.support.agents import Agents  # noqa: E402
from tests.support.ranks import SUPPORT, run  # noqa: E402

from hopsum_torch.agent import ALL  # noqa: E402
from hopsum_torch.tensors import Part, exponent_byte, reduce  # noqa: E402

INF, NAN = float("inf"), float("nan")
RANKS = 3


def same(found: Any, expected: Any) -> None:
    """Compare tensors, also in lists."""
    assert type(found) is type(expected)
    if isinstance(found, list):
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(found, torch.Tensor):
        # gloo's means are divided in their type.
        torch.testing.assert_close(found, expected, equal_nan=True)
    else:
        assert found == expected


def with_agents(script: str, *arguments: str, rooted: bool = True) -> tuple[list[str], Agents]:
    """Run ranks with agents of their own; return what they print, and the agents."""
    agents = Agents(RANKS, rooted=rooted)
    printed = run(agents.of_ranks, SUPPORT / script, "hopsum", *arguments)
    agents.close()
    return printed, agents


@pytest.mark.slow
@pytest.mark.parametrize("rooted", [True, False])
def test_reductions_give_gloos_values(rooted: bool, tmp_path: Path) -> None:
    """And MAX and MIN torch's; in a sub-group too, which has the same option."""
    _, agents = with_agents("nonfinite.py", str(tmp_path / "hopsum"), rooted=rooted)
    assert len(agents.sums) > 100
    run(["none"] * RANKS, SUPPORT / "nonfinite.py", "gloo", str(tmp_path / "gloo"))
    for rank in range(RANKS):
        found, expected = (
            torch.load(f"{tmp_path / backend}.{rank}") for backend in ("hopsum", "gloo")
        )
        assert all(found[f"extremes of {name}"] > 50 for name in ("float32", "float16", "bfloat16"))
        assert len(expected) > (40 if rank == 1 else 80)
        for name, values in expected.items():
            same(found[name], values)


def steps_of(printed: str) -> list[list[float]]:
    """Return what a rank prints of its steps."""
    found = re.search(r"^steps (.*)$", printed, re.MULTILINE)
    assert found is not None, printed
    steps: list[list[float]] = json.loads(found[1])
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "hook", "zero", "fsdp2"])
def test_loss_scalers_skip_the_steps_that_they_skip_with_gloo(kind: str) -> None:
    printed, agents = with_agents("scaling.py", kind)
    assert len(agents.sums) > 14
    expected = run(["none"] * RANKS, SUPPORT / "scaling.py", "gloo", kind)
    scales = []
    for found, by_gloo in zip(map(steps_of, printed), map(steps_of, expected), strict=True):
        assert [step[:2] for step in found] == [step[:2] for step in by_gloo]
        for mine, other in zip(found, by_gloo, strict=True):
            assert mine[2:] == pytest.approx(other[2:], rel=1e-2 if kind == "hook" else 1e-4)
        skipped = [step[1] for step in found]
        # At first, and again when the scale has grown.
        assert skipped[0]
        assert not skipped[-1] or not skipped[-2]
        assert 0 < sum(skipped) < len(found)
        scales.append([step[0] for step in found])
        for (scale, is_skipped, *_), (following, *_) in pairwise(found):
            assert following == scale / 2 if is_skipped else following in (scale, 2 * scale)
    assert scales[0] == scales[1] == scales[2]


class Agent:
    """An agent that keeps what a call says of a tensor."""

    rank = place = 0
    order = (0,)

    def sum(
        self,
        what: str,
        elements: int,
        dtype: Any,
        reduction: str,
        to: Any,
        fill: Any,
        *rest: Any,
        **more: Any,
    ) -> None:
        self.values = np.zeros(elements, dtype)
        self.said = fill(self.values)


def filled(values: list[float], reduction: str, *, passes: bool) -> Agent:
    """What a call leaves in shared memory, and what it says of that."""
    agent: Any = Agent()
    part = Part([torch.tensor(values)], to=ALL)
    reduce(agent, "", part, reduction, None, lambda _: None, passes=passes)
    return agent  # type: ignore[no-any-return]


@pytest.mark.parametrize("finite", [0.0, 3.0, 1e-40, 3e38])
def test_sums_say_the_magnitude_of_what_is_finite(finite: float) -> None:
    for values in ([finite, NAN], [INF, -finite], [-finite, INF, -INF, NAN]):
        agent = filled(values, "sum", passes=True)
        assert agent.said == (exponent_byte(abs(np.float32(finite))), ("passed", 0))
        np.testing.assert_array_equal(agent.values, np.float32(values))
        assert filled(values, "sum", passes=False).said[1][0] != "passed"
    assert filled([finite], "sum", passes=True).said == filled([finite], "sum", passes=False).said


@pytest.mark.parametrize("sign", [1, -1])
def test_extremes_have_the_nan_that_is_beyond_all_others(sign: int) -> None:
    """In the agents' order of bits, by two's complement of all but the sign."""
    nan = torch.tensor([0x7F800001 if sign > 0 else 0xFFC00001 - (1 << 32)], dtype=torch.int32)
    values = [1.0, float("nan"), -INF, INF, 2.0]
    for reduction in ("max", "min"):
        given = torch.tensor(values)
        given[1] = nan.view(torch.float32)[0]
        agent = filled(given.tolist(), reduction, passes=True)
        assert agent.said == (0, None)
        bits = agent.values.view(np.int32)
        ordered = np.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
        where = np.argmax(ordered) if reduction == "max" else np.argmin(ordered)
        assert where == 1
        np.testing.assert_array_equal(agent.values, np.float32(values))
        assert filled(given.tolist(), reduction, passes=False).said == (0, ("nan", 1))
