"""Instructions that become several instructions of Hopper."""

from __future__ import annotations

import re
from dataclasses import replace

from cute_fa4.hopper.ptx_blocks import address_of, block, call, refuse
from cute_fa4.hopper.ptx_text import Token, elements

GRANTED = 1
"""The fourth word of a response of cute_fa4_try_cancel that grants a cluster; the others are its ctaid."""


def drop(token: Token) -> str:
    return ""


def fence(token: Token) -> str:
    return block(token.guard, "fence.acq_rel.gpu;")


def packed(token: Token) -> str:
    """An operation on two packed floats: unpack, one operation each with the same modifiers, pack."""
    operation = token.opcode.removesuffix("x2")
    count = len(token.operands)
    halves = ", ".join(f"tc_l{i}, tc_h{i}" for i in range(count))
    unpack = [f"mov.b64 {{tc_l{i}, tc_h{i}}}, {token.operands[i]};" for i in range(1, count)]
    each = [f"{operation} {', '.join(f'tc_{half}{i}' for i in range(count))};" for half in "lh"]
    pack = f"mov.b64 {token.operands[0]}, {{tc_l0, tc_h0}};"
    return block(token.guard, f".reg .b32 {halves};", *unpack, *each, pack)


def mixed(token: Token) -> str | None:
    """fma, add or sub of 16-bit inputs in float32: convert them, which is exact, then the operation in float32."""
    dtype = token.opcode.rpartition(".")[2]
    operation = token.opcode.removesuffix(f".{dtype}")
    if not operation.endswith(".f32") or operation.partition(".")[0] not in _MIXED_INPUTS:
        return None
    to, *inputs = token.operands
    count = _MIXED_INPUTS[operation.partition(".")[0]]
    convert = [f"cvt.f32.{dtype} tc_{i}, {inputs[i]};" for i in range(count)]
    operands = [*(f"tc_{i}" for i in range(count)), *inputs[count:]]
    return block(
        token.guard,
        f".reg .f32 {', '.join(f'tc_{i}' for i in range(count))};",
        *convert,
        f"{operation} {', '.join((to, *operands))};",
    )


_MIXED_INPUTS = {"fma": 2, "add": 1, "sub": 1}
"""How many of the operands have 16 bits: PTX ISA, "Mixed Precision Floating Point Instructions"."""


def from_4_bits(token: Token) -> str:
    """Two E2M1 numbers of a byte, whose exponents have a bias of 1, as fp16, where it is 15; exact, subnormals too."""
    if token.opcode != "cvt.rn.f16x2.e2m1x2":
        refuse(token)
    to, byte = token.operands
    places = (
        (0x8, 12),
        (0x7, 9),
        (0x80, 24),
        (0x70, 21),
    )  # sign and magnitude of the low number, then the high one
    moves = [
        f"and.b32 tc_p, tc_b, {bits}; shl.b32 tc_p, tc_p, {left}; or.b32 tc_f, tc_f, tc_p;"
        for bits, left in places
    ]
    return block(
        token.guard,
        ".reg .b32 tc_b, tc_p, tc_f, tc_s;",
        f"cvt.u32.u8 tc_b, {byte};",
        "mov.b32 tc_f, 0;",
        *moves,
        "mov.b32 tc_s, 0x74007400;",
        f"mul.rn.f16x2 {to}, tc_f, tc_s;",
    )


def three_inputs(token: Token) -> str | None:
    if len(token.operands) != 4:
        return None
    to, a, b, c = token.operands
    first, second = f"{token.opcode} tc_m, {a}, {b};", f"{token.opcode} {to}, tc_m, {c};"
    return block(token.guard, ".reg .b32 tc_m;", first, second)


def reduction(token: Token) -> str:
    """redux.sync.max or .min of float32 by a butterfly of shuffles."""
    operation = token.opcode.split(".")[2]
    if operation not in ("max", "min"):
        refuse(token)
    modifiers = token.opcode.split(".")[3:-1]  # .abs, .NaN
    if "abs" in modifiers:
        refuse(token)
    combine = ".".join((operation, *modifiers, "f32"))
    to, value, members = token.operands
    steps = [
        f"shfl.sync.bfly.b32 tc_y, tc_x, {distance}, 31, {members}; {combine} tc_x, tc_x, tc_y;"
        for distance in (16, 8, 4, 2, 1)
    ]
    if int(members, 0) & 0xFFFFFFFF != 0xFFFFFFFF:
        refuse(token)
    return block(
        token.guard,
        ".reg .f32 tc_x, tc_y;",
        f"mov.f32 tc_x, {value};",
        *steps,
        f"mov.f32 {to}, tc_x;",
    )


_ANSWER = (
    ".reg .b64 tc_l, tc_h; .reg .b32 tc_0, tc_1, tc_2, tc_3;",
    "mov.b128 {{tc_l, tc_h}}, {};",
    "mov.b64 {{tc_0, tc_1}}, tc_l;",
    "mov.b64 {{tc_2, tc_3}}, tc_h;",
)


def is_canceled(token: Token) -> str:
    predicate, handle = token.operands
    answer = "\n".join(_ANSWER).format(handle)
    return block(token.guard, answer, f"setp.eq.u32 {predicate}, tc_3, {GRANTED};")


def first_ctaid(token: Token) -> str:
    to, handle = token.operands
    answer = "\n".join(_ANSWER).format(handle)
    axis = re.search(r"::([xyz])\.", token.opcode)
    if axis:
        return block(token.guard, answer, f"mov.b32 {to}, tc_{'xyz'.index(axis[1])};")
    moves = [f"mov.b32 {r}, tc_{i};" for i, r in enumerate(elements(to)[:3]) if r != "_"]
    return block(token.guard, answer, *moves)


def gather(token: Token, load_for_a_pair) -> str:
    """Four rows are four boxes of one row, one after another: the address alone determines the swizzle."""
    destination, source, *rest = token.operands
    opcode = token.opcode.replace(".tile::gather4", ".tile").replace(".cta_group::1", "")
    the_map, _, coordinates = source.strip("[] ").partition(",")
    column, *rows = elements(coordinates)
    if len(rows) != 4:
        refuse(token)
    copies = []
    for row in rows:
        operands = ("[tc_g]", f"[{the_map}, {{{column}, {row}}}]", *rest)
        copy = f"{opcode} {', '.join(operands)};"
        if ".cta_group::2" in opcode:
            copy = load_for_a_pair(replace(token, guard="", opcode=opcode, operands=operands))
        copies.append(copy)
        copies.append("add.u32 tc_g, tc_g, tc_o;")
    return block(
        token.guard,
        ".reg .b32 tc_g, tc_o;",
        address_of(destination, "tc_g"),
        call("box_bytes", ("b64", the_map), result=("b32", "tc_o")),
        *copies,
    )
