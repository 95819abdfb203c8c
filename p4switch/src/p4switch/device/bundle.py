"""A program as one self-contained text: the `p4_device_config` of p4switch.

It is the preprocessed source with line markers (`# 12 "file.p4"`), so that errors name the
original places, and its hash is the compiled program's key in the cache. Tokens keep their columns
as far as macros allow. The reader supports no directive other than line markers, so text from the
network can neither include files nor expand macros.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from p4switch.frontend.source.lexer import END, END_PRAGMA, OTHER, STRING, WORD_KIND, scan
from p4switch.frontend.source.preprocessor import (
    DIRECTIVE_IN_STRING,
    SYSTEM_INCLUDES,
    Preprocessed,
    preprocess,
)
from p4switch.position import P4Error, Position
from p4switch.programs import BUNDLE_HEADER

MARKER = re.compile(r'#[ \t]*(\d+)[ \t]+"((?:[^"\\\n]|\\.)*)"[ \t\d]*\Z')
LARGEST_LINE = 1_000_000
BLANK_LINES = 8
"""Maximum number of lines that are skipped by newlines rather than by a line marker."""
STRING_OVER_LINES = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
MERGE = re.compile(r"\w\w|[^\w\s()\[\];,:?]{2}")
"""Adjacent characters of two tokens that could be read as one token."""


def make_bundle(
    path: Path,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> bytes:
    """Return the bundle of a source file. Raises P4Error.

    `root`: files below this folder are named relative to it, so that the bundle is the same
    wherever the folder is.
    """
    tokens = preprocess(path, include_paths=include_paths, defines=dict(defines or {}))
    return to_text(tokens, root).encode()


def to_text(tokens: Preprocessed, root: Path | None = None) -> str:
    """Return the text of preprocessed tokens. `root`: see `make_bundle`."""
    parts = [BUNDLE_HEADER]
    file, line, column, last = "", 0, 1, ""
    places = tokens.sources.locations(tokens.marks)
    for kind, text, place in zip(tokens.kinds, tokens.texts, places, strict=True):
        if kind == END:
            break
        if kind == END_PRAGMA:
            parts.append("\n")
            line, column, last = line + 1, 1, ""
            continue
        its_file, its_line, its_column = place
        if its_file != file or not line <= its_line <= line + BLANK_LINES:
            parts.append(f'\n# {its_line} "{_shown(its_file, root)}"\n')
            file, line, column, last = its_file, its_line, 1, ""
        while line < its_line:
            parts.append("\n")
            line, column, last = line + 1, 1, ""
        space = its_column - column
        if space <= 0:
            space = 1 if MERGE.match(last + text[0]) else 0
        parts.append(" " * space + text)
        before, newline, rest = text.rpartition("\n")
        if newline:
            line, column = line + before.count("\n") + 1, len(rest) + 1
        else:
            column += space + len(text)
        last = text[-1]
    parts.append("\n")
    return "".join(parts)


def _shown(file: str, root: Path | None) -> str:
    """Return a file's name for line markers; p4switch's own files without their folder."""
    path = Path(file)
    name = path.name if path.parent == SYSTEM_INCLUDES else file
    if root is not None and path.is_relative_to(root):
        name = str(path.relative_to(root))
    return name.replace("\\", "\\\\").replace('"', '\\"')


def from_text(text: str) -> Preprocessed:
    """Return the tokens of a bundle. Raises P4Error for any other text."""
    tokens = Preprocessed()
    base, text = tokens.sources.add_file("<device config>", text)
    in_pragma = False
    at_line_start = True
    scanned = scan(text)
    index = 0
    while index < len(scanned):
        kind, word, _, offset = scanned[index]
        mark = base + offset
        if kind in ("NEWLINE", END):
            if in_pragma:
                _add(tokens, END_PRAGMA, "", mark)
                in_pragma = False
            at_line_start = True
            if kind == END:
                _add(tokens, END, "", mark)
            index += 1
            continue
        if at_line_start and kind == "#":
            index = _marker(tokens, scanned, index, text, base)
            continue
        at_line_start = False
        if kind == OTHER and word == '"':
            word = _string(tokens, text, offset, mark)
            kind = STRING
            scanned[index + 1 :] = scan(text, offset + len(word))
        if kind == OTHER and word.startswith("/*"):
            raise P4Error(_position(tokens, mark), f"unterminated text {word[:20]!r}")
        in_pragma = in_pragma or kind == "@pragma"
        _add(tokens, WORD_KIND.get(word, kind) if kind == "IDENTIFIER" else kind, word, mark)
        index += 1
    return tokens


def _string(tokens: Preprocessed, text: str, offset: int, mark: int) -> str:
    """Return a string of several lines, in which the preprocessor would find directives."""
    found = STRING_OVER_LINES.match(text, offset)
    if found is None:
        raise P4Error(_position(tokens, mark), "unterminated string")
    for line in found[0].split("\n")[1:]:
        if DIRECTIVE_IN_STRING.match(line):
            raise P4Error(_position(tokens, mark), f"a directive within a string: {line[:20]!r}")
    return found[0]


def _marker(
    tokens: Preprocessed,
    scanned: Sequence[tuple[str, str, bool, int]],
    index: int,
    text: str,
    base: int,
) -> int:
    """Process a line marker; return the index of the newline after it."""
    end = index
    while scanned[end][0] not in ("NEWLINE", END):
        end += 1
    start = scanned[index][3]
    found = MARKER.match(text[start : scanned[end][3]].rstrip())
    if found is None or int(found[1]) > LARGEST_LINE:
        line = text[start : scanned[end][3]]
        raise P4Error(
            _position(tokens, base + start),
            "expected a line marker: a device config is the output of `p4switch compile`, without "
            "preprocessor directives",
            source_line=line,
        )
    name = found[2].replace('\\"', '"').replace("\\\\", "\\")
    tokens.sources.set_line(base + start, int(found[1]), name)
    return end


def _position(tokens: Preprocessed, mark: int) -> Position:
    return tokens.sources.position(mark)


def _add(tokens: Preprocessed, kind: str, text: str, mark: int) -> None:
    tokens.kinds.append(kind)
    tokens.texts.append(text)
    tokens.marks.append(mark)
