"""The HTTP server of a cluster: read-only, on the caller's event loop."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from prometheus_client.exposition import choose_encoder

from hopsum.collectives.messages import network_from
from hopsum.controller.jobs.job_state import LAST_JOB
from hopsum.controller.web.metrics import registry_of
from hopsum.controller.web.sources import SourceError, StateSource
from hopsum.network.layout import MARGIN, WIDTH, positions, sizes
from hopsum.protocol import hopsum_pb2 as pb
from hopsum.protocol.errors import OperationError
from hopsum.protocol.web_address import (
    TOKEN_COOKIE,
    WebAddress,
    is_host,
    refusal_of_host,
    why_not_bound,
)

STATE_SECONDS = 0.5
"""How long a state is cached for other readers, seconds."""
EVENT_SECONDS = 1.0
"""Interval between two states that are sent to a page, seconds."""
MOST_STREAMS = 32
"""The number of event streams that may be open at a time."""
MOST_SLOTS = 1 << 20
"""Upper bound of a slot number in a request; no switch has as many."""
PAGE = Path(__file__).with_name("page")
SAME = b"event: same\ndata: .\n\n"
"""Says to a page that its state is still the newest, and to the server whether the page is gone."""


def _inline_script(page: str) -> str:
    """Return the hash of a page's inline script, as Content-Security-Policy takes it."""
    script = page.partition("<script>")[2].partition("</script>")[0]
    return f"sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}"


HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # The page loads what this server has, and nothing else.
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; "
    f"script-src 'self' '{_inline_script((PAGE / 'index.html').read_text())}'",
}


class WebError(OperationError):
    """The web server cannot listen; the message says where and why."""


class CachedSource:
    """A source whose state is read at most every `STATE_SECONDS`."""

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self._reading = asyncio.Lock()
        self._state = pb.ClusterState()
        self._json = ""
        self._until = 0.0
        self._missing: dict[int, asyncio.Task[list[str]]] = {}

    async def state(self) -> pb.ClusterState:
        """Return a state that is at most `STATE_SECONDS` old."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() >= self._until:
                self._state, self._json = await self._source.state(), ""
                self._until = loop.time() + STATE_SECONDS
            return self._state

    async def state_json(self) -> tuple[float, str]:
        """Return the date of such a state, and the state as JSON, which is encoded once."""
        state = await self.state()
        if not self._json:
            self._json = as_json(state)
        return state.date, self._json

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return the contents of a slot of a switch."""
        return await self._source.slot(switch, slot)

    async def missing(self, job: int) -> list[str]:
        """Return the missing children of a job's slots, in words."""
        # Reading all slots of a job takes long: concurrent requests share one answer.
        if job not in self._missing:
            task = asyncio.create_task(self._source.missing(job), name="missing")
            self._missing[job] = task
            task.add_done_callback(lambda _: self._missing.pop(job))
        return await asyncio.shield(self._missing[job])

    def frames(self) -> Sequence[pb.ClusterState]:
        """Return the states that were recorded."""
        return self._source.frames()

    @property
    def live(self) -> bool:
        """Whether newer states may follow."""
        return self._source.live


SOURCE = web.AppKey("source", CachedSource)
STREAMS = web.AppKey("streams", set[asyncio.Task[Any]])


def as_json(message: Message) -> str:
    """Return a message as JSON, with the names of hopsum.proto; numbers and texts all appear."""
    return MessageToJson(
        message,
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
        indent=None,
    )


def make_app(source: StateSource, address: WebAddress) -> web.Application:
    """Return the application that shows a source."""
    app = web.Application(middlewares=[_guard(address), _explain])
    app[SOURCE] = CachedSource(source)
    app[STREAMS] = set()
    app.on_shutdown.append(_end_streams)
    app.router.add_get("/", _page)
    app.router.add_get("/layout.json", _layout)
    app.router.add_get("/frames.json", _frames)
    app.router.add_get("/slot.json", _slot)
    app.router.add_get("/missing.json", _missing)
    app.router.add_get("/events", _events)
    app.router.add_get("/state.json", _state)
    app.router.add_get("/metrics", _metrics)
    app.router.add_get("/again/{number:[0-9]+}/{name:[a-z]+[.](js|css)}", _part_again)
    app.router.add_static("/", PAGE)
    return app


