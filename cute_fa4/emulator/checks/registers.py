"""Registers of tcgen05.ld are undefined until tcgen05.wait::ld: the rows that each step of a program reads.

tcgen05.ld {%r1, %r2}, [..];     pending rows of the warp: 1, 2
add.f32 %r3, %r1, %r1;           reads row 1: an error at level "ptx"
tcgen05.wait::ld;                pending rows: none
"""

from cute_fa4.emulator.ptx.errors import RegisterHazard
from cute_fa4.emulator.ptx.syntax import Addr, Pair, Reg, Vec

_WITHOUT_RESULT = ("bar.", "barrier.", "tcgen05.dealloc", "nanosleep", "brx.")


def rows_read(members):
    """frozenset of the register rows that instructions read."""
    rows = set()
    for ins in members:
        first = ins.operands[:1]
        has_result = first and not isinstance(first[0], Addr)
        if has_result and not ins.opcode.startswith(_WITHOUT_RESULT):
            for operand in ins.operands[1:]:
                _collect(operand, rows)
        else:
            for operand in ins.operands:
                _collect(operand, rows)
    return frozenset(rows)


def _collect(operand, rows):
    if isinstance(operand, Reg):
        rows.update(range(operand.row, operand.row + max(operand.bits // 32, 1)))
    elif isinstance(operand, Vec):
        for item in operand.items:
            _collect(item, rows)
    elif isinstance(operand, Pair):
        _collect(operand.first, rows)
        _collect(operand.second, rows)
    elif isinstance(operand, Addr):
        _collect(operand.base, rows)
        for item in operand.coords or ():
            _collect(item, rows)


def check(warp, program, step):
    """Raise RegisterHazard when a step uses a row that a tcgen05.ld of the warp has not delivered yet.

    A mov is not a use: what it copies or packs stays undefined until the wait. Compilers place the mov.b64 that
    packs loaded registers directly after the load, and ptxas allocates the pair in place.
    """
    pending = warp.pending_rows
    if program.rows_read(step).isdisjoint(pending):
        return
    after = program.pending_after.get((step, pending))
    if after is None:
        rows = set(pending)
        for ins in program.members[step]:
            if rows_read((ins,)).isdisjoint(rows):
                continue
            if not ins.opcode.startswith("mov."):
                warp.ins = ins
                warp.fault(
                    "a register of tcgen05.ld is used before tcgen05.wait::ld: its value is undefined until then",
                    RegisterHazard,
                )
            _collect(ins.operands[0], rows)
        after = program.pending_after[step, pending] = frozenset(rows)
    warp.pending_rows = after
