"""The page of `hopsum run` in Mininet."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.browser import needs_chromium, opened
from tests.support.emulated_cluster import HOPSUM
from tests.support.machine import PATIENCE

pytestmark = [pytest.mark.network, pytest.mark.acceptance, needs_chromium]


def test_a_run_is_shown_and_its_page_stays(tmp_path: Path) -> None:
    command = [
        HOPSUM, "run", "--world", "mininet", "--topology", "star:2", "--workers", "2",
        "--elements", "20000", "--dashboard", "--web", "127.0.0.1:0",
    ]  # fmt: skip
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            assert run.stderr is not None
            lines = iter(run.stderr.readline, "")
            address = next(line.split()[-1] for line in lines if "dashboard at" in line)
            with opened(address) as page:
                page.locator("tr[data-job=run]").get_by_text("finished").wait_for()
                assert any("the page is served until Ctrl-C" in line for line in lines)
                page.locator("#connection").get_by_text("replay").wait_for()
                page.locator("#frame").fill("0")
                page.locator("#frame-time").get_by_text("0.00 s, 1 of").wait_for()
            run.send_signal(signal.SIGINT)
            assert run.wait(PATIENCE) == 0
        finally:
            run.terminate()
