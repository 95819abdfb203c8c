"""The event loop in virtual time."""

from __future__ import annotations

import asyncio
import time

import pytest

from hopsum.simulation.events import EventQueue, SimulationError
from hopsum.simulation.loop import run_virtual


def test_sleeping_takes_no_time() -> None:
    async def main() -> float:
        await asyncio.sleep(3600.0)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run_virtual(main()) == 3600.0
    assert time.monotonic() - began < 60.0


def test_coroutines_and_events_share_one_order() -> None:
    """Ties go by the order of scheduling, whoever scheduled."""
    queue, order = EventQueue(), list[str]()

    async def main() -> None:
        loop = asyncio.get_running_loop()
        queue.at(1.0, lambda: order.append("event"))
        loop.call_at(1.0, order.append, "timer")
        queue.at(1.0, lambda: order.append("later event"))
        queue.at(0.5, lambda: order.append("earlier event"))
        await asyncio.sleep(2.0)

    run_virtual(main(), queue)
    assert order == ["earlier event", "event", "timer", "later event"]
    assert queue.now == 2.0


def test_an_event_wakes_a_coroutine_at_its_time() -> None:
    queue = EventQueue()

    async def main() -> float:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Future[float] = loop.create_future()
        queue.at(7.0, lambda: waiting.set_result(queue.now))
        queue.at(9.0, lambda: None)
        came = await waiting
        assert loop.time() == came
        return came

    assert run_virtual(main(), queue) == 7.0


def test_threads_work_while_time_stands_still() -> None:
    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        others = asyncio.create_task(asyncio.sleep(0.0, loop.time()))
        assert await asyncio.to_thread(sum, [1, 2]) == 3
        with pytest.raises(ZeroDivisionError):
            await asyncio.to_thread(divmod, 1, 0)
        return [await others, loop.time()]

    assert run_virtual(main()) == [0.0, 0.0]


def test_timeouts_end_in_virtual_time() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5.0):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) == 5.0


def test_a_deadlock_is_an_error_that_names_waiting_tasks() -> None:
    async def waits_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.gather(asyncio.create_task(waits_for_ever(), name="the waiting one"))

    with pytest.raises(SimulationError, match=r"no event is left.*the waiting one \(.*waits_for"):
        run_virtual(main())


def test_sockets_are_refused_in_virtual_time() -> None:
    async def main() -> None:
        asyncio.get_running_loop().add_reader(0, lambda: None)

    with pytest.raises(SimulationError, match="no sockets"):
        run_virtual(main())


def test_sets_of_tasks_have_one_order() -> None:
    """Libraries cancel sets of tasks: in the order of addresses, no run would repeat."""

    def run() -> list[str]:
        ended: list[str] = []

        async def work(name: str) -> None:
            try:
                await asyncio.sleep(10.0)
            finally:
                ended.append(name)

        async def main() -> None:
            tasks = {asyncio.create_task(work(str(number))) for number in range(50)}
            await asyncio.sleep(1.0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        run_virtual(main())
        return ended

    first = run()
    kept = [object() for _ in range(1000)]
    assert run() == first
    assert kept
