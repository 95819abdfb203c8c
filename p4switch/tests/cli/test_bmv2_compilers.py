"""p4c's and p4c-bm2-ss's options, as p4lang's tutorials and p4-utils give them."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from finsy.proto import p4i
from google.protobuf import json_format, text_format

from p4switch.cli.bmv2_compilers import BACK_END, P4C, compile_as
from tests.support.paths import PROGRAMS

ROUTER = PROGRAMS / "router.p4"


def test_the_command_of_tutorials(tmp_path: Path) -> None:
    """utils/Makefile of p4lang/tutorials."""
    info, output = tmp_path / "router.p4info.txtpb", tmp_path / "router.json"
    line = f"--p4v 16 --p4runtime-files {info} -o {output} {ROUTER}"
    compile_as(BACK_END, shlex.split(line))
    assert text_format.Parse(info.read_text(), p4i.P4Info()).tables
    assert json.loads(output.read_text())["pipelines"][0]["tables"]


def test_the_command_of_p4_utils(tmp_path: Path) -> None:
    """p4utils/utils/compiler.py: the driver's -o is a folder."""
    info = tmp_path / "router_p4rt.txt"
    line = f"'{ROUTER}' --target bmv2 --arch v1model --std p4-16 -o '{tmp_path}' "
    compile_as(P4C, shlex.split(line + f"--p4runtime-files '{info}'"))
    assert json.loads((tmp_path / "router.json").read_text())["program"] == str(ROUTER)
    assert text_format.Parse(info.read_text(), p4i.P4Info()).tables


def test_p4info_in_other_forms(tmp_path: Path) -> None:
    names = [tmp_path / name for name in ("a.txtpb", "a.json", "a.bin")]
    compile_as(BACK_END, ["--p4runtime-files", ",".join(map(str, names)), str(ROUTER)])
    text = text_format.Parse(names[0].read_text(), p4i.P4Info())
    assert json_format.Parse(names[1].read_text(), p4i.P4Info()) == text
    assert p4i.P4Info.FromString(names[2].read_bytes()) == text
    compile_as(
        BACK_END,
        ["--p4runtime-format", "json", "--p4runtime-files", str(names[0]), str(ROUTER)],
    )
    assert json_format.Parse(names[0].read_text(), p4i.P4Info()) == text


def test_diagnostic_options_do_not_swallow_the_program(tmp_path: Path) -> None:
    output = tmp_path / "r.json"
    compile_as(BACK_END, ["--Wdisable", "--Werror=unused", "-o", str(output), str(ROUTER)])
    assert output.exists()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--std p4-14 a.p4", "P4_16 only"),
        ("--arch psa a.p4", "v1model only"),
        ("--target dpdk a.p4", "bmv2 only"),
    ],
)
def test_other_languages_and_targets_are_refused(line: str, message: str) -> None:
    with pytest.raises(SystemExit, match=message):
        compile_as(P4C, shlex.split(line))


def test_errors_end_with_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "bad.p4"
    source.write_text("const bit<8> a = missing;\n")
    with pytest.raises(SystemExit) as ended:
        compile_as(BACK_END, ["-o", str(tmp_path / "bad.json"), str(source)])
    assert ended.value.code == 1
    assert f"{source}:1:18: error:" in capsys.readouterr().err
    assert not (tmp_path / "bad.json").exists()
