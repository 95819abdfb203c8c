"""The `hopsum-agent` command on what cannot be: one error, and no traceback."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from host_agent import main


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
