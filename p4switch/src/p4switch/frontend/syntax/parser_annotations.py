"""Annotations and parameters of P4_16."""

from __future__ import annotations

from p4switch.frontend.source.lexer import END, END_PRAGMA, PRAGMA
from p4switch.frontend.syntax import ast
from p4switch.frontend.syntax.cursor import NAME_KINDS
from p4switch.frontend.syntax.parser_expressions import ExpressionParser
from p4switch.position import P4Error


class AnnotationParser(ExpressionParser):
    """Parses annotations, and parameters, which may have some."""

    def annotations(self) -> list[ast.Annotation]:
        """Parse any number of annotations."""
        annotations: list[ast.Annotation] = []
        while True:
            kind = self.kinds[self.index]
            if kind == "@":
                annotations.append(self._annotation())
            elif kind == PRAGMA:
                annotations.append(self._pragma())
            else:
                return annotations

    def _annotation_name(self) -> str:
        # Any word will do, keywords too.
        text = self.texts[self.index]
        if not (text[:1].isalpha() or text[:1] == "_"):
            raise self.unexpected("the name of an annotation")
        self.index += 1
        return text

    def _annotation(self) -> ast.Annotation:
        position = self.position()
        self.index += 1
        annotation = ast.Annotation(position, self._annotation_name())
        if self.take("["):
            self._structured(annotation)
        elif self.take("("):
            self._unstructured(annotation)
        return annotation

    def _structured(self, annotation: ast.Annotation) -> None:
        annotation.structured = True
        start = self.index
        self._annotation_values(annotation, "]")
        annotation.tokens = self.texts[start : self.index]
        self.expect("]", " to close '['")

    def _annotation_values(self, annotation: ast.Annotation, end: str) -> None:
        """Parse an expression list or a key-value list up to the token `end`."""
        pairs = self.kinds[self.index] in NAME_KINDS and self.kinds[self.index + 1] == "="
        while self.kinds[self.index] != end:
            if pairs:
                self.named_field(annotation.pairs)
            else:
                annotation.arguments.append(self.expression())
            if not self.take(","):
                break

    def _unstructured(self, annotation: ast.Annotation) -> None:
        """Parse the body of `@name(...)`: any tokens with balanced parentheses."""
        start = self.index
        depth = 0
        while depth or self.kinds[self.index] != ")":
            kind = self.kinds[self.index]
            if kind == "(":
                depth += 1
            elif kind == ")":
                depth -= 1
            elif kind == END:
                raise self.error("expected ')' to close the '(' of an annotation", start - 1)
            self.index += 1
        end = self.index
        self._body_values(annotation, start, end, ")")
        self.index = end + 1

    def _body_values(self, annotation: ast.Annotation, start: int, end: int, closing: str) -> None:
        """Keep the tokens of a body, and what they are as expressions if they are that."""
        annotation.tokens = self.texts[start:end]
        self.index = start
        try:
            self._annotation_values(annotation, closing)
            parsed = self.index == end
        except P4Error:
            parsed = False
        if not parsed:
            annotation.arguments = []
            annotation.pairs = {}

    def _pragma(self) -> ast.Annotation:
        """Parse `@pragma name tokens`, which ends with the line."""
        position = self.position()
        self.index += 1
        annotation = ast.Annotation(position, self._annotation_name())
        start = self.index
        while self.kinds[self.index] not in (END_PRAGMA, END):
            self.index += 1
        end = self.index
        self._body_values(annotation, start, end, END_PRAGMA)
        self.index = end + 1
        return annotation

    # --- Parameters --------------------------------------------------------------------------

    def parameters(self) -> list[ast.Parameter]:
        """Parse `(parameters)` and declare them in the current scope."""
        self.expect("(", " before parameters")
        parameters: list[ast.Parameter] = []
        if self.take(")"):
            return parameters
        while True:
            parameters.append(self._parameter())
            if self.take(")"):
                break
            if not self.take(","):
                raise self.unexpected("',' or ')' after a parameter")
        for parameter in parameters:
            self.declare(parameter.name, is_type=False)
        return parameters

    def _parameter(self) -> ast.Parameter:
        annotations = self.annotations()
        position = self.position()
        kind = self.kinds[self.index]
        direction = ast.Direction.NONE
        if kind in ("in", "out", "inout"):
            direction = ast.Direction(kind)
            self.index += 1
        type_ref = self.type("the type of a parameter")
        name, type_ref = self.declarator("a parameter's name", type_ref)
        default = self.expression() if self.take("=") else None
        return ast.Parameter(position, annotations, name, direction, type_ref, default)

    def declarator(self, what: str, type_ref: ast.TypeRef) -> tuple[str, ast.TypeRef]:
        """Parse a declared name; `T name[n]`, which p4c takes too, is `T[n] name`."""
        name = self.name(what)
        while self.take("["):
            size = self.expression()
            self.expect("]", " after the size of a header stack")
            type_ref = ast.StackType(type_ref.position, type_ref, size)
        return name, type_ref
