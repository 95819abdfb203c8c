"""How ranks agree on a job, or on gloo."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

pytest.importorskip("torch", reason="hopsum_torch needs torch")

from tests.support.agents import Agents, Job

from hopsum_torch.agent import AgentClient, connect
from hopsum_torch.errors import HopsumError, NoAgreement
from hopsum_torch.rendezvous import (
    MOST_GROUP_NAME,
    Group,
    RankHost,
    attempt_prefix,
    check_options,
    hosts_of,
    meet,
)

SECONDS = 60.0


class Store:
    """A store of one process's threads."""

    def __init__(self) -> None:
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def set(self, key: str, value: str) -> None:
        with self._changed:
            self._values[key] = value.encode()
            self._changed.notify_all()

    def check(self, keys: list[str]) -> bool:
        with self._changed:
            return all(key in self._values for key in keys)

    def answers(self) -> list[str]:
        with self._changed:
            return [key for key in self._values if key.count("/") == 3]

    def get(self, key: str) -> bytes:
        with self._changed:
            assert self._changed.wait_for(lambda: key in self._values, SECONDS)
            return self._values[key]


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [
        ([RankHost("h1"), RankHost("h2")], ["h1", "h2"]),
        ([RankHost(), RankHost()], "no agent listens at @hopsum-agent"),
        ([RankHost("h1")], "there is one rank"),
        ([RankHost("h1"), RankHost("h2"), RankHost("h1")], ["h1", "h2", "h1"]),
        ([RankHost("h1")] * 3, "all 3 ranks are on host h1"),
    ],
)
def test_which_hosts_make_a_job(ranks: list[RankHost], expected: Any) -> None:
    found = hosts_of(ranks)
    if isinstance(expected, str):
        assert isinstance(found, str)
        assert expected in found
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("ranks", "complaint"),
    [
        (
            [RankHost("h1"), RankHost(), RankHost("h3"), RankHost()],
            "no agent on the host of rank 1, 3, but on",
        ),
        ([RankHost("h1"), RankHost(error="agent at x: no")], "rank 1: agent at x: no"),
        ([RankHost("h1"), *[RankHost()] * 20], r"rank 1, .*, 8, \.\.\. \(20 in all\)"),
    ],
)
def test_ranks_that_do_not_fit_are_named(ranks: list[RankHost], complaint: str) -> None:
    with pytest.raises(NoAgreement, match=complaint):
        hosts_of(ranks)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["pass", "refuse", "pass"], "'pass' at rank 3, 9; 'refuse' at rank 5: expected 'refuse'"),
        (["yes", "yes", "yes"], "'yes' at rank 3, 5, 9: expected 'refuse' at all ranks, or 'pass'"),
        (["refuse", "refuse", "x" * 99], "'refuse' at rank 3, 5; 'x{39} at rank 9: expected"),
    ],
)
def test_ranks_whose_options_differ_are_named(options: list[str], complaint: str) -> None:
    ranks = [RankHost("h1", nonfinite=each) for each in options]
    with pytest.raises(HopsumError, match=f"^nonfinite is {complaint}"):
        check_options(ranks, (3, 5, 9))
    for each in ("refuse", "pass"):
        check_options([RankHost("h1", nonfinite=each)] * 3)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ([16, None, 16], "16 at rank 3, 9; None at rank 5: expected None at all ranks, or 16 or"),
        (["17", "17", "17"], "'17' at rank 3, 5, 9: expected None at all ranks, or 16 or 32 at"),
        ([None, None, "x" * 99], "None at rank 3, 5; 'x{39} at rank 9: expected"),
    ],
)
def test_ranks_whose_wire_bits_differ_are_named(options: list[Any], complaint: str) -> None:
    ranks = [RankHost("h1", wire_bits=each) for each in options]
    with pytest.raises(HopsumError, match=f"^wire_bits is {complaint}"):
        check_options(ranks, (3, 5, 9))
    for each in (None, 16, 32):
        check_options([RankHost("h1", wire_bits=each)] * 3)


class KilledError(Exception):
    """A process was killed."""


