"""Operands for register arithmetic, and ways to execute one operation on many lanes.

operands(operation, rng, lanes)     per source a register array: special values against each other, then random
run_numpy(operation, registers)     result registers by the NumPy meaning
run_c(operation, registers)         result registers by the generated C, 32 lanes at a time
"""

import itertools
from collections import defaultdict

import numpy as np

from cute_fa4.emulator.instructions import instruction_table
from cute_fa4.emulator.instructions.instruction_table import LaneOperation
from cute_fa4.emulator.ptx.parser import Instruction, Pair, Pred, Reg, Vec

# Zeros, ones, infinities, NaNs (quiet, signalling, payload), the largest and smallest normal and subnormal
# values, neighbours of 1, values whose sums and products tie, integer limits, and the clamps of integer types.
F32_SPECIAL = [
    0x00000000, 0x80000000, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC01234,
    0x7F800001, 0x7FFFFFFF, 0x00000001, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800000, 0x80800000,
    0x7F7FFFFF, 0xFF7FFFFF, 0x3F800001, 0x3F7FFFFF, 0x4B800000, 0x4B800001, 0x33800000, 0xB3800000,
    0x3F000000, 0x3FC00000, 0xC0200000, 0x4F000000, 0xCF000000, 0x4F800000, 0x5F000000, 0x43000000,
    0xC2FE0000, 0x477FE000, 0x477FF000, 0x38800000, 0x33000000, 0x43E00000, 0x43E80000, 0x3F808000,
]  # fmt: skip
F16_SPECIAL = [
    0x0000, 0x8000, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0xFE01, 0x7C01, 0x7FFF, 0x0001, 0x8001,
    0x03FF, 0x0400, 0x8400, 0x7BFF, 0xFBFF, 0x3C01, 0x3BFF, 0x6800, 0x1000, 0x5F80, 0x5FC0, 0x5740,
]  # fmt: skip
BF16_SPECIAL = [
    0x0000, 0x8000, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0x7FFF, 0x0001, 0x8001,
    0x007F, 0x0080, 0x8080, 0x7F7F, 0xFF7F, 0x3F81, 0x3F7F, 0x4300, 0x3B80, 0x4F00, 0xC2FE, 0x2000,
]  # fmt: skip
F64_SPECIAL = [
    0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 5e-324, -5e-324, 2.2250738585072014e-308, 1.7976931348623157e308,
    -1.7976931348623157e308, 1 + 2.0**-52, 1 - 2.0**-53, 2.0**53, 2.0**53 + 2, 2.0**-53, 0.5, 1.5, -2.5, 65519.99,
    65520.0, 2.0**31, -(2.0**31), 2.0**32, 2.0**63, 2.0**64, 1 + 2.0**-24, 1 + 2.0**-24 + 2.0**-50, 2.0**-149,
    2.0**-150, 2.0**-126 - 2.0**-151, 2.0**128 - 2.0**103, 3.4028235677973366e38, 1 + 2.0**-8, 1 + 2.0**-11 + 2.0**-40,
]  # fmt: skip


