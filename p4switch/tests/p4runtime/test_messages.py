"""P4Runtime's messages alone: in processes of their own, since a module is imported once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import EVERYTHING_P4, ROOT


def output(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


ALONE = "import sys\nfrom p4switch.p4runtime.messages import import_messages\nimport_messages()\n"


def test_messages_come_without_finsy() -> None:
    code = "from finsy.proto import p4r\nprint(p4r.Uint128(low=3).low, 'finsy' in sys.modules)"
    assert output(ALONE + code).split() == ["3", "False"]


@pytest.mark.slow
def test_finsy_can_be_imported_afterwards_and_has_the_same_messages() -> None:
    code = (
        "from finsy.proto import p4r as before\n"
        "import finsy\nfrom finsy.proto import p4r\n"
        "print(before is p4r, finsy.P4TableEntry('t').table_id)"
    )
    assert output(ALONE + code).split() == ["True", "t"]


@pytest.mark.slow
def test_nothing_changes_where_finsy_is_there_already() -> None:
    code = "import finsy\n" + ALONE + "print(sys.modules['finsy'] is finsy, finsy.proto.p4r)"
    assert output(code).startswith("True <module")


@pytest.mark.slow
def test_a_running_switch_has_loaded_no_front_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second process with a program finds it compiled.
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "bundle = Path(sys.argv[1])\n"
        "if not bundle.exists():\n"
        "    from p4switch.device.bundle import make_bundle\n"
        f"    bundle.write_bytes(make_bundle(Path({str(EVERYTHING_P4)!r})))\n"
        "from p4switch.p4runtime.messages import import_messages\nimport_messages()\n"
        "import p4switch.cli.run_command\n"
        "from p4switch.device.device import Device\n"
        "from p4switch.device.loading import Loader\n"
        "from p4switch.targets.v1model.engine import EngineOptions\n"
        "with Device([], Loader('native', EngineOptions()), device_config=bundle.read_bytes(),\n"
        "            address=f'unix:{bundle}.sock'):\n"
        "    print(*sorted(name for name in sys.modules if name.startswith((\n"
        "        'finsy.controller', 'p4switch.frontend.', 'p4switch.backends.reference.',\n"
        "        'p4switch.backends.native.generate', 'http.server'))))\n"
    )
    command = [sys.executable, "-c", code, f"{tmp_path}/everything.p4bin"]
    said = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
        for _ in range(2)
    ]
    assert "p4switch.backends.native.generate" in said[0]
    assert said[1] == []
