"""Operations on symbols: Python's operators, and the functions and methods of torch, by name.

Each makes another symbol, or refuses with what to write instead. This module adds them to the class Symbol.
"""

from __future__ import annotations

from .expressions import CAPTURED, COMPARISONS
from .symbols import NAMES_OF_KINDS, NeedsCompiler, Symbol, Untraceable, kind_of, operand

# --- elements of tensors


def element(number: int, before: tuple, index, kind: str = "any") -> Symbol:
    """An element of tensor `number`, or a part of it where indices are missing; before: the indices before."""
    called = "a captured tensor" if number >= CAPTURED else f"aux[{number}]"
    indices = index if isinstance(index, tuple) else (index,)
    for i in indices:
        if i is None or isinstance(i, (slice, type(...))):
            raise Untraceable(f"{called}: a slice; accepted: one index for each dimension")
    found = tuple(operand(i) for i in indices)
    for i in found:
        if number < CAPTURED and not isinstance(i, Symbol) and i < 0:
            raise Untraceable(
                f"{called}: index {i}; accepted: 0 or more; {called}.shape[dim] - 1 is the last"
            )
        of_index = kind_of(i)
        if of_index not in ("int", "any"):
            raise Untraceable(
                f"{called}: an index that is a {NAMES_OF_KINDS[of_index]}; accepted: integers"
            )
    if number >= CAPTURED:
        found = tuple(_from_the_end(number, dim, i) for dim, i in enumerate(found, len(before)))
    return Symbol("read", (number, *before, *found), kind)


def _from_the_end(number: int, dim: int, i):
    """An index as torch means it: negative ones count from the end."""
    if _is_not_negative(i):
        return i
    size = Symbol("size", (number, dim), "int")
    return where(i < 0, i + size, i) if isinstance(i, Symbol) else size + i


def _is_not_negative(i, most: int = 8) -> bool:
    """Whether this is certain. most: operations that are looked at, one inside of the other."""
    if not isinstance(i, Symbol):
        return i >= 0
    if i.op == "arg":
        return i.args[0] != "position"
    if i.op == "size":
        return True
    if not most or i.op not in _KEEP_SIGN:
        return False
    within = [_is_not_negative(arg, most - 1) for arg in i.args[_KEEP_SIGN[i.op] :]]
    return any(within) if i.op == "maximum" else all(within)


# Operations on integers from 0 on whose result is one, and the operand from which on they must be.
_KEEP_SIGN = dict.fromkeys(("add", "mul", "floordiv", "minimum", "maximum", "and"), 0)
_KEEP_SIGN |= {"mod": 1, "where": 1, "abs": 1}


# --- operations


def _number_kind(a, b) -> str:
    kinds = {kind_of(a), kind_of(b)}
    return next((kind for kind in ("float", "any") if kind in kinds), "int")


def _arithmetic(op: str):
    def made(a, b):
        a, b = operand(a), operand(b)
        return Symbol(op, (a, b), _number_kind(a, b))

    return made


def _integer(op: str, sign: str):
    def made(a, b):
        a, b = operand(a), operand(b)
        if "float" in (kind_of(a), kind_of(b)):
            raise Untraceable(
                f"{sign} of a score or a float; accepted: of integers; convert with .to(torch.int32)"
            )
        return Symbol(op, (a, b), _number_kind(a, b))

    return made


def _bitwise(op: str, sign: str):
    def made(a, b):
        a, b = operand(a), operand(b)
        kinds = {kind_of(a), kind_of(b)}
        if "float" in kinds:
            raise Untraceable(f"{sign} of a score; accepted: of comparisons and of integers")
        kind = "bool" if kinds == {"bool"} else "any" if "any" in kinds else "int"
        return Symbol(op, (a, b), kind)

    return made


def _comparison(op: str):
    def made(a, b):
        return Symbol(op, (operand(a), operand(b)), "bool")

    return made


def _divided(a, b):
    return Symbol("div", (operand(a), operand(b)), "float")


def _power(a, b):
    b = operand(b)
    if isinstance(b, Symbol) or b not in (*range(1, 17), 0.5, -0.5, -1):
        raise Untraceable(
            "**: accepted: exponents 1 to 16, 0.5, -0.5 and -1; others as torch.exp2(exponent * torch.log2(x))"
        )
    if b == 0.5 or b == -0.5:
        return function_of("sqrt" if b > 0 else "rsqrt")(a)
    if b == -1:
        return _divided(1.0, a)
    base = power = operand(a)
    for _ in range(int(b) - 1):
        power = _multiplied(power, base)
    return power if isinstance(power, Symbol) else operand(power)