class StoreOfProcess(Store):
    """A store as a process sees it, until it is killed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.killed = threading.Event()

    def _living(self) -> Store:
        if self.killed.is_set():
            raise KilledError
        return self._store

    def set(self, key: str, value: str) -> None:
        self._living().set(key, value)

    def check(self, keys: list[str]) -> bool:
        return self._living().check(keys)

    def get(self, key: str) -> bytes:
        while not self.check([key]):
            self.killed.wait(0.001)
        return self._store.get(key)


def attempts(store: Store, ranks: Sequence[int], size: int, *, whole: bool = True) -> list[str]:
    """Return the prefixes of an attempt of ranks, in threads, those that never met killed."""
    processes, before = [StoreOfProcess(store) for _ in ranks], len(store.answers())
    with ThreadPoolExecutor(len(ranks)) as pool:
        futures = [
            pool.submit(attempt_prefix, process, rank, size, SECONDS)
            for process, rank in zip(processes, ranks, strict=True)
        ]
        if whole:
            return [future.result(SECONDS) for future in futures]
        # The others have answered rank 0, after they may have answered that of an earlier attempt.
        while len(store.answers()) < before + len(ranks) - 1:
            threading.Event().wait(0.001)
        for process in processes:
            process.killed.set()
        assert all(isinstance(future.exception(SECONDS), KilledError) for future in futures)
    return []


def test_each_attempt_has_keys_of_its_own() -> None:
    store = Store()
    first = attempts(store, [0, 1, 2], 3)
    again = attempts(store, [2, 0, 1], 3)
    assert len(set(first)) == len(set(again)) == 1
    assert first[0] != again[0]


@pytest.mark.parametrize("came", [[0], [0, 2], [1, 2, 0, 3]])
def test_attempts_in_which_ranks_failed_before_they_came_are_told_apart(came: list[int]) -> None:
    """Ranks have not made as many attempts as others; the last attempt is of fewer ranks."""
    store = Store()
    attempts(store, [0, 1, 2, 3, 4], 5)
    attempts(store, came, 5, whole=False)
    whole = attempts(store, [4, 3, 2, 1, 0], 5)
    assert len(set(whole)) == 1
    assert len(set(attempts(store, [1, 0], 2))) == 1
    assert len(set(attempts(store, [0, 1, 2], 3))) == 1


def test_a_rank_says_that_the_first_one_does_not_come() -> None:
    with pytest.raises(HopsumError, match=r"^rank 1: rank 0 has named no attempt within 0\.01 s"):
        attempt_prefix(Store(), 1, 2, 0.01)


def met(
    names: list[str],
    monkeypatch: pytest.MonkeyPatch,
    numbers: Sequence[int] | None = None,
    sub_group: tuple[str, ...] = (),
    options: Sequence[str] | None = None,
) -> list[Any]:
    """The result of each rank, in threads with one environment and separate agents."""
    store, by_thread = Store(), threading.local()
    monkeypatch.setattr("hopsum_torch.rendezvous.connect", lambda _: connect(by_thread.name))

    def act(rank: int) -> Any:
        by_thread.name = names[rank]
        try:
            group = Group(rank, numbers or range(len(names)), *sub_group)
            if options is not None:
                group = replace(group, nonfinite=options[rank])
            return meet(store, group, SECONDS)
        except HopsumError as error:
            return error

    with ThreadPoolExecutor(len(names)) as pool:
        return list(pool.map(act, range(len(names))))


def test_rank_0_submits_one_job_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "my run/7")
    agents = Agents(3)
    found = met(list(agents.names.values()), monkeypatch)
    assert all(isinstance(agent, AgentClient) for agent in found)
    assert [agent.host for agent in found] == ["h1", "h2", "h3"]
    [submitted] = agents.submitted
    assert submitted["ranks"] == ["h1", "h2", "h3"]
    assert submitted["name"].startswith("torch-my-run-7-")
    for agent in found:
        agent.close()
    agents.close()


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("sub_group", [(), ("dp/2", "torch-my-run-0a1b2c3d")])
def test_options_that_differ_make_no_job(
    sub_group: tuple[str, ...], there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor a group over gloo, which would let NaNs pass at ranks that refuse them."""
    agents = Agents(2)
    names = list(agents.names.values()) if there else ["@hopsum-nobody"] * 2
    for error in met(names, monkeypatch, (1, 4), sub_group, options=("refuse", "pass")):
        assert type(error) is HopsumError
        assert "'refuse' at rank 1; 'pass' at rank 4: expected" in str(error)
    assert agents.submitted == []
    agents.close()


