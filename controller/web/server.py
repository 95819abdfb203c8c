"""The HTTP server of a cluster: read-only, on the event loop of whoever starts it."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from google.protobuf.json_format import MessageToJson
from google.protobuf.message import Message
from prometheus_client.exposition import choose_encoder

from controller.web.metrics import registry_of
from controller.web.sources import StateError, StateSource
from protocol import hopsum_pb2 as pb
from protocol.errors import OperationError
from protocol.web_address import TOKEN_COOKIE, WebAddress, is_loopback

STATE_SECONDS = 0.5
"""So long a state is good enough for the next who asks: many readers cost as much as one."""


class WebError(OperationError):
    """The web server cannot listen; the message says where and why."""


class CachedSource:
    """A source whose state is read at most every `STATE_SECONDS`."""

    def __init__(self, source: StateSource) -> None:
        self._source = source
        self._reading = asyncio.Lock()
        self._state = pb.ClusterState()
        self._until = 0.0

    async def state(self) -> pb.ClusterState:
        """Return a state that is hardly older than now."""
        loop = asyncio.get_running_loop()
        async with self._reading:
            if loop.time() >= self._until:
                self._state = await self._source.state()
                self._until = loop.time() + STATE_SECONDS
            return self._state

    async def slot(self, switch: str, slot: int) -> pb.Slot:
        """Return what a slot of a switch holds."""
        return await self._source.slot(switch, slot)


SOURCE = web.AppKey("source", CachedSource)


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
    app.router.add_get("/state.json", _state)
    app.router.add_get("/metrics", _metrics)
    return app


@contextlib.asynccontextmanager
async def serve_web(source: StateSource, address: WebAddress) -> AsyncIterator[str]:
    """Serve a source while the block runs; gives the URL of the page. Raises WebError."""
    runner = web.AppRunner(make_app(source, address), access_log=None, shutdown_timeout=0.5)
    await runner.setup()
    try:
        site = web.TCPSite(runner, address.host, address.port)
        try:
            await site.start()
        except OSError as error:
            raise WebError(
                f"cannot serve HTTP on {address.host}:{address.port}: {error.strerror}; give "
                "another address, or port 0 for any that is free"
            ) from None
        yield address.url(runner.addresses[0][1])
    finally:
        await runner.cleanup()


def _guard(address: WebAddress) -> Middleware:
    """Let in who has the token; without one, requests for names of this machine alone.

    A page of another site may let its own name lead to 127.0.0.1 (DNS rebinding), and would be
    told by its browser what is served there.
    """

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not address.token:
            if not is_loopback((request.url.host or "").strip("[]")):
                raise web.HTTPForbidden(
                    text=f"this server answers at localhost only, not at {request.host!r:.80}\n"
                )
            return await handler(request)
        given = request.query.get("token")
        if given is not None and _same(given, address.token):
            # From the address bar into a cookie: other sites see addresses, in Referer.
            response = web.HTTPSeeOther(request.path)
            response.set_cookie(TOKEN_COOKIE, given, httponly=True, samesite="Strict")
            raise response
        kind, _, bearer = request.headers.get("Authorization", "").partition(" ")
        if kind != "Bearer":
            bearer = request.cookies.get(TOKEN_COOKIE, "")
        if not _same(bearer, address.token):
            raise web.HTTPUnauthorized(
                text="expected the token that the server printed: in the address (?token=...), or "
                "as `Authorization: Bearer TOKEN`\n",
                headers={"WWW-Authenticate": "Bearer"},
            )
        return await handler(request)

    return guard


def _same(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode(), token.encode())


@web.middleware
async def _explain(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer in words where the state cannot be read."""
    try:
        response = await handler(request)
    except StateError as error:
        raise web.HTTPServiceUnavailable(text=f"{error}\n") from None
    response.headers["X-Content-Type-Options"] = "nosniff"
    return response


async def _state(request: web.Request) -> web.Response:
    state = await request.app[SOURCE].state()
    return web.Response(text=as_json(state), content_type="application/json")


async def _metrics(request: web.Request) -> web.Response:
    state = await request.app[SOURCE].state()
    encode, kind = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encode(registry_of(lambda: state)), headers={"Content-Type": kind})
