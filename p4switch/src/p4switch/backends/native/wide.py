"""Integers of more than 64 bits: one loop over the words for a whole expression where possible.

Sums, differences, logic, concatenation, zero-extension, truncation, constant shifts and slices can
be computed word by word from the least significant one up, so a tree of them becomes a single loop
without temporaries (`Stream`). A sum whose operands have zero top bits in every word carries
nothing from word to word; then iterations are independent and gcc vectorizes the loop. This makes
`((a & REST) + (b & REST)) ^ ((a ^ b) & SIGN)` fast. All else calls the runtime.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import pairwise

from p4switch import ir
from p4switch.backends.native.scalars import Scalars
from p4switch.backends.native.types import NARROW, is_signed, is_wide, mask_of, scalar_width, words
from p4switch.midend import visit

UNROLLED = 4
"""Maximum number of words that are unrolled instead of looped over."""

WORD = mask_of(64)

LVALUES = (ir.Read, ir.Field, ir.Element, ir.StackNext, ir.StackLast)


@dataclass(frozen=True, slots=True)
class Segment:
    """Words `start` to `stop` - 1, in which every stream has one form; `index` is the C text."""

    start: int
    stop: int
    index: str

    def plus(self, offset: int) -> str:
        """Return the index plus a constant."""
        if self.stop - self.start == 1 and self.index.isdigit():
            return str(self.start + offset)
        return f"{self.index} + {offset}" if offset >= 0 else f"{self.index} - {-offset}"


@dataclass(slots=True)
class Stream:
    """A wide value word by word: `word` returns the C text, called once per segment, in order.

    `breaks` are the words at which its form changes. `looks_back`: it reads words below the one it
    returns, so it must not be stored over its own source.
    """

    width: int
    word: Callable[[Segment], str]
    breaks: set[int] = field(default_factory=set)
    looks_back: bool = False


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a concatenation, from bit `low` up: a C variable, or an array of words."""

    text: str
    low: int
    width: int
    array: bool

    @property
    def edges(self) -> set[int]:
        """Return the words of the concatenation at which this part's form changes."""
        first, shift = divmod(self.low, 64)
        last = first + words(self.width)
        return {first, first + 1, last, last + 1} if shift else {first, last}

    def word(self, segment: Segment) -> list[str]:
        """Return what the part adds to a word: C texts to be joined by `|`."""
        if self.width == 0:
            return []
        skip, shift = divmod(self.low, 64)
        at = segment.start - skip
        texts = []
        if 0 <= at < words(self.width):
            text = f"{self.text}[{segment.plus(-skip)}]" if self.array else self.text
            texts.append(f"{text} << {shift}" if shift else text)
        if shift and 64 <= at * 64 < shift + self.width:
            text = f"{self.text}[{segment.plus(-skip - 1)}]" if self.array else self.text
            texts.append(f"{text} >> {64 - shift}")
        return texts


