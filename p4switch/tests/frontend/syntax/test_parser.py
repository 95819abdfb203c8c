from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.parser import parse_program, parse_text

# What tests refer to; one line, so that what follows begins on line 2.
HEAD = (
    "struct S { bit<8> f; } header H { bit<8> g; } enum E { a, b } typedef bit<8> T; "
    "extern X { X(int n); void run<U>(in U u); } struct G<A> { A a; }\n"
)


def show(node: Any) -> str:
    """Return a node in one line, every operation in brackets, positions left out."""
    match node:
        case None:
            return "-"
        case list():
            return "[" + " ".join(show(item) for item in node) + "]"
        case dict():
            return "{" + ", ".join(f"{name} = {show(item)}" for name, item in node.items()) + "}"
        case ast.IntLiteral(value=value, width=width, signed=signed):
            return str(value) if width is None else f"{width}{'s' if signed else 'w'}{value}"
        case ast.Name(name=name, absolute=absolute) | ast.NamedType(name=name, absolute=absolute):
            return ("." if absolute else "") + name
        case ast.Member(base=base, name=name):
            return f"{show(base)}.{name}"
        case ast.Binary(operator=operator, left=left, right=right):
            return f"({show(left)} {operator} {show(right)})"
        case ast.Unary(operator=operator, operand=operand):
            return f"({operator}{show(operand)})"
        case ast.Cast(type=type_ref, operand=operand):
            return f"<{show(type_ref)}>{show(operand)}"
        case ast.Ternary(condition=condition, then=then, other=other):
            return f"({show(condition)} ? {show(then)} : {show(other)})"
        case ast.BitType(signed=signed, width=width):
            return f"{'int' if signed else 'bit'}{show(width)}"
        case ast.SimpleType(name=name):
            return name
        case ast.TypeExpression(type=type_ref):
            return f"type {show(type_ref)}"
        case ast.Node():
            parts = [getattr(node, part.name) for part in fields(node) if part.name != "position"]
            return f"{type(node).__name__}({', '.join(show(part) for part in parts)})"
        case _:
            return str(node)


def expression(text: str) -> str:
    """Return an expression as the parser understands it."""
    program = parse_text(f"{HEAD}const T c = {text};")
    constant = program.declarations[-1]
    assert isinstance(constant, ast.ConstDeclaration)
    return show(constant.value)


def statements(text: str) -> list[Any]:
    """Return the statements of a control that holds `text`."""
    program = parse_text(f"{HEAD}control C(inout H h, in bit<8> v) {{ apply {{ {text} }} }}")
    control = program.declarations[-1]
    assert isinstance(control, ast.ControlDeclaration)
    assert control.body is not None
    return list(control.body.body)


def declaration(text: str) -> Any:
    """Return the last declaration of a text."""
    return parse_text(HEAD + text).declarations[-1]


