"""`hopsum dashboard` and `hopsum top` of a controller that runs."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hopsum.cli.main import app
from tests.support.cluster_world import World, ring
from tests.support.machine import PATIENCE

pytestmark = pytest.mark.slow
HOPSUM = Path(sys.executable).with_name("hopsum")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(tmp_path_factory.mktemp("world"), "star:3")
    made.agents("h1", "h2")
    made.queries.submit(ring("mine", "h1,h2"))
    made.exact("mine")
    yield made
    made.close()


def test_top_shows_the_cluster(world: World) -> None:
    done = CliRunner().invoke(
        app, ["top", "--once", "--controller", world.address], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    for words in ("star:3", "jobs 0 of 1 active", "agents 2 of 4", "mine", "3 of 3", "finished"):
        assert words in done.stdout, (words, done.stdout)


def test_a_dashboard_next_to_the_controller(world: World, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as output:
        command = [HOPSUM, "dashboard", "--controller", world.address, "--web", "127.0.0.1:0"]
        serving = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=output, text=True)
    try:
        assert serving.stderr is not None
        url = serving.stderr.readline().strip().removeprefix("dashboard at ")
        with urllib.request.urlopen(f"{url}state.json", timeout=PATIENCE) as answer:
            state = json.load(answer)
        assert [job["name"] for job in state["jobs"]] == ["mine"]
        with urllib.request.urlopen(f"{url}metrics", timeout=PATIENCE) as answer:
            assert 'hopsum_jobs{state="finished"} 1.0' in answer.read().decode()
    finally:
        serving.terminate()
        serving.communicate(timeout=PATIENCE)
