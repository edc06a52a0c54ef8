"""The generated C of register arithmetic, and the table it is generated from."""

import itertools
import shutil
import subprocess
import sys

import numpy as np
import pytest

from cute_fa4.emulator.instructions import instruction_table, lanes
from cute_fa4.emulator.ptx.errors import UnknownInstruction
from cute_fa4.emulator.ptx.parser import Imm, Instruction, Pair, Pred, Reg, Sink, Special, Vec
from tests.emulator.gpu.test_conformance import ptxas_refusals
from tests.emulator.instructions.lane_cases import (
    differences,
    families,
    instruction,
    operands,
    operation,
    preload,
    run_c,
    run_numpy,
)

FAMILIES = families()


def ins(opcode, *operands, guard=None):
    return Instruction(opcode, operands, guard, 7, ("kernel.py", 42), f"{opcode} ...")


def execute(instructions, R, P, active=0xFFFFFFFF):
    lanes.compile_run(instructions).execute(R.ctypes.data, P.ctypes.data, active)


# Every opcode has another C function. 512 lanes hold 256 special pairs (or all of them for one source) and
# 256 random operands; the families compare and convert take 15 s and 6 s to compile once, then come from the cache.
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_c_statement_computes_the_numpy_meaning(family):
    preload(FAMILIES[family])
    rng = np.random.default_rng(1)
    lines = []
    for op in FAMILIES[family]:
        registers = operands(op, rng, 512)
        lines += differences(op, registers, run_c(op, registers), run_numpy(op, registers))
    assert not lines, "\n".join(lines[:20])


# One opcode for every shape of result: one row, two rows, predicate, two predicates, two and four registers, packed.
SHAPES = {
    "add.u32": (1, 2),
    "mul.wide.u32": (1, 2),
    "fma.rn.f32x2": (1, 3),
    "add.f16x2": (1, 2),
    "setp.lt.s32": (2, 2),
    "and.pred": (1, 2),
    "mov.b64": (4, 1),
    "cvt.s8.s32": (1, 1),
}


@pytest.mark.parametrize("opcode", SHAPES)
@pytest.mark.parametrize("active", [0x00000001, 0x80000000, 0x5A5A00FF, 0xFFFFFFFE, 0])
def test_lanes_outside_of_the_active_mask_keep_their_values(opcode, active):
    op = operation(opcode, *SHAPES[opcode])
    registers = operands(op, np.random.default_rng(2), 32)
    whole = run_c(op, registers)
    part = run_c(op, registers, active=active, fill=0xA5)
    on = (active >> np.arange(32) & 1).astype(bool)
    for kind, w, p in zip(op.results, whole, part, strict=True):
        before = {0: np.unpackbits(np.full(4, 0xA5, np.uint8), bitorder="little").astype(bool)}
        before |= {1: np.uint32(0xA5A5A5A5), 2: np.uint64(0xA5A5A5A5A5A5A5A5)}
        np.testing.assert_array_equal(p, np.where(on, w, before[kind.rows]))


@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize("active", [0xFFFFFFFF, 0x0F0F0F0F])
def test_a_guard_selects_the_lanes_of_its_predicate(negated, active):
    R = np.arange(96, dtype=np.uint32).reshape(3, 32)
    P = np.array([0, 0x00FF00FF], np.uint32)
    execute([ins("add.u32", Reg(0, 32), Reg(1, 32), Reg(2, 32), guard=(1, negated))], R, P, active)
    mask = active & (0xFF00FF00 if negated else 0x00FF00FF)
    on = (mask >> np.arange(32) & 1).astype(bool)
    lane = np.arange(32)
    np.testing.assert_array_equal(R[0], np.where(on, 96 + 2 * lane, lane))
    np.testing.assert_array_equal(R[1:], np.arange(32, 96).reshape(2, 32))


def test_a_guard_sees_a_predicate_written_earlier_in_the_run():
    R, P = np.zeros((2, 32), np.uint32), np.zeros(1, np.uint32)
    R[0] = np.arange(32)
    execute(
        [
            ins("setp.lt.u32", Pred(0), Reg(0, 32), Imm(5)),
            ins("mov.u32", Reg(1, 32), Imm(9), guard=(0, False)),
        ],
        R,
        P,
    )
    assert P[0] == 0b11111
    np.testing.assert_array_equal(R[1], np.where(np.arange(32) < 5, 9, 0))