# --- Expressions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 + 2 * 3 - 4", "((1 + (2 * 3)) - 4)"),
        ("a ++ b + c ++ d", "(((a ++ b) + c) ++ d)"),
        ("a & b == c", "((a & b) == c)"),
        ("a | b ^ c & d", "(a | (b ^ (c & d)))"),
        ("a || b && c == d < e", "(a || (b && (c == (d < e))))"),
        ("a << 1 >> 2 |+| 3 |-| 4", "((a << 1) >> ((2 |+| 3) |-| 4))"),
        ("a < b > c", "((a < b) > c)"),
        ("-a * !b", "((-a) * (!b))"),
        ("-a.b[1]", "(-Index(a.b, 1))"),
        ("- -~+a", "(-(-(~(+a))))"),
        ("a ? b : c", "(a ? b : c)"),
        ("a ? b ? 1 : 2 : 3", "(a ? (b ? 1 : 2) : 3)"),
        ("a ? b : c ? d : e", "((a ? b : c) ? d : e)"),
        ("(a + b) * c", "((a + b) * c)"),
        ("(T) a + b", "(<T>a + b)"),
        ("(T) -a", "<T>(-a)"),
        ("(bit<8>)(int<8>) a.b", "<bit8><int8>a.b"),
        ("(v) - a", "(v - a)"),
        ("(bit<(1 > 0 ? 8 : 4)>) a", "<bit((1 > 0) ? 8 : 4)>a"),
        ("(bit<W + 1>) a > b", "(<bit(W + 1)>a > b)"),
        ("(G<bit<8>>) { a = 1 }", "<SpecializedType(G, [bit8])>RecordExpression({a = 1}, False)"),
        ("(G<G<bit<8>>>) x", "<SpecializedType(G, [SpecializedType(G, [bit8])])>x"),
        (
            "(tuple<T, bool>) {1, true}",
            "<TupleType([T bool])>ListExpression([1 BoolLiteral(True)], False)",
        ),
        ("(list<T>) {}", "<ListType(T)>ListExpression([], False)"),
        ("(E.a)", "type E.a"),
        ("(error.NoError == e)", "(type error.NoError == e)"),
        ("(X(3))", "Call(type X, [], [Argument(3, -)])"),
        ("G<bit<8>>(1)", "Call(type SpecializedType(G, [bit8]), [], [Argument(1, -)])"),
        ("f<T>(1)", "Call(f, [T], [Argument(1, -)])"),
        ("f<G<T>>(1) >> 2", "(Call(f, [SpecializedType(G, [T])], [Argument(1, -)]) >> 2)"),
        (
            "f<_, bit<8>>(x = 1, y = _)",
            "Call(f, [DontCareType() bit8], [Argument(1, x) Argument(DontCare(), y)])",
        ),
        ("a < E.b", "(a < type E.b)"),
        ("a < (T) b", "(a < <T>b)"),
        ("a.f<T>().g(1)", "Call(Call(a.f, [T], []).g, [], [Argument(1, -)])"),
        ("a[1][3:0][W-1:2]", "Slice(Slice(Index(a, 1), 3, 0), (W - 1), 2)"),
        ("a[i +: 8]", "PlusSlice(a, i, 8)"),
        ("a[i + 1+:8]", "PlusSlice(a, (i + 1), 8)"),
        ("a[c ? 1 : 2 : 0]", "Slice(a, (c ? 1 : 2), 0)"),
        ("{1, 2, }", "ListExpression([1 2], False)"),
        ("{1, ...}", "ListExpression([1], True)"),
        ("{...}", "ListExpression([], True)"),
        ("...", "Dots()"),
        ("{#}", "InvalidHeader()"),
        ("this.f", "This().f"),
        (".a.b", ".a.b"),
        (".E.a", "type .E.a"),
        (r'"a\"b" ++ "c"', '(StringLiteral(a"b) ++ StringLiteral(c))'),
        ("apply.key.type + list", "(apply.key.type + list)"),
        ("s.E.apply", "s.E.apply"),
    ],
)
def test_expressions(text: str, expected: str) -> None:
    assert expression(text) == expected


def test_record_expressions() -> None:
    assert expression("{ f = 1, type = { x = 2, ... }, ..., }") == (
        "RecordExpression({f = 1, type = RecordExpression({x = 2}, True)}, True)"
    )
    assert expression("{ f = {}, }") == "RecordExpression({f = ListExpression([], False)}, False)"


def test_names_shadow_types_within_their_scope() -> None:
    program = parse_text(
        HEAD + "bit<8> f(bit<8> T) { return (T) + 1; } bit<8> g(bit<8> x) { return (T) +x; }"
    )
    first, second = program.declarations[-2:]
    assert isinstance(first, ast.FunctionDeclaration)
    assert isinstance(second, ast.FunctionDeclaration)
    assert show(first.body.body) == "[Return((T + 1))]"
    assert show(second.body.body) == "[Return(<T>(+x))]"


def test_type_parameter_is_a_type_but_its_global_namesake_is_not() -> None:
    program = parse_text("const bit<8> N = 1; bit<8> f<N>(in N n) { return .N + (bit<8>) (N) n; }")
    function = program.declarations[-1]
    assert isinstance(function, ast.FunctionDeclaration)
    assert show(function.body.body) == "[Return((.N + <bit8><N>n))]"


