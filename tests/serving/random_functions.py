"""Random score and mask functions: one expression, evaluated by the kernel and, in float64, by the reference.

    Expression.draw(random, aux)      sums, products and selections of what a function is given, over every aux dtype
    kernel(...)                       its value in traced CuTe DSL: as the user would have written it
    exact(...)                        the same in float64, for all pairs of a query and a key

Numbers are small multiples of powers of two, so that sums and products of them are exact in every dtype, bf16 included:
what differs between the two is a wrong instruction, not rounding.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass

import torch

FLOATS = (torch.float32, torch.bfloat16, torch.float16)
INTEGERS = (torch.int32, torch.int64, torch.uint8)

# Where the element lies that a function of (batch, head, q_idx, kv_idx) reads.
PLACES = {
    "key": lambda batch, head, q, k: (batch, k),
    "query": lambda batch, head, q, k: (batch, q),
    "head": lambda batch, head, q, k: (head,),
    "sequence": lambda batch, head, q, k: (batch,),
}
ARITHMETIC = {"add": operator.add, "sub": operator.sub, "mul": operator.mul}
COMPARISONS = {"lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne}
LOGIC = {"and": operator.and_, "or": operator.or_}


@dataclass(frozen=True)
class Aux:
    """A tensor of the call: its dtype and what its dimensions count."""

    dtype: torch.dtype
    place: str

    def draw(self, generator, sizes: dict) -> torch.Tensor:
        shape = {
            "key": (sizes["batch"], sizes["keys"]),
            "query": (sizes["batch"], sizes["queries"]),
            "head": (sizes["heads"],),
            "sequence": (sizes["batch"],),
        }[self.place]
        if self.dtype in FLOATS:  # eighths, up to one
            return (torch.randint(-8, 9, shape, generator=generator) / 8).to(self.dtype)
        low = 0 if self.dtype is torch.uint8 else -3
        return torch.randint(low, 4, shape, generator=generator).to(self.dtype)


@dataclass(frozen=True)
class Node:
    """op, with operands that are nodes, numbers of aux tensors or constants."""

    op: str
    operands: tuple = ()


def draw_aux(random) -> tuple[Aux, ...]:
    """Two tensors of one half-precision dtype, which meet in an instruction, and others of any."""
    half = random.choice(FLOATS[1:])
    dtypes = [half, half, random.choice(FLOATS), *random.sample(INTEGERS, 2)]
    return tuple(Aux(dtype, random.choice(sorted(PLACES))) for dtype in dtypes)


def draw_number(random, aux: tuple[Aux, ...], depth: int = 2) -> Node:
    """A float32 expression of at most a few units."""
    floats = [i for i, each in enumerate(aux) if each.dtype in FLOATS]
    integers = [i for i, each in enumerate(aux) if each.dtype in INTEGERS]
    kind = random.choice(
        ["combined", "native", "chosen"] if depth else ["float", "integer", "index"]
    )
    if kind == "combined":
        both = tuple(draw_number(random, aux, depth - 1) for _ in "ab")
        return Node(random.choice(sorted(ARITHMETIC)), both)
    if kind == "native":  # in the dtype of the tensors
        first = random.choice(floats)
        same = [i for i in floats if aux[i].dtype is aux[first].dtype]
        return Node(f"native {random.choice(sorted(ARITHMETIC))}", (first, random.choice(same)))
    if kind == "chosen":
        both = tuple(draw_number(random, aux, depth - 1) for _ in "ab")
        return Node("select", (draw_condition(random, aux, depth - 1), *both))
    if kind == "float":
        return Node("float", (random.choice(floats),))
    if kind == "integer":
        return Node("integer", (random.choice(integers),))
    return Node("index", (random.choice(["head", "q", "k"]),))


def draw_condition(random, aux: tuple[Aux, ...], depth: int = 2) -> Node:
    """A boolean expression."""
    integers = [i for i, each in enumerate(aux) if each.dtype in INTEGERS]
    floats = [i for i, each in enumerate(aux) if each.dtype in FLOATS]
    kind = random.choice(["logic", "sign"] if depth else ["integers", "sign", "indices"])
    if kind == "logic":
        both = tuple(draw_condition(random, aux, depth - 1) for _ in "ab")
        return Node(random.choice(sorted(LOGIC)), both)
    if kind == "sign":
        return Node("above", (random.choice(floats), random.choice([-0.5, 0.0, 0.375])))
    comparison = random.choice(sorted(COMPARISONS))
    if kind == "integers":
        same = random.choice(integers)
        return Node(f"compare {comparison}", (same, random.choice([-1, 0, 1, 2])))
    return Node(f"indices {comparison}", (random.choice(["q", "k"]), random.randrange(30)))


def kernel(node: Node, where: tuple, tensors, placed: tuple[Aux, ...]):
    """The value in the kernel: numbers are Float32, conditions Boolean. where: (batch, head, q, k)."""
    from cutlass import Boolean, Float32, select_

    def of(operand):
        return kernel(operand, where, tensors, placed)

    def element(i):
        return tensors[i][PLACES[placed[i].place](*where)]

    indices = dict(zip(("batch", "head", "q", "k"), where, strict=True))
    op, _, detail = node.op.partition(" ")
    a, *rest = node.operands
    if op in ARITHMETIC:
        return ARITHMETIC[op](of(a), of(rest[0]))
    if op == "native":
        return ARITHMETIC[detail](element(a), element(rest[0])).to(Float32)
    if op == "select":
        return select_(of(a), of(rest[0]), of(rest[1]))
    if op == "float":
        return element(a).to(Float32)
    if op == "integer":
        return element(a).to(Float32) * Float32(0.125)
    if op == "index":
        return indices[a].to(Float32) * Float32(1 / 64)
    if op in LOGIC:
        return LOGIC[op](Boolean(of(a)), Boolean(of(rest[0])))
    if op == "above":
        return element(a).to(Float32) > Float32(rest[0])
    if op == "compare":
        return COMPARISONS[detail](element(a), rest[0])
    return COMPARISONS[detail](indices[a], rest[0])


def exact(node: Node, where: tuple, tensors, placed: tuple[Aux, ...]) -> torch.Tensor:
    """The same in float64, for index tensors that broadcast against each other."""

    def of(operand):
        return exact(operand, where, tensors, placed)

    def element(i):
        return tensors[i].double()[PLACES[placed[i].place](*where)]

    indices = dict(zip(("batch", "head", "q", "k"), where, strict=True))
    op, _, detail = node.op.partition(" ")
    a, *rest = node.operands
    if op in ARITHMETIC:
        return ARITHMETIC[op](of(a), of(rest[0]))
    if op == "native":
        return ARITHMETIC[detail](element(a), element(rest[0]))
    if op == "select":
        return torch.where(of(a), of(rest[0]), of(rest[1]))
    if op == "float":
        return element(a)
    if op == "integer":
        return element(a) * 0.125
    if op == "index":
        return indices[a].double() / 64
    if op in LOGIC:
        return LOGIC[op](of(a), of(rest[0]))
    if op == "above":
        return element(a) > rest[0]
    if op == "compare":
        return COMPARISONS[detail](element(a), rest[0])
    return COMPARISONS[detail](indices[a], rest[0])
