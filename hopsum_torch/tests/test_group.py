"""Errors of calls, at every rank and with names; what goes where."""

from __future__ import annotations

import atexit
import json
import math
import re
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="hopsum_torch needs torch")

import torch.distributed as dist  # noqa: E402
from tests.support.agents import Agents  # noqa: E402
from tests.support.ranks import SUPPORT, run, start  # noqa: E402

from hopsum_torch.group import HopsumGroup, _end_groups, _gloo_devices  # noqa: E402
from hopsum_torch.tensors import (  # noqa: E402
    Part,
    _fault,
    broadcasts,
    exponent_byte,
    gathers,
)
from hopsum_torch.tensors import in_switches as parts_in_switches  # noqa: E402


def in_switches(tensor: torch.Tensor, op: dist.ReduceOp) -> bool:
    """Whether a reduction of a tensor goes through the switches."""
    return parts_in_switches(Part([tensor]), op) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hosts", "here", "host", "gone", "named"),
    [
        (3, 1, "h2", "the process on h2", "h2 is rank 1"),
        (2, 2, "h1", "the process of rank 1 on h1", "h1 is ranks 0, 1"),
    ],
)
def test_errors_stay_with_their_calls_until_a_rank_is_gone(
    hosts: int, here: int, host: str, gone: str, named: str
) -> None:
    """Where each rank has a host of its own, and where two share one."""
    agents = Agents(hosts, here)
    processes = start(agents.of_ranks, SUPPORT / "failing.py")
    printed = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, -9, *[0] * (hosts * here - 2)], (
        printed
    )
    agents.close()
    for text in (printed[0], *printed[2:]):
        [line] = [line for line in text.splitlines() if line.startswith("errors ")]
        errors = json.loads(line.removeprefix("errors "))
        assert "all-reduce 0 (float32, shape [2, 3]): " in errors["infinite"]
        assert f"rank 1 ({host}): element 3 is -inf" in errors["infinite"]
        assert f"rank 1 ({host}): " in errors["shape"]
        assert f"rank 1 ({host}): " in errors["type"]
        assert f"rank 1 ({host}): " in errors["operation"]
        assert errors["reduce"].startswith("reduce ")
        assert f"rank 1 ({host}): element 3 is -inf" in errors["reduce"]
        assert errors["scatter"].startswith("reduce-scatter ")
        assert "rank 0 (h1): element 0 is nan" in errors["scatter"]
        assert errors["broadcast"].startswith("broadcast ")
        assert f"rank 1 ({host}): " in errors["broadcast"]
        assert "rank 0 (h1): element 0 is nan" in errors["future"]
        assert f"{gone} disconnected without leaving ({named})" in errors["dead"]
        assert float(errors["seconds"]) < 5
        assert named in errors["afterwards"]


@pytest.mark.slow
@pytest.mark.parametrize("dead", [False, True])
def test_monitored_barriers_name_who_is_missing(dead: bool) -> None:
    agents = Agents(3)
    how = ["dead", "60000"] if dead else ["late", "500"]
    processes = start(agents.of_ranks, SUPPORT / "monitoring.py", *how)
    printed = [process.communicate() for process in processes]
    agents.close()
    assert [process.returncode for process in processes] == [0, -9 if dead else 0, 0], printed
    for rank in (0, 2):
        [line] = [line for line in printed[rank].splitlines() if line.startswith("error ")]
        error = json.loads(line.removeprefix("error "))
        if dead:
            assert error.startswith("GroupLost: ")
            assert "the process on h2 disconnected without leaving (h2 is rank 1)" in error
        elif rank == 0:
            assert "Ranks 1 failed to pass monitoredBarrier in 500 ms" in error
        else:
            assert "check rank 0 logs" in error


@pytest.mark.slow
def test_monitored_barriers_may_have_no_time() -> None:
    agents = Agents(3)
    printed = run(agents.of_ranks, SUPPORT / "monitoring.py", "alone", "0")
    agents.close()
    assert "Rank 0 timed out in monitoredBarrier after 0 ms" in printed[0]