def test_a_run_computes_what_its_instructions_compute_one_by_one():
    # 200 instructions over 6 + 4 registers and 3 predicates: every one reads results of others.
    rng = np.random.default_rng(3)
    narrow, wide = [Reg(row, 32) for row in range(6)], [Reg(row, 64) for row in range(6, 14, 2)]

    def pick(items):
        return items[rng.integers(len(items))]

    def predicate():
        return Pred(int(rng.integers(3)), bool(rng.integers(2)))

    makers = [
        lambda: (
            pick(("add.u32", "mul.lo.s32", "xor.b32", "max.f32")),
            pick(narrow),
            pick(narrow),
            pick(narrow),
        ),
        lambda: ("fma.rn.f32x2", pick(wide), pick(wide), pick(wide), pick(wide)),
        lambda: ("mov.b64", pick(wide), Vec((pick(narrow), Imm(-3)))),
        lambda: ("mov.b64", Vec((pick(narrow), Sink())), pick(wide)),
        lambda: ("setp.gt.and.s32", Pair(Pred(0), Pred(1)), pick(narrow), Imm(0), predicate()),
        lambda: ("selp.b32", pick(narrow), pick(narrow), Imm(0x3F800000, True), predicate()),
        lambda: ("shl.b64", pick(wide), pick(wide), Imm(3)),
    ]
    program = []
    for _ in range(200):
        opcode, *rest = pick(makers)()
        guard = (int(rng.integers(3)), bool(rng.integers(2))) if rng.integers(3) == 0 else None
        program.append(ins(opcode, *rest, guard=guard))
    R = rng.integers(0, 2**32, (14, 32), np.uint32)
    P = rng.integers(0, 2**32, 3, np.uint32)
    R1, P1 = R.copy(), P.copy()
    execute(program, R, P, 0x7FFFFFF0)
    for one in program:
        execute([one], R1, P1, 0x7FFFFFF0)
    np.testing.assert_array_equal(R, R1)
    np.testing.assert_array_equal(P, P1)


def test_an_immediate_counts_as_32_equal_lanes_of_its_type():
    R, P = np.zeros((6, 32), np.uint32), np.zeros(1, np.uint32)
    execute(
        [
            ins("mov.u32", Reg(0, 32), Imm(-1)),
            ins("mov.b64", Reg(2, 64), Imm(-1)),
            ins("mov.b16", Reg(4, 16), Imm(-1)),
            ins("mov.f32", Reg(5, 32), Imm(0x3F800000, True)),
            ins("mov.pred", Pred(0), Imm(1)),
        ],
        R,
        P,
    )
    assert (
        (R[[0, 2, 3]] == 0xFFFFFFFF).all() and (R[4] == 0xFFFF).all() and (R[5] == 0x3F800000).all()
    )
    assert P[0] == 0xFFFFFFFF


def test_a_negated_predicate_operand_is_inverted():
    R, P = np.zeros((1, 32), np.uint32), np.array([0x0000FFFF, 0], np.uint32)
    execute(
        [
            ins("selp.b32", Reg(0, 32), Imm(1), Imm(2), Pred(0, True)),
            ins("and.pred", Pred(1), Pred(0, True), Pred(0, True)),
        ],
        R,
        P,
    )
    np.testing.assert_array_equal(R[0], np.repeat([2, 1], 16))
    assert P[1] == 0xFFFF0000


def test_results_do_not_depend_on_the_floating_point_mode_of_the_process():
    torch = pytest.importorskip("torch")
    op = operation("add.rn.f32", 1, 2)
    a, b = np.full(32, 3, np.uint32), np.full(32, 4, np.uint32)  # subnormals: 3 + 4 units of 2^-149
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormals")
    try:
        (got,) = run_c(op, [a, b])
        still_flushing = (torch.tensor([1e-40]) * torch.tensor([1.0])).item() == 0.0
    finally:
        torch.set_flush_denormal(False)
    assert (got == 7).all() and still_flushing


# --- the table --------------------------------------------------------------------------------------


class FakeWarp:
    """The parts of a warp that the NumPy handler needs."""

    def __init__(self, registers, predicates):
        self.registers, self.predicates = registers, predicates

    def read32(self, operand):
        return (
            np.full(32, operand.value, np.uint32)
            if isinstance(operand, Imm)
            else self.registers[operand]
        )

    read64 = read32

    def read_pred(self, operand):
        return self.predicates[operand.index]

    def write32(self, operand, value):
        self.registers[operand] = value

    write64 = write32

    def write_pred(self, operand, value):
        self.predicates[operand.index] = value


