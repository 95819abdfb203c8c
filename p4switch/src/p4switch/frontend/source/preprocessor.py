"""The preprocessor: `#include`, macros, conditionals (C11, section 6.10), for P4_16.

Files go in, one sequence of P4 tokens comes out. Macros expand as in GCC's preprocessor:
a macro is disabled while the tokens of its expansion are being read, and a name met while
its macro is disabled never expands again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from p4switch.frontend.source.condition import Condition
from p4switch.frontend.source.lexer import (
    END,
    END_PRAGMA,
    IDENTIFIER,
    INTEGER,
    NEWLINE,
    OTHER,
    PRAGMA,
    STRING,
    WORD_KIND,
    Token,
    describe,
    scan,
)
from p4switch.frontend.source.macros import (
    PAINTED,
    Macro,
    MacroTable,
    Stream,
    next_token,
    parse_macro,
    quote,
)
from p4switch.frontend.source.source_map import SourceMap
from p4switch.position import P4Error, Position

SYSTEM_INCLUDES = Path(__file__).resolve().parents[2] / "targets" / "include"
"""Folder of `core.p4`, `v1model.p4` and `psa.p4` if no include path has them."""

_MAX_INCLUDE_DEPTH = 100

DIRECTIVE_IN_STRING = re.compile(
    r"[ \t]*#[ \t]*(if|ifdef|ifndef|elif|else|endif|define|undef|error|warning|include)\b"
)
_LINE_OF_STRING = re.compile(r'(?:[^"\\\n]|\\[^\n])*\\?')
"""What of a line belongs to a string."""
_UNQUOTED = re.compile(r"""[^"'\\]*""")
_COMMENT = re.compile(r"(//.*|/\*.*?(?:\*/|$))")


@dataclass(slots=True)
class Preprocessed:
    """The tokens of a translation unit, as three lists of equal length.

    Kinds are those of the lexer (an identifier that is a keyword has the keyword as its
    kind); the last token has kind `END`. A token's mark locates it in `sources`; tokens
    that a macro made have the mark of the macro's use. `warnings` are those of `#warning`.
    `files`: contents of the files that were looked for, None where there was no file.
    """

    kinds: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)
    sources: SourceMap = field(default_factory=SourceMap)
    warnings: list[tuple[Position, str]] = field(default_factory=list)
    files: dict[Path, bytes | None] = field(default_factory=dict)


def preprocess(
    path: Path,
    *,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
) -> Preprocessed:
    """Preprocess the file `path`.

    `defines` maps macro names (or `NAME(parameters)`) to their text. Raises P4Error.
    """
    preprocessor = _Preprocessor(include_paths, defines or {})
    try:
        text = preprocessor.read(path)
    except OSError as error:
        position = Position(str(path), 1, 1)
        raise P4Error(position, f"cannot read this file: {error.strerror}") from None
    return preprocessor.run(path, str(path), text)


def preprocess_text(
    text: str,
    file: str,
    *,
    include_paths: Sequence[Path] = (),
    defines: Mapping[str, str] | None = None,
) -> Preprocessed:
    """Preprocess `text` as if it stood in a file named `file`. Raises P4Error."""
    return _Preprocessor(include_paths, defines or {}).run(Path(file), file, text)


@dataclass(slots=True)
class _Conditional:
    """An open `#if`: where it began, whether a group was taken, whether #else was seen."""

    mark: int
    directive: str
    active: bool
    taken: bool
    has_else: bool = False


class _File:
    """A file being read: its tokens and the conditionals open in it."""

    def __init__(self, owner: _Preprocessor, path: Path, base: int, text: str) -> None:
        self._owner = owner
        self.path = path
        self.base = base
        self.text = text
        self.tokens = scan(text)
        self.index = 0
        self.conditionals: list[_Conditional] = []

    def end_of_line(self, start: int) -> int:
        """Return the index of the token that ends the line of token `start`."""
        tokens = self.tokens
        while tokens[start][0] != NEWLINE and tokens[start][0] != END:
            start += 1
        return start

    def opens(self) -> bool:
        """Consume a `(` if it is the next token, and say whether it was."""
        index = self.index
        while self.tokens[index][0] == NEWLINE:
            index += 1
        if self.tokens[index][0] != "(":
            return False
        self.index = index + 1
        return True

    def next(self) -> Token | None:
        """Return the next token within a macro's arguments, None at the end of the file."""
        spaced = False
        while True:
            token = self.tokens[self.index]
            if token[0] == END:
                return None
            self.index += 1
            if token[0] == NEWLINE:
                spaced = True
                if self.tokens[self.index][0] == "#":
                    self._owner.directive_in_arguments(self)
                continue
            if token[0] == OTHER:
                token = self._owner.odd_token(self, token)
            return (token[0], token[1], True, token[3]) if spaced else token


