"""A function that handles values of the compiler (cute.math, select_, Float32(x)), staged once into MLIR.

It is called with Float32 and Int32 values that are the arguments of a function in a separate module. The text of
that module is the function's computation: its key, and the kernel's code for every score. Elements and sizes
of aux tensors, whose dtypes and ranks are not known yet, are expressions (expressions.py) until the function converts
or compares them. Each conversion or comparison is one placeholder in the text, which the kernel replaces by its code.
"""

from __future__ import annotations

import json

from cutlass import Boolean, Float32, Int32, Int64, Numeric
from cutlass._mlir import ir
from cutlass._mlir.dialects import func

from ...system import forks
from .evaluation import evaluated
from .expressions import COMPARISONS, FACTS, INDICES, data_of, reads_of
from .read_tensors import Aux as PlainAux
from .symbols import Symbol, Untraceable, operand

_PLACEHOLDER = "builtin.unrealized_conversion_cast"
_CODE = "expression"  # attribute of a placeholder: data of the expression
_OPERANDS = "operand_"  # and its arguments, by this name and their number

# One context for all: making one takes longer than staging a function.
_lock = forks.Lock()
_context: list = []


def staged(function, of_score: bool) -> tuple[str, set]:
    """The text of the module, and (aux tensor, how many indices) of every read.

    function(*arguments, aux) is called once. Raises WrongResult, or any exception of the function.
    """
    with _lock.held:
        if not _context:
            _context.append(ir.Context())
        with _context[0], ir.Location.unknown():
            module = _module(function, of_score)
            return str(module), set(_reads(module.operation))


def _reads(operation):
    for inner in _inside(operation):
        yield from _reads(inner)
    if _is_placeholder(operation):
        yield from reads_of(_code(operation))


def _names(of_score: bool) -> tuple:
    return ("score",) * of_score + INDICES + FACTS


def _module(function, of_score: bool) -> ir.Module:
    module = ir.Module.create()
    i32 = ir.IntegerType.get_signless(32)
    types = [ir.F32Type.get() if name == "score" else i32 for name in _names(of_score)]
    with ir.InsertionPoint(module.body):
        block = func.FuncOp(
            "computes", (types, [types[0] if of_score else ir.IntegerType.get_signless(1)])
        ).add_entry_block()
    with ir.InsertionPoint(block):
        values = [
            Float32(value) if name == "score" else Int32(value)
            for name, value in zip(_names(of_score), block.arguments, strict=True)
        ]
        returned = function(*values[: -len(FACTS)], _Aux(values[-len(FACTS) :]))
        func.ReturnOp([_returned(returned, of_score).ir_value()])
    if not module.operation.verify():  # pragma: no cover
        raise Untraceable("the function makes code that the compiler refuses")
    return module


def _returned(value, of_score: bool):
    if isinstance(value, ir.Value):
        value = Numeric.from_mlir_type(value.type)(value)
    if of_score:
        if isinstance(value, _Element):
            value = value.to(Float32)
        if isinstance(value, Numeric) and not isinstance(value, Boolean):
            return value.to(Float32)
        if type(value) in (int, float):
            return Float32(value)
    elif isinstance(value, (bool, Boolean)):
        return Boolean(value)
    elif isinstance(value, _Element) and value.kind == "bool":  # pragma: no cover
        return value.to(Boolean)
    raise WrongResult(value)


class WrongResult(Exception):
    """The function returned something other than a score or a condition."""


# --- aux tensors while a function is staged


class _Aux(PlainAux):
    """As for symbols, with elements that become values of the compiler."""

    def __init__(self, facts):
        for name, value in zip(FACTS, facts, strict=True):
            setattr(self, name, value)

    def __getitem__(self, i):
        return _Tensor(super().__getitem__(i))


class _Tensor:
    def __init__(self, plain):
        self._plain = plain

    @property
    def shape(self) -> _Shape:
        return _Shape(self._plain.shape)

    def size(self, dim):
        return self.shape[dim]

    def __getitem__(self, index):
        indices = index if isinstance(index, tuple) else (index,)
        return _Element.of(self._plain[tuple(_as_operand(i) for i in indices)])

    def __getattr__(self, name: str):
        return getattr(self._plain, name)

    def __iter__(self):
        return iter(self._plain)


class _Shape:
    def __init__(self, plain):
        self._plain = plain

    def __getitem__(self, dim):
        return _Element.of(self._plain[dim]).to(Int32)

    def __iter__(self):
        return iter(self._plain)

    __len__ = __iter__


class _Value(Symbol):
    """A value of the compiler inside of an expression."""

    __slots__ = ("value",)

    def __init__(self, value):
        if isinstance(value, ir.Value):
            value = Numeric.from_mlir_type(value.type)(value)
        kind = "float" if type(value).is_float else "int"
        super().__init__("value", (), "bool" if isinstance(value, Boolean) else kind)
        self.value = value