# --- Statements ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("v = 1;", "Assignment(v, =, 1)"),
        ("h.g[3:0] |+|= v;", "Assignment(Slice(h.g, 3, 0), |+|=, v)"),
        ("v >>= 1;", "Assignment(v, >>=, 1)"),
        ("(v) = 1;", "Assignment(v, =, 1)"),
        ("x.run(v);", "CallStatement(Call(x.run, [], [Argument(v, -)]))"),
        ("x.run<U>(v);", "CallStatement(Call(x.run, [U], [Argument(v, -)]))"),
        ("x.run<G<T>>(v);",
         "CallStatement(Call(x.run, [SpecializedType(G, [T])], [Argument(v, -)]))"),
        ("X.apply();", "CallStatement(Call(type X.apply, [], []))"),
        ("G<T>.apply();", "CallStatement(Call(type SpecializedType(G, [T]).apply, [], []))"),
        (".f();", "CallStatement(Call(.f, [], []))"),
        ("type = 1;", "Assignment(type, =, 1)"),
        ("list[1] = 1;", "Assignment(Index(list, 1), =, 1)"),
        ("T t;", "VariableDeclaration([], t, T, -)"),
        (".T t = 1;", "VariableDeclaration([], t, .T, 1)"),
        ("G<G<T>> t;",
         "VariableDeclaration([], t, SpecializedType(G, [SpecializedType(G, [T])]), -)"),
        ("H[4] t;", "VariableDeclaration([], t, StackType(H, 4), -)"),
        ("bit<8> list;", "VariableDeclaration([], list, bit8, -)"),
        ("error e = error.NoMatch;", "VariableDeclaration([], e, error, type error.NoMatch)"),
        ("const bit t = 1;", "ConstDeclaration([], t, bit1, 1)"),
        ("X(3) x;", "Instantiation([], x, X, [Argument(3, -)], -)"),
        (";", "Empty()"),
        ("exit;", "Exit()"),
        ("break;", "Break()"),
        ("continue;", "Continue()"),
        ("return;", "Return(-)"),
        ("@atomic { ; }", "Block([Annotation(atomic, [], {}, [], False)], [Empty()])"),
        ("if (v == 1) v = 2; else if (v == 2) { } else ;",
         "If((v == 1), Assignment(v, =, 2), If((v == 2), Block([], []), Empty()))"),
        ("if (a) if (b) ; else ;", "If(a, If(b, Empty(), Empty()), -)"),
        ("for (T i in 1 .. 4) ;", "ForIn(T, i, RangeKeyset(1, 4), Empty(), [])"),
        ("for (bit<8> i in {1, 2}) { }",
         "ForIn(bit8, i, ListExpression([1 2], False), Block([], []), [])"),
        ("@unroll for (H e in h.s) ;",
         "ForIn(H, e, h.s, Empty(), [Annotation(unroll, [], {}, [], False)])"),
        ("for (;true;) ;", "For([], BoolLiteral(True), [], Empty(), [])"),
        ("for (bit<8> i = 0, T j = 1; i < 3; i += 1, f(j)) ;",
         "For([VariableDeclaration([], i, bit8, 0) VariableDeclaration([], j, T, 1)], (i < 3), "
         "[Assignment(i, +=, 1) CallStatement(Call(f, [], [Argument(j, -)]))], Empty(), [])"),
        ("for (v = 1; v < 2; ) ;", "For([Assignment(v, =, 1)], (v < 2), [], Empty(), [])"),
        ("switch (t.apply().action_run) { a: b: { } default: { exit; } }",
         "Switch(Call(t.apply, [], []).action_run, [SwitchCase([a], -) "
         "SwitchCase([b], Block([], [])) SwitchCase([], Block([], [Exit()]))])"),
        ("switch (v) { 8w1: { } (T) 2: E.a: { } }",
         "Switch(v, [SwitchCase([8w1], Block([], [])) SwitchCase([<T>2], -) "
         "SwitchCase([type E.a], Block([], []))])"),
    ],
)  # fmt: skip
def test_statements(text: str, expected: str) -> None:
    assert show(statements(text)) == f"[{expected}]"


