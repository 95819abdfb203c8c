"""PSA's externs as v1model's, which executors and control planes know.

The objects of both keep the same state. A program's instances change their `extern`, and calls of
their methods become those of v1model's objects and functions, with copies of results where colours
or parameters differ. What only PSA has, InternetChecksum and `psa_normal` and the like, becomes
plain assignments.
"""

from __future__ import annotations

from collections.abc import Callable

from p4switch import ir
from p4switch.midend.architecture import PSA, architecture_of
from p4switch.midend.call_graph import bodies, reachable
from p4switch.midend.visit import nested
from p4switch.position import UnsupportedError

_INSTANCES = {
    "ActionProfile": "action_profile",
    "ActionSelector": "action_selector",
    "Counter": "counter",
    "DirectCounter": "direct_counter",
    "DirectMeter": "direct_meter",
    "Meter": "meter",
    "Register": "register",
}
"""Objects of PSA, and those of v1model with the same constructor arguments."""

_COLORS = 3
_BIT16 = ir.Bits(16)
_BIT64 = ir.Bits(64)

Code = list[ir.Statement]


def lower_externs(program: ir.Program) -> None:
    """Rewrite the externs of a PSA program in place; other programs stay as they are.

    Raises UnsupportedError.
    """
    if architecture_of(program.package) is PSA:
        _Lowering(program).run()


