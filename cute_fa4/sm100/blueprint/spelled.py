"""Masks, score functions and schedules as text: what repr writes is what is read back.

    "Both(a=Causal(), b=Chunked())"            a mask
    "composed(soft_cap(30.0), alibi(8))"       a score function of the package

Read by its syntax tree: nothing is called but the functions that are given, and nothing is looked up elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable


def value_of(text: str, functions: dict[str, Callable]):
    """The value of a literal, or of nested calls of `functions` with literals.

    ValueError with the accepted names for anything else.

    >>> value_of("pair(1, b=pair(2, 3))", {"pair": lambda a, b: (a, b)})
    (1, (2, 3))
    """
    try:
        return _value(ast.parse(text, mode="eval").body, functions)
    except (SyntaxError, TypeError, ValueError, KeyError) as error:
        why = f": {error}" if isinstance(error, TypeError) else ""
        raise ValueError(
            f"{text!r}{why}; accepted: calls of {', '.join(sorted(functions))}"
        ) from None


def _value(node: ast.expr, functions: dict[str, Callable]):
    if not isinstance(node, ast.Call):
        return ast.literal_eval(node)
    if not isinstance(node.func, ast.Name):
        raise ValueError("no name of a function")
    named = {keyword.arg: _value(keyword.value, functions) for keyword in node.keywords}
    return functions[node.func.id](*(_value(arg, functions) for arg in node.args), **named)


def call(value, default, names: tuple[str, ...] = ()) -> str:
    """Constructor call of a dataclass with the fields that differ from `default`, and those of `names`."""
    from dataclasses import fields

    shown = [f.name for f in fields(value)]
    shown = [n for n in shown if n in names or getattr(value, n) != getattr(default, n)]
    inside = ", ".join(f"{name}={getattr(value, name)!r}" for name in shown)
    return f"{type(value).__name__}({inside})"
