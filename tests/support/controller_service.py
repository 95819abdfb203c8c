"""A controller that serves on a Unix socket, with switches that take all rules."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hopsum.controller.api.listening import at
from hopsum.controller.api.service import ControllerService
from hopsum.controller.dataplane.rules import SwitchRules
from hopsum.controller.jobs.cluster import Cluster
from hopsum.network.model import Network
from tests.support.machine import PATIENCE as WAIT
from tests.support.manager import manage


class RunningController:
    """A manager with its service on a unix socket, in a thread."""

    def __init__(self, path: Path, network: Network) -> None:
        self.address = f"unix:{path}"
        self.installed: list[Mapping[str, SwitchRules]] = []
        self._up = threading.Event()
        self._stop: asyncio.Event | None = None
        self._network = network
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()))

    async def _main(self) -> None:
        async def install(rules: Mapping[str, SwitchRules]) -> None:
            self.installed.append(rules)

        cluster = Cluster(self._network, install)
        self.manager = manage(cluster)
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        service = ControllerService(cluster)
        async with service.serve(at(self.address)) as self.address:
            self._up.set()
            await self._stop.wait()

    def __enter__(self) -> RunningController:
        self._thread.start()
        assert self._up.wait(WAIT)
        return self

    def __exit__(self, *_: object) -> None:
        assert self.loop is not None
        assert self._stop is not None
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT)

    def do(self, coroutine: Any) -> Any:
        assert self.loop is not None
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(WAIT)
