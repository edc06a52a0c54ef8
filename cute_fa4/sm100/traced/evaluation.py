"""An expression as code of the kernel: its operations on values of the compiler, in sequence.

Numbers behave as in torch: / of integers is a Float32, // and % round down, a condition counts as 0 or 1 in
arithmetic. Elements of 16 bits are read as Float32, of uint8 as Int32, of bool as conditions. exp, log, tanh and the
other functions use the hardware's exponential, logarithm, reciprocal and square root.
"""

import math
import operator

import cutlass.cute as cute
from cutlass import Boolean, Float32, Int32, Int64, Numeric, select_

from .expressions import CAPTURED, COMPARISONS, constant_of

LOG2_E, LN_2 = math.log2(math.e), math.log(2)
_TYPES = {"f32": Float32, "i32": Int32, "i64": Int64}


def evaluated(nodes: list, arguments: dict, tensors: tuple):
    """The value of the last node: a Numeric of cutlass, or a Python number.

    arguments: values by the names of the nodes "arg"; tensors: the aux tensors, each with its dtype's name
    """
    values = []
    for op, *args in nodes:
        if op == "arg":
            value = arguments[args[0]]
        elif op == "const":
            value = constant_of(args[0])
        elif op == "read":
            value = _element(tensors, args[0], [_operand(arg, values) for arg in args[1:]])
        elif op == "size":
            value = _size(tensors, *args)
        elif op == "cast":
            value = _cast(_operand(args[0], values), args[1])
        else:
            value = _OPERATIONS[op](*(_operand(arg, values) for arg in args))
        values.append(value)
    return values[-1]


def _operand(arg, values: list):
    return values[arg] if isinstance(arg, int) else constant_of(arg)


# --- aux tensors


def _tensor(tensors: tuple, number: int):
    if number >= CAPTURED:
        raise TypeError(
            "a tensor that the function captures; accepted in a configuration: functions of aux, whose tensors it lists"
        )
    if not -len(tensors) <= number < len(tensors):
        raise TypeError(f"aux[{number}] of {len(tensors)} aux_tensors")
    return tensors[number]


def _element(tensors: tuple, number: int, indices: list):
    tensor, dtype = _tensor(tensors, number)
    if len(indices) != len(tensor.shape):
        raise TypeError(
            f"aux[{number}] is read with {len(indices)} indices; it has {len(tensor.shape)} dimensions"
        )
    value = tensor[tuple(_number(i) for i in indices)]
    if dtype == "bool":
        return Int32(value) != 0
    return value.to({"u8": Int32, "bf16": Float32, "fp16": Float32}.get(dtype, type(value)))


def _size(tensors: tuple, number: int, dim: int):
    tensor, _ = _tensor(tensors, number)
    size = tensor.shape[dim]
    return size if isinstance(size, int) else Int32(size)


# --- types


def _number(value):
    """A condition as 0 or 1: the compiler's own conversion of true is -1."""
    if isinstance(value, bool):
        return int(value)
    return Int32(select_(value, Int32(1), Int32(0))) if isinstance(value, Boolean) else value


def _is_float(value) -> bool:
    return isinstance(value, float) or (isinstance(value, Numeric) and type(value).is_float)


def _typed(value):
    if isinstance(value, Numeric):
        return value
    kind = Boolean if isinstance(value, bool) else Int32 if isinstance(value, int) else Float32
    return kind(value)


def _alike(a, b) -> tuple:
    """Both of one type, and the type."""
    a, b = _typed(a), _typed(b)
    if isinstance(a, Boolean) and isinstance(b, Boolean):
        return a, b, Boolean
    a, b = _typed(_number(a)), _typed(_number(b))
    if _is_float(a) or _is_float(b):
        kind = Float32
    else:
        kind = Int64 if isinstance(a, Int64) or isinstance(b, Int64) else Int32
    return a.to(kind), b.to(kind), kind


def _condition(value):
    """A Boolean of the kernel, or a bool."""
    if isinstance(value, (bool, Boolean)):
        return value
    return value != 0


def _float(value):
    value = _number(value)
    return value.to(Float32) if isinstance(value, Numeric) else Float32(float(value))


