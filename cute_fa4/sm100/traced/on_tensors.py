"""An expression on torch tensors, with floats in float64: the baseline for a kernel's results."""

from __future__ import annotations

import operator

import torch

from .expressions import COMPARISONS, constant_of


def evaluated(nodes: list, arguments: dict, tensors) -> torch.Tensor:
    """The value of the last node.

    arguments: tensors by the names of the nodes "arg", which broadcast against each other; tensors: the aux tensors
    """
    values: list = []

    def value(arg):
        return values[arg] if isinstance(arg, int) else _constant(arg)

    for op, *args in nodes:
        if op == "arg":
            found = _read(torch.as_tensor(arguments[args[0]]))
        elif op == "const":
            found = _constant(args[0])
        elif op == "read":
            found = _read(tensors[args[0]][tuple(map(value, args[1:]))])
        elif op == "size":
            found = torch.as_tensor(tensors[args[0]].shape[args[1]])
        elif op == "cast":
            found = _read(value(args[0]).to(_DTYPES[args[1]]))
        else:
            found = _OPERATIONS[op](*map(value, args))
        values.append(found)
    return values[-1]


def _constant(data: dict) -> torch.Tensor:
    number = constant_of(data)
    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def _read(tensor: torch.Tensor) -> torch.Tensor:
    """Floats in float64, integers in int64."""
    if tensor.is_floating_point():
        return tensor.double()
    return tensor if tensor.dtype is torch.bool else tensor.long()


def _on_numbers(function):
    """A condition counts as 0 or 1; torch's own sum of two would be their disjunction."""

    def made(*tensors):
        return function(*(x.long() if x.dtype is torch.bool else x for x in tensors))

    return made


def _on_floats(function):
    return lambda *tensors: function(*(x.double() for x in tensors))


_DTYPES = {
    "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i32": torch.int32, "i64": torch.int64,
    "bool": torch.bool,
}  # fmt: skip
_OPERATIONS = {
    **{name: getattr(operator, f"{name}_") for name in ("and", "or")},
    **{name: getattr(operator, name) for name in ("xor", "invert")},
    **{
        name: _on_numbers(getattr(operator, name))
        for name in ("add", "sub", "mul", "floordiv", "mod", "lshift", "rshift", "neg", "abs", *COMPARISONS)
    },
    **{name: _on_numbers(getattr(torch, name)) for name in ("minimum", "maximum")},
    **{
        name: _on_floats(getattr(torch, name))
        for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "tanh", "sigmoid")
    },
    "div": _on_floats(operator.truediv),
    "where": lambda condition, a, b: torch.where(condition != 0, a, b),
}  # fmt: skip
