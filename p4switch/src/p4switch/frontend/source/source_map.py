"""Maps tokens of a translation unit back to files, lines and columns.

Every file read gets a stretch of one range of integers, a unit per character. A token is
located by such an integer, its *mark*; a `Position` is made of it only where one is needed.
"""

from __future__ import annotations

import re
from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

from p4switch.position import Position

_SPLICE = re.compile(r"\\[ \t]*\n")
# A line number that `#line` may give and for which the source line is still kept.
_MAX_SHOWN_LINE = 1_000_000


class SourceMap:
    """The files of a translation unit and their lines."""

    def __init__(self) -> None:
        self._size = 0
        self._line_marks: list[int] = []
        self._line_texts: list[str] = []
        # First line (an index into _line_marks), its file and number: one entry for every
        # file, and one for every #line directive.
        self._origins: list[tuple[int, str, int]] = []
        self._positions: dict[int, Position] = {}

    def add_file(self, name: str, text: str) -> tuple[int, str]:
        """Add a file; return the mark of its first character and its text for scanning.

        In that text lines are ended by a newline alone and lines that end in a backslash
        are joined with the next one (columns and lines still come out as in the file).
        """
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        lines = text.split("\n")
        base = self._size
        insort(self._origins, (len(self._line_marks), name, 1))
        self._line_texts += lines
        mark = base
        for line in lines:
            self._line_marks.append(mark)
            kept = line.rstrip(" \t")
            mark += len(kept) - 1 if kept.endswith("\\") else len(line) + 1
        spliced = _SPLICE.sub("", text)
        # Room for the end of the file, which errors may point at.
        self._size = max(mark, base + len(spliced)) + 1
        return base, spliced

    def set_line(self, mark: int, number: int, name: str | None) -> None:
        """Call the line after the one of `mark` `number` (of file `name` if given)."""
        index = bisect_right(self._line_marks, mark)
        file = name if name is not None else self._origin(index - 1)[1]
        insort(self._origins, (index, file, number))
        self._positions.clear()

    def _origin(self, index: int) -> tuple[int, str, int]:
        return self._origins[bisect_right(self._origins, index, key=lambda entry: entry[0]) - 1]

    def position(self, mark: int) -> Position:
        """Return the position of a mark."""
        known = self._positions.get(mark)
        if known is None:
            index = bisect_right(self._line_marks, mark) - 1
            first, file, number = self._origin(index)
            column = mark - self._line_marks[index] + 1
            known = Position(file, number + index - first, column)
            self._positions[mark] = known
        return known

    def locations(self, marks: Iterable[int]) -> Iterator[tuple[str, int, int]]:
        """Yield file, line and column of each mark: `position` of many, of which neighbours are
        mostly on one line.
        """
        file, line, start, end = "", 0, 0, 0
        for mark in marks:
            if not start <= mark < end:
                index = bisect_right(self._line_marks, mark) - 1
                first, file, number = self._origin(index)
                line = number + index - first
                start = self._line_marks[index]
                last = index + 1 == len(self._line_marks)
                end = mark + 1 if last else self._line_marks[index + 1]
            yield file, line, mark - start + 1

    def line_text(self, mark: int) -> str:
        """Return the text of the line that holds a mark."""
        return self._line_texts[bisect_right(self._line_marks, mark) - 1]

    def lines(self) -> dict[str, list[str]]:
        """Return the lines of every file, so that line n of a position is `[n - 1]`."""
        result: dict[str, list[str]] = {}
        ends = [first for first, _, _ in self._origins[1:]] + [len(self._line_texts)]
        for (first, file, number), end in zip(self._origins, ends, strict=True):
            if number > _MAX_SHOWN_LINE:
                continue
            shown = result.setdefault(file, [])
            shown += [""] * (number - 1 + end - first - len(shown))
            shown[number - 1 : number - 1 + end - first] = self._line_texts[first:end]
        return result
