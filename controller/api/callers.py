"""Identity of callers of the controller, and permissions of their roles.

A caller is known by its certificate (TLS), or by its user at a Unix socket (`unix_callers`). A
certificate names a role as URI in subjectAltName, `urn:hopsum:role:operator`; one without is an
agent's, and names its hosts (`why_not`).
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import AsyncIterator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import grpc

from hopsum.protocol.errors import OperationError
from hopsum.protocol.roles import ROLE_URI, Role

_NAMES = ("x509_common_name", "x509_subject_alternative_name")

Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True)
class Caller:
    """A caller: a unique name, and a role."""

    name: str
    role: Role

    def __str__(self) -> str:
        return f"{self.name}, {self.role}"


Identify = Callable[[Context], Caller]
"""Identifies the caller of a call. Raises UnknownCallerError."""


class UnknownCallerError(OperationError):
    """A caller without a role; the message says what is expected."""


_PEOPLE = frozenset({Role.OPERATOR, Role.USER, Role.VIEWER})
_OPERATOR = frozenset({Role.OPERATOR})
_AGENTS = frozenset({Role.OPERATOR, Role.AGENT})
_SUBMITTERS = frozenset({Role.OPERATOR, Role.USER, Role.AGENT})
MAY_CALL = {
    "Serve": _AGENTS,
    "Attend": _AGENTS,
    "Submit": _SUBMITTERS,
    "Cancel": frozenset({Role.OPERATOR, Role.USER}),
    "JobDetails": _PEOPLE,
    "Jobs": _PEOPLE,
    "Status": _PEOPLE,
    "Describe": _PEOPLE,
    "Nodes": _PEOPLE,
    "Use": _PEOPLE,
    "Switches": _PEOPLE,
    "State": _PEOPLE,
    "WhyStuck": _PEOPLE,
    # It shows what slots hold: parts of others' sums.
    "Inspect": _OPERATOR,
    "SetLink": _OPERATOR,
}
"""Roles that may call each method of the service; all others are for operators only."""

_ANYONE = Caller("anyone", Role.OPERATOR)
CALLER: ContextVar[Caller] = ContextVar("caller", default=_ANYONE)
"""Caller of the call that this task serves. In virtual time all are operators."""


def may_cancel(caller: Caller, owner: str) -> bool:
    """Return whether a caller may cancel a job of an owner (a caller's name)."""
    return caller.role is Role.OPERATOR or caller.name == owner


def owner_of(caller: Caller, user: int) -> tuple[str, bool]:
    """Return the owner of a job that a caller submits, and whether the owner is limited.

    `user`: for whom an agent submits it, a user of its host; 0: for itself. Operators are not
    limited.
    """
    if user and caller.role in _AGENTS:
        return f"user {user} through {caller.name}", True
    return caller.name, caller.role is not Role.OPERATOR


# -- Who it is


def certificate_names(context: Context) -> frozenset[str] | None:
    """Return the common name and the subjectAltNames of the caller's certificate.

    None without one.
    """
    identity = context.auth_context()
    if not any(key.startswith("x509_") for key in identity):
        return None
    return frozenset(
        value.decode(errors="replace") for key in _NAMES for value in identity.get(key, ())
    )


def why_not(host: str, context: Context) -> str | None:
    """Return why the caller may not act for a host: its certificate is another's; None if it may.

    Callers without a certificate may: their role says so.
    """
    names = certificate_names(context)
    if names is None or host in names:
        return None
    return (
        f"its certificate is for {', '.join(sorted(names)) or 'no host'}, not of host {host}; "
        f"expected one with the common name {host}, or with DNS:{host} in subjectAltName"
    )


def caller_by_certificate(context: Context) -> Caller:
    """Return the caller whose certificate it is. Raises UnknownCallerError."""
    identity = context.auth_context()
    common = [value.decode(errors="replace") for value in identity.get("x509_common_name", ())]
    if len(common) != 1 or not common[0]:
        raise UnknownCallerError("expected a certificate with one common name, the caller's name")
    name = f"CN={common[0]}"
    uris = [value.decode(errors="replace") for value in identity.get("peer_uri", ())]
    roles = [uri.removeprefix(ROLE_URI) for uri in uris if uri.startswith(ROLE_URI)]
    if len(roles) > 1 or not set(roles) <= set(Role):
        raise UnknownCallerError(
            f"{name}: the certificate's roles are {', '.join(roles):.80}; expected one of "
            f"{', '.join(Role)}, as URI:{ROLE_URI}operator in subjectAltName"
        )
    return Caller(name, Role(roles[0]) if roles else Role.AGENT)


def caller_by_user(uid: int) -> Caller:
    """Return the caller for a user of this machine; the controller's own user and root are
    operators.

    Whom else the socket lets in is a user (`unix_callers`).
    """
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        name = "an unknown user"
    role = Role.OPERATOR if uid in (0, os.geteuid()) else Role.USER
    return Caller(f"{name} (uid {uid})", role)


def fixed_caller(caller: Caller = _ANYONE) -> Identify:
    """Attribute every call to this caller: only it can reach the server."""
    return lambda _: caller


# -- What it may


class Guard(grpc.aio.ServerInterceptor):
    """Rejects calls that the caller's role does not allow; gives handlers the caller (CALLER)."""

    def __init__(self, identify: Identify) -> None:
        self._identify = identify

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap a method's handler in the check."""
        handler = await continuation(details)
        if handler is None:
            return None
        method = details.method.rpartition("/")[2]
        coders = handler.request_deserializer, handler.response_serializer
        if handler.stream_stream is not None:

            async def stream(requests: Any, context: Context) -> AsyncIterator[Any]:
                await self._check(method, context)
                async with contextlib.aclosing(handler.stream_stream(requests, context)) as answers:
                    async for answer in answers:
                        yield answer

            return grpc.stream_stream_rpc_method_handler(stream, *coders)
        assert handler.unary_unary is not None, f"{method}: calls of this kind have no access check"

        async def answer(request: Any, context: Context) -> Any:
            await self._check(method, context)
            return await handler.unary_unary(request, context)

        return grpc.unary_unary_rpc_method_handler(answer, *coders)

    async def _check(self, method: str, context: Context) -> None:
        try:
            caller = self._identify(context)
        except UnknownCallerError as error:
            await context.abort(grpc.StatusCode.UNAUTHENTICATED, str(error))
        allowed = MAY_CALL.get(method, _OPERATOR)
        if caller.role not in allowed:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED,
                f"{method}: you are {caller}; it requires role {' or '.join(sorted(allowed))}",
            )
        CALLER.set(caller)