@contextlib.asynccontextmanager
async def serve_web(source: StateSource, address: WebAddress) -> AsyncIterator[str]:
    """Serve a source while the block runs; yield the page's URL. Raises WebError."""
    runner = web.AppRunner(make_app(source, address), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            raise WebError(
                f"cannot serve HTTP on {address.host}:{address.port}: {why_not_bound(error)}; give "
                "another address, as --web 127.0.0.1:0 for any port that is free"
            ) from None
        yield address.url(runner.addresses[0][1])
    finally:
        await runner.cleanup()


@contextlib.contextmanager
def web_thread(source: StateSource, address: WebAddress) -> Iterator[str]:
    """Serve a source by a thread, with a loop of its own, while the block runs.

    For a source that may be read there, such as a recording. Gives the URL; raises WebError.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="web")
    thread.start()
    serving = serve_web(source, address)
    try:
        url = asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
        try:
            yield url
        finally:
            ending = serving.__aexit__(None, None, None)
            asyncio.run_coroutine_threadsafe(ending, loop).result()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def _guard(address: WebAddress) -> Middleware:
    """Return the check of each request: for the token, or for a name of this machine.

    A page of another site may resolve its own name to 127.0.0.1 (DNS rebinding) and read what is
    served there.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.headers.get("Sec-Fetch-Site") == "cross-site" and request.path != "/":
            raise web.HTTPForbidden(text="requests from pages of other sites are rejected\n")
        if not address.token:
            refusal = refusal_of_host(request.headers.get("Host", ""))
            if refusal is not None:
                status, why = refusal
                raise _REFUSALS[status](text=f"{why}\n")
            return await handler(request)
        if not is_host(request.headers.get("Host", "")):
            raise web.HTTPBadRequest(text="Host: expected NAME or NAME:PORT\n")
        given = request.query.get("token")
        if given is not None and address.admits(given):
            # From the address bar into a cookie: other sites see addresses, in Referer.
            response = web.HTTPSeeOther(request.path)
            response.set_cookie(TOKEN_COOKIE, given, httponly=True, samesite="Strict")
            raise response
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer":
            bearer = request.cookies.get(TOKEN_COOKIE, "")
        if not address.admits(bearer):
            raise web.HTTPUnauthorized(
                text="expected the token that the server printed: in the address (?token=...), or "
                "as `Authorization: Bearer TOKEN`\n",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return await handler(request)

    return guard


_REFUSALS = {400: web.HTTPBadRequest, 403: web.HTTPForbidden}


@web.middleware
async def _explain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer with 503 and the reason if the state cannot be read."""
    try:
        response = await handler(request)
    except SourceError as error:
        raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
    if not response.prepared:
        response.headers.update(HEADERS)
    return response


async def _page(request: web.Request) -> web.FileResponse:
    return web.FileResponse(PAGE / "index.html")


async def _part_again(request: web.Request) -> web.FileResponse:
    """Return a part of the page under an address that has not failed yet."""
    return web.FileResponse(PAGE / request.match_info["name"])


def _json(text: str) -> web.Response:
    return web.Response(text=text, content_type="application/json")


async def _state(request: web.Request) -> web.Response:
    source = request.app[SOURCE]
    if "frame" not in request.query:
        return _json((await source.state_json())[1])
    frames = source.frames()
    if not frames:
        raise web.HTTPBadRequest(
            text="frame: not a recording: only the current state is available\n"
        )
    return _json(as_json(frames[_number(request, "frame", len(frames))]))


async def _layout(request: web.Request) -> web.Response:
    """Answer with the node positions for the page."""
    network = network_from((await request.app[SOURCE].state()).network)
    places = positions(network)
    size = sizes(network, places)
    height = max((y for _, y in places.values()), default=0.0) + MARGIN
    layout = {
        "width": WIDTH,
        "height": height,
        "places": places,
        "host_width": size.host_width,
        "switch_radius": size.switch_radius,
        "names": {
            name: size.fitted(network.label(name), host=name in network.hosts) for name in places
        },
    }
    return _json(json.dumps(layout))


async def _frames(request: web.Request) -> web.Response:
    """Answer with the dates of the recorded states, and whether newer states may follow."""
    source = request.app[SOURCE]
    dates = [state.date for state in source.frames()]
    return _json(json.dumps({"dates": dates, "live": source.live}))


async def _slot(request: web.Request) -> web.Response:
    slot = _number(request, "slot", MOST_SLOTS)
    return _json(as_json(await request.app[SOURCE].slot(request.query.get("switch", ""), slot)))


async def _missing(request: web.Request) -> web.Response:
    sentences = await request.app[SOURCE].missing(_number(request, "job", LAST_JOB + 1))
    return _json(json.dumps({"sentences": sentences}))


def _number(request: web.Request, name: str, end: int) -> int:
    text = request.query.get(name, "")
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) >= end:
        raise web.HTTPBadRequest(
            text=f"{name} {text!r:.40}: expected a whole number from 0 to {end - 1}\n"
        )
    return int(text)


async def _events(request: web.Request) -> web.StreamResponse:
    """Stream the state as server-sent events, whenever there is a newer one."""
    source = request.app[SOURCE]
    task = asyncio.current_task()
    assert task is not None
    if len(request.app[STREAMS]) >= MOST_STREAMS:
        raise web.HTTPServiceUnavailable(
            text=f"{MOST_STREAMS} streams are open, the maximum: close another page\n"
        )
    request.app[STREAMS].add(task)
    task.add_done_callback(request.app[STREAMS].discard)
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store", **HEADERS}
    )
    date, unavailable = None, ""
    with contextlib.suppress(ConnectionError, asyncio.CancelledError):
        await response.prepare(request)
        while True:
            try:
                present, state = await source.state_json()
            except SourceError as error:
                why = " ".join(str(error).split())
                sent = SAME
                if why != unavailable:
                    sent = f"event: unavailable\ndata: {why}\n\n".encode()
                date, unavailable = None, why
            else:
                sent = SAME
                if present != date:
                    sent = f"event: state\ndata: {state}\n\n".encode()
                date, unavailable = present, ""
            await response.write(sent)
            await asyncio.sleep(EVENT_SECONDS)
    return response


async def _end_streams(app: web.Application) -> None:
    """End the event streams: the server would wait for as long as pages are open."""
    streams = app[STREAMS]
    for task in [*streams]:
        task.cancel()


async def _metrics(request: web.Request) -> web.Response:
    state = await request.app[SOURCE].state()
    encode, kind = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encode(registry_of(lambda: state)), headers={"Content-Type": kind})
