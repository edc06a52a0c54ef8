"""The computation of a score function, as an expression: operations, constants and reads of aux tensors.

A function is called with symbols instead of its score and indices. Operators and torch functions on a symbol make
another symbol; what the function returns is the root of a graph, which is written as plain data:

    lambda score, b, h, q_idx, kv_idx: score - (q_idx - kv_idx) * 2

    [["arg", "score"], ["arg", "q_idx"], ["arg", "kv_idx"], ["sub", 1, 2], ["mul", 3, {"int": 2}], ["sub", 0, 4]]

An integer in a node is the number of an earlier node. The data is the key of the function, the source for the kernel's
code (evaluation.py), and part of the manifests of compiled kernels. It has only operations that affect the result.
"""

from __future__ import annotations

from .symbols import Symbol

INDICES = ("batch", "head", "q_idx", "kv_idx")
# Facts about the row in aux, in addition to the tensors.
FACTS = ("position", "q_row", "seqlen_q", "num_keys")
COMPARISONS = ("lt", "le", "gt", "ge", "eq", "ne")

CAPTURED = 1 << 20
"""The number of the first tensor that a function captures; those of aux are below."""


def data_of(root) -> list:
    """The nodes that `root` depends on, each once, operands before their users."""
    nodes, numbers, known = [], {}, {}

    def number(value):
        if not isinstance(value, Symbol):
            return constant(value)
        found = numbers.get(id(value))
        if found is not None:
            return found
        plain = _PLAIN_ARGS.get(value.op, (0, 0))
        first, last = plain[0], len(value.args) - plain[1]
        args = [
            number(arg) if first <= place < last else arg for place, arg in enumerate(value.args)
        ]
        node = [value.op, *args]
        text = repr(node)
        if text not in known:
            known[text] = len(nodes)
            nodes.append(node)
        numbers[id(value)] = known[text]
        return known[text]

    found = number(root)
    if not isinstance(root, Symbol):
        return [["const", found]]
    return nodes


# Plain arguments: how many at the front and at the end.
_PLAIN_ARGS = {"arg": (1, 0), "size": (2, 0), "read": (1, 0), "cast": (0, 1)}


def constant(value) -> dict:
    """
    >>> constant(True), constant(3), constant(0.5)
    ({'bool': True}, {'int': 3}, {'float': '0x1.0000000000000p-1'})
    """
    if isinstance(value, bool):
        return {"bool": value}
    return {"int": value} if isinstance(value, int) else {"float": float(value).hex()}


def constant_of(data: dict):
    """
    >>> [constant_of(constant(x)) for x in (False, -7, 0.1, float("-inf"))]
    [False, -7, 0.1, -inf]
    """
    ((kind, value),) = data.items()
    return float.fromhex(value) if kind == "float" else value


def reads_of(nodes: list) -> set[tuple[int, int]]:
    """(aux tensor, how many indices) of every read."""
    return {(node[1], len(node) - 2) for node in nodes if node[0] == "read"}
