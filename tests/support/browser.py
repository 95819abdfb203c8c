"""A real headless Chromium, for tests of pages."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Error, Page, sync_playwright

from tests.support.machine import PATIENCE

Test = TypeVar("Test", bound=Callable[..., Any])

CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium is installed (`make test-tools` installs it)"
)
IMAGES = "HOPSUM_IMAGES"
"""Names the folder that gets the documents' pictures; `make images` sets it."""
NETWORK_CHANGED = "net::ERR_NETWORK_CHANGED"
"""Why Chromium fails requests while interfaces come and go, as in tests that run in parallel."""
LOST = "net::ERR_CONNECTION_RESET"
UNAVAILABLE = "responded with a status of 503"
"""What Chromium logs where a server says why it cannot answer now, which the page then shows."""


def in_browser(test: Test) -> Test:
    """Mark a test that takes a browser's seconds: it is one of `make test-acceptance`."""
    return pytest.mark.acceptance(needs_chromium(test))


@contextmanager
def opened(url: str, lost: Collection[str] | None = None) -> Iterator[Page]:
    """Open a page; what it logs as an error, or raises, fails the test.

    Requests whose path ends in a name of `lost` fail for as long as it is there. These, and those
    that fail since the machine's interfaces change, or whose answer is not there now, are no
    errors: a page must recover.
    """
    logged: list[str] = []

    def log(kind: str, text: str) -> None:
        if kind == "error":
            logged.append(text)

    with sync_playwright() as playwright:
        # Root has no sandbox.
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1200, "height": 740})
        page.set_default_timeout(1000 * PATIENCE)
        page.on("pageerror", lambda error: logged.append(str(error)))
        page.on("console", lambda message: log(message.type, message.text))
        if lost is not None:
            page.route(
                lambda asked: urlsplit(asked).path.rpartition("/")[2] in lost,
                lambda route: route.abort("connectionreset"),
            )
        _go(page, url)
        try:
            yield page
        except Exception as error:
            error.add_note(f"{page.url} logged {logged}: {page.locator('body').all_inner_texts()}")
            raise
        browser.close()
    handled = NETWORK_CHANGED, LOST, UNAVAILABLE
    wrong = [text for text in logged if not any(each in text for each in handled)]
    assert not wrong, wrong


def _go(page: Page, url: str) -> None:
    while True:
        try:
            page.goto(url)
            return
        except Error as error:
            if NETWORK_CHANGED not in error.message:
                raise


def take_picture(page: Page, name: str, folder: Path) -> None:
    """Take a picture of a page, for the documents where these are made."""
    file = Path(os.environ.get(IMAGES, folder)) / f"{name}.png"
    page.screenshot(path=file)
    assert 10_000 < file.stat().st_size < 300_000
