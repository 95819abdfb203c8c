"""Agreement of a group's ranks on one job, through the group's store."""

from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hopsum_torch.agent import NAME, Agent, connect
from hopsum_torch.errors import HopsumError, NoAgreement

AGENT, JOB = "HOPSUM_AGENT", "HOPSUM_JOB"
"""Environment variables: the agent's socket, or `none`; a job that is submitted already."""
NONE = "none"


class Store(Protocol):
    """The methods used of a `torch.distributed.Store`."""

    def set(self, key: str, value: str) -> None:
        """Publish a value to all ranks."""

    def get(self, key: str) -> bytes:
        """Wait for a rank's value. Raises DistStoreError, RuntimeError after its timeout."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, which starts at 0, and return its value."""


@dataclass(frozen=True, slots=True)
class RankHost:
    """A rank's host: its name, or why there is none."""

    host: str = ""
    error: str = ""


def hosts_of(answers: Sequence[RankHost], where: str = NAME) -> list[str] | str:
    """Return the hosts by rank if they can form a job, else why everything goes over gloo.

    Several ranks may share a host, but not all.

    Raises NoAgreement if some ranks have an agent and others not, with their numbers.
    """
    wrong = [f"rank {rank}: {each.error}" for rank, each in enumerate(answers) if each.error]
    if wrong:
        raise NoAgreement("; ".join(wrong))
    missing = [rank for rank, each in enumerate(answers) if not each.host]
    if len(missing) == len(answers):
        return f"no agent listens at {where} on any rank's host"
    if missing:
        raise NoAgreement(
            f"no agent on the host of rank {_numbers(missing)}, but on those of the other ranks; "
            "run `hopsum-agent serve` on all of them, or set HOPSUM_AGENT=none on every rank"
        )
    if len(answers) == 1:
        return "there is one rank"
    hosts = [each.host for each in answers]
    if len(set(hosts)) == 1:
        return f"all {len(hosts)} ranks are on host {hosts[0]}"
    return hosts


def turn(store: Store, rank: int) -> str:
    """Return a prefix of keys for this attempt to form a group, equal at all ranks.

    Ranks that torchrun starts again find what those before them have left in the store: with
    `--master-addr` the agent of node 0 keeps it. Each attempt is each rank's next.
    """
    return f"hopsum/{store.add(f'hopsum/attempts/{rank}', 1)}/"


def meet(store: Store, rank: int, size: int, timeout: float) -> Agent | str:
    """Return this rank's agent, attending the ranks' job, or why everything goes over gloo.

    All ranks call it and come to the same. Raises HopsumError, at all ranks if one of them finds no
    way, with its number; `store`: for this attempt alone (`turn`); `timeout` in seconds.
    """
    where = os.environ.get(AGENT, NAME)
    agent, answers = _find(where)
    store.set(f"host/{rank}", json.dumps([answers.host, answers.error]))
    try:
        everyone = [RankHost(*json.loads(store.get(f"host/{r}"))) for r in range(size)]
        hosts = hosts_of(everyone, where)
        if isinstance(hosts, str):
            if agent is not None:
                agent.close()
            return hosts
        assert agent is not None
        deadline = time.monotonic() + timeout
        job = _job(store, rank, agent, hosts, timeout)
        agent.attend(job, rank, hosts, max(0.1, deadline - time.monotonic()))
    except BaseException:
        if agent is not None:
            agent.close()
        raise
    return agent


def _find(where: str) -> tuple[Agent | None, RankHost]:
    if where == NONE:
        return None, RankHost()
    try:
        agent = connect(where)
    except HopsumError as error:
        return None, RankHost(error=str(error))
    return agent, RankHost(agent.host if agent is not None else "")


def _job(store: Store, rank: int, agent: Agent, hosts: Sequence[str], timeout: float) -> int:
    """Return the number of the job: HOPSUM_JOB, else one that rank 0 submits."""
    given = os.environ.get(JOB)
    if given is not None:
        if not given.isdecimal():
            raise HopsumError(f"{JOB} is {given!r:.40}: expected the number of a job")
        return int(given)
    if rank == 0:
        said = {"job": 0, "error": ""}
        try:
            run = _plain(os.environ.get("TORCHELASTIC_RUN_ID", "job"))
            name = f"torch-{run:.30}-{uuid.uuid4().hex[:8]}"
            said["job"] = agent.submit(name, hosts, timeout)
        except HopsumError as error:
            said["error"] = str(error)
        store.set("job", json.dumps(said))
    said = json.loads(store.get("job"))
    if said["error"]:
        raise NoAgreement(f"rank 0 on {hosts[0]} could not submit a job: {said['error']}")
    return int(said["job"])


def _plain(name: str) -> str:
    """Return a name restricted to the characters of job names."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name)


def _numbers(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown}, ... ({len(ranks)} in all)"
