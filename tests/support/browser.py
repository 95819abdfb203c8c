"""A real headless Chromium, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Page, sync_playwright

from tests.support.machine import PATIENCE

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (`make test-tools` installs it)"
)
IMAGES = "HOPSUM_IMAGES"
"""Names the folder that gets the documents' pictures; `make images` sets it."""


@contextmanager
def opened(url: str) -> Iterator[Page]:
    """Open a page; what it logs as an error, or raises, fails the test."""
    troubles: list[str] = []
    with sync_playwright() as playwright:
        # Root has no sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 740})
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on(
            "console",
            lambda message: troubles.append(message.text) if message.type == "error" else None,
        )
        page.goto(url)
        yield page
        browser.close()
    assert not troubles


def take_picture(page: Page, name: str, folder: Path) -> None:
    """Take a picture of a page, for the documents where these are made."""
    file = Path(os.environ.get(IMAGES, folder)) / f"{name}.png"
    page.screenshot(path=file)
    assert 10_000 < file.stat().st_size < 300_000
