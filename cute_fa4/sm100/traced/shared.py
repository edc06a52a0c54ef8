"""Which scores share an element of an aux tensor, from the expressions of its indices.

"rows"        no index depends on the key                     aux[head], aux[q_row, head]
"distances"   query and key count by their difference only    aux[head, clamp(q_idx - kv_idx, 0, 31)]
"scores"      any other: each score may have its own          aux[batch, head, q_idx, kv_idx], aux[head, kv_idx]
"""

from __future__ import annotations

from .expressions import constant_of

ROWS, DISTANCES, SCORES = "rows", "distances", "scores"
_MOVING = ("q_idx", "position", "q_row", "kv_idx")


def sharing(indices: tuple[list, ...]) -> str:
    """indices: nodes of each index.

    >>> sharing(([["arg", "head"]],))
    'rows'
    >>> sharing(([["arg", "position"], ["arg", "kv_idx"], ["sub", 0, 1], ["abs", 2]],))
    'distances'
    >>> sharing(([["arg", "kv_idx"], ["floordiv", 0, {"int": 2}]],))
    'scores'
    """
    if not any("kv_idx" in arguments_of(nodes) for nodes in indices):
        return ROWS
    return DISTANCES if all(_step(nodes) == 0 for nodes in indices) else SCORES


def arguments_of(nodes: list) -> set[str]:
    """Names of the arguments that the value depends on."""
    return {node[1] for node in nodes if node[0] == "arg"}


def _step(nodes: list) -> int | None:
    """By how much the value grows where query and key move on by one, both; None: not always by the same."""
    steps: list = []
    for op, *args in nodes:
        plain = {"read": 1, "size": 2}.get(op, 0)  # arguments that are numbers, not nodes
        given = [steps[arg] if isinstance(arg, int) else 0 for arg in args[plain:]]
        steps.append(_step_of(op, args, given))
    return steps[-1]


def _step_of(op: str, args: list, given: list) -> int | None:
    if op == "arg":
        return int(args[0] in _MOVING)
    if all(step == 0 for step in given):
        return 0
    if None in given:
        return None
    if op == "add":
        return sum(given)
    if op == "sub":
        return given[0] - given[1]
    if op == "neg":
        return -given[0]
    if op == "cast" and args[1] in ("i32", "i64"):
        return given[0]
    if op == "mul":
        return _times([constant_of(arg) for arg in args if isinstance(arg, dict)], given)
    if op in ("minimum", "maximum") and given[0] == given[1]:
        return given[0]
    if op == "where" and given[0] == 0 and given[1] == given[2]:
        return given[1]
    return None


def _times(factors: list, given: list) -> int | None:
    """Of a product by a constant."""
    if len(factors) == 1 and isinstance(factors[0], int):
        return int(factors[0]) * sum(given)
    return None
