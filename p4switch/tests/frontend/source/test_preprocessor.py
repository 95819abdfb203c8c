from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from p4switch.frontend.source.lexer import END, NEWLINE, STRING, scan
from p4switch.frontend.source.preprocessor import Preprocessed, preprocess, preprocess_text
from p4switch.position import P4Error
from tests.support.search import examples


def expand(text: str, **defines: str) -> str:
    """Return the tokens that come of a text, with a space between them."""
    return " ".join(preprocess_text(text, "t.p4", defines=defines).texts[:-1])


def message(text: str) -> str:
    """Return the whole error that a text leads to."""
    with pytest.raises(P4Error) as caught:
        preprocess_text(text, "t.p4")
    return str(caught.value)


def places(result: Preprocessed) -> list[str]:
    """Return `text@file:line:column` of every token but the end."""
    return [
        f"{text}@{result.sources.position(mark)}"
        for text, mark in zip(result.texts[:-1], result.marks[:-1], strict=True)
    ]


# --- Macros ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("#define N 4\nbit<N> N;", "bit < 4 > 4 ;"),
        ("#define F(a, b) a - b\nF(1, (2, 3)) F", "1 - ( 2 , 3 ) F"),
        ("#define F(a) [a]\nF\n(\n1)", "[ 1 ]"),
        ("#define F() x\nF() F( )", "x x"),
        ("#define F(a) <a>\nF()", "< >"),
        ("#define N (1)\nN", "( 1 )"),
        ("#define X X + Y\n#define Y X\nX", "X + X"),
        ("#define f(x) x f\nf(1)(2)", "1 f ( 2 )"),
        ("#define F(x) x\n#define A F(A\nA) A)", "A A"),
        ("#define f(x) x\n#define g f\ng(g)(1)", "f ( 1 )"),
        ("#define NAME(i) hdr.lane##i\nNAME(3)", "hdr . lane3"),
        ("#define CAT(a, b) a ## b\nCAT(8w, 0xFF) CAT(&, &&) CAT(, x) CAT(,)", "8w0xFF &&& x"),
        ("#define P(f) hdr.##f\nP(x)", "hdr . x"),
        (
            "#define A 1\n#define C(a, b) a##b\n#define X(a, b) C(a, b)\nC(A, A) X(A, A)",
            "AA 11",
        ),
        (r"#define S(x) #x" "\n" r'S( a  + "b\n" )', r'"a + \"b\\n\""'),
        ("#define S(x) #x\n#define T(x) S(x)\n#define A 1 + 2\nS(A) T(A)", '"A" "1 + 2"'),
        ("#define V(...) f(__VA_ARGS__)\nV() V(1, 2)", "f ( ) f ( 1 , 2 )"),
        ("#define V(a, ...) f(a, ##__VA_ARGS__)\nV(1) V(1, 2, 3)", "f ( 1 ) f ( 1 , 2 , 3 )"),
        ("#define V(a, rest...) rest a\nV(1, 2, 3)", "2 , 3 1"),
        ("#define I {#}\nI", "{#}"),
        ("#define A 1\n#undef A\n#undef B\nA", "A"),
        ("#define LONG a \\\n  b\nLONG c", "a b c"),
        ("ab\\\ncd /* x \n y */ e // f\\\n g\nh", "abcd e h"),
        ("#define F(x) x\nF(1\n#define B 2\n+ B)", "1 + 2"),
        ("__LINE__\n\n__LINE__ __FILE__", '1 3 "t.p4"'),
        ('#line 40 "u.p4"\n__LINE__ __FILE__', '40 "u.p4"'),
        ("#define L __LINE__\n\nL", "3"),
    ],
)
def test_macros_expand_as_in_c(text: str, expected: str) -> None:
    assert expand(text) == expected


def test_defines_from_outside() -> None:
    assert expand("N F(2)", **{"N": "7", "F(x)": "x + x"}) == "7 2 + 2"
    assert expand("#ifdef EMPTY\nEMPTY yes\n#endif", EMPTY="") == "yes"


