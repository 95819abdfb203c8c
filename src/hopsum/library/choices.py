"""Choices given as text."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from hopsum.protocol.errors import InputError

_Kind = TypeVar("_Kind", bound=StrEnum)


def choice(kind: type[_Kind], name: str, value: str) -> _Kind:
    """Return the member of an enumeration with this value. InputError lists those there are."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(member.value for member in kind)
        raise InputError(f"{name} {value!r:.40}: expected one of {known}") from None
