"""A job's demands on its hosts: refused if impossible, and ended with the job."""

from __future__ import annotations

import asyncio
import json
import math
import re
import tracemalloc
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from hopsum.cli.job_commands import make_submission, read_task
from hopsum.cli.main import app
from hopsum.collectives.algorithms.catalogue import SCHEDULES
from hopsum.collectives.algorithms.trees import SharedTree
from hopsum.collectives.choices import FormOptions, Shape, Siblings
from hopsum.collectives.plan import DataType, JobPlan
from hopsum.collectives.task_messages import workload_from
from hopsum.collectives.tree import Tree
from hopsum.collectives.workload import MOST_TENSORS, WorkloadError, WorkloadSpec
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs import task_check
from hopsum.controller.jobs.cluster import Cluster
from hopsum.controller.jobs.job_spec import spec_from
from hopsum.controller.jobs.job_state import JobError, JobState
from hopsum.controller.jobs.task_check import check_task
from hopsum.coordination.tree import CoordinationTree
from hopsum.host_agent import memory
from hopsum.host_agent import workload as workloads
from hopsum.host_agent.node.member import Member
from hopsum.host_agent.node.real import RealEnvironment
from hopsum.host_agent.node.source import LockStep
from hopsum.host_agent.node.vectors import VectorQueues
from hopsum.host_agent.operator_training import OperatorTraining
from hopsum.host_agent.session import Assignment
from hopsum.host_agent.task import Task, TaskError, task_from
from hopsum.host_agent.workload import RandomTensors, Stopped, TrainingWorkload, random_tensor
from hopsum.network.loaders import load_network
from hopsum.network.model import Network
from hopsum.planning.model.request import PlanRequest
from hopsum.planning.registry import plan_job
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import InputError

GOOD: dict[str, Any] = {
    "kind": "random",
    "workers": 2,
    "elements": 10,
    "rounds": 3,
    "dtype": "INT32",
    "seed": 1,
}
NOT_NUMBERS = [True, 1.5, "ten", [], {}]


def wrong_workloads() -> list[tuple[dict[str, Any], str]]:
    """Fields that cannot be, and what is said of them."""
    cases: list[tuple[dict[str, Any], str]] = []
    for name, least, most in (
        ("workers", 1, 0xFFFF),
        ("elements", 0, 1 << 40),
        ("rounds", 1, MOST_TENSORS),
        ("seed", 0, (1 << 64) - 1),
    ):
        for value in (least - 1, most + 1):
            words = f"{name} .*: expected a whole number from {least} to|{name} field: .*range: "
            cases.append(({name: value}, words))
        for value in (-1, 10**400, *NOT_NUMBERS):
            cases.append(({name: value}, rf"parse {name} field: |Task\.workload\.{name}"))
        cases.append(({name: float("nan")}, "NaN: expected a finite number"))
        cases.append(({name: None}, f"workload: {name} is missing"))
    for kind in ("", "nope", "Random"):
        cases.append(({"kind": kind}, "kind .*: expected one of random, digits"))
    for value in (7, [], {}):
        cases.append(({"kind": value}, "Failed to parse kind field"))
    for dtype in ("", "int32", "float64", []):
        cases.append(({"dtype": dtype}, r"parse dtype field|Task\.workload\.dtype"))
    cases.append(({"dtype": 7}, "dtype 7: expected one of FLOAT32, INT32"))
    cases.append(({"coordinate": 1}, "Failed to parse coordinate field"))
    cases.append(({"extra": 1}, 'no field named "extra" at "Task.workload"'))
    cases.append(({"kind": "digits", "rounds": MOST_TENSORS}, "11000000 tensors: expected at most"))
    return cases