def test_x_macro_unrolls_lanes() -> None:
    text = """
#define TEN(M, p) M(p##0) M(p##1) M(p##2) M(p##3) M(p##4) M(p##5) M(p##6) M(p##7) M(p##8) M(p##9)
#define HUNDRED(M, p) TEN(M, p##0) TEN(M, p##1) TEN(M, p##2) TEN(M, p##3) TEN(M, p##4) \\
                      TEN(M, p##5) TEN(M, p##6) TEN(M, p##7) TEN(M, p##8) TEN(M, p##9)
#define FIELD(i) bit<32> lane##i;
HUNDRED(FIELD, 1) HUNDRED(FIELD, 2)
"""
    result = preprocess_text(text, "t.p4")
    lanes = [word for word in result.texts if word.startswith("lane")]
    assert lanes == [f"lane{i}" for i in range(100, 300)]
    # All of it stands where the macro is used.
    assert {str(result.sources.position(mark)) for mark in result.marks[:600]} == {"t.p4:6:1"}


@given(data=st.data())
def test_locations_of_many_marks_are_their_positions(data: st.DataObject) -> None:
    text = (
        'a b\\\n c\r\n\\\n\\\nd /* \n */ e\n#define F(x) x f\nF(1) F(F(2))\n#line 40 "u.p4"\n\ng h'
    )
    result = preprocess_text(text, "t.p4")
    marks = data.draw(st.lists(st.sampled_from(result.marks)))
    positions = map(result.sources.position, marks)
    expected = [(place.file, place.line, place.column) for place in positions]
    assert list(result.sources.locations(marks)) == expected


def test_redefinition_and_warning_are_reported() -> None:
    result = preprocess_text(
        "#define A 1\n#define  A   1\n#define A 2\n#warning look here\n", "t.p4"
    )
    assert [f"{place}: {text}" for place, text in result.warnings] == [
        "t.p4:3:9: macro 'A' redefined",
        "t.p4:4:2: look here",
    ]


# --- Conditionals ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("condition", "holds"),
    [
        ("1 + 2 * 3 == 7", True),
        ("(1 + 2) * 3 == 9 && !0", True),
        ("7 / 2 == 3 && -7 / 2 == -3 && -7 % 2 == -1", True),
        ("010 == 8 && 0x10 == 16 && 0b11 == 3 && 10L == 10", True),
        ("-1 > 0u", True),
        ("-1 > 0", False),
        ("(1 ? -1 : 0u) > 0", True),
        ("1 << 3 | 1", True),
        ("(8 >> 3) == 1 && (-8 >> 1) == -4", True),
        ("1 ? 0 : 1", False),
        ("~0 == -1", True),
        ("0xFFFFFFFFFFFFFFFF == -1", True),
        ("defined X && defined(X) && !defined Y", True),
        ("X == 3", True),
        ("Y == 0 && bit == 0", True),
        ("F(1, 2)", True),
        ("HAS_X", True),
        ("0 && 1 / 0", False),
        ("1 || 1 % 0", True),
        ("3 ^ 3", False),
        ("6 & 4 != 4", False),
    ],
)
def test_if_evaluates_integer_expressions(condition: str, holds: bool) -> None:
    head = "#define X 3\n#define F(a, b) ((a) < (b))\n#define HAS_X defined(X)\n"
    text = f"{head}#if {condition} // comment\nyes\n#else\nno\n#endif\n"
    assert expand(text) == ("yes" if holds else "no")


def test_groups_nest_and_only_one_is_taken() -> None:
    text = """
#define A
#ifdef A
  a1
  #ifndef A
    no
    #if 1
      no
    #elif garbage (
    #endif
  #elif defined(A)
    a2
  #else
    no
  #endif
#elif 1 / 0
  no
#else
  no "it's /* fine */
#endif
#if 0
#unknown directive is skipped
#elif 1
  b
#elif 1
  no
#endif
"""
    assert expand(text) == "a1 a2 b"


def test_include_guard_and_pragma_once(tmp_path: Path) -> None:
    (tmp_path / "guarded.p4").write_text("#ifndef G\n#define G\nguarded\n#endif\n")
    (tmp_path / "once.p4").write_text("#pragma once\nonce\n")
    main = tmp_path / "main.p4"
    main.write_text('#include "guarded.p4"\n#include "once.p4"\n' * 2)
    assert preprocess(main).texts == ["guarded", "once", ""]


# --- Files -----------------------------------------------------------------------------------


