"""The `hopsum-agent` command on what cannot be: one error, and no traceback."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
import typer

from hopsum.host_agent import main
from hopsum.host_agent.main import _interfaces


def complaint(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> str:
    """The command's output before it ends with an error."""
    monkeypatch.setattr("sys.argv", ["hopsum-agent", *arguments])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code in (1, 2)
    (record,) = caplog.records
    return record.getMessage()


@pytest.mark.parametrize("part", ["authority", "certificate", "key"])
def test_a_missing_tls_file_is_one_error(
    part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    serve = ["serve", "--controller", "localhost:1", "--host", "h1", "--interface", "lo"]
    said = complaint([*serve, f"--tls-{part}", f"{tmp_path}/none"], monkeypatch, caplog)
    assert said == f"TLS: {tmp_path}/none cannot be read: No such file or directory"


def test_an_agent_that_ends_leaves_its_process_the_signals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else what runs next in the process could not be interrupted."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.getsignal(number) for number in numbers]
    serve = ["serve", "--controller", "localhost:1", "--host", "h1", "--interface", "lo"]
    complaint([*serve, "--tls-key", f"{tmp_path}/none"], monkeypatch, caplog)
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize(
    ("interfaces", "message"),
    [
        (("0@lo", "lo"), "'lo': expected PORT@INTERFACE such as 0@eth1, each port once"),
        (("0@lo", "0@lo"), "'0@lo': expected PORT@INTERFACE"),
        (("0@",), "'0@': expected PORT@INTERFACE"),
        (("x@lo",), "'x@lo': expected PORT@INTERFACE"),
    ],
)
def test_several_interfaces_have_ports(interfaces: tuple[str, ...], message: str) -> None:
    with pytest.raises(typer.BadParameter, match=re.escape(message)):
        _interfaces(interfaces)


def test_interfaces_by_port() -> None:
    assert _interfaces(["eth0"]) == {-1: "eth0"}
    assert _interfaces(["1@eth1", "0@eth0"]) == {1: "eth1", 0: "eth0"}