class _Preprocessor:
    def __init__(self, include_paths: Sequence[Path], defines: Mapping[str, str]) -> None:
        self._include_paths = list(include_paths)
        self._table = MacroTable(self._use_error)
        self._macros = self._table.macros
        self._macros["__FILE__"] = Macro("__FILE__", None, False, [], self._file_token)
        self._macros["__LINE__"] = Macro("__LINE__", None, False, [], self._line_token)
        self._defined = Macro("defined", None, False, [], self._defined_token)
        self._output = Preprocessed()
        self._sources = self._output.sources
        self._depth = 0
        self._once: set[Path] = set()
        # Marks of the macro use being expanded and of the end of the last file read.
        self._use = 0
        self._end = 0
        self._in_arguments = False
        self._in_pragma = False
        for name, text in defines.items():
            base, spliced = self._sources.add_file("<command line>", f"{name} {text}")
            self._define(("define", "define", False, 0), scan(spliced)[:-1], base)

    def run(self, path: Path, name: str, text: str) -> Preprocessed:
        try:
            self._run_file(path, name, text)
        except RecursionError:
            message = "macro calls or conditions are nested too deeply"
            raise self._error(self._use, message) from None
        output = self._output
        output.kinds.append(END)
        output.texts.append("")
        output.marks.append(self._end)
        return output

    # --- Errors and positions ----------------------------------------------------------------

    def _error(self, mark: int, message: str) -> P4Error:
        return P4Error(
            self._sources.position(mark), message, source_line=self._sources.line_text(mark)
        )

    def _token_error(self, base: int, token: Token, message: str) -> P4Error:
        return self._error(base + token[3], message)

    # --- Files -------------------------------------------------------------------------------

    def read(self, path: Path) -> str:
        data = self._output.files[path] = path.read_bytes()
        # Comments and strings may hold any bytes; what is not UTF-8 is shown as U+FFFD.
        return data.decode("utf-8-sig", errors="replace")

    def _run_file(self, path: Path, name: str, text: str) -> None:
        base, spliced = self._sources.add_file(name, text)
        self._depth += 1
        self._read_tokens(_File(self, path, base, spliced))
        self._depth -= 1
        self._end = base + len(spliced)

    def _read_tokens(self, file: _File) -> None:
        macros = self._macros
        output = self._output
        kinds, texts, marks = output.kinds, output.texts, output.marks
        base = file.base
        at_line_start = True
        while True:
            token = file.tokens[file.index]
            kind, text, _, offset = token
            if kind == NEWLINE:
                if self._in_pragma:
                    self._end_pragma(base + offset)
                file.index += 1
                at_line_start = True
                continue
            if at_line_start:
                at_line_start = False
                if kind == "#":
                    self._directive(file)
                    continue
            if kind == END:
                break
            file.index += 1
            if kind == IDENTIFIER:
                if text in macros:
                    self._expand_use(token, file)
                    continue
                kinds.append(WORD_KIND.get(text, IDENTIFIER))
                texts.append(text)
                marks.append(base + offset)
                continue
            if kind == OTHER:
                token = self.odd_token(file, token)
                kind, text = token[0], token[1]
            elif kind == PRAGMA:
                self._in_pragma = True
            kinds.append(kind)
            texts.append(text)
            marks.append(base + offset)
        if self._in_pragma:
            self._end_pragma(base + file.tokens[file.index][3])
        if file.conditionals:
            opened = file.conditionals[-1]
            raise self._error(opened.mark, f"{opened.directive} without #endif")

    def _end_pragma(self, mark: int) -> None:
        self._in_pragma = False
        self._output.kinds.append(END_PRAGMA)
        self._output.texts.append("")
        self._output.marks.append(mark)

    def odd_token(self, file: _File, token: Token) -> Token:
        """Return the token that begins with `token`, of kind OTHER, if there is one."""
        text = token[1]
        if text == '"':
            return self._string_over_lines(file, token)
        if text.startswith("/*"):
            raise self._token_error(file.base, token, "unterminated comment")
        # Annotations may hold any character: the parser decides.
        return token

    def _string_over_lines(self, file: _File, quote_mark: Token) -> Token:
        """Read a string that goes on after its first line, as cpp hands it to p4c.

        C has no such strings: in all lines but the first, cpp carries out directives, of which
        empty lines remain, and expands macros.
        """
        use, text, start = self._use, file.text, quote_mark[3]
        written = ""
        at = start + 1
        while True:
            directive = DIRECTIVE_IN_STRING.match(text, at) if written else None
            if directive is not None:
                if directive[1] == "include":
                    mark = file.base + directive.start(1)
                    raise self._error(mark, "#include within a string is not supported")
                file.tokens[file.index :] = scan(text, at)
                self._directive(file)
                end = file.tokens[file.index][3]
                written += "\n" * text.count("\n", at, end)
            else:
                line = _LINE_OF_STRING.match(text, at)
                assert line is not None
                end = line.end()
                closed = text[end : end + 1] == '"'
                first = not written
                made = line[0] if first else self._line_of_string(line[0], file.base + at, closed)
                written += made
            if end == len(text):
                raise self._token_error(file.base, quote_mark, "unterminated string")
            if text[end] == '"':
                break
            written += "\n"
            at = end + 1
        self._use = use
        file.tokens[file.index :] = scan(text, end + 1)
        return STRING, f'"{written}"', quote_mark[2], start

    def _line_of_string(self, line: str, mark: int, closed: bool) -> str:
        """Expand macros up to the first quotation mark, and outside comments.

        White space between words becomes one space, as cpp writes it, and that at the end of the
        line is dropped, unless the string is `closed` there.
        """
        unquoted = _UNQUOTED.match(line)
        assert unquoted is not None
        code, rest = unquoted[0], line[unquoted.end() :]
        indent = len(code) - len(code.lstrip())
        made = ""
        for part in _COMMENT.split(code):
            if part.startswith(("//", "/*")):
                made += part
                continue
            tokens = self._expand_line(scan(part)[:-1], mark)
            made += "".join((" " if token[2] else "") + token[1] for token in tokens)
            made += " " if part[-1:].isspace() else ""
        if not rest and not closed:
            made = made.rstrip()
        return f"{' ' * indent}{made.lstrip()}{rest}"

    # --- Directives --------------------------------------------------------------------------

    def _directive(self, file: _File) -> None:
        """Carry out the directive whose `#` is the next token of `file`."""
        start = file.index + 1
        end = file.end_of_line(start)
        file.index = end
        line = file.tokens[start:end]
        if not line:
            return
        self._check_comment(file.base, line)
        first = line[0]
        kind, name = first[0], first[1]
        if kind == INTEGER:
            # The form in which preprocessors write #line.
            self._line(file, line)
            return
        rest = line[1:]
        match name:
            case "if" | "ifdef" | "ifndef":
                self._if(file, first, rest)
            case "elif" | "else" | "endif":
                if not file.conditionals:
                    raise self._token_error(file.base, first, f"#{name} without #if")
                self._next_group(file, first, rest)
            case "define":
                self._define(first, rest, file.base)
            case "undef":
                self._undef(first, rest, file.base)
            case "include":
                self._include(file, first, rest)
            case "line":
                self._line(file, self._expand_line(rest, file.base + first[3]))
            case "error":
                message = self._rest_of_line(file, first)
                raise self._token_error(file.base, first, f"#error {message}".rstrip())
            case "warning":
                position = self._sources.position(file.base + first[3])
                self._output.warnings.append((position, self._rest_of_line(file, first)))
            case "pragma":
                if rest and rest[0][1] == "once":
                    self._once.add(file.path.resolve())
            case _:
                raise self._token_error(
                    file.base,
                    first,
                    f"unknown directive '#{name}'; expected #include, #define, #undef, #if,"
                    " #ifdef, #ifndef, #elif, #else, #endif, #error, #warning, #line or #pragma",
                )

    def directive_in_arguments(self, file: _File) -> None:
        """Execute a directive among the arguments of a macro."""
        use, self._use = self._use, 0
        self._in_arguments = True
        self._directive(file)
        self._in_arguments = False
        self._use = use

    def _rest_of_line(self, file: _File, first: Token) -> str:
        end = file.tokens[file.index][3]
        return file.text[first[3] + len(first[1]) : end].strip()

    def _check_comment(self, base: int, line: list[Token]) -> None:
        last = line[-1]
        if last[0] == OTHER and last[1].startswith("/*"):
            raise self._token_error(base, last, "unterminated comment")

    def _name_after(self, directive: Token, rest: list[Token], base: int) -> Token:
        if not rest:
            message = f"expected a macro name after #{directive[1]}, found end of line"
            raise self._token_error(base, directive, message)
        if rest[0][0] != IDENTIFIER:
            found = describe(rest[0][0], rest[0][1])
            message = f"expected a macro name after #{directive[1]}, found {found}"
            raise self._token_error(base, rest[0], message)
        return rest[0]

    def _macro_name(self, directive: Token, rest: list[Token], base: int) -> Token:
        name = self._name_after(directive, rest, base)
        known = self._macros.get(name[1])
        if name[1] == "defined" or (known is not None and known.special is not None):
            message = f"'{name[1]}' cannot be defined or undefined"
            raise self._token_error(base, name, message)
        return name

    def _no_more(self, directive: Token, rest: list[Token], base: int) -> None:
        if rest:
            found = describe(rest[0][0], rest[0][1])
            message = f"expected end of line after #{directive[1]}, found {found}"
            raise self._token_error(base, rest[0], message)

    def _if(self, file: _File, directive: Token, rest: list[Token]) -> None:
        mark = file.base + directive[3]
        if directive[1] == "if":
            active = self._condition(directive, rest, file.base)
        else:
            name = self._name_after(directive, rest, file.base)
            self._no_more(directive, rest[1:], file.base)
            known = name[1] in self._macros
            active = known == (directive[1] == "ifdef")
        file.conditionals.append(_Conditional(mark, f"#{directive[1]}", active, active))
        if not active:
            self._skip_group(file)

    def _next_group(self, file: _File, directive: Token, rest: list[Token]) -> None:
        """Handle #elif, #else and #endif where a group ends, taken or skipped."""
        current = file.conditionals[-1]
        name = directive[1]
        if name == "endif":
            file.conditionals.pop()
            return
        if current.has_else:
            raise self._token_error(file.base, directive, f"#{name} after #else")
        if name == "else":
            current.has_else = True
            current.active = not current.taken
        else:
            current.active = not current.taken and self._condition(directive, rest, file.base)
        current.taken = current.taken or current.active
        if not current.active:
            self._skip_group(file)

    def _skip_group(self, file: _File) -> None:
        """Skip to the #elif, #else or #endif that follows and carry it out."""
        depth = 0
        index = file.index
        tokens = file.tokens
        while True:
            if tokens[index][0] == NEWLINE:
                index += 1
            kind, text, _, offset = tokens[index]
            if kind == END:
                opened = file.conditionals[-1]
                raise self._error(opened.mark, f"{opened.directive} without #endif")
            if kind != "#":
                index = file.end_of_line(index)
                if text.startswith("/*"):
                    raise self._error(file.base + offset, "unterminated comment")
                continue
            start = index + 1
            index = file.end_of_line(start)
            name = tokens[start][1]
            if name in ("if", "ifdef", "ifndef"):
                depth += 1
            elif name in ("elif", "else", "endif"):
                if depth == 0:
                    file.index = index
                    self._next_group(file, tokens[start], tokens[start + 1 : index])
                    return
                if name == "endif":
                    depth -= 1

    def _condition(self, directive: Token, rest: list[Token], base: int) -> bool:
        mark = base + directive[3]
        if not rest:
            raise self._error(mark, f"#{directive[1]} without an expression")
        self._macros["defined"] = self._defined
        try:
            expanded = self._expand_line(rest, mark)
        finally:
            del self._macros["defined"]
        # Errors point at the directive: tokens of a macro have no place in the line.
        expanded.append((END, "", False, directive[3]))

        def error(token: Token, message: str) -> P4Error:
            return self._error(mark, f"#{directive[1]}: {message}")

        return Condition(expanded, error).holds()

    def _define(self, directive: Token, rest: list[Token], base: int) -> None:
        name = self._macro_name(directive, rest, base)

        def error(token: Token, message: str) -> P4Error:
            return self._token_error(base, token, message)

        macro = parse_macro(rest, error)
        known = self._macros.get(macro.name)
        if known is not None and not known.same_as(macro):
            position = self._sources.position(base + name[3])
            self._output.warnings.append((position, f"macro '{macro.name}' redefined"))
        self._macros[macro.name] = macro

    def _undef(self, directive: Token, rest: list[Token], base: int) -> None:
        name = self._macro_name(directive, rest, base)
        self._no_more(directive, rest[1:], base)
        self._macros.pop(name[1], None)

    def _line(self, file: _File, line: list[Token]) -> None:
        here = file.tokens[file.index]
        if not line or line[0][0] != INTEGER or not line[0][1].isdecimal():
            raise self._error(file.base + here[3] - 1, "expected a line number after #line")
        name = None
        if len(line) > 1:
            if line[1][0] != STRING:
                found = describe(line[1][0], line[1][1])
                raise self._error(
                    file.base + here[3] - 1, f"expected a file name after #line, found {found}"
                )
            name = line[1][1][1:-1]
        number = int(line[0][1][:12])
        if here[0] == NEWLINE:
            self._sources.set_line(file.base + here[3], number, name)

    def _include(self, file: _File, directive: Token, rest: list[Token]) -> None:
        mark = file.base + directive[3]
        if self._in_arguments:
            raise self._error(mark, "#include among the arguments of a macro")
        if rest and rest[0][0] == IDENTIFIER:
            rest = self._expand_line(rest, mark)
            written = "".join((" " if token[2] else "") + token[1] for token in rest).strip()
        else:
            written = self._rest_of_line(file, directive)
        target = written[1 : written.find('"', 1)] if written.startswith('"') else ""
        if written.startswith("<"):
            target = written[1 : written.find(">")] if ">" in written else ""
        if not target:
            raise self._error(mark, 'expected "file" or <file> after #include')
        folders = [*self._include_paths, SYSTEM_INCLUDES]
        if written.startswith('"'):
            folders.insert(0, file.path.parent)
        for folder in folders:
            path = folder / target
            if path.is_file():
                break
            self._output.files[path] = None
        else:
            searched = ", ".join(str(folder) for folder in folders)
            raise self._error(mark, f"cannot find include file '{target}'; searched {searched}")
        if self._depth >= _MAX_INCLUDE_DEPTH:
            raise self._error(
                mark, f"#include nested {_MAX_INCLUDE_DEPTH} deep; does a file include itself?"
            )
        try:
            text = self.read(path)
        except OSError as error:
            raise self._error(mark, f"cannot read '{path}': {error.strerror}") from None
        if path.resolve() in self._once:
            return
        self._run_file(path, str(path), text)

    # --- Macro expansion ---------------------------------------------------------------------

    def _expand_use(self, name: Token, file: _File) -> None:
        """Expand the macro use that begins with `name`, from `file`, into the output."""
        mark = file.base + name[3]
        self._use = mark
        output = self._output
        for kind, text, _, _ in self._table.expand_use(name, file):
            if kind in (IDENTIFIER, PAINTED):
                kind = WORD_KIND.get(text, IDENTIFIER)
            elif kind == PRAGMA:
                self._in_pragma = True
            output.kinds.append(kind)
            output.texts.append(text)
            output.marks.append(mark)

    def _expand_line(self, tokens: list[Token], mark: int) -> list[Token]:
        """Expand the macros within a directive."""
        self._use = mark
        return self._table.expand_list(tokens)

    def _use_error(self, message: str) -> P4Error:
        return self._error(self._use, message)

    def _file_token(self, token: Token, streams: list[Stream]) -> Token:
        name = self._sources.position(self._use).file
        return STRING, quote([(STRING, name, False, 0)]), token[2], token[3]

    def _line_token(self, token: Token, streams: list[Stream]) -> Token:
        return INTEGER, str(self._sources.position(self._use).line), token[2], token[3]

    def _defined_token(self, token: Token, streams: list[Stream]) -> Token:
        name = next_token(streams, None)
        closing = ""
        if name is not None and name[0] == "(":
            name = next_token(streams, None)
            end = next_token(streams, None)
            closing = ")" if end is None or end[0] != ")" else ""
        if name is None or name[0] not in (IDENTIFIER, PAINTED) or closing:
            raise self._use_error("expected 'defined NAME' or 'defined(NAME)'")
        return INTEGER, str(int(name[1] in self._macros)), token[2], token[3]