def test_include_search_order(tmp_path: Path) -> None:
    sub = tmp_path / "sub"
    other = tmp_path / "other"
    sub.mkdir()
    other.mkdir()
    (sub / "a.p4").write_text('#include "b.p4"\n#include <b.p4>\n')
    (sub / "b.p4").write_text("near\n")
    (other / "b.p4").write_text("far\n")
    (other / "core.p4").write_text("other_core\n")
    main = tmp_path / "main.p4"
    main.write_text('#define FILE "sub/a.p4"\n#include FILE\n#include <core.p4>\n')
    result = preprocess(main, include_paths=[other])
    assert result.texts == ["near", "far", "other_core", ""]
    assert places(result)[0] == f"near@{sub / 'b.p4'}:1:1"


def test_own_core_and_v1model_are_found_without_include_paths() -> None:
    words = preprocess_text('#include <core.p4>\n#include "v1model.p4"\n', "t.p4").texts
    assert "packet_in" in words
    assert "V1Switch" in words


def test_positions_are_those_of_the_file() -> None:
    text = "#define N 1 +\\\n 2\na \\\n  N /* \n */ b\r\n\tc d\\\ne\n"
    assert places(preprocess_text(text, "t.p4")) == [
        "a@t.p4:3:1",
        "1@t.p4:4:3",
        "+@t.p4:4:3",
        "2@t.p4:4:3",
        "b@t.p4:5:5",
        "c@t.p4:6:2",
        "de@t.p4:6:4",
    ]


def test_line_directives_and_line_markers_move_positions() -> None:
    result = preprocess_text('a\n#line 10\nb\n# 7 "x.p4" 2\nc\nd\n', "t.p4")
    assert places(result) == ["a@t.p4:1:1", "b@t.p4:10:1", "c@x.p4:7:1", "d@x.p4:8:1"]
    lines = result.sources.lines()
    assert lines["x.p4"][6:8] == ["c", "d"]
    assert (lines["t.p4"][0], lines["t.p4"][9]) == ("a", "b")


def test_string_over_several_lines_is_one_token() -> None:
    text = 'a "one\n# two // \\" \n" b\n'
    result = preprocess_text(text, "t.p4")
    assert result.texts[:-1] == ["a", '"one\n# two // \\" \n"', "b"]
    assert places(result)[2] == "b@t.p4:3:3"


STRINGS = """#define FIVE 5
#define F(x) x
@r("
#ifdef NOT
   a == FIVE; "
#elif defined(FIVE)
   // a FIVE comment
   a   ==  FIVE;  b == F(3) /* k FIVE
 more */;
# not a directive FIVE\x20\x20
#else
   unreached
#endif
#define SIX 6
\tc == SIX;  ") FIVE SIX
@r("FIVE one
two \\"three FIVE\\" FIVE
FIVE 'FIVE' it's FIVE
  four") FIVE
@r("
#if FIVE == 4
  four")
#else
  five") after
#endif
"""


