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

SIZES = [2, 3, pytest.param(8, marks=pytest.mark.long)]


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

    def of(size: int) -> list[dict[str, Any]]:
        if size not in found:
            agents = Agents(size)
            found[size] = values(folder, "hopsum", list(agents.names.values()))
            agents.close()
            assert len(agents.sums) > 50
            # reduce_scatter_of_types, and float32 of broadcast_of_types.
            for made in (("min", 10 * size), ("xor", 4103)):
                assert (made in agents.sums) == (size > 2)
            assert len(agents.submitted) == 1
            assert agents.submitted[0]["ranks"] == agents.hosts
        return found[size]

    return of


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("operation", OPERATIONS)
def test_results_equal_gloos(operation: str, size: int, gloo: Any, hopsum: Any) -> None:
    for found, expected in zip(hopsum(size), gloo(size), strict=True):
        assert not isinstance(expected[operation], str), expected[operation]
        same(operation, found[operation], expected[operation])


def test_calls_for_the_switches_are_known(hopsum: Any) -> None:
    for size in (2, 3):
        made = hopsum(size)[0]["made"]
        assert made["sum_float32"] == {"switches": 4}
        assert (made["sum_float64"], made["product"]) == ({"gloo": 4}, {"gloo": 1})
        assert ("switches" in made["reduce_scatter_tensor"]) == (size > 2)
        assert set(made["all_gather"]) == {"gloo"}


def test_nothing_of_hopsum_is_in_the_process(hopsum: Any) -> None:
    modules = set(hopsum(2)[0]["modules"])
    assert "hopsum_torch" in modules
    assert not modules & {"host_agent", "protocol", "network", "controller", "grpc", "scipy"}


def test_without_agents_all_goes_over_gloo(tmp_path: Path, gloo: Any) -> None:
    for found, expected in zip(
        values(tmp_path, "cpu:hopsum", ["@hopsum-nobody"] * 2), gloo(2), strict=True
    ):
        for operation in OPERATIONS:
            same(operation, found[operation], expected[operation])
