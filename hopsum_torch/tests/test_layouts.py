"""Values do not depend on the layouts of tensors, in the switches and over gloo."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents  # noqa: E402
from tests.support.ranks import SUPPORT, run  # noqa: E402

from hopsum_torch.errors import HopsumError  # noqa: E402
from hopsum_torch.layouts import CopiedWork, Copies, plain  # noqa: E402


@pytest.mark.slow
@pytest.mark.parametrize("where", ["rooted", "not rooted", "gloo"])
def test_values_do_not_depend_on_layouts(where: str) -> None:
    agents = Agents(3, rooted=where == "rooted")
    names = ["none"] * 3 if where == "gloo" else agents.of_ranks
    printed = run(names, SUPPORT / "layouts.py", "60")
    assert all("checked" in text for text in printed)
    agents.close()


def test_plain_tensors_are_not_copied() -> None:
    copies, tensor = Copies(), torch.ones(4, 6)
    lists = copies.of([[tensor], (tensor[2:], tensor.t())], write=True)
    assert lists[0][0] is tensor
    assert lists[1][0].data_ptr() == tensor[2:].data_ptr()
    [(target, copied)] = copies.written
    assert plain(copied)
    copied.fill_(3)
    copies.copy_back()
    assert torch.equal(target, torch.full((6, 4), 3.0))
    assert copies.originals([copied])[0] is target


def test_elements_that_share_memory_take_no_results() -> None:
    with pytest.raises(HopsumError, match=r"shape \[2, 3\] and strides \[0, 1\].*clone"):
        Copies().of(torch.ones(3).expand(2, 3), write=True)
    assert plain(Copies().of(torch.ones(3).expand(2, 3), write=False))


def test_the_future_of_a_call_that_is_over_has_its_results() -> None:
    """Its callbacks run at once, in the thread that asks for it."""
    copies, tensor = Copies(), torch.ones(4, 6).t()
    copied = copies.of(tensor, write=True)
    copied.fill_(3)
    over: Any = torch.futures.Future()
    over.set_result([copied])
    work = CopiedWork(SimpleNamespace(get_future=lambda: over), copies)
    [result] = work.get_future().wait()
    assert result is tensor
    assert torch.equal(tensor, torch.full((6, 4), 3.0))