def test_long_chain_of_else_if() -> None:
    [statement] = statements(" else ".join(f"if (v == {i}) ;" for i in range(2000)))
    count = 0
    while statement is not None:
        assert isinstance(statement, ast.If)
        count, statement = count + 1, statement.other
    assert count == 2000


# --- Declarations ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("error { A, B }", "ErrorDeclaration([], error, [A B])"),
        ("match_kind { exact, lpm, }", "MatchKindDeclaration([], match_kind, [exact lpm])"),
        ("enum F { x, y, }", "EnumDeclaration([], F, -, [('x', None) ('y', None)])"),
        ("type bit<9> Port;", "TypedefDeclaration([], Port, bit9, True)"),
        ("typedef tuple<T, G<T>> U;",
         "TypedefDeclaration([], U, TupleType([T SpecializedType(G, [T])]), False)"),
        ("header_union U { H a; H b; }",
         "StructLike([], U, header_union, [], "
         "[FieldDeclaration([], a, H) FieldDeclaration([], b, H)])"),
        ("struct P<A, B> { A a; B[2] b; varbit<32> type; }",
         "StructLike([], P, struct, [A B], [FieldDeclaration([], a, A) "
         "FieldDeclaration([], b, StackType(B, 2)) FieldDeclaration([], type, VarbitType(32))])"),
        ("extern bool f<U>(in U a, @optional out T b, inout int<8> c = 1);",
         "ExternFunctionDeclaration([], f, MethodDeclaration([], f, bool, [U], "
         "[Parameter([], a, Direction.IN, U, -) "
         "Parameter([Annotation(optional, [], {}, [], False)], b, Direction.OUT, T, -) "
         "Parameter([], c, Direction.INOUT, int8, 1)], False))"),
        ("extern U f<U>();",
         "ExternFunctionDeclaration([], f, MethodDeclaration([], f, U, [U], [], False))"),
        ("extern Y<U> { Y(U u); abstract U m(in U u); U l<V>(); }",
         "ExternDeclaration([], Y, [U], ["
         "MethodDeclaration([], Y, -, [], [Parameter([], u, Direction.NONE, U, -)], False) "
         "MethodDeclaration([], m, U, [], [Parameter([], u, Direction.IN, U, -)], True) "
         "MethodDeclaration([], l, U, [V], [], False)])"),
        ("U f<U>(in U u) { return u; }",
         "FunctionDeclaration([], f, U, [U], [Parameter([], u, Direction.IN, U, -)], "
         "Block([], [Return(u)]))"),
        ("action a(inout T x, T y) { x = y; }",
         "ActionDeclaration([], a, [Parameter([], x, Direction.INOUT, T, -) "
         "Parameter([], y, Direction.NONE, T, -)], Block([], [Assignment(x, =, y)]))"),
        ("parser P<H>(in H h);",
         "ParserDeclaration([], P, [H], [Parameter([], h, Direction.IN, H, -)], [], [], -)"),
        ("control C<H>(in H h);",
         "ControlDeclaration([], C, [H], [Parameter([], h, Direction.IN, H, -)], [], [], -)"),
        ("control C()(int n) { T t; apply { } }",
         "ControlDeclaration([], C, [], [], [Parameter([], n, Direction.NONE, int-, -)], "
         "[VariableDeclaration([], t, T, -)], Block([], []))"),
        ("package P<H>(X x, @optional X y);",
         "PackageDeclaration([], P, [H], [Parameter([], x, Direction.NONE, X, -) "
         "Parameter([Annotation(optional, [], {}, [], False)], y, Direction.NONE, X, -)])"),
        ("X(1) x = { void m(in T t) { } X(2) y; };",
         "Instantiation([], x, X, [Argument(1, -)], [FunctionDeclaration([], m, void, [], "
         "[Parameter([], t, Direction.IN, T, -)], Block([], [])) "
         "Instantiation([], y, X, [Argument(2, -)], -)])"),
        ("const H[2] c = {{1}, {#}};",
         "ConstDeclaration([], c, StackType(H, 2), "
         "ListExpression([ListExpression([1], False) InvalidHeader()], False))"),
    ],
)  # fmt: skip
def test_declarations(text: str, expected: str) -> None:
    assert show(declaration(text)) == expected


