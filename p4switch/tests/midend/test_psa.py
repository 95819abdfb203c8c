"""PSA's externs that cannot be v1model's, and packages of no architecture."""

from __future__ import annotations

import pytest

from p4switch import ir
from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.midend.architecture import PSA, V1MODEL, architecture_of, packet_layout
from p4switch.midend.cycles import multiplies
from p4switch.position import P4Error, UnsupportedError
from tests.support.paths import PROGRAMS

SOURCE = (PROGRAMS / "psa_externs.p4").read_text(encoding="utf-8")


def program(objects: str = "", body: str = "") -> ir.Program:
    """The program with further objects in ingress, and code at its beginning."""
    text = SOURCE.replace("    Random<", f"{objects}\n    Random<", 1)
    text = text.replace("bit<8> i = hdr.ask.index;", f"bit<8> i = hdr.ask.index; {body}", 1)
    return compile_program(parse_text(text, "test.p4"))


@pytest.mark.parametrize(
    ("objects", "body", "message"),
    [
        (
            "Checksum<bit<32>>(PSA_HashAlgorithm_t.CRC32) crc;",
            "crc.update(i);",
            "only ONES_COMPLEMENT16 can be updated",
        ),
        (
            "",
            "tell(entry_meter.execute(PSA_MeterColor_t.RED));",
            "'execute' with a colour is not supported",
        ),
        (
            "Register<sent_t, bit<8>>(4, {1, 2}) both;",
            "sent_t old = both.read(i); hdr.ask.index = old.index;",
            "initial value must be a number",
        ),
    ],
)
def test_refused(objects: str, body: str, message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        program(objects, body)


def test_objects_are_v1models_afterwards() -> None:
    made = program()
    kinds = {instance.name: instance.extern for instance in made.externs}
    assert kinds["In.plain"] == "register"
    assert kinds["In.selector"] == "action_selector"
    assert {t.name for t in made.tables if t.support_timeout} == {"In.direct"}


def test_architectures() -> None:
    made = program()
    assert architecture_of(made.package) is PSA
    assert multiplies(made)
    layout = packet_layout(made)
    assert [field.name for field in layout.standard.fields][:2] == [
        "ingress_parser_input",
        "ingress_input",
    ]
    made.package.name = "Other"
    assert architecture_of(made.package) is V1MODEL
    made.package.blocks.popitem()
    with pytest.raises(UnsupportedError, match=r"package 'Other' has 5 blocks: expected V1Switch"):
        packet_layout(made)


def test_the_pipelines_must_agree_about_metadata() -> None:
    text = SOURCE.replace("in none_t normal_meta,\n", "in sent_t normal_meta,\n", 1)
    with pytest.raises(
        P4Error, match=r"'egress' of 'PSA_Switch', a 'EgressPipeline.*has other types"
    ):
        compile_program(parse_text(text, "test.p4"))
