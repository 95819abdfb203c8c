"""One program of many parts, of which the first byte of a frame chooses one.

The C compiler takes longer for what all programs have in common than for such a part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from p4switch.frontend.program import compile_program
from p4switch.frontend.syntax.parser import parse_text
from p4switch.ir import Program

TEMPLATE = """
#include <core.p4>
#include <v1model.p4>
header number_t {{ bit<8> number; }}
{headers}
struct headers_t {{ number_t n; {members} }}
struct metadata_t {{ }}
parser P(packet_in p, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    state start {{
        p.extract(h.n);
        transition select(h.n.number) {{ {choices} }}
    }}
    {states}
}}
control N(inout headers_t h, inout metadata_t m) {{ apply {{ }} }}
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    action to(bit<9> port) {{ s.egress_spec = port; }}
    {declarations}
    apply {{ {calls} }}
}}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{ apply {{ }} }}
control D(packet_out p, in headers_t h) {{ apply {{ {emits} }} }}
V1Switch(P(), N(), I(), E(), N(), D()) main;
"""


@dataclass(frozen=True)
class Part:
    """A part: its header h.x, which is parsed; the ingress's declarations and statements for it.

    `sent`: fields of h.r, which is sent instead of h.x. In all of them # is the part's number.
    """

    fields: str
    declarations: str
    statements: str
    sent: str = ""


def program_of_parts(parts: Sequence[Part]) -> Program:
    """Return the program. An action `to(port)` is there for all parts."""
    own: dict[str, list[str]] = {}
    for number, part in enumerate(parts):
        texts = {
            "headers": f"header x#_t {{ {part.fields} }}\nheader r#_t {{ {part.sent} }}\n",
            "members": "x#_t x#; r#_t r#;",
            "choices": "#: part#;",
            "states": "state part# { p.extract(h.x#); transition accept; }",
            "declarations": part.declarations,
            "calls": f"if (h.x#.isValid()) {{ {part.statements} }}",
            "emits": f"p.emit(h.{'r' if part.sent else 'x'}#);",
        }
        for name, text in texts.items():
            numbered = text.replace("h.x.", "h.x#.").replace("h.r.", "h.r#.")
            own.setdefault(name, []).append(numbered.replace("#", str(number)))
    text = TEMPLATE.format(**{name: "\n    ".join(texts) for name, texts in own.items()})
    return compile_program(parse_text(text, "program.p4"))
