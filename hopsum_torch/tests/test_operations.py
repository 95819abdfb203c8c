"""Every operation of gloo's gives gloo's values, with agents and without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents  # noqa: E402
from tests.support.compare import same  # noqa: E402
from tests.support.operations import OPERATIONS  # noqa: E402
from tests.support.ranks import SUPPORT, run  # noqa: E402

pytestmark = pytest.mark.slow

JOBS = [
    (2, True),
    (2, False),
    (3, True),
    (3, False),
    pytest.param((8, True), marks=pytest.mark.long),
]
"""Numbers of ranks, and whether the agents have trees with roots at them."""


def values(folder: Path, backend: str, agents: list[str]) -> list[dict[str, Any]]:
    """Each rank's results."""
    results = folder / f"{backend}-{len(agents)}"
    run(agents, SUPPORT / "operations.py", backend, str(results))
    return [torch.load(f"{results}.{rank}", weights_only=False) for rank in range(len(agents))]


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, found = tmp_path_factory.mktemp("gloo"), {}

    def of(size: int) -> list[dict[str, Any]]:
        if size not in found:
            found[size] = values(folder, "gloo", ["none"] * size)
        return found[size]

    return of


@pytest.fixture(scope="module")
def hopsum(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder, found = tmp_path_factory.mktemp("hopsum"), {}

    def of(job: tuple[int, bool]) -> list[dict[str, Any]]:
        if job not in found:
            size, rooted = job
            agents = Agents(size, rooted=rooted, turned=size == 3)
            found[job] = values(folder, "hopsum", list(agents.names.values()))
            agents.close()
            assert len(agents.sums) > 50
            # reduce_scatter_of_types, float32 of broadcast_of_types and of all_gather_of_types.
            assert (("min", 10 * size) in agents.sums) == (rooted or size > 2)
            assert (("copy", 4103) in agents.sums) == (size > 2)
            assert (("copy", 4103 * size) in agents.sums) == (rooted and size > 2)
            everyone, pair, ends, again, *mesh = [each["ranks"] for each in agents.submitted]
            assert everyone == again == agents.hosts
            assert pair == agents.hosts[:2]
            assert ends == [agents.hosts[0], agents.hosts[-1]]
            # A column of all ranks is the default group.
            half = size // 2
            columns = [agents.hosts[place::half] for place in range(half)]
            rows = [agents.hosts[:half], agents.hosts[half:]]
            assert sorted(mesh) == (sorted(columns + rows) if size == 8 else [])
        return found[job]

    return of


@pytest.mark.parametrize("job", JOBS, ids=str)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_equal_gloos(operation: str, job: tuple[int, bool], gloo: Any, hopsum: Any) -> None:
    for found, expected in zip(hopsum(job), gloo(job[0]), strict=True):
        assert not isinstance(expected[operation], str), expected[operation]
        same(operation, found[operation], expected[operation])


@pytest.mark.parametrize("job", JOBS[:4], ids=str)
def test_calls_for_the_switches_are_known(job: tuple[int, bool], hopsum: Any) -> None:
    (size, rooted), made = job, hopsum(job)[0]["made"]
    assert made["sum_float32"] == {"switches": 4}
    assert made["sub_groups"] == {"switches": 4}
    assert (made["sum_float64"], made["product"]) == ({"gloo": 4}, {"gloo": 1})
    assert ("switches" in made["reduce_scatter_tensor"]) == (rooted or size > 2)
    assert set(made["all_gather"]) == {"gloo"}
    gathered = "switches" if rooted and size > 2 else "gloo"
    assert made["functional_all_gather"] == {gathered: 1}
    assert made["all_gather_coalesced"] == {gathered: 2 if gathered == "switches" else 1}


def test_nothing_of_hopsum_is_in_the_process(hopsum: Any) -> None:
    modules = set(hopsum((2, True))[0]["modules"])
    assert "hopsum_torch" in modules
    assert not modules & {"hopsum", "grpc", "scipy"}


def test_without_agents_all_goes_over_gloo(tmp_path: Path, gloo: Any) -> None:
    for found, expected in zip(
        values(tmp_path, "cpu:hopsum", ["@hopsum-nobody"] * 2), gloo(2), strict=True
    ):
        for operation in OPERATIONS:
            same(operation, found[operation], expected[operation])
