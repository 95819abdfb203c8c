"""Rows of a table, which pandas and notebooks take as they are."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from hopsum.protocol.extras import require

if TYPE_CHECKING:
    import pandas

SHOWN = 20
"""Rows of a table in a notebook; the others are counted."""


class Records(list[dict[str, Any]]):
    """Rows as dictionaries with the same keys, in order."""

    def to_frame(self) -> pandas.DataFrame:
        """Return the rows as a data frame. Raises MissingExtraError without pandas."""
        require("pandas", "to_frame")
        import pandas

        return pandas.DataFrame(list(self))

    def _repr_html_(self) -> str:
        if not self:
            return "<p>no rows</p>"
        heads = "".join(f"<th>{escape(str(name))}</th>" for name in self[0])
        rows = "".join(
            f"<tr>{''.join(f'<td>{escape(_text(value))}</td>' for value in row.values())}</tr>"
            for row in self[:SHOWN]
        )
        more = len(self) - SHOWN
        rest = f"<p>and {more} more rows</p>" if more > 0 else ""
        return f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>{rest}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
