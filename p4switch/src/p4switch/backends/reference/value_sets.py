"""Parser value sets in the interpreter's data plane."""

from __future__ import annotations

from p4switch.targets.v1model.engine import KeyMatch
from p4switch.targets.v1model.matches import ternary_form


class ValueSetRuntime:
    """A value set: `members` are those of the control plane."""

    def __init__(self, match_kinds: tuple[str, ...], widths: tuple[int, ...]) -> None:
        self._forms = tuple(zip(match_kinds, widths, strict=True))
        self.members: tuple[tuple[KeyMatch, ...], ...] = ()

    def contains(self, values: tuple[int, ...]) -> bool:
        """Return whether any member matches all the values."""
        return any(
            all(
                matches(match, kind, width, value)
                for match, (kind, width), value in zip(member, self._forms, values, strict=True)
            )
            for member in self.members
        )


def matches(match: KeyMatch, match_kind: str, width: int, value: int) -> bool:
    """Return whether a value of `width` bits matches."""
    if match_kind == "range" and not match.any:
        return match.value <= value <= match.high
    wanted, mask = ternary_form(match, match_kind, width)
    return value & mask == wanted