def test_serialisable_enum() -> None:
    enum = declaration("enum bit<8> F { x = 1, y = x + 1 }")
    assert isinstance(enum, ast.EnumDeclaration)
    assert show(enum.type) == "bit8"
    assert [(name, show(value)) for name, value in enum.members] == [("x", "1"), ("y", "(x + 1)")]


def test_typedef_of_a_new_struct_declares_both() -> None:
    program = parse_text("typedef struct P { bit<8> a; } Q; const Q q = { 1 };")
    struct, typedef, _ = program.declarations
    assert isinstance(struct, ast.StructLike)
    assert show(typedef) == "TypedefDeclaration([], Q, P, False)"


def test_forward_declared_extern_is_only_a_name() -> None:
    program = parse_text("extern Y; extern void f(Y y); extern Y { Y(); }")
    assert [type(node).__name__ for node in program.declarations] == [
        "ExternFunctionDeclaration",
        "ExternDeclaration",
    ]


def test_parser_states() -> None:
    parser = declaration("""
parser P(in H h, out S s)(bit<8> n) {
    value_set<tuple<T, T>>(4) known;
    X(1) x;
    state start {
        T t = 1;
        x.run(t);
        if (t == n) { t = 2; }
        @hidden { t = 3; }
        transition select(h.g, t) {
            (1, 2): accept;
            (1 &&& 3, 4 .. 5): one;
            (_, default): one;
            { 6, 7 }: one;
            known: one;
        }
    }
    @name("first") state one {
        transition select(h.g) {
            0x10 &&& 0xf0: accept;
            1 .. (T) 2: accept;
            (3): accept;
            (3) + 4: accept;
            (3 + 4) &&& 7: accept;
            (8 &&& 9): accept;
            (T) 5: accept;
            (T) 5 + 1: accept;
            _: reject;
            default: reject;
        }
    }
    state two { transition accept; }
    state three { }
}""")
    assert isinstance(parser, ast.ParserDeclaration)
    assert show(parser.constructor_parameters) == "[Parameter([], n, Direction.NONE, bit8, -)]"
    assert show(parser.locals) == (
        "[ValueSetDeclaration([], known, TupleType([T T]), 4) "
        "Instantiation([], x, X, [Argument(1, -)], -)]"
    )
    assert parser.states is not None
    start, one, two, three = parser.states
    assert [type(node).__name__ for node in start.body] == [
        "VariableDeclaration", "CallStatement", "If", "Block",
    ]  # fmt: skip
    assert isinstance(start.transition, ast.Select)
    assert show(start.transition.subjects) == "[h.g t]"
    assert [f"{show(case.keys)} {case.state}" for case in start.transition.cases] == [
        "[1 2] accept",
        "[MaskKeyset(1, 3) RangeKeyset(4, 5)] one",
        "[DontCare() DefaultKeyset()] one",
        "[6 7] one",
        "[known] one",
    ]
    assert isinstance(one.transition, ast.Select)
    assert [show(case.keys) for case in one.transition.cases] == [
        "[MaskKeyset(16, 240)]",
        "[RangeKeyset(1, <T>2)]",
        "[3]",
        "[(3 + 4)]",
        "[MaskKeyset((3 + 4), 7)]",
        "[MaskKeyset(8, 9)]",
        "[<T>5]",
        "[(<T>5 + 1)]",
        "[DontCare()]",
        "[DefaultKeyset()]",
    ]
    assert one.annotations[0].name == "name"
    assert two.transition == "accept"
    assert three.transition is None


