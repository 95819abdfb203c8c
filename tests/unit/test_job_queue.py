from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from collectives.network import NetworkError
from controller.job_placement import place_job
from controller.job_queue import KEPT, LAST_JOB, Job, JobBook, JobError, JobSpec, JobState
from controller.loaders import load_network
from controller.planners.request import PlanRequest


def job(book: JobBook, name: str, *workers: str) -> Job:
    number = book.next_number()
    spec = JobSpec(name, workers or ("h1", "h2"))
    request = PlanRequest(number, 1, workers or ("h1", "h2"), ("h3",))
    made = Job(number, spec, request, JobState.WAITING, 1.0)
    book.add(made)
    return made


def test_names_are_free_again_when_their_job_is_over() -> None:
    book = JobBook()
    first = job(book, "a")
    with pytest.raises(JobError, match="job 'a' already: number 1, waiting"):
        book.check(first.spec)
    first.end(JobState.FAILED, 2.0, "no reason")
    book.check(first.spec)
    second = job(book, "a")
    assert book.find(name="a") is second
    assert book.find(1) is first
    with pytest.raises(JobError, match=r"no job b; jobs: 1 \(a\), 2 \(a\)"):
        book.find(name="b")


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
def test_jobs_that_cannot_be(change: dict[str, str], words: str) -> None:
    with pytest.raises(JobError, match=words):
        JobBook().check(replace(JobSpec("a", ("h1", "h2")), **change))  # type: ignore[arg-type]


def test_numbers_go_on_after_a_restart_and_end(tmp_path: Path) -> None:
    file = tmp_path / "state" / "last-job"
    assert [JobBook(file).next_number() for _ in range(3)] == [1, 2, 3]
    file.write_text(str(LAST_JOB))
    with pytest.raises(JobError, match="all 65535 job numbers"):
        JobBook(file).next_number()
    file.write_text("seven")
    with pytest.raises(JobError, match="last-job: 'seven'; expected the number"):
        JobBook(file)


def test_old_jobs_are_forgotten_but_none_that_goes_on() -> None:
    book = JobBook()
    going = job(book, "going")
    for number in range(KEPT + 5):
        job(book, f"old{number}").end(JobState.FINISHED, 2.0)
    job(book, "last")
    assert book.find(going.number) is going
    assert len(list(book)) == KEPT + 2
    with pytest.raises(JobError, match="no job old0"):
        book.find(name="old0")


def test_loads_count_jobs_that_go_on() -> None:
    book = JobBook()
    job(book, "a", "h1", "h2")
    job(book, "b", "h2", "h4")
    job(book, "c", "h1", "h2").end(JobState.CANCELLED, 2.0)
    assert book.loads() == {"h1": 1, "h2": 2, "h3": 2, "h4": 1}


def test_places_where_agents_are_and_little_is_done() -> None:
    network = load_network("star:6")
    hosts = [name for name in network.hosts if name != "ps"]
    placed = place_job(network, 2, 1, hosts, {})
    assert (placed.workers, placed.servers) == (("h1", "h2"), ("ps",))
    placed = place_job(network, 2, 2, hosts, {"h1": 1, "h3": 2})
    assert (placed.workers, placed.servers) == (("h2", "h4"), ("ps", "h5"))
    placed = place_job(network, 3, 1, ["h5", "h6"], {"h5": 9})
    assert placed.workers == ("h1", "h5", "h6")
    placed = place_job(network, ("h3",), ("h4",), hosts, {})
    assert (placed.workers, placed.servers) == (("h3",), ("h4",))
    for workers, servers, words in (
        (7, 1, "7 workers: expected 1 to 6"),
        (0, 1, "0 workers"),
        (("h1", "h9"), 1, "no host 'h9'"),
        (("h1", "h2"), ("h2",), "host h2 cannot be worker and server"),
    ):
        with pytest.raises(NetworkError, match=words):
            place_job(network, workers, servers, hosts, {})