@pytest.mark.skipif(shutil.which("cpp") is None, reason="needs cpp")
def test_strings_over_several_lines_are_preprocessed_as_by_cpp(tmp_path: Path) -> None:
    """With the options that p4c gives cpp."""
    path = tmp_path / "strings.p4"
    path.write_text(STRINGS)
    command = ["cpp", "-C", "-undef", "-nostdinc", "-x", "assembler-with-cpp", str(path)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = re.sub(r"^# \d+ .*\n", "", text, flags=re.MULTILINE)
    result = preprocess(path)
    pairs = zip(result.kinds, result.texts, strict=True)
    found = [text for kind, text in pairs if kind == STRING]
    assert found == re.findall(r'"(?:[^"\\]|\\.)*"', text)
    assert [text for text in result.texts if text.isalnum()] == [
        "r",
        "5",
        "6",
        "r",
        "5",
        "r",
        "after",
    ]


def test_pragma_annotation_ends_with_its_line() -> None:
    result = preprocess_text("@pragma name x y\nz", "t.p4")
    assert result.kinds == [
        "@pragma", "IDENTIFIER", "IDENTIFIER", "IDENTIFIER", "END_PRAGMA", "IDENTIFIER", "END",
    ]  # fmt: skip


# --- Errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"\n#if 1\n', "t.p4:1:1: error: unterminated string\n"),
        ('"\n#if 0\n"', "t.p4:2:2: error: #if without #endif\n"),
        ('"\n #endif\n"', "t.p4:2:3: error: #endif without #if\n"),
        ('"\n#include <a>\n"', "t.p4:2:2: error: #include within a string is not supported\n"),
        (
            "x\n  #include <nowhere.p4>\n",
            "t.p4:2:4: error: cannot find include file 'nowhere.p4'; searched ",
        ),
        ("#if 1\n#else\nx", "t.p4:1:2: error: #if without #endif\n    #if 1\n     ^"),
        ("#ifdef A\nx", "t.p4:1:2: error: #ifdef without #endif\n"),
        ("#endif", "t.p4:1:2: error: #endif without #if\n"),
        ("#if 1\n#else\n#else\n#endif", "t.p4:3:2: error: #else after #else\n"),
        ("#if 0\n#else\n#elif 1\n#endif", "t.p4:3:2: error: #elif after #else\n"),
        ("#if\n#endif", "t.p4:1:2: error: #if without an expression\n"),
        ("#if 1 +\n#endif", "t.p4:1:2: error: #if: expected a number or '(', found end of line\n"),
        ("#if 1 2\n#endif", "t.p4:1:2: error: #if: expected an operator, found integer 2\n"),
        ("#if 8w3\n#endif", "t.p4:1:2: error: #if: '8w3' is not an integer of the preprocessor\n"),
        ("#if 1 / 0\n#endif", "t.p4:1:2: error: #if: division by zero"),
        ("#if defined(A\n#endif", "t.p4:1:2: error: expected 'defined NAME' or 'defined(NAME)'"),
        (
            "#ifdef\n#endif",
            "t.p4:1:2: error: expected a macro name after #ifdef, found end of line",
        ),
        ("#define 3 4", "t.p4:1:9: error: expected a macro name after #define, found integer 3\n"),
        ("#define F(a,\n", "t.p4:1:12: error: expected ')' after the parameters of macro F\n"),
        ("#define F(a, a) a", "t.p4:1:14: error: macro F has two parameters named 'a'\n"),
        ("#define F(1) a", "t.p4:1:11: error: expected a parameter of macro F, found integer 1\n"),
        ("#define F(a) ## a", "t.p4:1:14: error: '##' cannot be at either end of"),
        ("#define __LINE__ 3", "t.p4:1:9: error: '__LINE__' cannot be defined or undefined\n"),
        ("#undef A B", "t.p4:1:10: error: expected end of line after #undef, found identifier 'B'"),
        ("#define F(a, b) a\nx F(1)", "t.p4:2:3: error: macro F takes 2 arguments, found 1\n"),
        ("#define F(a) a\nF(1, 2)", "t.p4:2:1: error: macro F takes 1 argument, found 2\n"),
        ("#define F(a, b, ...) a\nF(1)", "macro F takes at least 2 arguments, found 1\n"),
        ("#define F(a) a\n F(1, (2)\n", "t.p4:2:2: error: unterminated call of macro F; expected"),
        ("#define F(a) a\nF(\n#include <core.p4>\n)", "#include among the arguments of a macro"),
        ("#error do not\n", "t.p4:1:2: error: #error do not\n    #error do not\n     ^"),
        ("#include core.p4\n", 't.p4:1:2: error: expected "file" or <file> after #include\n'),
        ("#line x\n", "t.p4:1:7: error: expected a line number after #line\n"),
        ("#inclde <core.p4>\n", "t.p4:1:2: error: unknown directive '#inclde'; expected #include,"),
        ("a /* b\n", "t.p4:1:3: error: unterminated comment\n    a /* b\n      ^"),
        ("#define A /* b\n", "t.p4:1:11: error: unterminated comment\n"),
        ('x "abc\n', 't.p4:1:3: error: unterminated string\n    x "abc\n      ^'),
    ],
)
def test_errors_say_what_and_where(text: str, expected: str) -> None:
    assert expected in message(text)


def test_file_that_includes_itself(tmp_path: Path) -> None:
    path = tmp_path / "loop.p4"
    path.write_text('#include "loop.p4"\n')
    with pytest.raises(P4Error, match="nested 100 deep; does a file include itself"):
        preprocess(path)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(P4Error, match=r"none\.p4:1:1: error: cannot read this file: No such file"):
        preprocess(tmp_path / "none.p4")