class _Lowering:
    def __init__(self, program: ir.Program) -> None:
        self._program = program
        self._made: list[ir.Variable] = []
        self._sums: dict[ir.ExternInstance, ir.Variable] = {}
        """The state of checksums: the ones' complement sum of what was added."""
        self._algorithms = dict(program.enums.get(PSA.hash_enum, ()))

    def run(self) -> None:
        for function in reachable(self._program.package.blocks.values()):
            for body in bodies(function):
                assert isinstance(body, list)
                self._body(body)
        for block in self._program.blocks:
            block.body[:0] = [
                _assign(_read(sum_), ir.Const(_BIT16, 0))
                for instance, sum_ in self._sums.items()
                if instance.name.rpartition(".")[0] == block.name
            ]
        for instance in self._program.externs:
            if instance.extern == "Register" and not all(
                isinstance(argument, int) for argument in instance.arguments
            ):
                raise UnsupportedError(
                    instance.position,
                    f"register {instance.name!r}: its initial value must be a number; registers of "
                    "structs begin with zeros",
                )
            instance.extern = _INSTANCES.get(instance.extern, instance.extern)
        self._program.variables = (*self._program.variables, *self._made)

    def _body(self, body: Code) -> None:
        found: Code = []
        for statement in body:
            for inner in nested(statement):
                assert isinstance(inner, list)
                self._body(inner)
            made = self._call(statement) if isinstance(statement, ir.CallExtern) else None
            if made is None:
                found.append(statement)
                continue
            for each in made:
                each.position = statement.position
            found += made
        body[:] = found

    def _call(self, call: ir.CallExtern) -> Code | None:
        """Return what a call becomes; None if it stays as it is."""
        if call.instance is None:
            flag = _FLAGS.get(call.method)
            if flag is None:
                return None
            return _result(call, flag(*(argument.value for argument in call.arguments)))
        method: Callable[[ir.CallExtern, ir.ExternInstance], Code | None] | None = getattr(
            self, f"_{call.instance.extern}_{call.method}", None
        )
        return None if method is None else method(call, call.instance)

    def _variable(self, what: str, kind: ir.Type) -> ir.Variable:
        made = ir.Variable(f"psa_{what}_{len(self._made)}", kind)
        self._made.append(made)
        return made

    # --- objects with a state

    def _Register_read(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        if call.result is None:
            return []
        out = ir.Argument("result", "out", _read(call.result))
        return [ir.CallExtern(instance, "read", (), (out, *call.arguments))]

    def _Meter_execute(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        index, *color = call.arguments
        return self._execute(call, instance, "execute_meter", (index,), color)

    def _DirectMeter_execute(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        if call.arguments:
            raise UnsupportedError(
                call.position,
                f"direct meter {instance.name!r}: 'execute' with a colour is not supported; "
                "'execute()' is",
            )
        return self._execute(call, instance, "read", (), [])

    def _execute(
        self,
        call: ir.CallExtern,
        instance: ir.ExternInstance,
        method: str,
        index: tuple[ir.Argument, ...],
        color: list[ir.Argument],
    ) -> Code:
        """Run a meter, whose colours are v1model's."""
        found = _read(self._variable("color", ir.BIT32))
        before = [ir.Argument("color", "in", _turned(each.value, _COLORS - 1)) for each in color]
        arguments = (*index, ir.Argument("result", "out", found), *before)
        run = ir.CallExtern(instance, method, (ir.BIT32,), arguments)
        return [run, *_result(call, _turned(found, 1))]

    # --- functions

    def _Random_read(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        if call.result is None:
            return []
        low, high = (ir.Const(call.result.type, instance.number(i)) for i in range(2))
        arguments = (
            ir.Argument("result", "out", _read(call.result)),
            ir.Argument("lo", "in", low),
            ir.Argument("hi", "in", high),
        )
        return [ir.CallExtern(None, "random", (call.result.type,), arguments)]

    def _Hash_get_hash(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        if call.result is None:
            return []
        algorithm = self._algorithm(instance)
        given = call.arguments[len(call.arguments) // 2]
        data = ir.Argument(given.name, given.direction, _whole_bytes(given.value))
        if len(call.arguments) == 3:
            base, _, limit = call.arguments
        elif PSA.hashes[algorithm].endswith("_custom"):
            # Only those of `hash` can be set by the control plane.
            base = ir.Argument("base", "in", ir.Const(_BIT64, 0))
            limit = ir.Argument("max", "in", ir.Const(_BIT64, 1 << 63))
        else:
            return self._checksum(call.result, data.value, algorithm)
        arguments = (
            ir.Argument("result", "out", _read(call.result)),
            ir.Argument("algo", "in", self._member(algorithm)),
            base,
            data,
            limit,
        )
        return [ir.CallExtern(None, "hash", (), arguments)]

    def _algorithm(self, instance: ir.ExternInstance) -> str:
        value = instance.number(0)
        return next(name for name, number in self._algorithms.items() if number == value)

    def _member(self, algorithm: str) -> ir.Const:
        return ir.Const(ir.BIT32, self._algorithms[algorithm])

    def _checksum(self, target: ir.Variable, data: ir.Expression, algorithm: str) -> Code:
        """Compute a hash or checksum of data."""
        arguments = (
            ir.Argument("condition", "in", ir.Const(ir.BOOL, True)),
            ir.Argument("data", "in", data),
            ir.Argument("checksum", "inout", _read(target)),
            ir.Argument("algo", "in", self._member(algorithm)),
        )
        update = ir.CallExtern(None, "update_checksum", (data.type, target.type), arguments)
        return [ir.Declare(target), update]

    # --- checksums

    def _Checksum_clear(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        if self._algorithm(instance) != "ONES_COMPLEMENT16":
            raise UnsupportedError(
                call.position,
                f"checksum {instance.name!r}: only ONES_COMPLEMENT16 can be updated step by step; "
                "a Hash computes the others of all data at once",
            )
        return self._InternetChecksum_clear(call, instance)

    def _Checksum_update(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        self._Checksum_clear(call, instance)
        return self._InternetChecksum_add(call, instance)

    def _Checksum_get(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        self._Checksum_clear(call, instance)
        return self._InternetChecksum_get(call, instance)

    def _sum(self, instance: ir.ExternInstance) -> ir.Read:
        if instance not in self._sums:
            self._sums[instance] = self._variable("sum", _BIT16)
        return _read(self._sums[instance])

    def _InternetChecksum_clear(self, _: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        return [_assign(self._sum(instance), ir.Const(_BIT16, 0))]

    def _InternetChecksum_add(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        return self._add(call, instance, lambda checksum: ir.Unary(_BIT16, "~", checksum))

    def _InternetChecksum_subtract(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        return self._add(call, instance, lambda checksum: checksum)

    def _add(
        self,
        call: ir.CallExtern,
        instance: ir.ExternInstance,
        addend: Callable[[ir.Expression], ir.Expression],
    ) -> Code:
        """Add a function of the data's checksum in ones' complement."""
        checksum = self._variable("checksum", _BIT16)
        total = self._variable("total", ir.BIT32)
        sum_ = self._sum(instance)
        wide = [ir.Cast(ir.BIT32, each) for each in (sum_, addend(_read(checksum)))]
        halves = [ir.Slice(_BIT16, _read(total), low + 15, low) for low in (0, 16)]
        return [
            *self._checksum(checksum, call.arguments[0].value, "ONES_COMPLEMENT16"),
            _assign(_read(total), ir.Binary(ir.BIT32, "+", *wide)),
            _assign(sum_, ir.Binary(_BIT16, "+", *halves)),
        ]

    def _InternetChecksum_get(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        return _result(call, ir.Unary(_BIT16, "~", self._sum(instance)))

    def _InternetChecksum_get_state(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        return _result(call, self._sum(instance))

    def _InternetChecksum_set_state(self, call: ir.CallExtern, instance: ir.ExternInstance) -> Code:
        return [_assign(self._sum(instance), call.arguments[0].value)]


def _read(variable: ir.Variable) -> ir.Read:
    return ir.Read(variable.type, variable)


def _assign(target: ir.Expression, value: ir.Expression) -> ir.Assign:
    return ir.Assign(target, value)


def _result(call: ir.CallExtern, value: ir.Expression) -> Code:
    """Set the result of a call, if it is used."""
    return [] if call.result is None else [_assign(_read(call.result), value)]


def _whole_bytes(data: ir.Expression) -> ir.Expression:
    """Return the data of a hash with zeros before it, as psa_switch fills the first byte.

    (v1model's hash fills the last one.)
    """
    missing = -_width(data.type) % 8
    if not missing:
        return data
    zeros = ir.Const(ir.Bits(missing), 0)
    fields = (ir.FieldType("f0", zeros.type), ir.FieldType("f1", data.type))
    return ir.Build(ir.Struct("tuple", fields), (zeros, data))


def _width(kind: ir.Type) -> int:
    if isinstance(kind, ir.Bits):
        return kind.width
    if isinstance(kind, ir.Header | ir.Struct):
        return sum(_width(member.type) for member in kind.fields)
    if isinstance(kind, ir.Stack):
        return kind.size * _width(kind.element)
    return 1 if isinstance(kind, ir.Bool) else 0


def _turned(color: ir.Expression, steps: int) -> ir.Expression:
    """Return a colour's number in the other order.

    v1model has green, yellow and red; PSA red, green and yellow.
    """
    found: ir.Expression = ir.Const(ir.BIT32, (_COLORS - 1 + steps) % _COLORS)
    for number in reversed(range(_COLORS - 1)):
        is_it = ir.Binary(ir.BOOL, "==", color, ir.Const(ir.BIT32, number))
        turned = ir.Const(ir.BIT32, (number + steps) % _COLORS)
        found = ir.Mux(ir.BIT32, is_it, turned, found)
    return found


def _flag(output: ir.Expression, name: str) -> ir.Expression:
    return ir.Field(ir.BOOL, output, name)


def _is_kept(output: ir.Expression) -> ir.Expression:
    return ir.Unary(ir.BOOL, "!", _flag(output, "drop"))


def _both(left: ir.Expression, right: ir.Expression) -> ir.Expression:
    return ir.Binary(ir.BOOL, "&&", left, right)


def _recirculates(output: ir.Expression, deparser_input: ir.Expression) -> ir.Expression:
    port = ir.Field(ir.BIT32, deparser_input, "egress_port")
    again = ir.Binary(ir.BOOL, "==", port, ir.Const(ir.BIT32, RECIRCULATE_PORT))
    return _both(_is_kept(output), again)


RECIRCULATE_PORT = 0xFFFFFFFA
CPU_PORT = 0xFFFFFFFD
"""PSA_PORT_RECIRCULATE and PSA_PORT_CPU."""

_FLAGS: dict[str, Callable[..., ir.Expression]] = {
    "psa_clone_i2e": lambda output: _flag(output, "clone"),
    "psa_clone_e2e": lambda output: _flag(output, "clone"),
    "psa_resubmit": lambda output: _both(_is_kept(output), _flag(output, "resubmit")),
    "psa_normal": lambda output: _both(
        _is_kept(output), ir.Unary(ir.BOOL, "!", _flag(output, "resubmit"))
    ),
    "psa_recirculate": _recirculates,
}