def test_a_sub_groups_job_starts_now_or_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is named after the default group's; HOPSUM_JOB is the number of that alone."""
    monkeypatch.setenv("HOPSUM_JOB", "77")
    agents = Agents(2)
    sub_group = "dp/2", "torch-my-run-0a1b2c3d"
    found = met(list(agents.names.values()), monkeypatch, (1, 4), sub_group)
    assert agents.submitted == [
        {
            "kind": "submit",
            "name": "torch-my-run-0a1b2c3d.dp-2",
            "ranks": ["h1", "h2"],
            "immediate": True,
        }
    ]
    for agent in found:
        assert agent.job_name == "torch-my-run-0a1b2c3d.dp-2"
        agent.close()
    agents.refusal = "no slots are free"
    for error in met(list(agents.names.values()), monkeypatch, (1, 4), sub_group):
        assert isinstance(error, NoAgreement)
        assert "rank 1 on h1 could not submit a job: job torch-" in str(error)
        assert str(error).endswith("no slots are free")
    agents.close()


def test_a_job_under_slurm_has_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where torchrun, which names its runs itself, starts the ranks."""
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    monkeypatch.setenv("SLURM_JOB_ID", "1234")
    assert Group(0, range(4)).job_name.startswith("torch-slurm-1234-")


@pytest.mark.parametrize("name", ["", "x" * MOST_GROUP_NAME, "x" * 40])
@pytest.mark.parametrize("run", ["a", "x" * 99])
def test_names_of_jobs_are_new_and_as_long_as_allowed(
    run: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", run)
    first = Group(0, range(4))
    parent = first.job_name
    assert parent != first.job_name
    assert len(parent) <= 54
    named = Group(0, (0, 2), name, parent).job_name
    assert len(named) <= 63
    assert named != parent
    assert named.startswith(f"{parent}.") == bool(name)
    assert (named == f"{parent}.{name}") == (0 < len(name) <= MOST_GROUP_NAME)


def test_messages_have_a_sub_groups_numbers() -> None:
    ranks = [RankHost("h1"), RankHost(), RankHost(error="it says no")]
    with pytest.raises(NoAgreement, match="rank 9: it says no"):
        hosts_of(ranks, numbers=(3, 5, 9))
    with pytest.raises(NoAgreement, match="no agent on the host of rank 5, but"):
        hosts_of(ranks[:2], numbers=(3, 5))


def test_a_job_that_is_refused_is_an_error_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(2)
    agents.refusal = "job x: no host h2"
    found = met(list(agents.names.values()), monkeypatch)
    for error in found:
        assert isinstance(error, NoAgreement)
        assert "rank 0 on h1 could not submit a job: job torch-" in str(error)
        assert str(error).endswith("no host h2")
    agents.close()


def test_ranks_without_agents_go_over_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (
        met(["@hopsum-nobody"] * 2, monkeypatch)
        == ["no agent listens at @hopsum-agent on any rank's host"] * 2
    )
    monkeypatch.setenv("HOPSUM_AGENT", "none")
    agents = Agents(2)
    found = met(list(agents.names.values()), monkeypatch)
    assert found == ["no agent listens at none on any rank's host"] * 2
    agents.close()


def test_a_job_given_by_number_is_attended(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(2)
    monkeypatch.setenv("HOPSUM_JOB", "x")
    for error in met(list(agents.names.values()), monkeypatch):
        assert "HOPSUM_JOB is 'x': expected the number of a job" in str(error)
    agents.jobs[4] = Job(4, ["h1", "h2"])
    monkeypatch.setenv("HOPSUM_JOB", "4")
    for agent in met(list(agents.names.values()), monkeypatch):
        assert isinstance(agent, AgentClient)
        agent.close()
    assert agents.submitted == []
    agents.close()


def test_a_job_on_other_hosts_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = Agents(2)
    monkeypatch.setenv("HOPSUM_JOB", "4")
    agents.jobs[4] = Job(4, ["h1", "h9"])
    for error in met(list(agents.names.values()), monkeypatch):
        assert "job 4 has ranks on h1, h9, and these ranks are on h1, h2" in str(error)
    agents.close()
