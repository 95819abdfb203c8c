"""The dashboard of a real cluster in a real browser, while a switch is killed again and again."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from hopsum.cli.job_commands import make_submission
from tests.support.browser import needs_chromium, opened, take_picture
from tests.support.emulated_cluster import RunningCluster, emulated_cluster
from tests.support.machine import PATIENCE

pytestmark = [pytest.mark.network, pytest.mark.acceptance, needs_chromium]


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with emulated_cluster(folder, "leaf-spine:2x3", "--web", "127.0.0.1:0") as running:
        yield running


def url(up: RunningCluster) -> str:
    found = re.search(r"dashboard at (\S+)", up.log.read_text())
    assert found, up.log.read_text()
    return found[1]


def killed_until(up: RunningCluster, shown: Locator, names: tuple[str, ...]) -> None:
    """Kill switches as often as they are started again, until the page shows something."""
    deadline = time.monotonic() + PATIENCE
    while not shown.is_visible():
        assert time.monotonic() < deadline, f"waited for {shown}"
        for name in names:
            for process in up.switch(name):
                os.kill(process, signal.SIGKILL)
        shown.page.wait_for_timeout(200)


def figures(page: Page) -> str:
    return page.locator("#detail").inner_text()


def shows(page: Page, figure: str) -> None:
    """Wait for a figure of what was clicked; scripts of a test's own the page's policy forbids."""
    detail = expect(page.locator("#detail"))
    detail.to_contain_text(re.compile(figure), use_inner_text=True, timeout=1000 * PATIENCE)


def test_a_job_and_a_killed_switch_are_seen_on_the_page(up: RunningCluster, tmp_path: Path) -> None:
    with opened(url(up)) as page:
        page.get_by_text("4 of 4 switches ready, 7 of 7 agents attached").wait_for()
        page.get_by_text("None yet").wait_for()
    up.queries.submit(make_submission("mine", "h1,h2,h4,h5", "ps", elements=50_000, rounds=5000))
    up.queries.submit(
        make_submission("other", "h3,h6", elements=50_000, rounds=3, algorithm="ring")
    )
    with opened(url(up)) as page:
        mine = page.locator("tr[data-job=mine]")
        mine.get_by_text("running").wait_for()
        page.locator("tr[data-job=other]").get_by_text("finished").wait_for()
        assert page.locator("circle[data-switch]").count() == 4
        assert not page.get_by_text("None yet").is_visible()
        used = page.locator("line[data-tree='1/0']")
        # A vertical line has no width, and counts as hidden.
        used.first.wait_for(state="attached")
        assert used.count() >= 6

        # What is clicked shows its figures, which go on.
        page.locator("circle[data-switch=l1]").click()
        assert "switch l1" in figures(page)
        shows(page, r"sums\s+[1-9]")
        row = [text.strip() for text in page.locator("tr[data-switch=l1] td").all_inner_texts()]
        assert row[:2] == ["l1", "ready"]
        assert re.fullmatch(r"[1-9][\d,]*", row[2]) and re.fullmatch(r"[1-9][\d,]*", row[3])
        assert re.fullmatch(r"[1-9]\d* of 4096", row[-1])
        # Of the leaves and the spine that sum, one each.
        assert page.locator("#topology path.tree").count() == 3
        page.locator("svg.slots rect[data-slots]").first.click(position={"x": 2, "y": 10})
        page.locator("#slot-figures").get_by_text("fragment").wait_for()
        assert re.search(r"children in\s+\d+ of [23]", page.locator("#slot-figures").inner_text())
        page.locator("line[data-link='l1-h1'], line[data-link='h1-l1']").first.dispatch_event(
            "click"
        )
        shows(page, r"h1 → l1\s+[0-9.]+ [kM]bit")
        title = page.locator("line[data-link='l1-h1'] title, line[data-link='h1-l1'] title")
        busy = re.compile(r"^\w+ - \w+: [1-9]\d* %$")
        expect(title.first).to_have_text(busy, timeout=1000 * PATIENCE)
        mine.click()
        # It is known after the second of two samples.
        rate = re.compile(r"^[1-9][\d.]* [kMG]bit/s$")
        expect(mine.locator("td").nth(5)).to_have_text(rate, timeout=1000 * PATIENCE)
        row = [text.strip() for text in mine.locator("td").all_inner_texts()]
        _, _, state, priority, progress, goodput, epoch, sent, again, why = row
        assert (state, epoch, why) == ("running", "1", "")
        assert re.fullmatch(r"\d", priority)
        assert re.fullmatch(r"\d+ of 5000", progress)
        assert rate.fullmatch(goodput)
        assert re.fullmatch(r"[\d.]+ [kMG]?B", sent)
        assert re.fullmatch(r"[\d,]+", again)
        assert re.search(r"waits for\s+nothing", figures(page))
        page.get_by_text("what are its slots waiting for?").click()
        page.locator("#missing li").first.wait_for()
        page.get_by_text("all jobs").click()
        page.wait_for_timeout(3000)
        take_picture(page, "dashboard", tmp_path)

        # One that is dead looks dead, also where it sums.
        red = page.locator("circle[data-switch=l1].sums").evaluate(
            "each => { each.classList.add('down'); return getComputedStyle(each).fill; }"
        )
        assert red == "rgb(255, 227, 227)"

        # Its spine is killed: the job goes over another one.
        [job] = [job for job in up.queries.state().jobs if job.name == "mine"]
        spine = job.trees[0].parents["l2"]
        around = page.locator("li[data-kind=failover]", has_text=f"around switch {spine}")
        killed_until(up, around, (spine,))
        assert page.locator(f"circle[data-switch={spine}].down").count() == 1
        assert mine.locator("td").nth(6).inner_text() == "2"
        assert page.locator("circle[data-event=outage]").count() >= 1
        assert page.locator("circle[data-event=failover]").count() == 1
        page.locator("li[data-kind=failover]").get_by_text("epoch 2").wait_for()
        page.locator(f"circle[data-switch={spine}]").click()
        take_picture(page, "dashboard-failover", tmp_path)

        # Without any spine it waits, and says for what.
        mine.click()
        waits = re.compile(r"switch s\d unreachable for \d+ s")
        killed_until(up, mine.locator("td.waits", has_text=waits), ("s1", "s2"))
        page.locator("#why.waits", has_text=waits).wait_for()

        up.queries.cancel("mine")
        mine.get_by_text("cancelled", exact=True).wait_for()
        assert page.locator("#connection").inner_text() == "live"
