"""Many runs side by side: in processes, and, where it is installed, on Ray."""

from __future__ import annotations

import itertools
import json
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hopsum.protocol.errors import InputError
from hopsum.protocol.extras import MissingExtraError
from hopsum.simulation.parallel import as_they_come, in_processes, on_ray
from tests.support.paths import ROOT

FRAMEWORKS = ROOT / ".venv/frameworks/bin"
"""An environment with Ray."""
WITH_RAY = [
    pytest.mark.long,
    pytest.mark.skipif(not FRAMEWORKS.exists(), reason="needs Ray: make frameworks"),
]


def where(number: int) -> tuple[int, int]:
    return number, os.getpid()


def refuse(number: int) -> int:
    if number == 3:
        raise InputError("number: 3, expected another one")
    return number


def test_one_process_is_this_one_and_takes_items_as_they_are_wanted() -> None:
    taken = []

    def items() -> Iterator[int]:
        for number in range(5):
            taken.append(number)
            yield number

    results = in_processes(1)(where, items())
    assert [next(results), next(results)] == [(0, os.getpid()), (1, os.getpid())]
    assert taken == [0, 1]


@pytest.mark.slow
def test_processes_have_all_items_among_them() -> None:
    found = dict(in_processes(2)(where, range(20)))
    assert sorted(found) == list(range(20))
    assert os.getpid() not in found.values()


@pytest.mark.slow
@pytest.mark.parametrize("number", [1, 2])
def test_an_error_of_an_item_is_raised(number: int) -> None:
    with pytest.raises(InputError, match="expected another one"):
        list(in_processes(number)(refuse, range(5)))


def test_no_more_items_are_submitted_than_asked_for() -> None:
    """A soak may have billions of seeds."""
    going: deque[Future[int]] = deque()
    most, stop = 0, threading.Event()

    def submit(item: int) -> Future[int]:
        nonlocal most
        future: Future[int] = Future()
        going.append(future)
        most = max(most, len(going))
        return future

    def end_one_after_the_other() -> None:
        for number in itertools.count():
            while not going:
                if stop.wait(0.001):
                    return
            future = going.popleft()
            future.set_result(number)
            stop.wait(0.001)

    thread = threading.Thread(target=end_one_after_the_other)
    thread.start()
    try:
        results = as_they_come(submit, iter(range(10**12)), 4)
        assert sorted(itertools.islice(results, 20)) == list(range(20))
    finally:
        stop.set()
        thread.join()
    assert most == 4


def test_without_ray_it_is_said_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.protocol.extras.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"^ray: ray is not installed; install it with "):
        on_ray("auto")


def test_what_ray_prints_is_not_among_results(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def call(function: Callable[..., int]) -> Any:
        def remote(*arguments: Any) -> Any:
            future: Future[int] = Future()
            future.set_result(function(*arguments))
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=remote)

    ray = SimpleNamespace(
        is_initialized=lambda: False,
        init=lambda *where, **options: print("Raylet is terminated."),
        cluster_resources=lambda: {"CPU": 2.0},
        remote=call,
        shutdown=lambda: print("flushed"),
        exceptions=SimpleNamespace(RayTaskError=KeyError, RayError=LookupError),
    )
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("hopsum.protocol.extras.find_spec", lambda name: ray)
    assert sorted(on_ray("auto")(abs, [-1, 2, -3])) == [1, 2, 3]
    print("results")
    said = capsys.readouterr()
    assert (said.out, said.err) == ("results\n", "Raylet is terminated.\nflushed\n")


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """The result of a command in the environment with Ray."""
    environment = {
        **os.environ,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",
        # Else Ray would write a token of its own into the user's home.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
    }
    return subprocess.run(
        [str(FRAMEWORKS / command[0]), *command[1:]],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


class TestOnRay:
    pytestmark = WITH_RAY

    def test_a_soak_finds_what_it_finds_here(self, tmp_path: Path) -> None:
        soak = ("hopsum", "soak", "--schedules", "4", "--seed", "5", "--json")
        here = run(tmp_path, *soak)
        there = run(tmp_path, *soak, "--ray", "local")
        assert there.returncode == 0, there.stdout + there.stderr
        found, expected = json.loads(there.stdout), json.loads(here.stdout)
        # The order in which results come decides how they are rounded.
        assert found.pop("virtual_seconds") == pytest.approx(expected.pop("virtual_seconds"))
        assert found == expected

    def test_errors_are_those_of_the_run_or_of_the_cluster(self, tmp_path: Path) -> None:
        program = tmp_path / "program.py"
        program.write_text(
            "import hopsum\n"
            "try:\n"
            "    hopsum.sweep('star:2', {'loss': [0.0, 7.0]}, ray='local', elements=1000)\n"
            "except hopsum.InputError as error:\n"
            "    print(error)\n"
            "rows = hopsum.sweep('star:2', {'seed': [1, 2]}, ray='local', elements=1000,\n"
            "                    link_rate=1e7)\n"
            "here = hopsum.sweep('star:2', {'seed': [1, 2]}, elements=1000, link_rate=1e7)\n"
            "assert rows == here\n"
        )
        done = run(tmp_path, "python", str(program))
        assert done.returncode == 0, done.stdout + done.stderr
        assert "loss" in done.stdout
        nowhere = run(tmp_path, "hopsum", "soak", "--schedules", "1", "--ray", "127.0.0.1:1")
        assert nowhere.returncode == 1
        assert "ray: no cluster at 127.0.0.1:1" in nowhere.stderr
        assert "Traceback" not in nowhere.stderr
