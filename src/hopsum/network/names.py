"""Names of hosts and switches: which are safe in commands and files, and safe ones for others.

Names become parts of interface names, files, host names and arguments of commands, so they have
only letters, digits, `_`, `.` and `-`. A file's other names (`Los Angeles`, `Reykjavík`) are kept
for people as a node's label; the node gets a name made from it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping
from itertools import count

MAX_NAME = 63
"""Characters of a name: a label of DNS."""
MAX_MADE_NAME = 9
"""Characters of a name made from a label: NAME-eth12 must fit into Linux's 15 characters."""
MAX_LABEL = 200
EXPECTED = (
    f"1 to {MAX_NAME} of the characters A-Z a-z 0-9 _ . -, the first one a letter, a digit or _"
)
_NAME = re.compile(rf"[A-Za-z0-9_][A-Za-z0-9_.-]{{0,{MAX_NAME - 1}}}")
_NUMBERED = re.compile(r"(h|ps)\d*")
"""Names of the hosts that loaders add, and what would become one with a number."""
_LETTERS = str.maketrans(
    {"ß": "ss", "æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L"}
    | {"đ": "d", "Đ": "D", "ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "ħ": "h"}
)
"""Latin letters that Unicode does not decompose into one of ASCII and an accent."""


def is_safe(name: str) -> bool:
    """Return whether a name may be used in commands and files."""
    return _NAME.fullmatch(name) is not None


def label_of(text: str) -> str:
    """Return a file's name of a node as it is shown: printable, on one line."""
    printable = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)
    return "".join(printable)[:MAX_LABEL]


def made_name(label: str) -> str:
    """Return the letters and digits of a label in ASCII, at most MAX_MADE_NAME; '' if none."""
    plain = unicodedata.normalize("NFKD", label.translate(_LETTERS))
    return re.sub(r"[^A-Za-z0-9]", "", plain)[:MAX_MADE_NAME]


def unique_names(
    wanted: Mapping[str, str], prefix: str = "n", kept: Collection[str] = ()
) -> dict[str, str]:
    """Return a safe name for each node, from the label that `wanted` gives it.

    A label without letters, or with the name of a host that loaders add, gives `prefix` and the
    node's number. Of nodes with one name the later get a number too; no name made so is that of
    another node or one of `kept`.
    """
    bases = {}
    for number, (node, label) in enumerate(wanted.items(), 1):
        base = made_name(label)
        usable = base and not base[0].isdigit() and not _NUMBERED.fullmatch(base)
        bases[node] = base if usable else f"{prefix}{number}"
    taken, reserved = set(kept), {*kept, *bases.values()}
    names: dict[str, str] = {}
    for number, (node, base) in enumerate(bases.items(), 1):
        name = base
        if name in taken:
            name = next(
                made
                for suffix in map(str, count(number))
                if (made := base[: MAX_MADE_NAME - len(suffix)] + suffix) not in reserved
            )
        taken.add(name)
        reserved.add(name)
        names[node] = name
    return names
