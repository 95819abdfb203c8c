"""Task queue, operation pool and completion queue of an agent ([002][], the agent's send process).

Work that would delay the packets of other jobs (making tensors, checking sums, collectives over
TCP) is a task: threads of the pool take tasks from the task queue, most urgent first, and put
results into the completion queue, which the agent's loop empties.
"""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hopsum.host_agent.io.wakeup import Wakeup

NICENESS = 10
"""By which the pool's threads are nicer than the loop's: on a machine with fewer cores than agents,
what the first host computes after a sum would otherwise delay the last results of the other hosts.
"""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """A completed task: its number, its job, and its value or exception."""

    number: int
    job: int
    value: Any = None
    error: Exception | None = None


@dataclass(order=True, slots=True)
class _Task:
    level: int
    number: int
    job: int = field(compare=False)
    work: Callable[[], Any] = field(compare=False)


class OperationPool:
    """A pool of `threads` threads; `fileno` is readable when operations have completed."""

    def __init__(self, threads: int = 1) -> None:
        self._tasks: list[_Task] = []
        self._completed: list[TaskResult] = []
        self._awaited: dict[int, int] = {}
        self._levels: dict[int, int] = {}
        self._next = 0
        self._closed = False
        self._changed = threading.Condition()
        self._wakeup = Wakeup()
        for number in range(threads):
            threading.Thread(target=self._work, name=f"operations {number}", daemon=True).start()

    def fileno(self) -> int:
        """Return a descriptor that is readable when `completed` has something."""
        return self._wakeup.fileno()

    def set_level(self, job: int, level: int) -> None:
        """Set the level of a job's tasks, including queued ones; 0, the default, is first."""
        with self._changed:
            self._levels[job] = level
            for task in self._tasks:
                if task.job == job:
                    task.level = level
            heapq.heapify(self._tasks)

    def put(self, job: int, work: Callable[[], Any]) -> int:
        """Queue a task of a job and return its number; tasks of a lower level go first."""
        with self._changed:
            self._next += 1
            self._awaited[self._next] = job
            task = _Task(self._levels.get(job, 0), self._next, job, work)
            heapq.heappush(self._tasks, task)
            self._changed.notify()
        return task.number

    def completed(self) -> list[TaskResult]:
        """Empty the completion queue, in order of completion."""
        if not self._completed:
            return []
        with self._changed:
            self._wakeup.clear()
            taken, self._completed = self._completed, []
        return taken

    def drop(self, job: int) -> None:
        """Forget a job's tasks: drop queued ones, and ignore the results of others."""
        with self._changed:
            self._levels.pop(job, None)
            self._awaited = {n: owner for n, owner in self._awaited.items() if owner != job}
            self._tasks = [task for task in self._tasks if task.job != job]
            heapq.heapify(self._tasks)
            self._completed = [done for done in self._completed if done.job != job]
            if not self._completed:
                self._wakeup.clear()

    def close(self) -> None:
        """Accept no more tasks; running ones complete."""
        with self._changed:
            self._closed = True
            self._tasks.clear()
            self._changed.notify_all()
        self._wakeup.close()

    def _work(self) -> None:
        thread = threading.get_native_id()
        nice = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
        os.setpriority(os.PRIO_PROCESS, thread, nice)  # of this thread alone (sched(7)), at most 19
        while True:
            with self._changed:
                while not self._tasks and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                task = heapq.heappop(self._tasks)
            self._execute(task)

    def _execute(self, task: _Task) -> None:
        try:
            done = TaskResult(task.number, task.job, task.work())
        except Exception as error:  # noqa: BLE001 - whoever queued the task raises it
            done = TaskResult(task.number, task.job, error=error)
        with self._changed:
            if self._awaited.pop(task.number, None) is None or self._closed:
                return
            self._completed.append(done)
            self._wakeup.set()
