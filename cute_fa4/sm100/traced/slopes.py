"""The derivative of a traced function by its score or by an element of aux, as an expression: one rule per operation.

    lambda score, ...: score * score - kv_idx        by the score: score + score
    lambda score, ...: score + 2 * aux[0][head]      by aux[0][head]: 2

The rules are those of torch.autograd, except where an operation has no derivative: at a tie, minimum, maximum and clamp
use that of their first operand. Indices, sizes and comparisons have no derivative, and an element of aux none by
another one.

    lambda grad, score, ...: grad * score            a factor of the caller instead of the derivative: score
"""

from __future__ import annotations

import math

from .expressions import COMPARISONS, constant_of, data_of
from .operations import function_of, where
from .symbols import Symbol

LN_2 = math.log(2)
_FLOATS = (
    "f32",
    "f16",
    "bf16",
)  # a cast to one of them hands a derivative on; a rounding counts as none


def slope_of(nodes: list, by: int | None = None) -> list | None:
    """Nodes of the derivative of `nodes` by the argument "score", or by node `by`, a read; None: it is zero.

    >>> slope_of([["arg", "score"], ["mul", 0, {"int": 3}]])
    [['const', {'int': 3}]]
    """
    by = _number_of("score", nodes) if by is None else by
    values: list = []
    slopes: list = []  # None: it does not depend on the variable
    for number, (op, *args) in enumerate(nodes):
        value, slope = _node(op, args, values, slopes)
        values.append(value)
        slopes.append(1.0 if number == by else slope)
    return None if slopes[-1] is None else data_of(slopes[-1])


def _number_of(argument: str, nodes: list) -> int:
    """The node of an argument; -1 if there is none."""
    return next((i for i, node in enumerate(nodes) if node == ["arg", argument]), -1)


def factor_of(nodes: list) -> list:
    """Nodes of what a function multiplies its argument "grad" by. ValueError: it is not proportional to it.

    >>> factor_of([["arg", "grad"], ["arg", "score"], ["mul", 0, 1]])
    [['arg', 'score']]
    """
    grad = _number_of("grad", nodes)
    depends = {grad}
    for number, (op, *args) in enumerate(nodes):
        moved = [isinstance(arg, int) and arg in depends for arg in args]
        if op not in ("arg", "const", "size", "read") and any(moved):
            if not _is_proportional(op, args, moved):
                raise ValueError(op)
            depends.add(number)
    if len(nodes) - 1 not in depends and not (nodes[-1][0] == "const" and _is_zero(nodes[-1][1])):
        raise ValueError("a result without grad")
    factor = slope_of(nodes, grad)
    return data_of(0.0) if factor is None else factor


def _is_proportional(op: str, args: list, moved: list) -> bool:
    """Whether an operation is proportional to grad, where those of its operands that depend on it are."""
    zero_or_moved = [is_moved or _is_zero(arg) for arg, is_moved in zip(args, moved, strict=True)]
    return {
        "neg": True,
        "add": all(zero_or_moved),
        "sub": all(zero_or_moved),
        "mul": sum(moved) == 1,
        "div": moved == [True, False],
        "where": not moved[0] and all(zero_or_moved[1:]),
        "cast": args[-1] in _FLOATS,
    }.get(op, False)


def _is_zero(arg) -> bool:
    return isinstance(arg, dict) and constant_of(arg) == 0


def operands_of(nodes: list, number: int) -> list[list]:
    """Nodes of each index of a read, node `number`.

    >>> operands_of([["arg", "head"], ["read", 0, {"int": 1}, 0]], 1)
    [[['const', {'int': 1}]], [['arg', 'head']]]
    """
    values = values_of(nodes[:number])
    return [data_of(_value(arg, values)) for arg in nodes[number][2:]]


def values_of(nodes: list) -> list:
    """The symbol or constant of every node."""
    values: list = []
    for op, *args in nodes:
        values.append(_node(op, args, values, [None] * len(values))[0])
    return values


def _node(op: str, args: list, values: list, slopes: list) -> tuple:
    """-> (value, slope) of a node; the slope of the variable itself is the caller's."""
    if op == "arg":
        return Symbol("arg", tuple(args), "any"), None
    if op == "const":
        return constant_of(args[0]), None
    if op == "size":
        return Symbol("size", tuple(args), "any"), None
    plain = args[:1] if op == "read" else []  # the number of the tensor
    rest = args[len(plain) :]
    given = [_value(arg, values) for arg in rest]
    kind = "bool" if op in COMPARISONS else "any"
    value = Symbol(op, (*plain, *given), kind)
    if op == "read":
        return value, None
    of_given = [slopes[arg] if isinstance(arg, int) else None for arg in rest]
    if op in FLAT or all(slope is None for slope in of_given):
        return value, None
    return value, RULES[op](value, given, of_given)


def _value(arg, values: list):
    """An operand: a node before, a constant, or the dtype of a cast."""
    if isinstance(arg, int):
        return values[arg]
    return constant_of(arg) if isinstance(arg, dict) else arg


# --- slopes, of which None is 0


def _sum(a, b):
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _minus(a):
    return None if a is None else -a


def _times(factor, slope):
    if slope is None:
        return None
    is_one = not isinstance(slope, Symbol) and slope == 1.0
    return factor if is_one else factor * slope


def _number(slope):
    return 0.0 if slope is None else slope


def _quotient(value, args, slopes):
    (_, b), (of_a, of_b) = args, slopes
    over = _sum(of_a, _minus(_times(value, of_b)))
    return over / b


def _absolute(value, args, slopes):
    (a,), (slope,) = args, slopes
    return where(a < 0, -slope, where(a > 0, slope, 0.0))


def _chosen(value, args, slopes):
    return where(args[0], _number(slopes[1]), _number(slopes[2]))


def _first_or_second(holds):
    def rule(value, args, slopes):
        return where(holds(*args), *map(_number, slopes))

    return rule


def _function(slope_at):
    """slope_at(value, argument): of a function of one number."""
    return lambda value, args, slopes: _times(slope_at(value, args[0]), slopes[0])


def _cast(value, args, slopes):
    return slopes[0] if args[1] in _FLOATS else None


RULES = {
    "add": lambda value, args, slopes: _sum(*slopes),
    "sub": lambda value, args, slopes: _sum(slopes[0], _minus(slopes[1])),
    "mul": lambda value, args, slopes: _sum(_times(args[1], slopes[0]), _times(args[0], slopes[1])),
    "div": _quotient,
    "neg": lambda value, args, slopes: _minus(slopes[0]),
    "abs": _absolute,
    "where": _chosen,
    "minimum": _first_or_second(lambda a, b: a <= b),
    "maximum": _first_or_second(lambda a, b: a >= b),
    "cast": _cast,
    "exp": _function(lambda value, a: value),
    "exp2": _function(lambda value, a: value * LN_2),
    "log": _function(lambda value, a: 1.0 / a),
    "log2": _function(lambda value, a: (1.0 / LN_2) / a),
    "sqrt": _function(lambda value, a: 0.5 * function_of("rsqrt")(a)),
    "rsqrt": _function(lambda value, a: -0.5 * value * value * value),
    "tanh": _function(lambda value, a: 1.0 - value * value),
    "sigmoid": _function(lambda value, a: value * (1.0 - value)),
}
"""(value, operands, their slopes) -> slope, of which at least one operand has one."""

FLAT = frozenset(
    (*COMPARISONS, "floordiv", "mod", "and", "or", "xor", "lshift", "rshift", "invert")
)
"""Of whole numbers and conditions, which no small change of a score moves."""