@pytest.mark.slow
def test_macro_calls_nested_without_end() -> None:
    text = "#define F(x) x\n" + "F(" * 3000 + "1" + ")" * 3000
    with pytest.raises(P4Error, match=r"nested too deeply|expands to more than"):
        preprocess_text(text, "t.p4")


# --- Against a C preprocessor ----------------------------------------------------------------

# No name begins with e or p, which C takes as part of a number such as 0e+1.
_words = st.sampled_from(
    ["A", "B", "F", "G", "x", "y", "1", "0x2", "+", "-", "(", ")", ",", ".", "z"]
)
_uses = st.sampled_from(
    ["A", "B", "F(x)", "F(A, 1)", "G(B)(y)", "G(F(2)) ", "F", "G ()", "F((1,2))"]
)
_bodies = st.lists(
    st.one_of(_words, st.sampled_from(["x ## y", "A ## x", "x ## 1", "#x", "F(x)", "G(y)"])),
    max_size=5,
).map(" ".join)


@st.composite
def _programs(draw: st.DrawFn) -> str:
    lines = []
    for name, parameters in (("A", ""), ("B", ""), ("F", "(x)"), ("G", "(x, y)"), ("G", "(...)")):
        if draw(st.booleans()):
            body = draw(_bodies)
            if name in "AB":
                body = body.replace("#x", "z")
            lines.append(f"#undef {name}\n#define {name}{parameters} {body}")
    lines += draw(st.lists(st.one_of(_uses, _words), min_size=1, max_size=6))
    return "\n".join(lines) + "\n"


_operands = st.sampled_from(
    ["0", "1", "2u", "3", "-1", "010", "0x7f", "A", "B", "x", "defined A", "defined(B)", "F(1)"]
)
_operators = st.one_of(
    st.sampled_from(["+", "-", "*", "/", "%", "<<", ">>", "&", "|", "^"]),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!=", "&&", "||", "? 1 :", "? 0u :"]),
)


def _operation(parts: tuple[str, str, str]) -> str:
    return f"({' '.join(parts)})"


_conditions = st.recursive(
    _operands,
    lambda smaller: st.one_of(
        st.tuples(smaller, _operators, smaller).map(_operation),
        st.tuples(smaller, _operators, smaller).map(" ".join),
        smaller.map("!{}".format),
        smaller.map("~({})".format),
    ),
    max_leaves=5,
)


@st.composite
def _conditionals(draw: st.DrawFn) -> str:
    """Macros, and a group of each kind of conditional, nested in one another."""
    lines = ["#define A 2", "#define F(x) ((x) - A)"]
    for depth in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from([f"#if {draw(_conditions)}", "#ifdef A", "#ifndef B"]))
        lines += [kind, f"first{depth}"]
        if draw(st.booleans()):
            lines += [f"#elif {draw(_conditions)}", "#undef A", f"second{depth} A"]
        if draw(st.booleans()):
            lines += ["#else", f"#define B {depth}", f"third{depth} B"]
        if draw(st.booleans()):
            lines += [f"#if {draw(_conditions)}", f"inner{depth}", "#endif"]
        lines += ["#endif", "A B F(x)"]
    return "\n".join(lines) + "\n"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cpp") is None, reason="no C preprocessor on this machine")
@settings(max_examples=examples(40, of=200), suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(_programs(), _conditionals()))
@example("#define F(x) x F\n#define A F\nA(1)(2)(3)\n")
@example("#if 8 >> -1 == 16 && 8 << -1 == 4\nx\n#endif\n")
@example("#if (0 ? 0u : -1) > 0 && -7 / 2 == -3\nx\n#elif A ? : 1\ny\n#endif\n")
def test_tokens_are_those_of_cpp(text: str) -> None:
    command = ["cpp", "-undef", "-nostdinc", "-P", "-x", "assembler-with-cpp", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        with pytest.raises(P4Error):
            preprocess_text(text, "t.p4")
        return
    assume("#" not in done.stdout)
    expected = [token[1] for token in scan(done.stdout) if token[0] not in (NEWLINE, END)]
    assert preprocess_text(text, "t.p4").texts[:-1] == expected
