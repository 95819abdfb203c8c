"""Whose certificate is at the other end of a call, and which host it may speak for."""

from __future__ import annotations

from typing import Any

import grpc

_NAMES = ("x509_common_name", "x509_subject_alternative_name")


def certified_names(context: grpc.aio.ServicerContext[Any, Any]) -> frozenset[str] | None:
    """Return the common name and the subjectAltNames of the caller's certificate.

    None without one.
    """
    identity = context.auth_context()
    if not any(key.startswith("x509_") for key in identity):
        return None
    return frozenset(
        value.decode(errors="replace") for key in _NAMES for value in identity.get(key, ())
    )


def why_not(host: str, context: grpc.aio.ServicerContext[Any, Any]) -> str | None:
    """Why the caller may not speak for a host, if so: its certificate is another's.

    Callers without a certificate may: where the controller has no authority it asks for none.
    """
    names = certified_names(context)
    if names is None or host in names:
        return None
    return (
        f"its certificate is of {', '.join(sorted(names)) or 'nobody'}, not of host {host}; "
        f"expected one with the common name {host}, or with DNS:{host} in subjectAltName"
    )
