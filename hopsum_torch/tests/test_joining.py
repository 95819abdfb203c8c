"""A rank joins others between two steps, and none of them starts again."""

from __future__ import annotations

import re

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

import torch
from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, start

STEPS = 16
STEP = re.compile(r"^process (\d+), (\d) ranks, step (\d+): loss ([\d.]+)$", re.MULTILINE)


def alone() -> list[float]:
    """The losses of one process that has all samples."""
    torch.manual_seed(1)
    samples, targets = torch.randn(48, 16), torch.randn(48, 1)
    net = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(net(samples), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
def test_a_rank_joins_and_the_others_go_on_in_their_processes() -> None:
    agents = Agents(3)
    ranks = start(list(agents.names.values()), SUPPORT / "joining.py", str(STEPS))
    printed = [rank.communicate() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], printed
    agents.close()
    # One job for two ranks, and another for three.
    assert [len(job["ranks"]) for job in agents.submitted] == [2, 3]
    found = [STEP.findall(text) for text in printed]
    for one in found:
        assert len({process for process, *_ in one}) == 1
        sizes = [int(size) for _, size, *_ in one]
        assert sizes == sorted(sizes)
    assert [[one[0][1], one[-1][1]] for one in found] == [["2", "3"], ["2", "3"], ["3", "3"]]
    # Each step is that of one process with all samples, before and after.
    expected = alone()
    for one in found:
        losses = {int(step): float(loss) for _, _, step, loss in one}
        of_one = {step: expected[step - 1] for step in losses}
        assert losses == pytest.approx(of_one, rel=1e-4)
    assert [int(step) for _, _, step, _ in found[0]] == [*range(1, STEPS + 1)]
