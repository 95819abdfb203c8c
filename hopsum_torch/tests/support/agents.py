"""Agents of several hosts in threads of this process: docs/agent-socket.md, with sums by numpy."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import secrets
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np

from hopsum_torch import packets

Message = dict[str, Any]
COMBINED_BY = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def read(packet: bytes) -> Message:
    """Return the message in a packet; calls as if they were JSON, too."""
    if packet[:1] == b"{":
        message: Message = json.loads(packet)
        return message
    kind, dtype, reduction, fault, target, call, *tail = packets.CALL.unpack(packet)
    memory, elements, magnitude, element = tail
    if kind == packets.BARRIER:
        return {"kind": "barrier", "call": call}
    whose = {packets.ALL: "all", packets.PARTS: "parts"}.get(target, target - packets.ROOT)
    tensor = {"call": call, "memory": memory, "elements": elements}
    if kind == packets.COPY:
        return {"kind": "copy", "from": whose, **tensor}
    return {
        "kind": "sum",
        "type": packets.TYPES[dtype],
        "reduction": packets.REDUCTIONS[reduction],
        "to": whose,
        "magnitude": magnitude,
        "fault": [packets.FAULTS[fault], element] if fault else None,
        **tensor,
    }


class Job:
    """Job `number` of the ranks on `hosts`: who attends it, and their calls."""

    def __init__(self, number: int, hosts: list[str]) -> None:
        self.number = number
        self.hosts = hosts
        self.attending: dict[int, socket.socket] = {}
        self.calls: dict[int, deque[tuple[Message, Any]]] = {}


class Agents:
    """An agent for each of `size` hosts, h1 and so on.

    `names`: where they listen. `of_ranks`: the same by rank, `here` of them a host. `rooted`: what
    they say of the job's trees. `turned`: the job has its ranks the other way round.
    """

    def __init__(
        self, size: int, here: int = 1, *, rooted: bool = True, turned: bool = False
    ) -> None:
        token = secrets.token_hex(6)
        self.hosts = [f"h{number}" for number in range(1, size + 1)]
        self.names = {host: f"@hopsum-test-{token}-{host}" for host in self.hosts}
        self.of_ranks = [name for name in self.names.values() for _ in range(here)]
        self.submitted: list[Message] = []
        self.sums: list[tuple[str, int]] = []
        """Reductions that were made, or `copy`, and their elements."""
        self.whose: list[Any] = []
        """For which ranks they were, or from which."""
        self._rooted = rooted
        self._turned = turned
        self.refusal = ""
        """The reason with which submissions are refused; `only_immediate`: those that must not wait
        alone."""
        self.only_immediate = False
        self.jobs: dict[int, Job] = {}
        self._changed = threading.Condition()
        self._servers = []
        self._connected: list[socket.socket] = []
        for host, name in self.names.items():
            server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            server.bind(f"\0{name[1:]}")
            server.listen()
            self._servers.append(server)
            threading.Thread(target=self._accept, args=(host, server), daemon=True).start()

    def close(self) -> None:
        for each in (*self._servers, *self._connected):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def _accept(self, host: str, server: socket.socket) -> None:
        while True:
            try:
                connected, _ = server.accept()
            except OSError:
                return
            self._connected.append(connected)
            threading.Thread(target=self._serve, args=(host, connected), daemon=True).start()

    def _serve(self, host: str, connected: socket.socket) -> None:
        memories: dict[int, Any] = {}
        self._say(connected, {"kind": "hello", "version": 9, "host": host})
        rank, left, job = -1, False, Job(0, [])
        while True:
            try:
                data, descriptors, *_ = socket.recv_fds(connected, 1 << 17, 1)
            except OSError:
                data = b""
            if not data:
                break
            message = read(data)
            match message["kind"]:
                case "submit" if self.refusal and message["immediate"] >= self.only_immediate:
                    self._say(connected, {"kind": "refused", "why": self.refusal})
                case "submit":
                    with self._changed:
                        self.submitted.append(message)
                        number = len(self.submitted)
                        self.jobs[number] = Job(number, message["ranks"])
                    self._say(connected, {"kind": "submitted", "job": number})
                case "attend":
                    job, rank = self.jobs[message["job"]], message["rank"]
                    hosts = job.hosts[::-1] if self._turned else job.hosts
                    if self._turned:
                        rank = len(hosts) - 1 - rank
                    with self._changed:
                        job.attending[rank] = connected
                        job.calls[rank] = deque()
                    started = {"kind": "started", "ranks": hosts, "rooted": self._rooted}
                    self._say(connected, started)
                case "memory":
                    mapped = mmap.mmap(descriptors[0], message["bytes"])
                    memories[message["memory"]] = np.frombuffer(mapped, np.uint8)
                    os.close(descriptors[0])
                case kind:
                    left |= kind == "leave"
                    tensor = None
                    if kind in ("sum", "copy"):
                        # What follows says how it travels.
                        dtype = np.dtype(str(message.get("type", "int32")).split()[0])
                        size = message["elements"] * dtype.itemsize
                        tensor = memories[message["memory"]][:size].view(dtype)
                    with self._changed:
                        # One that has failed before it attended says goodbye too.
                        if job.attending.get(rank) is connected:
                            job.calls[rank].append((message, tensor))
                            self._go_on(job)
        connected.close()
        with self._changed:
            if job.attending.get(rank) is connected:
                del job.attending[rank]
                which = f" of rank {rank}" if job.hosts.count(host) > 1 else ""
                if not left:
                    gone = f"the process{which} on {host} disconnected without leaving"
                    self._end(job, f"job {job.number}: {gone}")

    def _end(self, job: Job, why: str) -> None:
        for connected in job.attending.values():
            self._say(connected, {"kind": "ended", "why": why})
            with contextlib.suppress(OSError):
                connected.shutdown(socket.SHUT_RDWR)
        job.attending.clear()
        job.calls.clear()  # or a quicker host's next call meets a call of this job

    def _go_on(self, job: Job) -> None:
        """Sum the calls that all ranks have made."""
        ranks = range(len(job.hosts))
        while ranks and all(job.calls.get(rank) for rank in ranks):
            calls = {rank: job.calls[rank].popleft() for rank in ranks}
            wanted = {
                rank: tuple(
                    map(message.get, ("kind", "type", "reduction", "elements", "to", "from"))
                )
                for rank, (message, _) in calls.items()
            }
            faults = {
                rank: f"element {message['fault'][1]} is {message['fault'][0]}"
                for rank, (message, _) in calls.items()
                if message.get("fault") and message["fault"][0] != packets.PASSED
            }
            first = wanted[0]
            others = {rank: str(each) for rank, each in wanted.items() if each != first}
            if others or faults:
                why = "they differ" if others else "not finite"
                for rank, (message, _) in calls.items():
                    if message["kind"] != "leave":
                        failed = {"kind": "failed", "call": message["call"], "why": why}
                        self._say(job.attending[rank], {**failed, "whose": others or faults})
                    else:
                        job.calls[rank].appendleft((message, None))
                continue
            if first[0] == "leave":
                job.calls.clear()
                return
            if first[0] in ("sum", "copy"):
                self.sums.append((str(first[2] or first[0]), int(first[3])))
                self.whose.append(first[5] if first[0] == "copy" else first[4])
                self._combine(first, [tensor for _, tensor in calls.values()])
            for rank, (message, _) in calls.items():
                with contextlib.suppress(OSError):
                    job.attending[rank].send(packets.END.pack(packets.DONE, message["call"]))

    def _combine(self, wanted: Sequence[Any], tensors: Sequence[Any]) -> None:
        """Put a call's results in place, and something else where there is none."""
        whose = self.whose[-1]
        parts = [
            slice(None) if whose in ("all", rank) else slice(0) for rank in range(len(tensors))
        ]
        if whose == "parts":
            size = len(tensors[0]) // len(tensors)
            parts = [slice(rank * size, (rank + 1) * size) for rank in range(len(tensors))]
        if wanted[0] == "copy":
            values = [tensor[part].copy() for tensor, part in zip(tensors, parts, strict=True)]
            for tensor in tensors:
                for part, each in zip(parts, values, strict=True):
                    tensor[part] = each
            return
        # As sums of all that is finite, and of what is not.
        with np.errstate(invalid="ignore", over="ignore"):
            total = COMBINED_BY[wanted[2]].reduce(list(tensors))
        for tensor, part in zip(tensors, parts, strict=True):
            tensor[...] = 77
            tensor[part] = total[part]

    @staticmethod
    def _say(connected: socket.socket, message: Message) -> None:
        with contextlib.suppress(OSError):
            connected.send(json.dumps(message).encode())