def test_table_properties() -> None:
    control = declaration("""
control C(inout H h) {
    action a(bit<8> x) { }
    action b() { }
    @name("tt") table t {
        key = { h.g : exact @name("g"); h.g[3:0] + 1 : ternary; h.isValid() : optional; }
        actions = { a; @defaultonly b; a(1); .NoAction; }
        const entries = {
            (1, 2 &&& 3, true) : a(4) @name("first");
            const priority = 10 : (_, 5, false) : b;
            priority = (1 + 2) : (6, default, _) : b();
            const (7, priority, true) : b;
        }
        const default_action = a(3);
        @x size = 1024;
        support_timeout = true;
        implementation = action_profile(32);
    }
    table empty { key = { } actions = { } default_action = b; }
    apply { t.apply(); }
}""")
    assert isinstance(control, ast.ControlDeclaration)
    table, empty = control.locals[2:]
    assert isinstance(table, ast.TableDeclaration)
    assert table.keys is not None
    assert [(show(key.expression), key.match_kind) for key in table.keys] == [
        ("h.g", "exact"),
        ("(Slice(h.g, 3, 0) + 1)", "ternary"),
        ("Call(h.isValid, [], [])", "optional"),
    ]
    [annotation] = table.keys[0].annotations
    assert show(annotation) == 'Annotation(name, [StringLiteral(g)], {}, ["g"], False)'
    assert [
        (ref.name, ref.absolute, show(ref.arguments), [note.name for note in ref.annotations])
        for ref in table.actions
    ] == [
        ("a", False, "-", []),
        ("b", False, "-", ["defaultonly"]),
        ("a", False, "[Argument(1, -)]", []),
        ("NoAction", True, "-", []),
    ]
    assert table.entries_constant
    assert [
        (entry.constant, show(entry.priority), show(entry.keys), entry.action.name)
        for entry in table.entries
    ] == [
        (False, "-", "[1 MaskKeyset(2, 3) BoolLiteral(True)]", "a"),
        (True, "10", "[DontCare() 5 BoolLiteral(False)]", "b"),
        (False, "(1 + 2)", "[6 DefaultKeyset() DontCare()]", "b"),
        (True, "-", "[7 priority BoolLiteral(True)]", "b"),
    ]
    assert table.entries[0].annotations[0].name == "name"
    assert [(item.name, item.constant, show(item.value)) for item in table.properties] == [
        ("default_action", True, "Call(a, [], [Argument(3, -)])"),
        ("size", False, "1024"),
        ("support_timeout", False, "BoolLiteral(True)"),
        ("implementation", False, "Call(action_profile, [], [Argument(32, -)])"),
    ]
    assert table.properties[1].annotations[0].name == "x"
    assert isinstance(empty, ast.TableDeclaration)
    assert (empty.keys, empty.actions) == ([], [])
    assert show(empty.properties[0].value) == "b"


# --- Annotations -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "arguments", "pairs", "tokens"),
    [
        ("@a", "[]", {}, []),
        ("@a()", "[]", {}, []),
        ('@a("x", 8w1 + 2)', "[StringLiteral(x) (8w1 + 2)]", {}, ['"x"', ",", "8w1", "+", "2"]),
        ("@a(x = 1, y = f(2))", "[]", {"x": "1", "y": "Call(f, [], [Argument(2, -)])"}, None),
        ("@a[1, {2}]", "[1 ListExpression([2], False)]", {}, ["1", ",", "{", "2", "}"]),
        ("@a[x = 1,]", "[]", {"x": "1"}, ["x", "=", "1", ","]),
        ("@a[]", "[]", {}, []),
        ("@a(t h a t's (i t) ; $ )", "[]", {}, list("that's(it);$")),
        ('@a("", bit<32>)', "[]", {}, ['""', ",", "bit", "<", "32", ">"]),
        ("@table", "[]", {}, []),
        ("@pragma a x 1\n", "[]", {}, ["x", "1"]),
        ("@pragma a 1\n", "[1]", {}, ["1"]),
    ],
)
def test_annotations(
    text: str, arguments: str, pairs: dict[str, str], tokens: list[str] | None
) -> None:
    [annotation] = declaration(f"{text} const T c = 1;").annotations
    assert annotation.name in ("a", "table")
    assert show(annotation.arguments) == arguments
    assert {name: show(value) for name, value in annotation.pairs.items()} == pairs
    if tokens is not None:
        assert annotation.tokens == tokens


