from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from hopsum.controller.jobs import job_table
from hopsum.controller.jobs.job import Job
from hopsum.controller.jobs.job_placement import place_helpers, place_job
from hopsum.controller.jobs.job_request import coordinated
from hopsum.controller.jobs.job_spec import JobSpec
from hopsum.controller.jobs.job_state import LAST_JOB, JobError, JobState
from hopsum.controller.jobs.job_table import KEPT, JobTable
from hopsum.controller.jobs.journal import JournalError
from hopsum.controller.jobs.restarting_counter import RestartingCounter
from hopsum.network.loaders import load_network
from hopsum.network.model import NetworkError
from hopsum.planning.model.placement import Placement
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb

TASK = pb.Task(
    workload=pb.Workload(kind="random", workers=2, seed=2**64 - 1),
    options=pb.WorkerOptions(deadline=8.5),
    trees=[pb.SharedTree(root="h1", parents={"h3": "h2", "h2": "h1"}, share="1/3")],
)


ODD_REPORT = pb.Report(
    verdict=pb.Verdict(wrong=2**64 - 1, max_error=math.inf, error_bound=-1.0),
    intervals=pb.Intervals(starts=[1e308, -1e308], finishes=[0.1]),
    outcome=pb.Outcome(cycles=0, operator_order=["\u2603", "\0"]),
)


def job(table: JobTable, name: str, *workers: str) -> Job:
    number = table.next_number()
    spec = JobSpec(name, workers or ("h1", "h2"), task=TASK)
    request = PlanRequest(number, 1, workers or ("h1", "h2"), ("h3",))
    made = Job(number, spec, request, 1.0, JobState.WAITING)
    made.sent["h1"] = RestartingCounter(5)  # what agents report is not kept
    made.resent["h1"] = RestartingCounter(1)
    table.add(made)
    table.keep(made)
    return made


def end(table: JobTable, job: Job, outcome: JobState, reason: str = "") -> None:
    table.move(job, JobState.DRAINING, reason, outcome)
    table.drained(job)


def test_names_are_free_again_when_their_job_is_over() -> None:
    table = JobTable()
    first = job(table, "a")
    with pytest.raises(JobError, match="job 'a' exists already: number 1, waiting"):
        table.check(first.spec)
    end(table, first, JobState.FAILED, "no reason")
    table.check(first.spec)
    second = job(table, "a")
    assert table.find(name="a") is second
    assert table.find(1) is first
    with pytest.raises(JobError, match="no job b; 2 jobs are known, `hopsum jobs` lists them"):
        table.find(name="b")


def test_an_unknown_job_is_answered_with_similar_names_only() -> None:
    table = JobTable()
    with pytest.raises(JobError, match="no job 7; none is known"):
        table.find(7)
    for number in range(300):
        job(table, f"train-{number:03}")
    with pytest.raises(JobError, match="did you mean train-123") as error:
        table.find(name="trian-123")
    assert "300 jobs are known" in str(error.value)
    assert len(str(error.value)) < 200


def test_a_job_among_hosts_has_no_server() -> None:
    table = JobTable()
    made = job(table, "a")
    assert made.hosts == ("h1", "h2", "h3")
    ring = replace(made, spec=replace(made.spec, algorithm="ring"))
    assert ring.servers == ()
    assert ring.hosts == ("h1", "h2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"name": ""}, "job name ''"),
        ({"name": "a b"}, "job name 'a b'"),
        ({"algorithm": "gossip"}, "'gossip': expected one of in-network, server, ring"),
        ({"workers": ("h1", "h1")}, "worker h1 is named more than once"),
        ({"servers": ("h3", "h3")}, "server h3 is named more than once"),
    ],
)
def test_impossible_jobs_are_refused(change: dict[str, str], words: str) -> None:
    with pytest.raises(JobError, match=words):
        JobTable().check(replace(JobSpec("a", ("h1", "h2")), **change))  # type: ignore[arg-type]


