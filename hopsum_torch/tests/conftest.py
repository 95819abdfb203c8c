"""Fixtures of all tests."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the option of long runs, as the other distributions' tests do; none here searches."""
    parser.addoption("--all-examples", action="store_true", help="changes nothing here")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Let one worker run all tests of a module, which share what ranks have computed."""
    item.add_marker(pytest.mark.xdist_group(item.location[0]))