def _negated(a):
    a = operand(a)
    if kind_of(a) == "bool":
        raise Untraceable("- of a comparison; write ~ for its opposite")
    return Symbol("neg", (a,), kind_of(a))


def _inverted(a):
    a = operand(a)
    if kind_of(a) == "float":
        raise Untraceable("~ of a score; accepted: of comparisons and of integers")
    return Symbol("invert", (a,), kind_of(a))


def _absolute(a):
    a = operand(a)
    return Symbol("abs", (a,), "int" if kind_of(a) == "bool" else kind_of(a))


def function_of(op: str):
    """exp, tanh and others: they map a number to a float."""

    def made(a):
        return Symbol(op, (operand(a),), "float")

    return made


def where(condition, a, b):
    condition, a, b = operand(condition), operand(a), operand(b)
    if not isinstance(condition, Symbol):
        return a if condition else b
    if kind_of(condition) == "float":
        raise Untraceable("torch.where: the condition is a number; accepted: a comparison")
    same = kind_of(a) == kind_of(b)
    return Symbol("where", (condition, a, b), kind_of(a) if same else _number_kind(a, b))


def clamp(a, min=None, max=None):
    if min is not None:
        a = _OPERATORS["maximum"](a, min)
    return a if max is None else _OPERATORS["minimum"](a, max)


def _squared(a):
    return _multiplied(a, a)


def _logical(op: str):
    made = _bitwise(op, op)

    def of_truths(a, b):
        return made(_as_condition(a), _as_condition(b))

    return of_truths


def _as_condition(a):
    a = operand(a)
    return a if kind_of(a) == "bool" else Symbol("ne", (a, 0), "bool")


def cast(a, dtype):
    """dtype: a Python, torch or cutlass type; each has its own names."""
    name = getattr(dtype, "__name__", None) or str(dtype)
    to = _DTYPES.get(name)
    if to is None:
        if str(getattr(dtype, "__module__", "")).partition(".")[0] == "cutlass":
            raise NeedsCompiler(f"a {name}")
        raise Untraceable(
            f".to({name}): accepted: torch.float32, float16, bfloat16, int32, int64, bool, and the same of cutlass"
        )
    kind = "bool" if to == "bool" else "int" if to.startswith("i") else "float"
    return Symbol("cast", (operand(a), to), kind)


def _full(a, value, dtype=None):
    """A constant beside a symbol: of the dtype, or of the symbol's kind."""
    kind = a.kind if dtype is None else cast(0, dtype).kind
    return {"bool": bool, "int": int}.get(kind, float)(value)


def _new_full(a, size, value, dtype=None):
    if tuple(size) != ():
        raise Untraceable(f"a tensor of size {tuple(size)} made of {a!r}; accepted: size ()")
    return _full(a, value, dtype)


def _to(a, dtype=None, *rest, **options):
    given = dtype if dtype is not None else options.get("dtype")
    return a if given is None else cast(a, given)


_DTYPES = {
    **{name: "f32" for name in ("torch.float32", "Float32", "float")},
    **{name: "f16" for name in ("torch.float16", "Float16")},
    **{name: "bf16" for name in ("torch.bfloat16", "BFloat16")},
    **{name: "i32" for name in ("torch.int32", "Int32", "int")},
    **{name: "i64" for name in ("torch.int64", "Int64")},
    **{name: "bool" for name in ("torch.bool", "Boolean", "bool")},
}

_multiplied = _arithmetic("mul")

FLOAT_FUNCTIONS = ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid")

_OPERATORS = {
    "add": _arithmetic("add"),
    "sub": _arithmetic("sub"),
    "mul": _multiplied,
    "truediv": _divided,
    "floordiv": _integer("floordiv", "//"),
    "mod": _integer("mod", "%"),
    "pow": _power,
    "and": _bitwise("and", "&"),
    "or": _bitwise("or", "|"),
    "xor": _bitwise("xor", "^"),
    "lshift": _integer("lshift", "<<"),
    "rshift": _integer("rshift", ">>"),
    "minimum": _arithmetic("minimum"),
    "maximum": _arithmetic("maximum"),
    **{name: _comparison(name) for name in COMPARISONS},
}

