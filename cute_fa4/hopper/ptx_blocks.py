"""PTX blocks that replace an instruction: a scope with its own registers, and calls of functions of tcgen05.cu.

@%p1 tcgen05.commit...b64 [%r8];        {
                                            @!%p1 bra tc_skip;
                                            ... call.uni cute_fa4_commit, (tc_0, tc_1);
                                        tc_skip: }
"""

from __future__ import annotations

from typing import NoReturn

from cute_fa4.hopper.ptx_text import Token

TARGET = "sm_90a"


class UnsupportedInstruction(ValueError):
    """An instruction that Hopper lacks and that has no model; the text names it."""


def refuse(token: Token) -> NoReturn:
    raise UnsupportedInstruction(
        f"{token.opcode} has no counterpart on {TARGET} and is not modelled; accepted: what the "
        "head of cute_fa4/hopper/rewrite.py lists"
    )


def block(guard: str, *lines: str) -> str:
    """Statements in a separate scope, skipped if the guard is false; a call consists of several."""
    if not guard:
        return "\n".join(("{", *lines, "}"))
    inverse = guard[1:] if guard.startswith("!") else "!" + guard
    return "\n".join(("{", f"@{inverse} bra tc_skip;", *lines, "tc_skip:", "}"))


def call(name: str, *arguments: tuple[str, object], result: tuple[str, str] | None = None) -> str:
    """A call of a function of tcgen05.cu; arguments and result are (type, register or number)."""
    lines = [
        f".param .{kind} tc_p{i}; st.param.{kind} [tc_p{i}], {value};"
        for i, (kind, value) in enumerate(arguments)
    ]
    passed = "(" + ", ".join(f"tc_p{i}" for i in range(len(arguments))) + ")"
    if result is None:
        return "\n".join(("{", *lines, f"call.uni cute_fa4_{name}, {passed};", "}"))
    kind, register = result
    lines += [
        f".param .{kind} tc_r;",
        f"call.uni (tc_r), cute_fa4_{name}, {passed};",
        f"ld.param.{kind} {register}, [tc_r];",
    ]
    return "\n".join(("{", *lines, "}"))


def address_of(operand: str, register: str) -> str:
    """register = the value of a 32-bit address operand.

    >>> address_of("[%r1+8]", "tc_a")
    'mov.b32 tc_a, %r1; add.u32 tc_a, tc_a, 8;'
    """
    inner = operand.strip("[] \t\n")
    base, plus, offset = inner.partition("+")
    move = f"mov.b32 {register}, {base.strip()};"
    return f"{move} add.u32 {register}, {register}, {offset.strip()};" if plus else move
