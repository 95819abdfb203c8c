"""Where HTTP is served, and when a token is asked for."""

from __future__ import annotations

import socket

import pytest

from hopsum.protocol.errors import InputError
from hopsum.protocol.web_address import TOKEN_VARIABLE, WebAddress, web_address


@pytest.mark.parametrize("text", ["127.0.0.1:80", "localhost:0", "[::1]:9680", "127.9.9.9:1"])
def test_loopback_needs_no_token(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    assert web_address("web", text).token == ""


@pytest.mark.parametrize("text", ["0.0.0.0:80", "[::]:80", "192.0.2.1:80", "example.com:80"])
def test_elsewhere_a_token_is_made_up(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    tokens = {web_address("web", text).token for _ in range(3)}
    assert len(tokens) == 3
    assert min(map(len, tokens)) >= 16


def test_a_token_that_is_chosen_counts_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "a" * 16)
    assert web_address("web", "127.0.0.1:80").token == "a" * 16
    for bad in ("short", "a b" * 10, "é" * 20):
        monkeypatch.setenv(TOKEN_VARIABLE, bad)
        with pytest.raises(InputError, match="expected at least 16"):
            web_address("web", "127.0.0.1:80")


@pytest.mark.parametrize("text", ["", "80", "host", "host:", "host:70000", "a b:1", "http://x:1"])
def test_malformed_addresses_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"web .*expected HOST:PORT"):
        web_address("web", text)


def test_urls() -> None:
    assert WebAddress("127.0.0.1", 0).url(7) == "http://127.0.0.1:7/"
    for wildcard in ("0.0.0.0", "::"):
        assert WebAddress(wildcard, 0).url(7) == f"http://{socket.gethostname()}:7/"
    assert WebAddress("::1", 0, "t").url(7) == "http://[::1]:7/?token=t"
