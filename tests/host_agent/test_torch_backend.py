"""The torch.distributed backend: groups of threads, and once plain torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT, SUPPORT

torch = pytest.importorskip("torch", reason="torch is an extra: pip install hopsum[torch]")

import torch.distributed as dist  # noqa: E402 - only where torch is

from host_agent.io.process_socket import AgentSocket, SumRefused  # noqa: E402
from host_agent.io.tcp_collective import PeerLost  # noqa: E402
from host_agent.node.process import ProcessTensors  # noqa: E402
from host_agent.torch_backend import BackendError, HopsumGroup, _switches  # noqa: E402
from tests.support.machine import PATIENCE as SECONDS  # noqa: E402
from tests.support.machine import unique  # noqa: E402
from tests.support.torch_models import PATIENCE, together  # noqa: E402

JOB = 4712


@pytest.fixture
def alone() -> Iterator[HopsumGroup]:
    group = HopsumGroup(dist.HashStore(), 0, 1, PATIENCE)
    yield group
    group.shutdown()


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.int64, torch.float64])
def test_all_reduce_sums_in_place(size: int, dtype: Any) -> None:
    def act(group: HopsumGroup, rank: int) -> Any:
        whole = torch.arange(33, dtype=dtype).reshape(3, 11) * (rank + 1)
        turned = whole.clone().t()
        scalar = torch.tensor(rank, dtype=dtype)
        empty = torch.empty(0, dtype=dtype)
        group.allreduce([whole, turned, scalar, empty]).wait()
        return whole, turned, scalar

    times = size * (size + 1) // 2
    for whole, turned, scalar in together(size, act):
        expected = torch.arange(33, dtype=dtype).reshape(3, 11) * times
        assert torch.equal(whole, expected)
        assert torch.equal(turned, expected.t())
        assert scalar.item() == times - size


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.uint8])
def test_broadcast_gives_the_roots_bytes(dtype: Any) -> None:
    def act(group: HopsumGroup, rank: int) -> Any:
        options = dist.BroadcastOptions()
        options.rootRank = 2
        tensor = torch.full((7,), rank == 2, dtype=dtype)
        single = torch.tensor(rank == 2, dtype=dtype)
        group.broadcast([tensor, single], options).wait()
        return tensor, single

    for tensor, single in together(3, act):
        assert torch.equal(tensor, torch.ones(7, dtype=dtype))
        assert single.item() == 1


@pytest.mark.parametrize("size", [1, 2, 4])
def test_all_gather_gives_every_ranks_tensor(size: int) -> None:
    def act(group: HopsumGroup, rank: int) -> Any:
        rows = [torch.empty(2, 3) for _ in range(size)]
        group.allgather([rows], [torch.full((2, 3), rank + 0.5)]).wait()
        base = torch.empty(size * 2, dtype=torch.int32)
        group._allgather_base(base, torch.tensor([rank, -rank], dtype=torch.int32)).wait()
        return rows, base

    for rows, base in together(size, act):
        assert [row.unique().tolist() for row in rows] == [[rank + 0.5] for rank in range(size)]
        assert base.tolist() == [value for rank in range(size) for value in (rank, -rank)]


def test_calls_run_in_order_while_the_caller_goes_on() -> None:
    def act(group: HopsumGroup, rank: int) -> Any:
        tensors = [torch.full((1000,), float(number)) for number in range(20)]
        works = [group.allreduce([tensor]) for tensor in tensors]
        group.barrier().wait()
        assert all(work.is_completed() and work.is_success() for work in works)
        return [work.get_future().wait()[0][0].item() for work in works]

    assert together(3, act) == [[3.0 * number for number in range(20)]] * 3


def test_a_rank_that_goes_is_named() -> None:
    def act(group: HopsumGroup, rank: int) -> Any:
        group.barrier().wait()
        if rank == 1:
            return
        with pytest.raises(PeerLost, match=r"rank [012] at"):
            group.allreduce([torch.ones(10)]).wait()

    together(3, act)


def test_what_it_does_not_do_is_said(alone: HopsumGroup) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp.MAX
    with pytest.raises(BackendError, match="all-reduce with MAX: hopsum sums"):
        alone.allreduce([torch.ones(1)], options)
    with pytest.raises(BackendError, match=r"all-reduce of torch.bfloat16: expected one of"):
        alone.allreduce([torch.ones(1, dtype=torch.bfloat16)])
    with pytest.raises(BackendError, match="dense CPU tensors"):
        alone.allreduce([torch.ones(2).to_sparse()])
    with pytest.raises(BackendError, match="the same type and number"):
        alone.allgather([[torch.empty(3)]], [torch.empty(2)])
    alone.shutdown()
    with pytest.raises(BackendError, match="has been shut down"):
        alone.barrier()


def test_sums_of_a_group_with_an_agent_are_the_agents() -> None:
    """float32 and int32 go to the host's agent, what it has no type for goes around the ring."""
    names = [unique("t") for _ in range(2)]
    agents = [ProcessTensors(name, JOB, workers=2) for name in names]
    for agent in agents:
        agent.prepare()

    def serve(agent: ProcessTensors) -> int:
        following, calls = agent.first(), 0
        while following is not None:
            name, tensor = following
            calls += 1
            following = agent.after(name, tensor * 2)
        return calls

    def act(rank: int) -> list[Any]:
        switches = AgentSocket(names[rank], JOB, SECONDS)
        group = HopsumGroup(store, rank, 2, PATIENCE, switches)
        tensors = [torch.ones(3, 2, dtype=kind) for kind in (torch.float32, torch.int32)]
        others = [torch.full((4,), rank, dtype=torch.float64), torch.empty(0)]
        group.allreduce([*tensors, *others]).wait()
        group.shutdown()
        return [tensor.unique().tolist() for tensor in (*tensors, others[0])]

    store = dist.HashStore()
    with ThreadPoolExecutor(4) as pool:
        served = pool.map(serve, agents)
        assert list(pool.map(act, range(2))) == [[[2.0], [2], [1.0]]] * 2
        assert list(served) == [2, 2]
    for agent in agents:
        agent.close()


def test_an_environment_that_does_not_fit_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _switches(2, PATIENCE) is None
    monkeypatch.setenv("HOPSUM_JOB", str(JOB))
    with pytest.raises(BackendError, match="HOPSUM_JOB is '4712' and HOPSUM_HOST None"):
        _switches(2, PATIENCE)
    name = unique("t")
    monkeypatch.setenv("HOPSUM_HOST", name)
    with pytest.raises(SumRefused, match=f"job 4712 on host {name}: no agent takes tensors"):
        _switches(2, timedelta(0))
    agent = ProcessTensors(name, JOB, workers=3)
    agent.prepare()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(agent.first)
        with pytest.raises(BackendError, match="job 4712 has 3 workers and the group 2 ranks"):
            _switches(2, PATIENCE)
        assert first.result(SECONDS) is None
    agent.close()


@pytest.mark.slow
def test_torchrun_trains_as_one_process_does() -> None:
    """DistributedDataParallel over two processes against the whole batch in one."""
    ended = subprocess.run(
        [
            str(Path(sys.executable).with_name("torchrun")),
            "--standalone",
            "--nproc-per-node=2",
            str(SUPPORT / "torch_training.py"),
        ],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
