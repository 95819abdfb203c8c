"""Programs as one text: what is written comes back, and nothing else is taken."""

from __future__ import annotations

from pathlib import Path

import pytest

from p4switch.device.bundle import from_text, make_bundle, to_text
from p4switch.device.loading import Loader, read_program
from p4switch.frontend.program import compile_program
from p4switch.frontend.source.preprocessor import preprocess, preprocess_text
from p4switch.frontend.syntax.parser import parse_text
from p4switch.position import P4Error
from p4switch.programs import is_bundle
from p4switch.targets.v1model.engine import EngineOptions
from tests.support.paths import PROGRAMS, ROOT

PROGRAM_FILES = sorted(PROGRAMS.glob("*.p4"))


@pytest.mark.parametrize("path", PROGRAM_FILES, ids=lambda path: path.stem)
def test_tokens_and_their_lines_survive(path: Path) -> None:
    before = preprocess(path)
    after = from_text(to_text(before))
    assert (after.kinds, after.texts) == (before.kinds, before.texts)
    for old, new in list(zip(before.marks, after.marks, strict=True))[:-1]:
        a, b = before.sources.position(old), after.sources.position(new)
        assert (Path(a.file).name, a.line) == (Path(b.file).name, b.line)


def test_tokens_of_macros_do_not_run_together() -> None:
    text = "#define PLUS +\n#define NAME ab\nPLUS+ NAME NAME\nPLUS PLUS 1 PLUS+NAME\n@pragma x y\nz"
    before = preprocess_text(text, "t.p4")
    after = from_text(to_text(before))
    assert (after.kinds, after.texts) == (before.kinds, before.texts)


def test_columns_survive_where_no_macro_is() -> None:
    before = preprocess_text("  int  x\n\n\n   =   (y);\n", "t.p4")
    after = from_text(to_text(before))
    for old, new in list(zip(before.marks, after.marks, strict=True))[:-1]:
        assert before.sources.position(old) == after.sources.position(new)


def test_strings_of_several_lines_survive() -> None:
    text = '@a("x\n  // it\'s 2\n#if 1\n  y;\n#endif\n" "z\\"\n") const bit<8> c = 1;\n"1\n" end'
    before = preprocess_text(text, "t.p4")
    after = from_text(to_text(before))
    assert (after.kinds, after.texts) == (before.kinds, before.texts)
    for old, new in list(zip(before.marks, after.marks, strict=True))[-3:-1]:
        assert before.sources.position(old) == after.sources.position(new)


def test_below_its_root_a_program_may_be_anywhere(tmp_path: Path) -> None:
    bundles = []
    for folder in (tmp_path / "a", tmp_path / "another" / "place"):
        (folder / "parts").mkdir(parents=True)
        (folder / "parts" / "width.p4").write_text("const bit<8> width = 1;\n")
        source = folder / "program.p4"
        source.write_text('#include <core.p4>\n#include "parts/width.p4"\n')
        bundles.append(make_bundle(source, root=folder))
        assert str(folder).encode() in make_bundle(source)
    assert bundles[0] == bundles[1]
    assert b'"parts/width.p4"' in bundles[0]


def test_defines_are_in_the_bundle(tmp_path: Path) -> None:
    source = tmp_path / "width.p4"
    source.write_text("#include <core.p4>\nconst bit<32> width = WIDTH;\n")
    wide = make_bundle(source, defines={"WIDTH": "256"})
    assert is_bundle(wide)
    assert wide != make_bundle(source, defines={"WIDTH": "32"})


def test_a_bundle_does_not_name_this_machines_folder_of_p4switch() -> None:
    assert str(ROOT / "src").encode() not in make_bundle(PROGRAM_FILES[0])


def test_errors_name_the_source(tmp_path: Path) -> None:
    source = tmp_path / "broken.p4"
    source.write_text("#include <core.p4>\n\nconst bit<8> a = 1;\nconst bit<8> b = missing;\n")
    with pytest.raises(P4Error) as caught:
        compile_program(parse_text(make_bundle(source).decode()))
    position = caught.value.position
    assert (position.file, position.line, position.column) == (str(source), 4, 18)
    assert caught.value.source_line == "const bit<8> b = missing;"


@pytest.mark.parametrize(
    "line",
    [
        '#include "/etc/passwd"',
        "#define X 1",
        "#if 1",
        "  # 12",
        '# 99999999 "x"',
        '# 1 "x" junk',
        "/* open",
        '"open',
        '"open\n#define X 1\n"',
    ],
)
def test_other_directives_are_refused(line: str) -> None:
    with pytest.raises(P4Error):
        from_text(f'# 1 "a.p4"\n{line}\n')


def test_a_source_and_its_bundle_are_the_same_program(tmp_path: Path) -> None:
    bundle = make_bundle(PROGRAM_FILES[0], defines={"LANES": "32"})
    path = tmp_path / "router.p4bin"
    path.write_bytes(bundle)
    assert read_program(path, [], {}) == bundle
    assert read_program(PROGRAM_FILES[0], [], {"LANES": "32"}) == bundle


def test_a_missing_file_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match="cannot read") as caught:
        read_program(tmp_path / "none.p4", [], {})
    assert caught.value.position.file == str(tmp_path / "none.p4")


def test_only_bundles_are_loaded() -> None:
    loader = Loader("interpreter", EngineOptions())
    with pytest.raises(P4Error, match="BMv2 JSON"):
        loader(b'  {"a": 1}')
    with pytest.raises(P4Error, match="p4switch compile"):
        loader(PROGRAM_FILES[0].read_bytes())