@pytest.mark.slow
def test_forked_processes_leave_the_group_to_their_parents() -> None:
    """Those that end normally, those that call, and those that outlive their parent."""
    agents = Agents(3)
    processes = start(agents.of_ranks, SUPPORT / "forking.py")
    printed = [process.communicate() for process in processes]
    agents.close()
    assert [process.returncode for process in processes] == [0, -9, 0], printed
    for rank, text in enumerate(printed):
        said = dict(line.split(maxsplit=1) for line in text.splitlines())
        errors = json.loads(said["forked"])
        assert len(errors) == 2
        for error in errors:
            assert re.match(r"GroupLost: process \d+ has been forked from the one", error)
        if rank != 1:
            assert "the process on h2 disconnected without leaving (h2 is rank 1)" in said["dead"]


@pytest.mark.slow
@pytest.mark.parametrize("refusal", ["", "job a cannot start now: no slots"])
def test_sub_groups_have_jobs_where_there_is_room(refusal: str) -> None:
    """Otherwise they go over gloo, which sums NaNs, and their first ranks say why."""
    agents = Agents(4)
    agents.refusal, agents.only_immediate = refusal, True
    processes = start(list(agents.names.values()), SUPPORT / "sub_groups.py")
    printed = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0] * 4, printed
    agents.close()
    names = [message["name"] for message in agents.submitted]
    jobs = [message["ranks"] for message in agents.submitted]
    assert jobs[0] == agents.hosts
    assert sorted(jobs[1:]) == ([] if refusal else [["h1", "h4"], ["h2", "h3"]])
    assert all(name.startswith(f"{names[0]}.") for name in names[1:])
    for rank, text in enumerate(printed):
        [line] = [line for line in text.splitlines() if line.startswith("said ")]
        said = json.loads(line.removeprefix("said "))
        # Of 3 and 1 + 2, and each group's two ones, by two ranks each.
        assert said["sum"] == [12, 8]
        if refusal or rank in (0, 3):
            assert said["error"] == ""
        else:
            assert "all-reduce 1 of ranks 1, 2 (float32, shape [3]): " in said["error"]
            assert "rank 2 (h3): element 0 is nan" in said["error"]
        ranks = {0: "0, 3", 1: "1, 2"}.get(rank)
        if refusal and ranks:
            [warned] = said["warned"]
            assert f"hopsum: the group of ranks {ranks} goes over gloo: rank {rank} on" in warned
            assert warned.endswith(refusal)
        else:
            assert not said["warned"]


@pytest.mark.slow
@pytest.mark.parametrize("group", ["default", "sub-group"])
def test_a_rank_that_dies_is_named_in_calls_over_gloo_too(group: str) -> None:
    """Also by a rank that waits for it indirectly: rank 3, in gloo's ring of four.

    And in a group that has no job of its own.
    """
    agents = Agents(4)
    agents.refusal, agents.only_immediate = "no slots", True
    processes = start(list(agents.names.values()), SUPPORT / "dying_over_gloo.py", group)
    printed = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, -9, 0, 0], printed
    agents.close()
    for rank in (0, 2, 3):
        [line] = [line for line in printed[rank].splitlines() if line.startswith("errors ")]
        seconds, *texts = json.loads(line.removeprefix("errors "))
        assert seconds < 5
        for text in texts:
            assert "the process on h2 disconnected without leaving (h2 is rank 1)" in text


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int32", "int8", "uint8"])
def test_sums_in_the_switches(dtype: str) -> None:
    tensor = torch.ones(3, dtype=getattr(torch, dtype))
    assert in_switches(tensor, dist.ReduceOp.SUM)
    assert in_switches(tensor, dist.ReduceOp.AVG) == tensor.dtype.is_floating_point
    for op in ("MAX", "MIN"):
        assert in_switches(tensor, getattr(dist.ReduceOp, op))
    for op in ("BAND", "BOR", "BXOR"):
        assert in_switches(tensor, getattr(dist.ReduceOp, op)) != tensor.dtype.is_floating_point
    assert not in_switches(tensor, dist.ReduceOp.PRODUCT)
    assert not in_switches(tensor.to_sparse(), dist.ReduceOp.SUM)


