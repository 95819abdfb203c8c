"""Agreement of a group's ranks on one job, through the group's store."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hopsum_torch.agent import NAME, AgentClient, connect
from hopsum_torch.errors import HopsumError, NoAgreement
from hopsum_torch.options import NONFINITE, PASS, POSSIBLE_BITS, REFUSE, WIRE_BITS

AGENT, JOB = "HOPSUM_AGENT", "HOPSUM_JOB"
"""Environment variables: the agent's socket, or `none`; a job that is submitted already."""
NONE = "none"
ATTEMPT = "hopsum/attempt"
"""Key of the name of the latest attempt to form a group."""
POLL_SECONDS = 0.005
MOST_GROUP_NAME = 16
"""Maximum length of a group's name within its job's, which may have 63 letters."""


class Store(Protocol):
    """The methods used of a `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Publish a value to all ranks."""

    def get(self, key: str) -> bytes:
        """Wait for a rank's value. Raises DistStoreError, RuntimeError after its timeout."""

    def check(self, keys: list[str]) -> bool:
        """Return whether all keys have values."""


@dataclass(frozen=True, slots=True)
class Group:
    """The ranks that look for a job; this process is `rank` of them.

    `numbers`: their numbers in the default group. `name`: of a sub-group, as PyTorch calls it.
    `parent`: the name of the default group's job, if it has one. `nonfinite`,
    `wire_bits`: as of Options, or another value of the environment.
    """

    rank: int
    numbers: Sequence[int]
    name: str = ""
    parent: str = ""
    nonfinite: str = REFUSE
    wire_bits: int | str | None = None

    @property
    def job_name(self) -> str:
        """A new name for its job; that of a sub-group begins with the default group's."""
        if self.name and self.parent:
            short = len(self.name) <= MOST_GROUP_NAME
            return f"{self.parent}.{_plain(self.name) if short else uuid.uuid4().hex[:8]}"
        slurm = os.environ.get("SLURM_JOB_ID")
        run = f"slurm-{slurm}" if slurm else os.environ.get("TORCHELASTIC_RUN_ID", "job")
        return f"torch-{_plain(run):.30}-{uuid.uuid4().hex[:8]}"


@dataclass(frozen=True, slots=True)
class RankHost:
    """A rank's host: its name, or why there is none; and the rank's options."""

    host: str = ""
    error: str = ""
    nonfinite: str = REFUSE
    wire_bits: int | str | None = None


def check_options(answers: Sequence[RankHost], numbers: Sequence[int] | None = None) -> None:
    """Raise HopsumError if ranks have no valid options, or not the same.

    `numbers`: of the ranks in messages for people.
    """
    ranks = numbers or range(len(answers))
    nonfinite = [each.nonfinite for each in answers]
    _check_option("nonfinite", NONFINITE, nonfinite, (REFUSE, PASS), ranks)
    wire_bits = [each.wire_bits for each in answers]
    _check_option("wire_bits", WIRE_BITS, wire_bits, (None, *POSSIBLE_BITS), ranks)


def _check_option(
    name: str,
    variable: str,
    values: Sequence[object],
    possible: Sequence[object],
    numbers: Sequence[int],
) -> None:
    ranks: dict[object, list[int]] = {}
    for rank, each in zip(numbers, values, strict=True):
        ranks.setdefault(each, []).append(rank)
    if len(ranks) > 1 or not ranks.keys() <= set(possible):
        found = "; ".join(f"{each!r:.40} at rank {listed(those)}" for each, those in ranks.items())
        first, *others = map(repr, possible)
        expected = f"{first} at all ranks, or {' or '.join(others)} at all"
        raise HopsumError(
            f"{name} is {found}: expected {expected}; give them the same pg_options, or {variable}"
        )


def hosts_of(
    answers: Sequence[RankHost], where: str = NAME, numbers: Sequence[int] | None = None
) -> list[str] | str:
    """Return the hosts by rank if they can form a job, else why everything goes over gloo.

    Several ranks may share a host, but not all. `numbers`: of the ranks in messages for people.

    Raises NoAgreement if some ranks have an agent and others not, with their numbers.
    """
    numbered = list(zip(numbers or range(len(answers)), answers, strict=True))
    wrong = [f"rank {rank}: {each.error}" for rank, each in numbered if each.error]
    if wrong:
        raise NoAgreement("; ".join(wrong))
    missing = [rank for rank, each in numbered if not each.host]
    if len(missing) == len(answers):
        return f"no agent listens at {where} on any rank's host"
    if missing:
        raise NoAgreement(
            f"no agent on the host of rank {listed(missing)}, but on those of the other ranks; "
            "run `hopsum-agent serve` on all of them, or set HOPSUM_AGENT=none on every rank"
        )
    if len(answers) == 1:
        return "there is one rank"
    hosts = [each.host for each in answers]
    if len(set(hosts)) == 1:
        return f"all {len(hosts)} ranks are on host {hosts[0]}"
    return hosts


