"""Symbols: what a function of a score is given in place of its score and indices, and what may stand beside them.

The operators of a Symbol, its methods and its elements are those of operations.py, which adds them to the class.
"""

from __future__ import annotations

import threading

LARGEST_INT = 2**31 - 1

active = threading.local()
"""active.recorder: the read_tensors.Recorder of a function that is being traced."""


class Untraceable(TypeError):
    """The function cannot be traced. The message says what to write instead."""


class NeedsCompiler(AttributeError):
    """The function handles values of the compiler (cutlass), which have no form as an expression."""


class Symbol:
    """A number or condition whose value is known only in the kernel.

    kind  "bool", "int", "float", or "any" where it comes from an aux tensor, whose dtype is not known yet
    """

    __slots__ = ("args", "kind", "op")
    __array_ufunc__ = None  # numpy numbers defer operators to this class
    __hash__ = None

    def __init__(self, op: str, args: tuple, kind: str):
        self.op, self.args, self.kind = op, args, kind

    def __repr__(self) -> str:
        return f"<a traced {NAMES_OF_KINDS[self.kind]}>"

    # --- operations that need the value

    def __bool__(self):
        raise Untraceable(
            "if, and, or, not, min, max and chained comparisons need the truth of a value that differs from thread to "
            "thread; write torch.where(condition, a, b) or cutlass.select_, &, | and ~ between comparisons, and "
            "torch.minimum or torch.maximum"
        )

    def __iter__(self):
        raise Untraceable(f"{self!r} has no elements")

    def _is_no_number_yet(self, *_):
        raise Untraceable(
            "a traced value is no number for int(), float(), range(), math, numpy or lists; write .to(torch.float32), "
            "torch.exp, torch.tanh, ... or cute.math, and give tables as aux_tensors, which are read as aux[0][...]"
        )

    __index__ = __int__ = __float__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = (
        _is_no_number_yet
    )
    __array_function__ = _is_no_number_yet


NAMES_OF_KINDS = {
    "bool": "comparison",
    "int": "index",
    "float": "score",
    "any": "element of a tensor",
}


def operand(value):
    """A symbol, or a plain bool, int or float. Untraceable for anything else."""
    if isinstance(value, Symbol):
        return value
    if isinstance(value, (bool, int, float)):
        if type(value) in (bool, int, float):
            return _within(value)
        return _within(float(value) if isinstance(value, float) else int(value))
    if type(value).__module__.partition(".")[0] == "cutlass":
        return _of_compiler(value)
    recorder = getattr(active, "recorder", None)
    if recorder is not None and hasattr(value, "data_ptr"):
        return recorder.symbol(value)
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # of numpy or torch
        return operand(value.item())
    if hasattr(value, "__array__"):
        raise Untraceable(
            f"a {type(value).__name__} of shape {tuple(value.shape)}; accepted: numbers and torch tensors; in a "
            "function that uses cutlass, tensors as aux_tensors=[...], whose elements are aux[0][...]"
        )
    raise Untraceable(
        f"a {type(value).__name__} beside a traced value; accepted: numbers, traced values, elements of aux_tensors"
    )


def _within(value):
    if isinstance(value, int) and not -LARGEST_INT - 1 <= value <= LARGEST_INT:
        raise Untraceable(f"the integer {value}; accepted: integers of 32 bits, or a float")
    return value


def _of_compiler(value):
    """Float32(0.5) and the like: a constant with a type."""
    name, number = type(value).__name__, getattr(value, "value", None)
    if type(number) in (bool, int, float) and name in ("Float32", "Int32", "Boolean"):
        convert = {"Float32": float, "Int32": int, "Boolean": bool}[name]
        return _within(convert(number))
    raise NeedsCompiler(f"a {name} of cutlass")


def kind_of(value) -> str:
    return value.kind if isinstance(value, Symbol) else type(value).__name__
