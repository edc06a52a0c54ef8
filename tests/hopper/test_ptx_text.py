"""Tokens of PTX: joined they are the text, and instructions are told from everything else."""

import pytest

from cute_fa4.hopper.ptx_text import tokens

MODULE = """
.version 8.8
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.global .align 4 .b8 table[8] = {1, 2, 3};
.visible .entry kernel(
\t.param .u64 p0,
\t.param .align 64 .b8 map[128]
)
.reqntid 128, 1, 1
{
\t.reg .b32 \t%r<9>;
\t.loc 1 88 0, function_name $L__info, inlined_at 1 2 3
// begin inline asm
{ .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r1], %r2; @P1 bra.uni DONE; bra LAB_WAIT; DONE: }
\t.pragma "nounroll";
$L__BB0_2:\t@!%p1 st.shared.v4.b32 \t[dyn+16], {%r1, %r2,
   %r3, %r4}; // a comment; with a semicolon
\tcall.uni (r), f, (a, b);
\tret;
}
.section .debug_str { .b8 97
.b8 0 }
"""


def test_joined_they_are_the_text():
    assert "".join(token.text for token in tokens(MODULE)) == MODULE


def test_instructions():
    found = [(t.guard, t.opcode, t.operands) for t in tokens(MODULE) if t.kind == "instruction"]
    assert found == [
        ("", "mbarrier.try_wait.parity.shared.b64", ("P1", "[%r1]", "%r2")),
        ("P1", "bra.uni", ("DONE",)),
        ("", "bra", ("LAB_WAIT",)),
        ("!%p1", "st.shared.v4.b32", ("[dyn+16]", "{%r1, %r2,\n   %r3, %r4}")),
        ("", "call.uni", ("(r)", "f", "(a, b)")),
        ("", "ret", ()),
    ]


@pytest.mark.parametrize("label", ["LAB_WAIT:", "DONE:", "$L__BB0_2:"])
def test_labels(label):
    assert label in [token.text for token in tokens(MODULE) if token.kind == "label"]