def test_many_names_of_hosts_are_compared_few_times() -> None:
    """A submission may have millions: none but the controller's loop would be served meanwhile."""
    compared = 0

    class Name(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    count = 1000
    names = tuple(Name(f"h{number}") for number in range(count))
    table = JobTable()
    table.check(JobSpec("a", names, names))
    assert compared < 3 * count
    with pytest.raises(JobError, match="server h7 is named more than once"):
        table.check(JobSpec("a", names, (*names, Name("h7"))))
    with pytest.raises(JobError, match=r"worker x{80} is named more than once"):
        table.check(JobSpec("a", ("x" * 100_000,) * 2))


def test_jobs_and_numbers_outlive_the_controller(tmp_path: Path) -> None:
    file = tmp_path / "state" / "jobs"
    table = JobTable(file)
    ended, going = job(table, "ended"), job(table, "going", "h1", "h2")
    ended.reports = {"h1": ODD_REPORT, "h2": pb.Report()}
    end(table, ended, JobState.FAILED, "h1: its connection ended")
    table.start(going)
    request = replace(going.request, servers=("h3",), window=32, epoch=7)
    plan = plan_job(load_network("star:3"), request)
    table.adopt(going, request, plan, ("s1", "s2"), ("s3", ("h1", "s1")))
    again = JobTable(file)
    assert list(again) == [
        replace(ended, sent={}, resent={}),
        replace(going, sent={}, resent={}),
    ]
    assert (going.plan, going.epoch, going.avoided) == (plan, 7, {"s3", ("h1", "s1")})
    assert again.next_number() == 3
    assert len(file.read_text().splitlines()) == 3, "the history's, and one a job"


def test_job_numbers_are_of_one_history_for_as_long_as_their_journal(tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    first = JobTable(file).history
    assert JobTable(file).history == first
    file.unlink()
    assert JobTable(file).history != first
    assert JobTable().history != JobTable().history


@pytest.mark.parametrize("history", ["", "12", "ABCDEF0123456789", 7, None])
def test_an_invalid_history_is_refused(tmp_path: Path, history: object) -> None:
    file = tmp_path / "jobs"
    file.write_text(json.dumps({"number": 0, "history": history}) + "\n")
    with pytest.raises(JobError, match=r"history .*: expected 16 hexadecimal digits"):
        JobTable(file)


def test_all_job_numbers_used(tmp_path: Path) -> None:
    table = JobTable(tmp_path / "jobs")
    table.keep(replace(job(table, "a"), number=LAST_JOB))
    with pytest.raises(JobError, match=r"all 65535 job numbers .* remove .*jobs"):
        JobTable(tmp_path / "jobs").next_number()


def test_truncated_and_invalid_journals(tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    table = JobTable(file)
    job(table, "a")
    job(table, "b")
    file.write_text(file.read_text()[:-20])
    assert [known.spec.name for known in JobTable(file)] == ["a"]
    for former in (
        file.read_text().replace('"task": {', '"task": "{}", "other": {'),
        file.read_text().replace('"reports": {}', '"reports": {"h1": "{\\"verdict\\": {}}"}'),
        file.read_text().replace('"reports": {}', '"reports": {"h1": "/////w=="}'),
        file.read_text().replace('"reports": {}', '"reports": []'),
    ):
        file.write_text(former)
        with pytest.raises(
            JobError, match=r"job 1 cannot be .*; was the journal written by another version"
        ):
            JobTable(file)
    for text, error, words in (
        ("seven\n", JournalError, r"jobs:1: 'seven': expected a record"),
        ('{"number": 3}\n', JobError, r"job 3 cannot be read \(KeyError: 'spec'\)"),
    ):
        file.write_text(text)
        with pytest.raises(error, match=words):
            JobTable(file)


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("number", "x", "number is 'x', expected int"),
        ("number", True, "number is True, expected int"),
        ("number", 0, "number 0, expected 1 to 65535"),
        ("number", LAST_JOB + 1, "number 65536, expected 1 to 65535"),
        ("ended", None, "ended is None, expected float"),
        ("reason", 1.5, "reason is 1.5, expected str"),
        ("epoch", "x", "epoch is 'x', expected int"),
        ("window", {}, "window is {}, expected int"),
    ],
)
def test_a_record_with_a_value_of_another_kind(
    place: str, value: object, words: str, tmp_path: Path
) -> None:
    file = tmp_path / "jobs"
    job(JobTable(file), "a")
    record = json.loads(file.read_text().splitlines()[-1])
    (record["request"] if place in record["request"] else record)[place] = value
    file.write_text(json.dumps(record) + "\n")
    with pytest.raises(JobError, match=re.escape(words)):
        JobTable(file)


@pytest.mark.parametrize("number", ["x", True, -1, LAST_JOB + 1, None])
def test_an_invalid_reserved_number_is_refused(number: object, tmp_path: Path) -> None:
    file = tmp_path / "jobs"
    file.write_text(json.dumps({"number": number, "reserved": True}) + "\n")
    with pytest.raises(JobError, match="is reserved; expected 0 to 65535"):
        JobTable(file)


def test_a_journal_does_not_grow_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.controller.jobs.job_table.MANY_LINES", 20)
    table = JobTable(tmp_path / "jobs")
    made = job(table, "a")
    for epoch in range(1, 200):
        made.request = replace(made.request, epoch=epoch)
        table.keep(made)
        assert len((tmp_path / "jobs").read_text().splitlines()) <= 20
    (again,) = JobTable(tmp_path / "jobs")
    assert again.epoch == 199


def test_old_jobs_are_forgotten_but_none_that_goes_on() -> None:
    table = JobTable()
    going = job(table, "going")
    for number in range(KEPT + 5):
        end(table, job(table, f"old{number}"), JobState.FINISHED)
    job(table, "last")
    assert table.find(going.number) is going
    assert len(list(table)) == KEPT + 2
    with pytest.raises(JobError, match="no job old0"):
        table.find(name="old0")


def test_jobs_that_go_on_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "MOST_ACTIVE", 2)
    table = JobTable()
    first = job(table, "a", "h1")
    job(table, "b", "h1")
    with pytest.raises(JobError, match="job c: 2 jobs are queued or running; expected fewer than"):
        table.check(JobSpec("c", ("h1",)))
    end(table, first, JobState.CANCELLED)
    table.check(JobSpec("c", ("h1",)))


