"""torch.compile, DTensor, tensor parallelism and distributed checkpoints, compared with gloo."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents
from tests.support.ranks import SUPPORT, run

RANKS = 4


def found(printed: str) -> dict[str, list[float]]:
    """Return what a rank says came of it."""
    line = re.search("^found (.*)$", printed, re.MULTILINE)
    assert line is not None, printed
    of_rank: dict[str, list[float]] = json.loads(line[1])
    return of_rank


@pytest.mark.slow
@pytest.mark.parametrize(
    "compiler", ["aot_eager", pytest.param("inductor", marks=pytest.mark.long)]
)
def test_what_uses_groups_beyond_ddp_gives_what_it_gives_with_gloo(
    compiler: str, tmp_path: Path
) -> None:
    agents = Agents(RANKS)
    script, folder = SUPPORT / "parallelism.py", str(tmp_path / "ours")
    ours = run(list(agents.names.values()), script, "hopsum", folder, compiler)
    agents.close()
    theirs = run(["none"] * RANKS, script, "gloo", str(tmp_path / "theirs"), compiler)
    for mine, others in zip(map(found, ours), map(found, theirs), strict=True):
        assert mine.keys() == others.keys()
        for name, values in others.items():
            assert mine[name] == pytest.approx(values, rel=1e-4), name
    # The default group's calls, and those of both dimensions of the mesh, have gone to agents.
    assert len(agents.submitted) == 5
    assert len({len(message["ranks"]) for message in agents.submitted}) == 2
    assert {kind for kind, _ in agents.sums} >= {"sum", "copy"}