# By the names that torch gives functions and methods.
_FUNCTIONS = {
    **{name: _OPERATORS[name] for name in ("add", "sub", "mul", "pow", "minimum", "maximum")},
    **{name: _OPERATORS[name] for name in COMPARISONS},
    **{name: function_of(name) for name in FLOAT_FUNCTIONS},
    **{f"bitwise_{name}": _OPERATORS[name] for name in ("and", "or", "xor")},
    **{f"logical_{name}": _logical(name) for name in ("and", "or", "xor")},
    **{"less": _OPERATORS["lt"], "less_equal": _OPERATORS["le"]},
    **{"greater": _OPERATORS["gt"], "greater_equal": _OPERATORS["ge"], "not_equal": _OPERATORS["ne"]},
    **{"subtract": _OPERATORS["sub"], "multiply": _OPERATORS["mul"]},
    **{"div": _divided, "divide": _divided, "true_divide": _divided},
    **{"floor_divide": _OPERATORS["floordiv"], "remainder": _OPERATORS["mod"]},
    **{"neg": _negated, "negative": _negated, "abs": _absolute, "absolute": _absolute, "square": _squared},
    **{"bitwise_not": _inverted, "logical_not": lambda a: _inverted(_as_condition(a))},
    **{"where": where, "clamp": clamp, "clip": clamp, "rsub": lambda a, b: _OPERATORS["sub"](b, a)},
    **{"full_like": _full, "zeros_like": lambda a, dtype=None: _full(a, 0, dtype)},
    **{"ones_like": lambda a, dtype=None: _full(a, 1, dtype)},
    **{"clamp_min": lambda a, min: clamp(a, min), "clamp_max": lambda a, max: clamp(a, None, max)},
}  # fmt: skip

_METHODS = {
    **_FUNCTIONS,
    "to": _to,
    "type": _to,
    "new_full": _new_full,
    "new_ones": lambda a, size, dtype=None: _new_full(a, size, 1, dtype),
    "new_zeros": lambda a, size, dtype=None: _new_full(a, size, 0, dtype),
    "float": lambda a: cast(a, float),
    "int": lambda a: cast(a, int),
    "bool": lambda a: cast(a, bool),
    "long": lambda a: Symbol("cast", (a, "i64"), "int"),
    "where": lambda a, condition, b: where(condition, a, b),
}


def torch_function(function, args: tuple, kwargs: dict):
    """A function of torch that was given a symbol."""
    name = getattr(function, "__name__", str(function))
    plain = name.strip("_")
    made = _FUNCTIONS.get(plain) or _FUNCTIONS.get(_SLOTS.get(plain, ""))
    if made is None or (set(kwargs) - {"min", "max", "other", "exponent", "dtype"}):
        raise Untraceable(
            f"torch.{name}{' with ' + ', '.join(kwargs) if made else ''}: accepted: torch.where, minimum, maximum, "
            f"clamp, abs, pow, {', '.join(FLOAT_FUNCTIONS)}, logical_and, logical_or, logical_not and operators; "
            "others as a table in a tensor, or with cute.math"
        )
    return made(*args, **kwargs)


_SLOTS = {"truediv": "div", "floordiv": "floor_divide", "mod": "remainder"} | {
    name: f"bitwise_{name}" for name in ("and", "or", "xor")
}


def is_traceable_torch(name: str) -> bool:
    """Whether torch.name is a function of symbols, or a dtype: same result for the same arguments."""
    return name in _FUNCTIONS or f"torch.{name}" in _DTYPES


def _method(symbol: Symbol, name: str):
    if name in _METHODS:
        return lambda *args, **kwargs: _METHODS[name](symbol, *args, **kwargs)
    raise NeedsCompiler(f"{symbol!r} has no attribute {name!r}")


def _element(symbol: Symbol, index):
    if symbol.op != "read":
        raise Untraceable(f"{symbol!r} has no elements")
    return element(symbol.args[0], symbol.args[1:], index, symbol.kind)


def _install():
    """The operators of Symbol from the table, its methods and its elements."""

    def forward(made):
        return lambda self, other: made(self, other)

    def reflected(made):
        return lambda self, other: made(other, self)

    for name, made in _OPERATORS.items():
        if name in ("minimum", "maximum"):
            continue
        setattr(Symbol, f"__{name}__", forward(made))
        if name not in COMPARISONS:
            setattr(Symbol, f"__r{name}__", reflected(made))
    Symbol.__neg__, Symbol.__invert__, Symbol.__abs__ = _negated, _inverted, _absolute
    Symbol.__pos__ = lambda self: self
    Symbol.__hash__ = Symbol._is_no_number_yet
    Symbol.__getattr__, Symbol.__getitem__ = _method, _element
    Symbol.__torch_function__ = classmethod(
        lambda cls, function, types, args=(), kwargs=None: torch_function(
            function, args, kwargs or {}
        )
    )


_install()