def _cast(value, to: str):
    if to == "bool":
        return _condition(value)
    value = _typed(_number(value))
    if to in ("f16", "bf16"):
        from cutlass import BFloat16, Float16

        return value.to(Float32).to(Float16 if to == "f16" else BFloat16).to(Float32)
    return value.to(_TYPES[to])


# --- operations


def _on_numbers(function):
    return lambda a, b: function(_number(a), _number(b))


def _integers(sign: str, a, b) -> tuple:
    if _is_float(a) or _is_float(b):
        raise TypeError(f"{sign} of a float; accepted: of integers; convert with .to(torch.int32)")
    return _number(a), _number(b)


def _floordiv(a, b):
    a, b = _integers("//", a, b)
    return a // b


def _mod(a, b):
    """The remainder with the sign of b, as in Python and torch; the compiler's own has the sign of a."""
    a, b, kind = _alike(*_integers("%", a, b))
    rest = a % b
    wrong_sign = (rest != 0) & ((rest ^ b) < 0)
    return kind(select_(wrong_sign, rest + b, rest))


def _shift(function, sign: str):
    return lambda a, b: function(*_integers(sign, a, b))


def _bitwise(function, sign: str):
    def made(a, b):
        if isinstance(a, (bool, Boolean)) and isinstance(b, (bool, Boolean)):
            return function(_typed(a), _typed(b))
        return function(*_integers(sign, a, b))

    return made


def _invert(a):
    if isinstance(a, bool):
        return not a
    if _is_float(a):
        raise TypeError("~ of a float; accepted: of comparisons and of integers")
    return ~a


def _where(condition, a, b):
    condition = _condition(condition)
    if isinstance(condition, bool):
        return a if condition else b
    a, b, kind = _alike(a, b)
    return kind(select_(condition, a.ir_value(), b.ir_value()))


def _extreme(compare):
    """The smaller or larger of two, NaN if either is."""

    def made(a, b):
        a, b, kind = _alike(_number(a), _number(b))
        first = compare(a, b)
        if kind is Float32:
            first = first | (a != a)
        return kind(select_(first, a.ir_value(), b.ir_value()))

    return made


def _absolute(a):
    a = _number(a)
    return _where(a < 0, -a, a) if not _is_float(a) else cute.math.abs(a)


def _exp2(a):
    return cute.math.exp2(_float(a), fastmath=True)


def _log2(a):
    return cute.math.log2(_float(a), fastmath=True)


def _reciprocal(a):
    return cute.arch.rcp_approx(a)


def _sigmoid(a):
    return _reciprocal(_exp2(_float(a) * Float32(-LOG2_E)) + Float32(1.0))


def _tanh(a):
    """1 - 2 / (1 + e^2a): the hardware's own tanh is off by 2^-11."""
    e = _exp2(_float(a) * Float32(2 * LOG2_E))
    return Float32(1.0) - Float32(2.0) * _reciprocal(e + Float32(1.0))


_OPERATIONS = {
    "add": _on_numbers(operator.add),
    "sub": _on_numbers(operator.sub),
    "mul": _on_numbers(operator.mul),
    "div": lambda a, b: _float(a) / _float(b),
    "floordiv": _floordiv,
    "mod": _mod,
    "and": _bitwise(operator.and_, "&"),
    "or": _bitwise(operator.or_, "|"),
    "xor": _bitwise(operator.xor, "^"),
    "lshift": _shift(operator.lshift, "<<"),
    "rshift": _shift(operator.rshift, ">>"),
    "neg": lambda a: -_number(a),
    "invert": _invert,
    "abs": _absolute,
    "where": _where,
    "minimum": _extreme(operator.lt),
    "maximum": _extreme(operator.gt),
    "exp": lambda a: _exp2(_float(a) * Float32(LOG2_E)),
    "exp2": _exp2,
    "log": lambda a: _log2(a) * Float32(LN_2),
    "log2": _log2,
    "sqrt": lambda a: cute.math.sqrt(_float(a), fastmath=True),
    "rsqrt": lambda a: cute.math.rsqrt(_float(a), fastmath=True),
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    **{name: _on_numbers(getattr(operator, name)) for name in COMPARISONS},
}
