"""The parts of a report's page."""

from __future__ import annotations

from pathlib import Path

import pytest

from hopsum.reports import page
from tests.support.browser import in_browser, opened

PHONE = 360
"""Width of a small phone's screen, in pixels."""


@pytest.mark.slow
@in_browser
def test_a_wide_table_fits_a_phone(tmp_path: Path) -> None:
    heads = ["switch", "slots", "packets", "predicted packets", "sums", "predicted sums", "held"]
    made = page.table(heads, [(f"s{number}", *["1,234,567,890"] * 6) for number in range(3)])
    file = tmp_path / "run.html"
    file.write_text(page.page("A run", "on a network", [("Each switch", made)]))
    with opened(file.as_uri()) as shown:
        cells = shown.locator("td")
        assert len({cells.nth(place).bounding_box()["y"] for place in range(7)}) == 1  # type: ignore[index]
        assert shown.get_by_text("predicted sums").is_visible()
        shown.set_viewport_size({"width": PHONE, "height": 740})
        assert shown.evaluate("document.documentElement.scrollWidth") == PHONE
        boxes = [cells.nth(place).bounding_box() for place in range(7)]
        assert all(box and box["x"] + box["width"] <= PHONE for box in boxes)
        head = "getComputedStyle(document.querySelectorAll('td')[5], '::before').content"
        assert shown.evaluate(head) == '"predicted sums"'