def test_lookup_gives_a_handler_that_executes_the_numpy_meaning():
    a, b, c = Reg(0, 32), Reg(1, 32), Reg(2, 64)
    warp = FakeWarp({a: np.arange(32, dtype=np.uint32), b: np.full(32, 7, np.uint32)}, {1: 0})
    instruction_table.lookup("mov.b64")(warp, ins("mov.b64", c, Vec((a, b))))
    np.testing.assert_array_equal(warp.registers[c], np.arange(32, dtype=np.uint64) + (7 << 32))
    instruction_table.lookup("setp.ge.u32")(warp, ins("setp.ge.u32", Pred(1), a, Imm(30)))
    assert warp.predicates[1] == 0xC0000000


def test_an_unknown_opcode_is_named_with_its_ptx_and_python_line():
    with pytest.raises(UnknownInstruction) as error:
        instruction_table.lookup("add.u33", ins("add.u33", Reg(0, 32)))
    for part in ("add.u33", "add.u32", "PTX line 7", "kernel.py:42", "remedy"):
        assert part in str(error.value)


def test_families_that_register_later_are_found_by_every_question():
    """In a new process: find, is_lanes and lane_operations see them, and the others do not wait for them."""
    program = """
from cute_fa4.emulator.instructions import instruction_table as table
few = lambda: not any(o.startswith(("set.", "vadd")) for o in table._table.entries)
assert table.find("add.u32") and table.find("setp.lt.s32") and few()
assert table.is_lanes("set.lt.u32.s16") and not few()
assert table.find("vadd4.u32.u32.u32.sat") and table.find("setp.lt.and.f16x2")
assert any(o.opcode.startswith("vset2") for o in table.lane_operations())
assert table.find("set.lt.u32.s33") is None
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "opcode, operands",
    [
        ("mov.u32", (Reg(0, 32), Special("%tid.x"))),
        ("mov.b64", (Reg(0, 64), Reg(2, 32))),
        ("add.u32", (Reg(0, 16), Reg(1, 32), Reg(2, 32))),
        ("cvt.s8.s32", (Reg(0, 32), Reg(1, 32))),
        ("add.u32", (Imm(1), Reg(1, 32), Reg(2, 32))),
    ],
)
def test_an_operand_that_does_not_fit_the_type_is_refused(opcode, operands):
    with pytest.raises(UnknownInstruction, match=f"{opcode}.*does not fit type"):
        lanes.compile_run([ins(opcode, *operands)])


def test_a_wrong_number_of_operands_is_refused():
    with pytest.raises(UnknownInstruction, match="add.u32 with 1 results and 1 sources"):
        lanes.compile_run([ins("add.u32", Reg(0, 32), Reg(1, 32))])


def test_an_opcode_has_one_meaning():
    with pytest.raises(ValueError, match=r"add\.u32.*registered twice"):
        instruction_table.lanes("add.u32", types="u32 <- u32 u32", c="d = a")(lambda a, b: a)


def test_no_two_operations_share_a_c_name():
    names = [op.name for op in itertools.chain(*FAMILIES.values())]
    assert len(names) == len(set(names))


@pytest.mark.skipif(shutil.which("ptxas") is None, reason="no ptxas in PATH (CUDA toolkit)")
@pytest.mark.parametrize("family", sorted(set(FAMILIES) - {"compare", "convert", "convert_narrow"}))
def test_ptxas_accepts_every_opcode_of_the_table(family):
    # An opcode that the assembler refuses is a misspelt meaning. The two large families take 15 s and are
    # left to `python tests/emulator/gpu/test_conformance.py --ptxas sm_100a`; convert_narrow has opcodes of PTX 9.2 and
    # registers of 8 bits, see test_convert_narrow.py.
    operations = [op for op in FAMILIES[family] if not has_8_bit_registers(op)]
    assert operations and [op.opcode for op in ptxas_refusals("sm_100a", operations)] == []


def has_8_bit_registers(op) -> bool:
    """Types that the modules of the conformance cases cannot declare: moves that pack and unpack them."""
    return any(lane.name == "u8" for lane in (*op.results, *op.sources))


def test_instructions_of_the_cases_use_registers_of_their_own():
    for op in itertools.chain(*FAMILIES.values()):
        one, rows, _ = instruction(op)
        used = [
            r
            for o in instruction_table.flatten(one.operands)
            if isinstance(o, Reg)
            for r in range(o.row, o.row + o.bits // 33 + 1)
        ]
        assert len(used) == len(set(used)) and max(used, default=-1) < rows or not used