@pytest.mark.parametrize(("fields", "words"), wrong_workloads())
def test_impossible_workloads_are_refused(
    fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "task").write_text(json.dumps({"workload": GOOD | fields}))
    with pytest.raises(ValueError, match=words) as caught:
        workload_from(read_task(tmp_path / "task").workload)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1 column 1"),
        ('{"workload":\n{]', "line 2 column 2"),
        ("[]", "not a JSON object"),
        ("7", "not a JSON object"),
        ("null", "not a JSON object"),
        ("[" * 100_000, "nested too deeply"),
        ('{"workload": ' * 900 + "1" + "}" * 900, "no field named|too deep"),
        ('{"trees": [[[[[7]]]]]}', "trees"),
        ('{"vectors": 1, "vectors": 2}', "key 'vectors' occurs twice"),
        ('{"workload": NaN}', "NaN: expected a finite number"),
        ('{"workload": 7}', "Failed to parse workload field"),
        ('{"workload": "random"}', "Failed to parse workload field"),
        ('{"options": {"nope": 1}}', 'no field named "nope" at "Task.options"'),
        ('{"options": {"first_fragment": -1}}', "first_fragment"),
        ('{"options": 7}', "Failed to parse options field"),
        ('{"vectors": -1}', "Failed to parse vectors field"),
        ('{"level_wise": {"form": "ROUND"}}', "enum value ROUND .* at Task.level_wise.form"),
        ('{"schedule": 7}', "Failed to parse schedule field"),
        ('{"coordination": {"parents": [0.5]}}', "Failed to parse parents field"),
        ('{"nope": 1}', 'no field named "nope" at "Task"'),
        (f'{{"{"x" * 100_000}": 1}}', "no field named"),
    ],
)
def test_files_other_than_tasks_are_refused(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "task"
    file.write_text(text)
    with pytest.raises(JobError, match=words) as caught:
        read_task(file)
    said = str(caught.value)
    assert said.startswith(f"task {file}: cannot be read: ")
    assert "; expected a Task of hopsum.proto as a JSON object, such as {" in said
    assert len(said) < 1000
    assert "\n" not in said


def test_a_file_gives_a_task(tmp_path: Path) -> None:
    file = tmp_path / "task"
    tree = {"root": "h1", "parents": {"h2": "h1"}, "share": "1/2"}
    file.write_text(
        json.dumps(
            {
                "workload": GOOD,
                "schedule": "multi-tree",
                "options": {"deadline": 8},
                "trees": [tree],
                "level_wise": {"form": "LEVELS", "siblings": "RING"},
                "coordination": {"names": ["h1", "h2"], "parents": [-1, 0]},
                "vectors": 3,
            }
        )
    )
    assert task_from(read_task(file)) == Task(
        WorkloadSpec("random", 2, 10, 3, DataType.INT32, 1),
        "multi-tree",
        {"deadline": 8.0},
        (SharedTree(Tree("h1", {"h2": "h1"}), Fraction(1, 2)),),
        CoordinationTree(("h1", "h2"), (-1, 0)),
        3,
        FormOptions(Shape.LEVELS, Siblings.RING),
    )


def test_a_missing_field_is_named() -> None:
    for name in GOOD:
        workload = task_of().workload
        workload.ClearField(name)
        with pytest.raises(WorkloadError, match=f"workload: {name} is missing; it has kind"):
            workload_from(workload)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", list(DataType))
def test_the_memory_of_a_workload_is_about_what_it_takes(dtype: DataType) -> None:
    network = load_network("star:3")
    plan = plan_job(network, PlanRequest(1, 1, ("h1", "h2", "h3"), ("ps",)))
    for workers, rounds in ((3, 1), (3, 8)):
        spec = WorkloadSpec("random", workers, 200_000, rounds, dtype, 1)
        tracemalloc.start()
        workload = RandomTensors(spec, 0, plan)
        while (tensor := workload.next_tensor()) is not None:
            workload.take_result(tensor * workers)
        workload.verdict()
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert 0.3 * spec.worker_bytes < peak < spec.worker_bytes


def test_the_memory_does_not_grow_with_the_workers() -> None:
    """Sums are checked with one worker's tensor after the other."""
    peaks = []
    for workers in (2, 40):
        spec = WorkloadSpec("random", workers, 50_000, 1, DataType.FLOAT32, 1)
        workload = RandomTensors(spec, 0, None)
        workload.take_result(np.zeros(50_000, np.float32))
        tracemalloc.start()
        workload.verdict()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 1.1 * peaks[0]


def test_sums_are_checked_before_they_are_too_many_to_keep(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = 400_000
    monkeypatch.setattr(workloads, "KEPT_BYTES", 5 * size)
    spec = WorkloadSpec("random", 2, size // 4, 20, DataType.INT32, 1)
    workload = RandomTensors(spec, 0, None)
    tracemalloc.start()
    for number in range(20):
        result = random_tensor(spec, 0, number) + random_tensor(spec, 1, number)
        result[number % 3 :: 10_000] += 1
        workload.take_result(result)
        assert tracemalloc.get_traced_memory()[0] < 8 * size
    tracemalloc.stop()
    assert (workload.verdict().checked, workload.verdict().wrong) == (20 * size // 4, 200)


# -- Ended with the job


def test_a_verdict_ends_with_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = WorkloadSpec("random", 60_000, 4, 2, DataType.INT32, 1)
    workload = RandomTensors(spec, 0, None)
    for _ in range(2):
        workload.take_result(np.zeros(4, np.int32))
    made: list[int] = []

    def tensor(spec: WorkloadSpec, worker: int, number: int) -> Any:
        made.append(worker)
        if worker == 5:
            workload.stop()
        return random_tensor(spec, worker, number)

    monkeypatch.setattr(workloads, "random_tensor", tensor)
    with pytest.raises(Stopped):
        workload.verdict()
    assert made == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_a_training_ends_with_its_job() -> None:
    spec = WorkloadSpec("digits", 3, 0, 1, DataType.FLOAT32, 1, coordinate=True)
    training = TrainingWorkload(spec, 0, None)
    gradient = training.next_tensor()
    assert gradient is not None
    training.take_result(gradient)
    training.stop()
    with pytest.raises(Stopped):
        training.verdict()
    operators = OperatorTraining(spec, 0, None)
    operators.stop()
    with pytest.raises(Stopped):
        operators.begin_step()


def test_a_job_that_is_left_ends_what_goes_on() -> None:
    workload = RandomTensors(WorkloadSpec("random", 2, 4, 1, DataType.INT32, 1), 0, None)
    workload.take_result(np.zeros(4, np.int32))
    LockStep(workload, lambda work, then: None, JobPlan(1, 1, (), (), 32, 2)).close("")
    with pytest.raises(Stopped):
        workload.verdict()


class Client:
    """A controller that has given a host its part."""

    def __init__(self, network: Network, plan: JobPlan, task: pb.Task) -> None:
        self.host, self.job, self.address, self.started = "h1", 1, "here", False
        self.assignment = Assignment(network, plan, task)

    def events(self) -> list[Any]:
        return []

    def ready(self) -> None:
        pass


def member(task: pb.Task) -> Member:
    """The part of h1 in a job of h1 and h2 in the switches."""
    network = load_network("star:2")
    plan = plan_job(network, PlanRequest(1, 1, ("h1", "h2"), ("ps",)))
    client: Any = Client(network, plan, task)
    environment = RealEnvironment("h1", lambda descriptor: None, lambda descriptor: None)
    return Member(client, environment, lambda machine: None, VectorQueues(environment.wake))


def task_of(
    kind: str = "random",
    workers: int = 2,
    elements: int = 10,
    rounds: int = 3,
    ranks: Sequence[str] = (),
    dtype: DataType = DataType.INT32,
    wire_bits: int = 0,
    **fields: Any,
) -> pb.Task:
    workload = pb.Workload(
        kind=kind,
        workers=workers,
        elements=elements,
        rounds=rounds,
        dtype=dtype.name,
        seed=1,
        ranks=ranks,
        wire_bits=wire_bits,
    )
    return pb.Task(workload=workload, **fields)


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (task_of(workers=1_000_000_000), "workers 1000000000: expected a whole number"),
        (task_of(workers=3), "its task is for 3 workers, its plan for 2"),
        (task_of(ranks=["h1", "h1", "h2"]), "ranks of random: expected none; they are of process"),
        (
            task_of("process", ranks=["h1", "h1"]),
            "ranks on 1 hosts: expected each of 2 workers to have one or more",
        ),
        (
            task_of("process", ranks=["h1", *["h2"] * 65]),
            "66 ranks, 65 of them on h2: expected at most 65535, and 64 on a host",
        ),
        (
            task_of("process", ranks=["h1", "h1", "h3"]),
            "its ranks are on h1, h3; expected one or more on each of the plan's workers, h1, h2",
        ),
        (
            task_of(elements=1 << 40),
            r"host h1: its part of .* needs 30.* TB of memory, and .* are avail",
        ),
        (task_of(schedule="gossip"), "schedule 'gossip': expected one of multi-tree, ring"),
        (task_of(options={"deadline": 0.0}), r"option deadline 0\.0: expected seconds, above 0"),
        (task_of(options={"min_probe": math.nan}), "option min_probe nan: expected seconds"),
        (task_of(options={"max_timeout": math.inf}), "option max_timeout inf: expected seconds"),
        (task_of(options={"bypass_after": 2**32 - 1}), "option bypass_after 4294967295: expected"),
        (task_of(options={"scale_workers": 0}), "option scale_workers 0: expected 1 to"),
        (task_of(vectors=0x10000), "vectors 65536: expected the number of a job"),
        (task_of(trees=[{}]), "share '': expected a fraction"),
        (task_of(level_wise={"form": 9}), "form 9: expected one of AUTO, LEVELS, FLAT"),
        (task_of(coordination={}), "is of .*; expected the plan's workers, h1, h2"),
        (
            task_of(coordination={"names": ["h1", "h9"], "parents": [-1, 0]}),
            "is of h1, h9; expected the plan's workers, h1, h2",
        ),
        (pb.Task(), "cannot be followed: workload: kind is missing"),
    ],
)
def test_agents_refuse_tasks_that_they_cannot_follow(task: pb.Task, words: str) -> None:
    with pytest.raises(TaskError, match=words):
        member(task).advance(0.0)


def test_an_agent_has_a_task_that_fits() -> None:
    going = member(task_of())
    going.advance(0.0)
    assert not going.over


def test_available_memory_limits_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopsum.host_agent.memory.available_memory", lambda: 4000)
    with pytest.raises(TaskError, match=r"needs 4\.35 kB of memory, and 4 kB are available here"):
        member(task_of(elements=100)).advance(0.0)
    assert memory.too_much(4000, "it") is None
    monkeypatch.setattr("hopsum.host_agent.memory.available_memory", lambda: 0)
    assert memory.too_much(1 << 60, "it") is None


# -- Refused at the command


async def install(rules: Mapping[str, SwitchRules]) -> None:
    """Switches that take everything."""


def submitted(submission: Any, memory: int = 8 << 30, machines: str = "one") -> str | JobState:
    """The answer of a cluster whose hosts have this much memory."""

    async def main() -> str | JobState:
        cluster = Cluster(load_network("star:4", link_rate="1G"), install)
        for host in ("h1", "h2", "h3", "h4"):
            machine = "this" if machines == "one" else host
            cluster.nodes.attach(host, 0.0, memory, machine)
        try:
            spec = spec_from(submission)
            check_task(spec)
            return (await cluster.submit(spec)).state
        except JobError as error:
            return str(error)
        finally:
            await cluster.close()

    return asyncio.run(main())


def test_a_task_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_check, "MOST_TASK_BYTES", 10)
    answer = submitted(make_submission("a", "2"))
    assert isinstance(answer, str)
    assert re.search(r"job a: its task has \d+ bytes; expected at most 10", answer)


def test_a_job_needs_the_memory_of_its_hosts() -> None:
    large = make_submission("large", "2", elements=200_000_000, rounds=1)
    need = "need 11.2 GB of memory, and their machine has"
    assert f"its workers on h1, h2 {need} 8.59 GB; use fewer" in str(submitted(large))
    assert submitted(large, machines="many") is JobState.WAITING
    assert submitted(large, memory=0) is JobState.WAITING
    assert submitted(large, memory=1 << 40) is JobState.WAITING
    huge = make_submission("huge", "2", elements=99_999_999_999)
    assert "need" in str(submitted(huge, machines="many"))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task": task_of(workers=3)}, "its workload is for 3 workers, and it has 2"),
        ({"task": task_of(kind="nope")}, "kind 'nope': expected one of"),
        ({"task": task_of(elements=2**64 - 1)}, "elements 18446744073709551615: expected a whole"),
        ({"task": task_of(rounds=0)}, "rounds 0: expected a whole number from 1"),
        (
            {"task": task_of(dtype=DataType.BFLOAT16), "algorithm": "ring"},
            "bfloat16, wire_bits 0: only switches and servers can sum that",
        ),
        (
            {"task": task_of(dtype=DataType.FLOAT32, wire_bits=16), "algorithm": "embedding"},
            "float32, wire_bits 16: only switches and servers can sum that",
        ),
        ({"task": task_of(wire_bits=16)}, "wire-bits 16 of int32: expected 32"),
        ({"task": pb.Task()}, "its task has no workload; expected one with kind, workers"),
        ({"task": pb.Task(workload=pb.Workload())}, "workload: kind is missing"),
        (
            {"task": task_of(schedule="gossip"), "algorithm": "ring"},
            "its task's schedule is 'gossip'",
        ),
        (
            {"task": task_of("process", ranks=["h1", "h9", "h9"])},
            "its ranks are on h1, h9; expected one or more on each of its workers, h",
        ),
        (
            {"algorithm": "ring", "planner": "embedding"},
            "algorithm ring among themselves, and planner embedding would not be used",
        ),
        ({"algorithm": "ring", "planner": "multi-hop"}, "planner multi-hop would not be used"),
        ({"algorithm": "embedding", "planner": "multi-hop"}, "omit one of the two"),
    ],
)
def test_jobs_that_are_refused(fields: dict[str, Any], words: str) -> None:
    submission = make_submission("a", "2")
    if "task" in fields:
        submission.ClearField("task")
    submission.MergeFrom(pb.Submission(**fields))
    answer = submitted(submission)
    assert isinstance(answer, str)
    assert re.search(words, answer), answer