def _as_operand(value):
    if isinstance(value, ir.Value) or (
        isinstance(value, Numeric) and not isinstance(value.value, (bool, int, float))
    ):
        return _Value(value)
    return operand(value)


class _Element(Symbol):
    """An element of an aux tensor, or arithmetic with one: no value of the compiler until its type is known."""

    __slots__ = ()

    @staticmethod
    def of(symbol: Symbol) -> _Element:
        return _Element(symbol.op, symbol.args, symbol.kind)

    def __getitem__(self, index):
        if self.op != "read":
            raise Untraceable("an element of aux_tensors has no elements")
        indices = index if isinstance(index, tuple) else (index,)
        return _Element.of(Symbol.__getitem__(self, tuple(_as_operand(i) for i in indices)))

    def to(self, dtype, *_, **__):
        """A value of the compiler, of a type that the compiler has a name for."""
        cast = Symbol.__getattr__(self, "to")(dtype)
        types = {"f32": Float32, "i32": Int32, "i64": Int64, "bool": Boolean}
        kind = Float32 if cast.args[1] in ("f16", "bf16") else types[cast.args[1]]
        return _placeholder(cast, kind)


def _install():
    def arithmetic(name):
        plain = getattr(Symbol, name)
        return lambda self, *other: _Element.of(plain(self, *map(_as_operand, other)))

    def comparison(name):
        plain = getattr(Symbol, name)
        return lambda self, other: _placeholder(plain(self, _as_operand(other)), Boolean)

    for name in (
        "add",
        "sub",
        "mul",
        "truediv",
        "floordiv",
        "mod",
        "and",
        "or",
        "xor",
        "lshift",
        "rshift",
    ):
        for dunder in (f"__{name}__", f"__r{name}__"):
            setattr(_Element, dunder, arithmetic(dunder))
    for name in ("neg", "invert", "abs", "pow"):
        setattr(_Element, f"__{name}__", arithmetic(f"__{name}__"))
    for name in COMPARISONS:
        setattr(_Element, f"__{name}__", comparison(f"__{name}__"))
    _Element.__hash__ = Symbol.__hash__


_install()


def _placeholder(symbol: Symbol, kind):
    """One operation that stands for an expression: its operands are values of the compiler."""
    values: list = []
    plain = _with_arguments(symbol, values)
    code = json.dumps(data_of(plain))
    operation = ir.Operation.create(
        _PLACEHOLDER,
        results=[kind.mlir_type],
        operands=[value.ir_value() for value in values],
        attributes={_CODE: ir.StringAttr.get(code)},
    )
    return kind(operation.result)


def _with_arguments(symbol, values: list):
    """The expression with numbered arguments in the place of values, which are appended to `values`."""
    if isinstance(symbol, _Value):
        values.append(symbol.value)
        return Symbol("arg", (f"{_OPERANDS}{len(values) - 1}",), symbol.kind)
    if not isinstance(symbol, Symbol):
        return symbol
    args = tuple(_with_arguments(arg, values) for arg in symbol.args)
    return Symbol(symbol.op, args, symbol.kind)


# --- in the kernel


def inlined(text: str, arguments: list, tensors: tuple):
    """The code of `text`, at the current insertion point of the kernel: the value that the function returned.

    arguments: values of _names; tensors: as evaluation.evaluated takes them
    """
    module = ir.Module.parse(text)
    (function,) = module.body.operations
    (block,) = function.body.blocks
    for inside, value in zip(block.arguments, arguments, strict=True):
        inside.replace_all_uses_with(value.ir_value())
    place = ir.InsertionPoint.current
    for operation in list(block.operations):
        if operation.operation.name == "func.return":
            result = operation.operation.operands[0]
            return Numeric.from_mlir_type(result.type)(result)
        operation.operation.detach_from_parent()
        place.insert(operation)
        _fill(operation.operation, tensors)
    raise AssertionError("a module without return")  # pragma: no cover


def _fill(operation, tensors: tuple) -> None:
    """Replace the placeholders in an operation, and in what it encloses, by their code."""
    for inner in _inside(operation):
        _fill(inner, tensors)
    if not _is_placeholder(operation):
        return
    nodes = _code(operation)
    values = [Numeric.from_mlir_type(value.type)(value) for value in operation.operands]
    named = {f"{_OPERANDS}{number}": value for number, value in enumerate(values)}
    (result,) = operation.results
    with ir.InsertionPoint(operation):
        kind = Numeric.from_mlir_type(result.type)
        value = kind(evaluated(nodes, named, tensors))
        result.replace_all_uses_with(value.ir_value())
    operation.erase()


def _inside(operation) -> list:
    """The operations of its regions."""
    return [
        inner.operation
        for region in operation.regions
        for block in region.blocks
        for inner in block.operations
    ]


def _is_placeholder(operation) -> bool:
    return operation.name == _PLACEHOLDER and _CODE in operation.attributes


def _code(operation) -> list:
    return json.loads(ir.StringAttr(operation.attributes[_CODE]).value)