class Wide(Scalars):
    """Translates wide integers."""

    def wide_operand(self, expression: ir.Expression) -> str:
        """Return a C array of the value's words: where it is stored, or a temporary."""
        if isinstance(expression, LVALUES) and is_wide(expression.type):
            return f"{self.place(expression)}.w"
        if isinstance(expression, ir.Const):
            width = max(scalar_width(expression.type), 1)
            value = int(expression.value) & mask_of(width)
            return self.unit.constant(word_list(value, words(width)))
        if not is_wide(expression.type):
            return f"(const u64[]){{{self.scalar(expression)}}}"
        name = self.name("w")
        self.line(f"u64 {name}[{words(scalar_width(expression.type))}];")
        self.wide_into(name, expression, fresh=True)
        return name

    def wide_into(self, target: str, expression: ir.Expression, *, fresh: bool = False) -> None:
        """Set the C array `target`; `fresh` if the expression cannot read it."""
        width = scalar_width(expression.type)
        if isinstance(expression, LVALUES):
            source = self.place(expression)
            self.line(f"memmove({target}, {source}.w, {words(width) * 8});")
            return
        if not self._streams(expression):
            self._call_into(target, expression, fresh=fresh)
            return
        stream = self.stream(expression)
        if stream.looks_back and not fresh:
            name = self.name("w")
            self.line(f"u64 {name}[{words(width)}];")
            self._each_word(stream, lambda s, text: f"{name}[{s.index}] = {text};")
            self.line(f"memcpy({target}, {name}, sizeof {name});")
            return
        self._each_word(stream, lambda s, text: f"{target}[{s.index}] = {text};")

    def wide_compare(self, operator: str, left: ir.Expression, right: ir.Expression) -> str:
        """Return the C text of a comparison, 0 or 1."""
        width = scalar_width(left.type)
        if operator in ("==", "!="):
            difference = self.name("d")
            a, b = self.stream(left), self.stream(right)
            self.line(f"u64 {difference} = 0;")
            both = self._combine(a, b, lambda x, y: f"{x} ^ {y}")
            self._each_word(both, lambda _, text: f"{difference} |= {text};")
            return f"(u32)({difference} {operator} 0)"
        first, second = self.wide_operand(left), self.wide_operand(right)
        if operator in (">", "<="):
            first, second = second, first
        call = (
            f"wide_less_signed({first}, {second}, {words(width)}, {width})"
            if is_signed(left.type)
            else f"wide_less({first}, {second}, {words(width)})"
        )
        return f"(u32)!{call}" if operator in ("<=", ">=") else f"(u32){call}"

    # --- streams

    def _each_word(self, stream: Stream, consume: Callable[[Segment, str], str]) -> None:
        """Write a loop over all words."""
        count = words(stream.width)
        if count <= UNROLLED:
            for i in range(count):
                with self._scope():
                    segment = Segment(i, i + 1, str(i))
                    self.line(consume(segment, stream.word(segment)))
            return
        edges = sorted({0, count} | {b for b in stream.breaks if 0 < b < count})
        for start, stop in pairwise(edges):
            if stop - start == 1:
                with self._scope():
                    segment = Segment(start, stop, str(start))
                    self.line(consume(segment, stream.word(segment)))
            else:
                with self.block(f"for (u32 i = {start}; i < {stop}; i++)"):
                    segment = Segment(start, stop, "i")
                    self.line(consume(segment, stream.word(segment)))

    def _scope(self) -> AbstractContextManager[None]:
        return self.block("")

    def _streams(self, expression: ir.Expression) -> bool:
        """Return whether the expression's own operation works word by word."""
        match expression:
            case ir.Const() | ir.Read() | ir.Field() | ir.Element():
                return True
            case ir.StackNext() | ir.StackLast() | ir.Slice() | ir.Unary():
                return True
            case ir.Cast():
                return not is_signed(expression.operand.type) or scalar_width(
                    expression.operand.type
                ) >= scalar_width(expression.type)
            case ir.Binary(operator="&" | "|" | "^" | "+" | "-" | "++"):
                return True
            case ir.Binary(operator="<<", right=ir.Const()):
                return True
            case ir.Binary(operator=">>", right=ir.Const()):
                return not is_signed(expression.type)
        return False

    def stream(self, expression: ir.Expression) -> Stream:
        """Return the expression word by word.

        Its loads and temporaries are written before the loop.
        """
        width = scalar_width(expression.type)
        if not is_wide(expression.type):
            text = self.temporary("u64", self.scalar(expression))
            return Stream(width, lambda s: text if s.start == 0 else "0", {1})
        if isinstance(expression, ir.Const):
            return self._constant(int(expression.value) & mask_of(width), width)
        if isinstance(expression, LVALUES) or not self._streams(expression):
            return self._array(self.wide_operand(expression), width)
        match expression:
            case ir.Unary(operator="~"):
                inner = self.stream(expression.operand)
                return self._cut(
                    Stream(width, lambda s: f"~{inner.word(s)}", inner.breaks, inner.looks_back)
                )
            case ir.Unary():
                zero = Stream(width, lambda _: "0ull")
                return self._cut(self._carrying(zero, self.stream(expression.operand), "sub"))
            case ir.Cast():
                return self._resize(self.stream(expression.operand), width)
            case ir.Slice():
                return self._shifted_right(expression.base, expression.low, width)
            case ir.Binary(operator="++"):
                return self._concatenated(expression)
            case ir.Binary(operator="<<", right=ir.Const(value=by)):
                return self._shifted_left(expression.left, int(by))
            case ir.Binary(operator=">>", right=ir.Const(value=by)):
                return self._shifted_right(expression.left, int(by), width)
            case ir.Binary(operator="+") if carries_nothing(expression):
                left, right = self.stream(expression.left), self.stream(expression.right)
                return self._combine(left, right, lambda a, b: f"({a} + {b})")
            case ir.Binary(operator="+" | "-" as operator):
                left, right = self.stream(expression.left), self.stream(expression.right)
                return self._cut(self._carrying(left, right, "add" if operator == "+" else "sub"))
            case ir.Binary(operator=operator):
                left, right = self.stream(expression.left), self.stream(expression.right)
                return self._combine(left, right, lambda a, b: f"({a} {operator} {b})")
        raise self.unsupported(f"{type(expression).__name__} as a wide number")

    def _combine(self, a: Stream, b: Stream, join: Callable[[str, str], str]) -> Stream:
        return Stream(
            a.width,
            lambda s: join(a.word(s), b.word(s)),
            a.breaks | b.breaks,
            a.looks_back or b.looks_back,
        )

    def _carrying(self, a: Stream, b: Stream, operation: str) -> Stream:
        carry = self.name("c")
        self.line(f"u8 {carry} = 0;")
        function = {"add": "add_carry", "sub": "sub_borrow"}[operation]

        def word(segment: Segment) -> str:
            x, y = a.word(segment), b.word(segment)
            return self.temporary("u64", f"{function}({x}, {y}, &{carry})")

        return Stream(a.width, word, a.breaks | b.breaks, a.looks_back or b.looks_back)

    def _cut(self, stream: Stream) -> Stream:
        """Mask the last word to the width."""
        last, rest = divmod(stream.width, 64)
        if rest == 0:
            return stream

        def word(segment: Segment) -> str:
            text = stream.word(segment)
            return f"({text} & {mask_of(rest):#x}ull)" if segment.start == last else text

        return Stream(stream.width, word, stream.breaks | {last}, stream.looks_back)

    def _resize(self, inner: Stream, width: int) -> Stream:
        if width <= inner.width:
            return self._cut(Stream(width, inner.word, inner.breaks, inner.looks_back))
        end = words(inner.width)

        def word(segment: Segment) -> str:
            return inner.word(segment) if segment.start < end else "0ull"

        return Stream(width, word, inner.breaks | {end}, inner.looks_back)

    def _array(self, array: str, width: int) -> Stream:
        return Stream(width, lambda s: f"{array}[{s.index}]")

    def _constant(self, value: int, width: int) -> Stream:
        parts = word_list(value, words(width))
        breaks = {i for i in range(1, len(parts)) if parts[i] != parts[i - 1]}
        if len(breaks) <= 1:

            def literal(segment: Segment) -> str:
                return f"{parts[segment.start]:#x}ull"

            return Stream(width, literal, breaks)
        array = self.unit.constant(parts)

        def element(segment: Segment) -> str:
            if segment.stop - segment.start == 1:
                return f"{parts[segment.start]:#x}ull"
            return f"{array}[{segment.index}]"

        return Stream(width, element)

    def _shifted_right(self, base: ir.Expression, by: int, width: int) -> Stream:
        """Return `base >> by`, cut to `width` bits."""
        count = words(scalar_width(base.type))
        array = self.wide_operand(base)
        skip, rest = divmod(by, 64)
        whole, partial = count - skip, count - skip - 1  # words with a low, with a high part

        def word(segment: Segment) -> str:
            if segment.start >= whole:
                return "0ull"
            low = f"{array}[{segment.plus(skip)}]"
            if rest == 0:
                return low
            if segment.start >= partial:
                return f"({low} >> {rest})"
            return f"({low} >> {rest} | {array}[{segment.plus(skip + 1)}] << {64 - rest})"

        return self._cut(Stream(width, word, {b for b in (whole, partial) if b > 0}))

    def _shifted_left(self, base: ir.Expression, by: int) -> Stream:
        width = scalar_width(base.type)
        array = self.wide_operand(base)
        skip, rest = divmod(by, 64)

        def word(segment: Segment) -> str:
            if by >= width or segment.start < skip:
                return "0ull"
            high = f"{array}[{segment.plus(-skip)}]"
            if rest == 0:
                return high
            if segment.start == skip:
                return f"({high} << {rest})"
            return f"({high} << {rest} | {array}[{segment.plus(-skip - 1)}] >> {64 - rest})"

        return self._cut(Stream(width, word, {skip, skip + 1}, looks_back=True))

    def _concatenated(self, expression: ir.Expression) -> Stream:
        """Return `a ++ b ++ c`."""
        parts = [
            self._part(part, low)
            for part, low in placed(expression)
            if not (isinstance(part, ir.Const) and part.value == 0)
        ]

        def word(segment: Segment) -> str:
            texts = [text for part in parts for text in part.word(segment)]
            return f"({' | '.join(texts)})" if texts else "0ull"

        return Stream(
            scalar_width(expression.type),
            word,
            {edge for part in parts for edge in part.edges},
            any(part.array and part.low for part in parts),
        )

    def _part(self, part: ir.Expression, low: int) -> Part:
        width = scalar_width(part.type)
        if is_wide(part.type):
            return Part(self.wide_operand(part), low, width, array=True)
        return Part(self.temporary("u64", self.scalar(part)), low, width, array=False)

    # --- operations of the runtime

    def _call_into(self, target: str, expression: ir.Expression, *, fresh: bool) -> None:
        width = scalar_width(expression.type)
        count = words(width)
        match expression:
            case ir.Cast():
                self._sign_extend_into(target, expression)
            case ir.Mux():
                condition = self.scalar(expression.condition)
                with self.block(f"if ({condition})"):
                    self.wide_into(target, expression.then, fresh=fresh)
                with self.block("else"):
                    self.wide_into(target, expression.other, fresh=fresh)
            case ir.Binary(operator="<<", left=ir.Const(value=value)) if 0 <= int(value) <= WORD:
                by = self.index(expression.right)
                self.line(f"wide_place({target}, {int(value):#x}ull, {count}, {width}, {by});")
            case ir.Binary(operator="<<" | ">>" as operator):
                array, by = self.wide_operand(expression.left), self.index(expression.right)
                signed = operator == ">>" and is_signed(expression.type)
                name = "left" if operator == "<<" else "right_signed" if signed else "right"
                self.line(f"wide_shift_{name}({target}, {array}, {count}, {width}, {by});")
            case ir.Binary(operator="*"):
                a, b = self.wide_operand(expression.left), self.wide_operand(expression.right)
                self.line(f"wide_multiply({target}, {a}, {b}, {count}, {width});")
            case ir.Binary(operator="|+|" | "|-|" as operator):
                a, b = self.wide_operand(expression.left), self.wide_operand(expression.right)
                name = "add" if operator == "|+|" else "sub"
                signed = is_signed(expression.type)
                arguments = f"{target}, {a}, {b}, {count}, {width}, {int(signed)}"
                self.line(f"wide_{name}_saturating({arguments});")
            case ir.Binary(operator="/" | "%" as operator) if not is_signed(expression.type):
                a, b = self.wide_operand(expression.left), self.wide_operand(expression.right)
                places = f"{target}, NULL" if operator == "/" else f"NULL, {target}"
                self.line(f"wide_divide({places}, {a}, {b}, {count});")
            case _:
                raise self.unsupported(f"{type(expression).__name__} as a wide number")

    def _sign_extend_into(self, target: str, expression: ir.Cast) -> None:
        source, width = scalar_width(expression.operand.type), scalar_width(expression.type)
        if source <= NARROW:
            text = self.scalar(expression.operand)
            self.line(f"memset({target}, 0, {words(width) * 8});")
            self.line(f"{target}[0] = {text};")
        else:
            array = self.wide_operand(expression.operand)
            self.line(f"memmove({target}, {array}, {words(source) * 8});")
            if words(width) > words(source):
                rest = (words(width) - words(source)) * 8
                self.line(f"memset({target} + {words(source)}, 0, {rest});")
        self.line(f"wide_sign_extend({target}, {source}, {words(width)}, {width});")

    def store_slice(self, target: ir.Slice, value: ir.Expression) -> None:
        """`base[high:low] = value`."""
        base, low = target.base, target.low
        while isinstance(base, ir.Slice):
            low, base = low + base.low, base.base
        width = scalar_width(target.type)
        if width == 0:
            return
        if not is_wide(base.type):
            text = self.temporary("u64", self.scalar(value))
            place = self.place(base, write=True)
            kept = mask_of(scalar_width(base.type)) & ~(mask_of(width) << low)
            self.line(f"{place} = ({place} & {kept:#x}ull) | {text} << {low};")
            return
        if is_wide(value.type):
            array = self.wide_operand(value)
            if visit.root(base) in visit.reads(value):
                name = self.name("w")
                self.line(f"u64 {name}[{words(width)}];")
                self.line(f"memcpy({name}, {array}, sizeof {name});")
                array = name
            place = self.place(base, write=True)
            self.line(f"wide_insert({place}.w, {low}, {array}, {width});")
            return
        text = self.temporary("u64", self.scalar(value))
        place = f"{self.place(base, write=True)}.w"
        word, shift = divmod(low, 64)
        hole = (mask_of(width) << shift) & WORD
        self.line(
            f"{place}[{word}] = ({place}[{word}] & {WORD & ~hole:#x}ull) | {text} << {shift};"
        )
        if shift + width > 64:
            hole = mask_of(shift + width - 64)
            self.line(
                f"{place}[{word + 1}] = ({place}[{word + 1}] & {WORD & ~hole:#x}ull)"
                f" | {text} >> {64 - shift};"
            )