def test_annotation_body_that_does_not_parse_leaves_the_tokens_whole() -> None:
    # An attempt to parse the body splits the `>>`.
    [annotation] = declaration("@a(G<G<T>> x) const T c = 1;").annotations
    assert annotation.tokens == ["G", "<", "G", "<", "T", ">>", "x"]
    assert annotation.arguments == []


# --- Positions and programs ------------------------------------------------------------------


def test_positions_are_those_of_first_tokens() -> None:
    program = parse_text(
        "@a\nconst bit<8> c =\n  1 + d.e[2];\ncontrol C() {\n  apply {\n    x = (y);\n  }\n}",
        "t.p4",
    )
    constant, control = program.declarations
    assert isinstance(constant, ast.ConstDeclaration)
    assert isinstance(constant.value, ast.Binary)
    assert str(constant.annotations[0].position) == "t.p4:1:1"
    assert str(constant.position) == "t.p4:2:1"
    assert str(constant.type.position) == "t.p4:2:7"
    assert str(constant.value.position) == "t.p4:3:3"
    assert str(constant.value.right.position) == "t.p4:3:7"
    assert isinstance(control, ast.ControlDeclaration)
    assert control.body is not None
    [assignment] = control.body.body
    assert isinstance(assignment, ast.Assignment)
    assert str(assignment.position) == "t.p4:6:5"
    assert str(assignment.value.position) == "t.p4:6:10"
    assert program.lines["t.p4"][5] == "    x = (y);"


def test_program_from_a_file_with_includes_and_defines(tmp_path: Path) -> None:
    path = tmp_path / "main.p4"
    path.write_text("""
#include <core.p4>
#define V1MODEL_VERSION 20200408
#include <v1model.p4>
struct meta_t { bit<WIDTH> a; }
""")
    program = parse_program(path, defines={"WIDTH": "16"})
    names = [node.name for node in program.declarations]
    assert names[0] == "error"
    assert {"packet_in", "PortId_t", "standard_metadata_t", "V1Switch"} <= set(names)
    assert show(program.declarations[-1]).endswith("[FieldDeclaration([], a, bit16)])")
    register = next(node for node in program.declarations if node.name == "register")
    assert isinstance(register, ast.ExternDeclaration)
    assert register.type_parameters == ["T", "I"]


# Order matters to control planes and to the BMv2 JSON: it is the specification's.
@pytest.mark.parametrize(
    ("name", "members"),
    [
        ("error", "NoError PacketTooShort NoMatch StackOutOfBounds HeaderTooShort ParserTimeout "
                  "ParserInvalidArgument"),
        ("CounterType", "packets bytes packets_and_bytes"),
        ("MeterType", "packets bytes"),
        ("HashAlgorithm", "crc32 crc32_custom crc16 crc16_custom random identity csum16 xor16"),
        ("CloneType", "I2E E2E"),
    ],
)  # fmt: skip
def test_members_of_the_architecture(name: str, members: str) -> None:
    program = parse_text("#include <v1model.p4>\n")
    found = next(node for node in program.declarations if node.name == name)
    assert isinstance(found, (ast.ErrorDeclaration, ast.EnumDeclaration))
    assert [m if isinstance(m, str) else m[0] for m in found.members] == members.split()


def test_fields_of_standard_metadata() -> None:
    program = parse_text("#include <v1model.p4>\n")
    found = next(node for node in program.declarations if node.name == "standard_metadata_t")
    assert isinstance(found, ast.StructLike)
    assert [f"{show(item.type)} {item.name}" for item in found.fields] == [
        "bit9 ingress_port",
        "bit9 egress_spec",
        "bit9 egress_port",
        "bit32 instance_type",
        "bit32 packet_length",
        "bit32 enq_timestamp",
        "bit19 enq_qdepth",
        "bit32 deq_timedelta",
        "bit19 deq_qdepth",
        "bit48 ingress_global_timestamp",
        "bit48 egress_global_timestamp",
        "bit16 mcast_grp",
        "bit16 egress_rid",
        "bit1 checksum_error",
        "error parser_error",
        "bit3 priority",
    ]
