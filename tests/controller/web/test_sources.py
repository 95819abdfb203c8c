"""Sources of the web server: a cluster that is brought up while it is shown."""

from __future__ import annotations

import asyncio
import threading
import urllib.request
from dataclasses import replace
from typing import cast
from urllib.error import HTTPError

import pytest

from hopsum.collectives.messages import network_message
from hopsum.controller.web.server import web_thread
from hopsum.controller.web.sources import LiveCluster, SourceError, StartingCluster
from hopsum.network.loaders import load_network
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.web_address import WebAddress
from tests.support.browser import in_browser, opened


class _Cluster:
    """Tells on whose thread it is asked."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def state(self) -> pb.ClusterState:
        self.asked.append(threading.get_ident())
        state = pb.ClusterState(date=1.0)
        state.network.CopyFrom(network_message(replace(load_network("star:1"), name="mine")))
        state.nodes.add(host="h1")
        return state

    async def missing(self, job: int) -> list[str]:
        raise SourceError(f"no job {job}")


def refused(url: str) -> str:
    with pytest.raises(HTTPError) as error:
        urllib.request.urlopen(url)
    assert error.value.code == 503
    return error.value.read().decode().strip()


def test_a_page_says_that_the_network_is_starting() -> None:
    source, cluster = StartingCluster(), _Cluster()

    async def run() -> None:
        with source.shows(cast(LiveCluster, cluster)):
            with await asyncio.to_thread(urllib.request.urlopen, f"{url}state.json") as answer:
                assert b'"mine"' in answer.read()
            assert await asyncio.to_thread(refused, f"{url}missing.json?job=3") == "no job 3"

    with web_thread(source, WebAddress("127.0.0.1", 0)) as url:
        assert refused(f"{url}state.json") == "the network is starting"
        asyncio.run(run())
        assert cluster.asked == [threading.get_ident()]
        assert refused(f"{url}slot.json?switch=s1&slot=0") == "the network is stopping"


def test_requests_while_the_cluster_ends_are_answered() -> None:
    class Slow(_Cluster):
        async def state(self) -> pb.ClusterState:
            waiting.set()
            await asyncio.Event().wait()
            raise AssertionError

    source, waiting = StartingCluster(), threading.Event()
    received: list[str] = []

    async def ends() -> None:
        with source.shows(cast(LiveCluster, Slow())):
            await asyncio.to_thread(waiting.wait)

    with web_thread(source, WebAddress("127.0.0.1", 0)) as url:
        request = threading.Thread(target=lambda: received.append(refused(f"{url}state.json")))

        async def main() -> None:
            ending = asyncio.create_task(ends())
            await asyncio.sleep(0)
            request.start()
            await ending

        asyncio.run(main())
        request.join()
    assert received == ["the network is stopping"]


@pytest.mark.slow
@in_browser
def test_the_page_fills_when_the_network_is_up() -> None:
    source, cluster, seen = StartingCluster(), _Cluster(), threading.Event()

    async def run() -> None:
        with source.shows(cast(LiveCluster, cluster)):
            await asyncio.to_thread(seen.wait)

    with web_thread(source, WebAddress("127.0.0.1", 0)) as url, opened(url) as page:
        page.locator("#connection").get_by_text("the network is starting").wait_for()
        running = threading.Thread(target=lambda: asyncio.run(run()))
        running.start()
        try:
            page.locator("rect[data-host=h1]").wait_for()
        finally:
            seen.set()
            running.join()