def placed(expression: ir.Expression) -> list[tuple[ir.Expression, int]]:
    """Return the parts of `a ++ b ++ c`, the rightmost first, each with its lowest bit."""
    parts: list[tuple[ir.Expression, int]] = []
    low = 0
    stack = [expression]
    while stack:
        item = stack.pop()
        if isinstance(item, ir.Binary) and item.operator == "++":
            stack += [item.left, item.right]
        else:
            parts.append((item, low))
            low += scalar_width(item.type)
    return parts


def word_list(value: int, count: int) -> list[int]:
    """Return the words of a number, least significant first."""
    return [(value >> (64 * i)) & WORD for i in range(count)]


def known_zeros(expression: ir.Expression) -> int:
    """Return a mask of bits that are known to be zero (beyond the width all are)."""
    width = scalar_width(expression.type)
    beyond = -1 << width
    match expression:
        case ir.Const():
            return ~(int(expression.value) & mask_of(width))
        case ir.Binary(operator="&"):
            return known_zeros(expression.left) | known_zeros(expression.right)
        case ir.Binary(operator="|" | "^"):
            return (known_zeros(expression.left) & known_zeros(expression.right)) | beyond
        case ir.Cast() if not is_signed(expression.operand.type):
            return known_zeros(expression.operand) | beyond
        case ir.Binary(operator=">>", right=ir.Const(value=by)) if not is_signed(expression.type):
            return (known_zeros(expression.left) >> int(by)) | beyond
        case ir.Binary(operator="<<", right=ir.Const(value=by)) if int(by) <= width:
            return ((known_zeros(expression.left) << int(by)) | mask_of(int(by))) | beyond
        case ir.Slice():
            return (known_zeros(expression.base) >> expression.low) | beyond
    return beyond


def carries_nothing(expression: ir.Binary) -> bool:
    """Return whether a sum has no carry out of any 64-bit word, nor out of its width.

    That is so if the top bit of every word, and of the width, is zero in both operands.
    """
    width = scalar_width(expression.type)
    tops = {64 * i + 63 for i in range(width // 64)} | {width - 1}
    zeros = known_zeros(expression.left) & known_zeros(expression.right)
    return all(zeros >> bit & 1 for bit in tops)