def attempt_prefix(store: Store, rank: int, size: int, timeout: float) -> str:
    """Return a prefix of keys for this attempt to form a group, equal at all ranks.

    With `--master-addr` torchrun's agent of node 0 keeps the store, and with it the keys of earlier
    attempts, to which not all ranks may have come. So rank 0 names the attempt, every rank answers
    with a word of its own, and rank 0 confirms those words: a rank whose word is not among them has
    read the name of an earlier attempt, and waits for another name. `timeout` in seconds. Raises
    HopsumError.
    """
    mine, deadline = uuid.uuid4().hex, time.monotonic() + timeout
    if rank == 0:
        store.set(ATTEMPT, mine)
        words = [store.get(f"{ATTEMPT}/{mine}/{each}").decode() for each in range(1, size)]
        store.set(f"{ATTEMPT}/{mine}", json.dumps(words))
        return f"hopsum/{mine}/"
    answered = ""
    while time.monotonic() < deadline:
        name = store.get(ATTEMPT).decode() if store.check([ATTEMPT]) else ""
        confirmed = f"{ATTEMPT}/{name}"
        if name != answered:
            store.set(f"{confirmed}/{rank}", mine)
            answered = name
        elif name and store.check([confirmed]):
            words = json.loads(store.get(confirmed))
            if words[rank - 1 : rank] == [mine]:
                return f"hopsum/{name}/"
        time.sleep(POLL_SECONDS)
    raise HopsumError(f"rank {rank}: rank 0 has named no attempt within {timeout} s; is it there?")


def meet(store: Store, group: Group, timeout: float) -> AgentClient | str:
    """Return this rank's agent, attending the group's job, or why everything goes over gloo.

    All ranks call it and come to the same conclusion. The job of a sub-group starts on free slots
    at once, or is refused. `store`: for this attempt alone (`attempt_prefix`); `timeout` in
    seconds. Raises NoAgreement, at all ranks, if one of them cannot take part, with its number, and
    HopsumError, at all ranks, if their options differ, and if the job does not begin.
    """
    where = os.environ.get(AGENT, NAME)
    agent, answers = _find(where)
    said = answers.host, answers.error, group.nonfinite, group.wire_bits
    store.set(f"host/{group.rank}", json.dumps(said))
    try:
        everyone = [
            RankHost(*json.loads(store.get(f"host/{r}"))) for r in range(len(group.numbers))
        ]
        check_options(everyone, group.numbers)
        hosts = hosts_of(everyone, where, group.numbers)
        if isinstance(hosts, str):
            if agent is not None:
                agent.close()
            return hosts
        assert agent is not None
        deadline = time.monotonic() + timeout
        job = _job(store, group, agent, hosts, timeout)
        left = max(0.1, deadline - time.monotonic())
        agent.attend(job, group.rank, hosts, left, group.numbers)
    except BaseException:
        if agent is not None:
            agent.close()
        raise
    return agent


def _find(where: str) -> tuple[AgentClient | None, RankHost]:
    if where == NONE:
        return None, RankHost()
    try:
        agent = connect(where)
    except HopsumError as error:
        return None, RankHost(error=str(error))
    return agent, RankHost(agent.host if agent is not None else "")


def _job(
    store: Store, group: Group, agent: AgentClient, hosts: Sequence[str], timeout: float
) -> int:
    """Return the number of the group's job: HOPSUM_JOB, or one that its first rank submits."""
    given = os.environ.get(JOB)
    if given is not None and not group.name:
        if not given.isdecimal():
            raise HopsumError(f"{JOB} is {given!r:.40}: expected the number of a job")
        return int(given)
    if group.rank == 0:
        name = group.job_name
        said = {"job": 0, "name": name, "error": ""}
        try:
            said["job"] = agent.submit(name, hosts, timeout, immediate=bool(group.name))
        except HopsumError as error:
            said["error"] = str(error)
        store.set("job", json.dumps(said))
    said = json.loads(store.get("job"))
    if said["error"]:
        first = f"rank {group.numbers[0]} on {hosts[0]}"
        raise NoAgreement(f"{first} could not submit a job: {said['error']}")
    agent.job_name = said["name"]
    return int(said["job"])


def _plain(name: str) -> str:
    """Return a name restricted to the characters of job names."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)


def listed(ranks: Sequence[int]) -> str:
    """Return the numbers of ranks, the first of many, for people."""
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)} in all)"