@pytest.mark.parametrize("dtype", ["float64", "int64", "bool", "complex64"])
def test_operations_over_gloo(dtype: str) -> None:
    assert not in_switches(torch.ones(3, dtype=getattr(torch, dtype)), dist.ReduceOp.SUM)


def test_gloo_uses_the_given_interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert len(_gloo_devices()) == 1
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo,lo")
    assert len(_gloo_devices()) == 2
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere")
    with pytest.raises(RuntimeError, match="nowhere"):
        _gloo_devices()


def test_one_handler_ends_all_groups_of_a_process() -> None:
    closed = []

    class Agent:
        def close(self) -> None:
            closed.append(self)

    handlers = atexit._ncallbacks()
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    agents: list[Any] = [Agent() for _ in range(3)]
    groups = [
        HopsumGroup(
            0,
            1,
            dist.ProcessGroupGloo(dist.HashStore(), 0, 1, options),
            agent,
        )
        for agent in agents
    ]
    assert atexit._ncallbacks() == handlers
    _end_groups()
    assert set(closed) == set(agents)
    del groups[1:]
    closed.clear()
    _end_groups()
    assert closed == agents[:1]


def test_broadcasts_in_the_switches() -> None:
    for words, ranks, expected in ((1024, 3, True), (1024, 2, False), (1023, 8, False)):
        assert broadcasts(torch.empty(words), ranks) == expected
        assert broadcasts(torch.empty(4 * words, dtype=torch.bool), ranks) == expected
        assert broadcasts(torch.empty(words // 2, dtype=torch.int64), ranks) == (
            expected and words % 2 == 0
        )
    assert not broadcasts(torch.ones(2000).to_sparse(), 3)


@pytest.mark.parametrize(
    ("words", "ranks", "expected"),
    [
        (100_000, 2, False),
        (1 << 20, 3, True),
        (768, 3, True),  # nine frames, nine without words, and a check's: 12.6 KB; gloo's 13.1
        (769, 3, False),
        (256, 8, True),
        (190, 8, False),
        (1 << 28, 8, False),
    ],
)
def test_all_gathers_in_the_switches(words: int, ranks: int, expected: bool) -> None:
    for dtype, count in ((torch.float32, words), (torch.float16, 2 * words - 1)):
        assert gathers(torch.empty(1, dtype=dtype).expand(count), ranks) == expected


def fault(values: torch.Tensor, *, finite: bool = True) -> Any:
    """The fault of a value."""
    least, most = (each.item() for each in torch.aminmax(values))
    return _fault(values, least, most, finite=finite)


def test_the_first_value_that_is_not_finite_is_found() -> None:
    values = torch.zeros(9)
    assert fault(values) is None
    values[7] = float("inf")
    assert fault(values) == ("inf", 7)
    values[4] = -float("inf")
    assert fault(values) == ("-inf", 4)
    values[2] = float("nan")
    assert fault(values) == ("nan", 2)
    assert fault(values, finite=False) == ("nan", 2)
    values[2] = 0
    assert fault(values, finite=False) is None


def test_the_exponents_of_magnitudes() -> None:
    """As the agent's own, hopsum.host_agent.numbers."""
    powers = torch.ldexp(torch.ones(277), torch.arange(-149, 128))
    for power in map(float, powers):
        exponent = round(math.log2(power))
        assert exponent_byte(power) == max(0, exponent + 128)
        if exponent > -149:
            assert exponent_byte(power * (1 - 2.0**-24)) == max(0, exponent + 127)
    assert exponent_byte(0.0) == 0
    assert exponent_byte(torch.finfo(torch.float32).max) == 255
