"""Random streams of register arithmetic: generated C computes what the NumPy meaning does, one after another.

test_lanes.py compares each opcode alone, with operands in registers of their own. Here results are operands of what
follows, a result may replace its source, and operands, guards and active lanes are drawn: immediates, negated
predicates, sinks. A difference is reduced to the first instruction whose registers differ.
"""

import numpy as np
import pytest

from cute_fa4.emulator.instructions import lanes
from cute_fa4.emulator.instructions.instruction_table import lookup
from cute_fa4.emulator.machine.cta import CTA, Cluster, Machine
from cute_fa4.emulator.machine.warp import Warp
from cute_fa4.emulator.ptx.parser import Imm, Instruction, Pair, Pred, Reg, Sink, Vec
from tests.emulator.instructions.lane_cases import families, preload, special_values

# Few registers, so that most operands are results: rows 0 to 3, 4 to 7, 8 to 15; four predicates.
REGISTERS = {
    16: [Reg(row, 16) for row in range(4)],
    32: [Reg(row, 32) for row in range(4, 8)],
    64: [Reg(row, 64) for row in range(8, 16, 2)],
}
ROWS, PREDICATES = 16, 4
LENGTH = 300
OF_A_FAMILY = 12
"""Opcodes of each module of instructions/ that a stream is drawn from."""

meaning_of = lookup


def drawn(seed):
    """(operations to draw from, their random generator): some of every family."""
    rng = np.random.default_rng(seed)
    pool = []
    for _, operations in sorted(families().items()):
        chosen = rng.permutation(len(operations))[:OF_A_FAMILY]
        pool.append([operations[n] for n in chosen])
    return pool, rng


def pick(rng, items):
    return items[rng.integers(len(items))]


def source(kind, rng):
    """A register, or an immediate that often is a special value of the type."""
    if kind.rows == 0:
        return Pred(int(rng.integers(PREDICATES)), bool(rng.integers(2)))
    if rng.integers(4):
        return pick(rng, REGISTERS[kind.register_bits])
    bits = 8 * kind.element.itemsize
    value = pick(rng, special_values(kind)) if rng.integers(2) else int(rng.integers(1 << 62))
    return Imm(int(value) & (1 << bits) - 1)


def results_of(kinds, rng):
    """Different registers or predicates; where there are several, one may be a sink."""
    found = []
    for kind in kinds:
        every = (
            [Pred(n) for n in range(PREDICATES)]
            if kind.rows == 0
            else REGISTERS[kind.register_bits]
        )
        found.append(pick(rng, [place for place in every if place not in found]))
    if len(found) > 1 and rng.integers(4) == 0:
        found[rng.integers(len(found))] = Sink()
    return found


def random_instruction(operation, rng, line):
    results = results_of(operation.results, rng)
    first = results[0]
    if len(results) > 1:
        first = Pair(*results) if operation.results[0].rows == 0 else Vec(tuple(results))
    sources = [source(kind, rng) for kind in operation.sources]
    if operation.opcode.startswith("mov") and len(sources) > 1:
        sources = [Vec(tuple(sources))]
    guard = (int(rng.integers(PREDICATES)), bool(rng.integers(2))) if rng.integers(3) == 0 else None
    text = f"{operation.opcode} {first}, {sources}"
    return Instruction(operation.opcode, (first, *sources), guard, line, None, text)


def initial(rng):
    """R and P of a warp: small numbers, floats near 1 and random bits, by lane."""
    R = rng.integers(0, 2**32, (ROWS, 32), np.uint32)
    R[:, ::3] = rng.integers(0, 40, R[:, ::3].shape)
    R[:, 1::3] = rng.standard_normal(R[:, 1::3].shape).astype(np.float32).view(np.uint32)
    R[:4] &= 0xFFFF
    return R, rng.integers(0, 2**32, PREDICATES, np.uint32)


def numpy_warp(R, P):
    """A warp whose registers have the given values."""
    cta = CTA(Cluster(Machine(), (1, 1, 1)), 0, (0, 0, 0), 0, 1024)
    warp = Warp(cta, 0, ROWS, PREDICATES)
    warp.R[:], warp.P[:] = R, P
    return warp


def by_numpy(warp, ins, active):
    """Execute an instruction by its NumPy meaning."""
    mask = active
    if ins.guard is not None:
        index, negated = ins.guard
        mask &= int(warp.P[index]) ^ (0xFFFFFFFF if negated else 0)
    warp.ins, warp.mask = ins, mask
    meaning_of(ins.opcode)(warp, ins)


def first_difference(program, R, P, active):
    """Text: the first instruction after which the two meanings differ, executed one at a time."""
    warp = numpy_warp(R, P)
    for ins in program:
        before = warp.R.copy(), warp.P.copy()
        lanes.compile_run([ins]).execute(R.ctypes.data, P.ctypes.data, active)
        by_numpy(warp, ins, active)
        wrong = np.argwhere(R != warp.R)
        if len(wrong) or (P != warp.P).any():
            row, lane = wrong[0] if len(wrong) else (0, 0)
            had = " ".join(f"{value:#x}" for value in before[0][:, lane])
            return (
                f"{ins.text}, guard {ins.guard}: row {row}, lane {lane}: C has {R[row, lane]:#x}, NumPy "
                f"{warp.R[row, lane]:#x}; predicates {P} and {warp.P}, were {before[1]}; rows were {had}"
            )
    return "only the whole run differs, not its instructions one by one"


@pytest.mark.parametrize("seed", range(4))
def test_a_random_stream_computes_the_same_in_c_and_in_numpy(seed):
    pool, rng = drawn(seed)
    preload([operation for family in pool for operation in family])
    for active in (0xFFFFFFFF, 0x7FFFFFF0, int(rng.integers(1, 2**32))):
        program = [
            random_instruction(pick(rng, pick(rng, pool)), rng, line) for line in range(LENGTH)
        ]
        R, P = initial(rng)
        warp, got, bits = numpy_warp(R, P), R.copy(), P.copy()
        lanes.compile_run(program).execute(got.ctypes.data, bits.ctypes.data, active)
        for ins in program:
            by_numpy(warp, ins, active)
        same = (got == warp.R).all() and (bits == warp.P).all()
        assert same, first_difference(program, R, P, active)
        executed = {ins.opcode for ins in program}
        assert len(executed) > LENGTH // 3, "the stream repeats a few opcodes"


def test_a_difference_leads_to_its_instruction(monkeypatch):
    """The meaning of one instruction in the middle of a stream is wrong in NumPy: its text is reported."""
    pool, rng = drawn(0)
    program = [random_instruction(pick(rng, pick(rng, pool)), rng, line) for line in range(20)]
    a, b = REGISTERS[32][:2]
    planted = Instruction("xor.b32", (a, a, b), None, 10, None, "the planted one")
    program.insert(10, planted)

    def wrong(opcode):
        def meaning(warp, ins):
            lookup(opcode)(warp, ins)
            if ins is planted:
                warp.write32(a, warp.read32(a) + np.uint32(1))

        return meaning

    monkeypatch.setattr(f"{__name__}.meaning_of", wrong)
    R, P = initial(rng)
    assert planted.text in first_difference(program, R, P, 0xFFFFFFFF)
