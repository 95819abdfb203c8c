"""hopsum.p4 in p4switch: P4Info as p4c writes it, bundles, counters that are left out."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from finsy.proto import p4i
from google.protobuf import text_format

from hopsum.experiment.p4c import compile_by_p4c
from p4switch.device.bundle import from_text, make_bundle, to_text
from p4switch.frontend.program import compile_file
from p4switch.frontend.source.preprocessor import preprocess
from p4switch.midend.cycles import multiplies
from p4switch.p4runtime.p4info import p4info, p4info_text
from p4switch.programs import is_bundle
from tests.support.paths import HOPSUM_P4, HOPSUM_P4INFO


def test_the_golden_p4info_is_that_of_p4switch_too() -> None:
    """p4c made the golden file; `p4switch compile --p4runtime-files` must write the same."""
    assert p4info_text(compile_file(HOPSUM_P4)) == HOPSUM_P4INFO.read_text(), (
        f"p4src changed the control plane's contract; if it should, write {HOPSUM_P4INFO} anew "
        "with `p4switch compile p4src/hopsum.p4 --p4runtime-files`"
    )


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("p4c") is None, reason="p4c is not installed")
def test_p4c_writes_the_same() -> None:
    made = compile_by_p4c(HOPSUM_P4, {})
    theirs = text_format.Parse(made.info.read_text(), p4i.P4Info())
    assert p4info(compile_file(HOPSUM_P4)) == theirs


def test_tokens_and_their_lines_survive_in_a_bundle() -> None:
    before = preprocess(HOPSUM_P4)
    after = from_text(to_text(before))
    assert (after.kinds, after.texts) == (before.kinds, before.texts)
    for old, new in list(zip(before.marks, after.marks, strict=True))[:-1]:
        a, b = before.sources.position(old), after.sources.position(new)
        assert (Path(a.file).name, a.line) == (Path(b.file).name, b.line)


def test_lanes_are_in_the_bundle() -> None:
    wide = make_bundle(HOPSUM_P4, defines={"LANES": "256"})
    assert is_bundle(wide)
    assert wide != make_bundle(HOPSUM_P4, defines={"LANES": "32"})


def test_no_packet_loops() -> None:
    """Counting the steps of its packets would be in the way."""
    assert not multiplies(compile_file(HOPSUM_P4, defines={"LANES": "32"}))