def test_loads_count_jobs_that_go_on() -> None:
    table = JobTable()
    job(table, "a", "h1", "h2")
    job(table, "b", "h2", "h4")
    drained, draining = job(table, "c", "h1", "h2"), job(table, "d", "h1", "h2")
    end(table, drained, JobState.CANCELLED)
    table.move(draining, JobState.DRAINING, outcome=JobState.FINISHED)
    assert table.loads() == {"h1": 1, "h2": 2, "h3": 2, "h4": 1}


def test_places_where_agents_are_and_little_is_done() -> None:
    network = load_network("star:6")
    placed = place_job(network, 2, 1, (), {})
    assert (placed.workers, placed.servers) == (("h1", "h2"), ("ps",))
    placed = place_job(network, 2, 2, tuple(network.hosts), {"h1": 1, "h3": 2})
    assert (placed.workers, placed.servers) == (("h2", "h4"), ("ps", "h5"))
    hosts = [name for name in network.hosts if name != "ps"]
    assert place_job(network, 2, 1, hosts, {}).servers == ("h3",)
    placed = place_job(network, 3, 1, ["h5", "h6"], {"h5": 9})
    assert placed.workers == ("h1", "h5", "h6")
    placed = place_job(network, ("h3",), ("h4",), hosts, {})
    assert (placed.workers, placed.servers) == (("h3",), ("h4",))
    placed = place_job(network, 3, 0, ["h5", "h6"], {"h5": 9})
    assert placed.workers == placed.servers == ("h1", "h5", "h6")
    for workers, servers, words in (
        (7, 1, "7 workers: expected 1 to 6"),
        (0, 1, "0 workers"),
        (("h1", "h9"), 1, "no host 'h9'"),
        (2, 8, "8 servers: expected 0 to 7, its hosts"),
        (2, -1, "-1 servers: expected 0 to 7"),
        (1, 7, "7 servers: expected 0 to 6, its hosts that are not workers"),
    ):
        with pytest.raises(NetworkError, match=words):
            place_job(network, workers, servers, hosts, {})


def test_the_least_busy_host_serves_when_none_is_named() -> None:
    """A worker of the job where no host is idle, and another only where these have no agent."""
    network = load_network("star:6")
    loads: dict[str, int] = {}
    served = []
    for _ in range(4):
        placed = place_job(network, 1, 1, tuple(network.hosts), loads)
        for host in (*placed.workers, *placed.servers):
            loads[host] = loads.get(host, 0) + 1
        served += placed.servers
    assert served == ["ps", "h3", "h5", "ps"]
    assert max(loads.values()) == 2
    loads["h2"] = 2
    everyone = tuple(network.hosts)
    apart = place_job(network, ("h1", "h2", "h3"), 1, everyone, loads, workers_serve=False)
    assert apart.servers == ("h4",)
    assert place_job(network, ("h1", "h2", "h3"), 1, everyone, loads).servers == ("h1",)
    assert place_job(network, ("h1", "h2"), 2, everyone, loads).servers == ("h1", "h2")
    assert place_job(network, ("h1", "h2"), 3, everyone, loads).servers == ("h1", "h2", "h3")
    without = [host for host in everyone if host not in ("h1", "h2", "ps")]
    assert place_job(network, ("h1", "h2"), 1, without, loads).servers == ("h3",)
    named = place_job(network, 1, ("ps",), tuple(network.hosts), loads)
    assert named.servers == ("ps",)


def test_hosts_that_may_help_have_an_agent_and_little_to_do() -> None:
    network = load_network("star:5")
    attached = ["h1", "h2", "h4", "h5", "ps"]
    placed = place_helpers(network, 2, 1, attached, {"h4": 2, "ps": 1})
    assert placed == Placement(("h1", "h2"), ("h5", "ps", "h4"))
    assert place_helpers(network, ("h3",), 1, [], {}).servers == ()
    assert place_helpers(network, ("h3",), ("h4", "h1"), attached, {}).servers == ("h4", "h1")
    with pytest.raises(NetworkError, match="worker and helper"):
        place_helpers(network, ("h3",), ("h3",), attached, {})


def test_tasks_that_need_an_order() -> None:
    assert coordinated(JobSpec("a", 2, task=pb.Task(coordination=pb.CoordinationTree())))
    workload = pb.Workload(kind="digits", workers=2, rounds=1, coordinate=True)
    assert coordinated(JobSpec("a", 2, task=pb.Task(workload=workload)))
    assert not coordinated(JobSpec("a", 2))