def special_values(kind):
    """Bit patterns worth trying for a type, as unsigned integers of the element's size."""
    name = kind.name.removesuffix("x2")
    if name == "f32":
        return F32_SPECIAL
    if name == "f64":
        return np.array(F64_SPECIAL).view(np.uint64).tolist()
    if name in ("f16", "bf16"):
        return F16_SPECIAL if name == "f16" else BF16_SPECIAL
    bits = int(name[1:])
    edges = {0, 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 65, 255, 256}
    edges |= {1 << b for b in (bits - 1, bits - 2, bits // 2)} | {
        (1 << bits) - k for k in (1, 2, 3, 16)
    }
    edges |= {
        (1 << bits - 1) - 1,
        (1 << bits - 1) + 1,
        (1 << bits // 2) - 1,
        0x5555555555555555,
        0x123456789ABCDEF0,
    }
    return sorted(edge & (1 << bits) - 1 for edge in edges)


def random_values(kind, rng, count):
    """Random bit patterns; floats are half uniform in bits and half of magnitude near 1, where sums round."""
    size = kind.element.itemsize * 8
    values = (
        rng.integers(0, 1 << size, count, np.uint64, endpoint=False)
        if size < 64
        else rng.integers(0, 2**64 - 1, count, np.uint64, endpoint=True)
    )
    name = kind.name.removesuffix("x2")
    half = count // 2
    if name == "f32":
        near = (rng.standard_normal(half) * 2.0 ** rng.integers(-12, 12, half)).astype(np.float32)
        values[:half] = near.view(np.uint32)
    elif name == "f64":
        values[:half] = (rng.standard_normal(half) * 2.0 ** rng.integers(-30, 70, half)).view(
            np.uint64
        )
    elif name in ("f16", "bf16"):
        near = (rng.standard_normal(half) * 2.0 ** rng.integers(-6, 6, half)).astype(np.float32)
        codes = (
            near.astype(np.float16).view(np.uint16)
            if name == "f16"
            else near.view(np.uint32) >> np.uint32(16)
        )
        values[:half] = codes
    elif name[0] in "usb":  # small integers: shifts, positions, ties of quotients
        values[: half // 2] &= np.uint64(0x3F)
    return rng.permutation(values)


def operands(operation: LaneOperation, rng, lanes):
    """One register array per source: uint32[lanes], uint64[lanes], or bool[lanes] for a predicate.

    The first values are the product of the special values of all sources (cut to half of the lanes, at random).
    """
    counts = [
        lanes * max(1, kind.rows) * 4 // kind.element.itemsize if kind.rows else lanes
        for kind in operation.sources
    ]
    elements = max(counts)
    lists = [[0, 1] if kind.rows == 0 else special_values(kind) for kind in operation.sources]
    table = np.array(list(itertools.islice(itertools.product(*lists), 200_000)), np.uint64)
    table = rng.permutation(table)[: elements // 2]
    registers = []
    for column, kind in enumerate(operation.sources):
        if kind.rows == 0:
            values = rng.integers(0, 2, elements).astype(np.uint64)
        else:
            values = random_values(kind, rng, elements)
        values[: len(table)] = table[:, column]
        if kind.rows == 0:
            registers.append(values.astype(bool))
        else:
            element = np.dtype(f"u{kind.element.itemsize}")
            register = np.uint64 if kind.rows == 2 else np.uint32
            registers.append(np.ascontiguousarray(values.astype(element)).view(register))
    return registers


def families():
    """Family (module of instructions/) -> its operations."""
    grouped = defaultdict(list)
    for operation in instruction_table.lane_operations():
        grouped[operation.family.rsplit(".", 1)[1]].append(operation)
    return dict(grouped)


def operation(opcode, results=1, sources=None):
    """The LaneOperation of an opcode with this many results and (None: any) sources."""
    forms = instruction_table.lookup(opcode).forms
    return next(op for (r, s), op in forms.items() if r == results and sources in (None, s))


def run_numpy(operation, registers):
    """Result registers by the NumPy meaning."""
    return operation.compute(registers)


def instruction(operation, guard=None):
    """(Instruction, rows, predicates): results first, then sources, each in registers of its own."""
    row = predicate = 0
    groups = []
    for kinds in (operation.results, operation.sources):
        group = []
        for kind in kinds:
            if kind.rows == 0:
                group.append(Pred(predicate))
                predicate += 1
            else:
                row += row % kind.rows
                group.append(Reg(row, kind.register_bits))
                row += kind.rows
        groups.append(group)
    results, sources = groups
    if len(results) > 1:
        first = Pair(*results) if operation.results[0].rows == 0 else Vec(tuple(results))
    else:
        first = results[0]
    operands = (
        (first, *sources)
        if not operation.opcode.startswith("mov") or len(sources) == 1
        else (
            first,
            Vec(tuple(sources)),
        )
    )
    return (
        Instruction(operation.opcode, operands, guard, 1, None, operation.opcode),
        row,
        max(predicate, 1),
    )


def run_c(operation, registers, active=0xFFFFFFFF, fill=0):
    """Result registers by the generated C; lanes outside of active keep ``fill`` (a byte) in the result."""
    count = len(registers[0])
    blocks = count // 32
    ins, rows, predicates = instruction(operation)
    places = instruction_table.flatten(ins.operands)
    R = np.full((blocks, rows + rows % 2, 32), fill * 0x01010101, np.uint32)
    P = np.full((blocks, predicates), fill * 0x01010101, np.uint32)
    n_results = len(operation.results)
    for place, register in zip(places[n_results:], registers, strict=True):
        if isinstance(place, Pred):
            P[:, place.index] = np.packbits(register, bitorder="little").view("<u4")
        elif place.bits == 64:
            R[:, place.row : place.row + 2] = register.view(np.uint32).reshape(blocks, 2, 32)
        else:
            R[:, place.row] = register.reshape(blocks, 32)
    from cute_fa4.emulator.instructions import lanes

    run = lanes.compile_run([ins])
    for block in range(blocks):
        run.execute(R[block].ctypes.data, P[block].ctypes.data, active)
    results = []
    for place in places[:n_results]:
        if isinstance(place, Pred):
            bits = np.ascontiguousarray(P[:, place.index]).view(np.uint8)
            results.append(np.unpackbits(bits, bitorder="little").astype(bool))
        elif place.bits == 64:
            results.append(
                np.ascontiguousarray(R[:, place.row : place.row + 2]).reshape(-1).view(np.uint64)
            )
        else:
            results.append(np.ascontiguousarray(R[:, place.row]).reshape(-1))
    return tuple(results)


def preload(operations):
    """Compile the given operations together: one C file instead of one per operation."""
    from cute_fa4.emulator.instructions import lanes

    for operation in operations:
        lanes.compile_run([instruction(operation)[0]])
    lanes.link()


def differences(operation, registers, got, wanted, limit=3):
    """Text lines for lanes whose results differ; empty when equal bit for bit."""
    lines = []
    for n, (g, w) in enumerate(zip(got, wanted, strict=True)):
        for lane in np.flatnonzero(g != w)[:limit]:
            sources = " ".join(f"{register[lane]:#x}" for register in registers)
            lines.append(
                f"{operation.opcode} result {n}: {sources} -> {g[lane]:#x}, wanted {w[lane]:#x}"
            )
    return lines