@pytest.mark.parametrize("algorithm", ["in-network", "server", "embedding", *SCHEDULES])
def test_every_algorithm_without_a_planner(algorithm: str) -> None:
    assert submitted(make_submission("a", "2", algorithm=algorithm)) is JobState.WAITING


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--train", "nope"], "train 'nope': expected a data set, one of digits"),
        (["--train", ""], "train '': expected a data set"),
        (["--train", "digits", "--from-processes"], "give one of them"),
        (["--ranks-per-host", "2"], "add --from-processes, or omit it"),
        (["--from-processes", "--ranks-per-host", "2"], "name the hosts, as --workers h1,h2"),
        (["--workers", "0"], "workers 0: expected 1 to 65535"),
        (["--workers", "99999999999"], "workers 99999999999: expected 1 to 65535"),
        (["--workers", "9" * 5000], "expected 1 to 65535"),
        (["--workers", ""], "workers '': expected a number, or names"),
        (["--workers", "h1,,h2"], "expected a number, or names of hosts"),
        (["--servers", "-1"], "servers -1: expected 1 to"),
        (["--collective", "reduce", "--from-processes"], "reduce of process: expected all-reduce"),
        (["--collective", "reduce", "--train", "digits"], "reduce of digits: expected all-reduce"),
        (["--elements", str((1 << 40) + 1)], "elements 1099511627777: expected a whole number"),
        (["--rounds", "1000001"], "rounds 1000001: expected a whole number"),
        (["--seed", "-1"], "seed -1: expected a whole number"),
        (["--task", "/none"], "task /none: cannot be read"),
        (["--task", "/"], "task /: cannot be read"),
    ],
)
def test_the_command_refuses_without_a_controller(options: list[str], words: str) -> None:
    """Nothing is submitted: there is no controller."""
    done = CliRunner().invoke(app, ["submit", "a", "--controller", "unix:/none", *options])
    assert isinstance(done.exception, InputError), done.exception
    assert words in str(done.exception)
