"""Bundles from the cache: only as long as preprocessing again would give the same."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from p4switch.backends.native import build
from p4switch.device.bundle import make_bundle
from p4switch.device.loading import read_program
from tests.support.paths import ROOT

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "main.p4"
    path.write_text('#include "width.p4"\nconst bit<32> width = WIDTH;\n')
    (tmp_path / "late").mkdir()
    (tmp_path / "late" / "width.p4").write_text("#ifndef WIDTH\n#define WIDTH 1\n#endif\n")
    return path


def read(source: Path, defines: dict[str, str] | None = None) -> bytes:
    """Read a program that includes from `early` and `late`, which must be as if never kept."""
    folders = [source.parent / "early", source.parent / "late"]
    bundle = read_program(source, folders, defines or {})
    assert bundle == make_bundle(source, folders, defines)
    return bundle


def test_a_kept_bundle_needs_no_front_end(source: Path) -> None:
    first = read(source)
    code = (
        "import sys; from pathlib import Path; from p4switch.device.loading import read_program\n"
        "path, *folders = map(Path, sys.argv[1:])\n"
        "sys.stdout.buffer.write(read_program(path, folders, {}))\n"
        "assert not any(name.startswith('p4switch.frontend') for name in sys.modules)\n"
    )
    folders = [source.parent / "early", source.parent / "late"]
    command = [sys.executable, "-c", code, source, *folders]
    assert subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout == first


def test_a_change_of_a_file_is_seen_though_size_and_time_are_the_same(source: Path) -> None:
    before = read(source)
    included = source.parent / "late" / "width.p4"
    times = included.stat().st_mtime_ns
    included.write_text(included.read_text().replace("1", "2"))
    os.utime(included, ns=(times, times))
    assert read(source) != before


def test_a_file_that_comes_first_is_seen(source: Path) -> None:
    before = read(source)
    early = source.parent / "early"
    early.mkdir()
    (early / "width.p4").write_text("#define WIDTH 3\n")
    between = read(source)
    (source.parent / "width.p4").write_text("#define WIDTH 4\n")
    assert len({before, between, read(source)}) == 3
    (source.parent / "width.p4").unlink()
    assert read(source) == between


def test_defines_and_folders_are_part_of_the_entry(source: Path) -> None:
    assert read(source) != read(source, {"WIDTH": "5"})
    (source.parent / "width.p4").write_text("#define WIDTH 6\n")
    alone = read_program(source, [], {})
    assert alone == read(source)


def test_another_version_of_p4switch_makes_its_own(
    source: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    read(source)
    monkeypatch.setattr(build, "package_hash", lambda: "another")
    read(source)
    assert len(list(cache.iterdir())) == 2


def test_a_folder_that_cannot_be_used_costs_time_only(source: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("in the way")
    read(source)


@pytest.mark.parametrize("damage", [b"", b"\x80", bytes(400)], ids=["empty", "cut", "zeros"])
def test_a_damaged_bundle_is_made_again(source: Path, cache: Path, damage: bytes) -> None:
    first = read(source)
    [kept] = cache.rglob("bundle.pickle")
    kept.write_bytes(damage)
    assert read(source) == first
    assert kept.read_bytes() != damage
