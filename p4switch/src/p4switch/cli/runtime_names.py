"""What can be controlled in a program, by name, from its BMv2 JSON; values as people write them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from p4switch.bmv2_runtime.records import MatchParamType, Record
from p4switch.bmv2_runtime.tables import padded
from p4switch.literals import parse_value

KINDS = {kind.name.lower(): kind for kind in MatchParamType if kind.name != "VALID"}
RANKED = ("ternary", "range")
"""Match types of tables whose entries have priorities."""


class CommandError(Exception):
    """An invalid command."""


def number(text: str) -> int:
    """Parse a number in decimal, 0x, 0o or 0b, or an IPv4, IPv6 or MAC address."""
    try:
        return parse_value(text)
    except ValueError:
        raise CommandError(f"{text!r}: expected a number or an address") from None


def value(text: str, width: int, what: str) -> bytes:
    """Parse a number of at most `width` bits to bytes."""
    found = number(text)
    if not 0 <= found < 1 << width:
        raise CommandError(f"{text!r}: {what} has {width} bits")
    return padded(found, width)


class Names:
    """The objects of a program's JSON, found by whole names and unique last parts."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        pipelines = document["pipelines"]
        self.tables = {t["name"]: t for pipeline in pipelines for t in pipeline["tables"]}
        self.profiles = {p["name"]: p for each in pipelines for p in each["action_profiles"]}
        self.actions = {a["name"]: a for a in document["actions"]}
        self.counters = {c["name"]: c for c in document["counter_arrays"]}
        self.meters = {m["name"]: m for m in document["meter_arrays"]}
        self.registers = {r["name"]: r for r in document["register_arrays"]}
        self.value_sets = {v["name"]: v for v in document["parse_vsets"]}
        self.calculations = {c["name"]: c for c in document["calculations"]}
        self._headers = {h["name"]: h["header_type"] for h in document["headers"]}
        self._types = {
            t["name"]: {field[0]: field[1] for field in t["fields"]}
            for t in document["header_types"]
        }

    def find(self, items: Mapping[str, Any], name: str, what: str) -> Any:
        """Return an object. Raises CommandError."""
        if name in items:
            return items[name]
        found = [each for each in items if each.endswith(f".{name}")]
        if len(found) == 1:
            return items[found[0]]
        names = ", ".join(found or items) or "none"
        raise CommandError(f"no {what} {name!r}; there are {names}")

    def table(self, name: str) -> Any:
        """Return a table."""
        return self.find(self.tables, name, "table")

    def profile(self, name: str) -> str:
        """Return the name of an action profile."""
        return str(self.find(self.profiles, name, "action profile")["name"])

    def action(self, owner: str, listed: Sequence[str], name: str) -> Any:
        """Return an action out of those listed."""
        return self.find({each: self.actions[each] for each in listed}, name, f"action of {owner}")

    def profile_actions(self, profile: str) -> list[str]:
        """Return the names of the actions of a profile's members."""
        for table in self.tables.values():
            if table.get("action_profile") == profile:
                return list(table["actions"])
        return []

    def data(self, action: Any, words: Sequence[str]) -> list[bytes]:
        """Return an action's data."""
        parameters = action["runtime_data"]
        if len(words) != len(parameters):
            names = ", ".join(f"{p['name']} ({p['bitwidth']} bits)" for p in parameters) or "none"
            raise CommandError(
                f"action {action['name']} takes {len(parameters)} parameters ({names}), "
                f"not {len(words)}"
            )
        return [
            value(word, p["bitwidth"], p["name"]) for p, word in zip(parameters, words, strict=True)
        ]

    def width(self, key: Any) -> int:
        """Return the bits of a key."""
        header, field = key["target"]
        return int(self._types[self._headers[header]].get(field, 1))

    def match(self, table: Any, words: Sequence[str]) -> list[Record]:
        """Return the matches of an entry."""
        if len(words) != len(table["key"]):
            keys = ", ".join(f"{key_name(key)} ({key['match_type']})" for key in table["key"])
            raise CommandError(
                f"table {table['name']} has {len(table['key'])} keys ({keys}), not {len(words)}"
            )
        return [self._match(key, word) for key, word in zip(table["key"], words, strict=True)]

    def _match(self, key: Any, word: str) -> Record:
        kind, width, name = key["match_type"], self.width(key), key_name(key)

        def part(text: str) -> bytes:
            return value(text, width, name)

        if kind == "exact":
            made = Record("BmMatchParamExact", key=part(word))
        elif kind == "lpm":
            text, slash, length = word.partition("/")
            if not slash:
                raise CommandError(f"{word!r}: key {name} is lpm, written value/length")
            made = Record("BmMatchParamLPM", key=part(text), prefix_length=number(length))
        elif kind == "range":
            low, arrow, high = word.partition("->")
            if not arrow:
                raise CommandError(f"{word!r}: key {name} is a range, written low->high")
            made = Record("BmMatchParamRange", start=part(low), end_=part(high))
        else:
            text, sign, mask = ("0", "&&&", "0") if word == "*" else word.partition("&&&")
            full = padded((1 << width) - 1, width)
            made = Record("BmMatchParamTernary", key=part(text), mask=part(mask) if sign else full)
        return Record("BmMatchParam", type=KINDS[kind], **{kind: made})


def key_name(key: Any) -> str:
    """Return the name of a key."""
    return str(key.get("name") or ".".join(key["target"]))


def shown_match(match: Record) -> str:
    """Return a match as simple_switch_CLI shows it."""
    if match.type == MatchParamType.EXACT:
        return str(match.exact.key.hex())
    if match.type == MatchParamType.LPM:
        return f"{match.lpm.key.hex()}/{match.lpm.prefix_length}"
    if match.type == MatchParamType.TERNARY:
        if not any(match.ternary.mask):
            return "*"
        return f"{match.ternary.key.hex()} &&& {match.ternary.mask.hex()}"
    return f"{match.range.start.hex()} -> {match.range.end_.hex()}"
