"""Laws of the descriptors: encode/decode, agreement with what CuTe compiles, and with a foreign kernel."""

import contextlib
import re

import pytest

from cute_fa4.emulator.machine.matrix_descriptors import decode_instruction
from cute_fa4.emulator.ptx.errors import EmulatorError
from cute_fa4.layouts import (
    SWIZZLE_32B,
    SWIZZLE_64B,
    SWIZZLE_128B,
    SWIZZLE_NONE,
    SWIZZLES,
    InstructionDescriptor,
    KMajorTile,
    MNMajorTile,
    SmemDescriptor,
)
from cute_fa4.layouts.umma_descriptors import INSTRUCTION_FIELDS, SMEM_FIELDS

# --- encode and decode -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields, width", [(SMEM_FIELDS, 64), (INSTRUCTION_FIELDS, 32)], ids=["smem", "idesc"]
)
def test_fields_do_not_overlap_and_fit(fields, width):
    taken = [bit for field in fields for bit in range(field.low, field.low + field.width)]
    assert len(taken) == len(set(taken)) and max(taken) < width


# Smallest, largest and single-bit values of the 14-bit fields.
OFFSETS = [0, 16, 1024, 16384, 16 << 13, (16 << 14) - 16]


@pytest.mark.parametrize("swizzle", SWIZZLES, ids=lambda s: s.tensor_map_name)
@pytest.mark.parametrize("offset", OFFSETS)
def test_smem_descriptor_round_trips(offset, swizzle):
    for descriptor in (
        SmemDescriptor(offset, 16, 1024, swizzle),
        SmemDescriptor(0, offset, 1024, swizzle),
        SmemDescriptor(0, 16, offset, swizzle),
    ):
        bits = descriptor.encode()
        assert SmemDescriptor.decode(bits) == descriptor
        assert bits == descriptor.high << 32 | descriptor.low


def test_smem_descriptor_bits_by_hand():
    bits = SmemDescriptor(0x12340, 0x4000, 0x400, SWIZZLE_64B).encode()
    assert bits == 0x12340 >> 4 | (0x4000 >> 4) << 16 | (0x400 >> 4) << 32 | 1 << 46 | 4 << 61


def test_advance_adds_to_the_low_word_only():
    """The kernels' 32-bit add: the start of the next step, in units of 16 bytes."""
    first = SmemDescriptor(4096, 16384, 1024)
    moved = first.advance(2048)
    assert (moved.low, moved.high) == (first.low + 2048 // 16, first.high)


INSTRUCTIONS = [
    InstructionDescriptor(128, 128, "bf16", "bf16"),  # Q K^T
    InstructionDescriptor(128, 64, "fp16", "fp16", b_mn_major=True),  # P V, depth 64
    InstructionDescriptor(64, 8, "fp16", "bf16", a_mn_major=True, negate_a=True),  # smallest, mixed
    InstructionDescriptor(128, 256, "e4m3", "e5m2", negate_b=True),  # largest N, mixed fp8
    InstructionDescriptor(256, 256, "bf16", "bf16", cta_group=2),  # largest M
    InstructionDescriptor(128, 192, "fp16", "fp16", d_format="fp16"),
]


@pytest.mark.parametrize("descriptor", INSTRUCTIONS, ids=str)
def test_instruction_descriptor_round_trips(descriptor):
    assert (
        InstructionDescriptor.decode(descriptor.encode(), descriptor.kind, descriptor.cta_group)
        == descriptor
    )


def test_one_mma_covers_32_bytes_of_k():
    assert [d.k * d.bits for d in INSTRUCTIONS] == [8 * 32] * len(INSTRUCTIONS)


# --- facts: as compiled by flash-attn-4 4.0.0b36 for bf16 --------------------------------------------
# Constants of its sm_100a PTX, read from the text; d = 128 unless the name says otherwise.


def test_instruction_descriptors_of_flash_attn_4():
    qk = InstructionDescriptor(128, 128, "bf16", "bf16")
    pv = InstructionDescriptor(128, 128, "bf16", "bf16", b_mn_major=True)
    pv_d64 = InstructionDescriptor(128, 64, "bf16", "bf16", b_mn_major=True)
    assert [d.encode() for d in (qk, pv, pv_d64)] == [0x8200490, 0x8210490, 0x8110490]


def test_smem_descriptors_of_flash_attn_4():
    q, v = KMajorTile(128, 128), MNMajorTile(128, 128)
    assert q.descriptor().high == v.descriptor().high == 0x40004040
    # Offsets it adds to the low word: K step by step, V step by step.
    steps = [0, 0x2, 0x4, 0x6, 0x400, 0x402, 0x404, 0x406]
    assert [q.descriptor(0, i).low - q.descriptor().low for i in range(8)] == steps
    steps = [0, 0x80, 0x100, 0x180, 0x200, 0x280, 0x300, 0x380]
    assert [v.descriptor(0, i).low - v.descriptor().low for i in range(8)] == steps


# --- what CuTe compiles ------------------------------------------------------------------------------

# (A, B, formats): Q K^T has a K-major B, P V an MN-major one
Q = KMajorTile(128, 128)
COMPILED = {
    "qk-d128": (Q, KMajorTile(128, 128), "bf16"),  # the default
    "pv-d128": (Q, MNMajorTile(128, 128), "bf16"),
    "pv-d64": (Q, MNMajorTile(128, 64), "bf16"),  # one chunk: LBO is never used
    "pv-d192-fp16": (Q, MNMajorTile(128, 192), "fp16"),  # three chunks
    "qk-192-keys": (KMajorTile(128, 64), KMajorTile(192, 64), "bf16"),
    "m64": (KMajorTile(64, 64), KMajorTile(128, 64), "bf16"),
    "qk-fp8-64B": (
        KMajorTile(128, 128, 8, SWIZZLE_64B), KMajorTile(128, 128, 8, SWIZZLE_64B), "e4m3",
    ),
    "pv-fp8-64B": (
        KMajorTile(128, 128, 8, SWIZZLE_64B), MNMajorTile(128, 128, 8, SWIZZLE_64B), "e5m2",
    ),
    "pv-fp8-128B": (
        KMajorTile(128, 128, 8), MNMajorTile(128, 256, 8, SWIZZLE_128B), "e4m3",
    ),
    "pv-32B": (KMajorTile(128, 64, 16, SWIZZLE_32B), MNMajorTile(64, 48, 16, SWIZZLE_32B), "bf16"),
    "qk-none": (KMajorTile(128, 64, 16, SWIZZLE_NONE), KMajorTile(128, 64, 16, SWIZZLE_NONE), "bf16"),
    "pv-none": (KMajorTile(128, 64, 16, SWIZZLE_NONE), MNMajorTile(64, 64, 16, SWIZZLE_NONE), "bf16"),
}  # fmt: skip
A_ADDRESS, B_ADDRESS = 0, 65536


def gemm(a, b, dtype_name, negate=(False, False), d_format="fp32"):
    """Inside a kernel trace: all MMA steps of D += A B through CuTe, operands at constant addresses."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import OperandMajorMode, tcgen05

    dtypes = {
        "bf16": cutlass.BFloat16, "fp16": cutlass.Float16,
        "e4m3": cutlass.Float8E4M3FN, "e5m2": cutlass.Float8E5M2,
    }  # fmt: skip
    dtype = dtypes[dtype_name]
    d_dtype = {"fp32": cutlass.Float32, "fp16": cutlass.Float16}[d_format]
    n = b.cols if b.mn_major else b.rows
    major = OperandMajorMode.MN if b.mn_major else OperandMajorMode.K
    rest = (tcgen05.CtaGroup.ONE, tcgen05.OperandSource.SMEM, OperandMajorMode.K, major)
    if a.bits == 16:
        op = tcgen05.MmaF16BF16Op(dtype, d_dtype, (a.rows, n, 16), *rest)
    else:
        op = tcgen05.MmaF8F6F4Op(dtype, dtype, d_dtype, (a.rows, n, 32), *rest)
    mma = cute.make_tiled_mma(op)
    mma.set(tcgen05.Field.NEGATE_A, negate[0])
    mma.set(tcgen05.Field.NEGATE_B, negate[1])
    mma.set(tcgen05.Field.ACCUMULATE, True)

    def fragment(tile, address, partition_shape, make_fragment):
        kind = tcgen05.SmemLayoutAtomKind[tile.swizzle.atom_kind(tile.mn_major)]
        atom = tcgen05.make_smem_layout_atom(kind, dtype)
        shape = partition_shape((tile.cols, tile.rows) if tile.mn_major else (tile.rows, tile.cols))
        order = (2, 1, 3) if tile.mn_major else (1, 2, 3)  # as make_smem_layout_b orders them
        layout = tcgen05.tile_to_mma_shape(atom, cute.append(shape, 1), order=order)
        pointer = cute.make_ptr(dtype, address, cute.AddressSpace.smem, assumed_align=1024)
        return make_fragment(cute.make_tensor(cute.recast_ptr(pointer, layout.inner), layout.outer))

    rA = fragment(a, A_ADDRESS, mma.partition_shape_A, mma.make_fragment_A)
    rB = fragment(b, B_ADDRESS, mma.partition_shape_B, mma.make_fragment_B)
    tmem = cute.make_ptr(d_dtype, 0, cute.AddressSpace.tmem, assumed_align=16)
    accumulator = mma.make_fragment_C(mma.partition_shape_C((a.rows, n)))
    tD = cute.make_tensor(tmem, accumulator.layout)
    for step in range(a.num_steps):
        cute.gemm(mma, tD, rA[None, None, step, 0], rB[None, None, step, 0], tD)


def compiled_mmas(ptx):
    """[(kind, A descriptor, B descriptor, instruction descriptor)] of the PTX, all constants."""
    constants, found = {}, []
    for line in ptx.splitlines():
        if move := re.search(r"mov\.b(32|64)\s+(%\w+), (-?\d+);", line):
            constants[move[2]] = int(move[3]) % 2 ** int(move[1])
        if mma := re.search(
            r"tcgen05\.mma\S*kind::(\w+)\S* \[%\w+\], (%\w+), (%\w+), (%\w+),", line
        ):
            found.append((mma[1], *(constants[register] for register in mma.groups()[1:])))
    return found


@pytest.mark.parametrize("a, b, dtype", COMPILED.values(), ids=COMPILED.keys())
def test_descriptors_are_those_that_cute_compiles(a, b, dtype, trace):
    _, ptx = trace(lambda: gemm(a, b, dtype), launch=True)
    n = b.cols if b.mn_major else b.rows
    instruction = InstructionDescriptor(a.rows, n, dtype, dtype, b_mn_major=b.mn_major)
    expected = [
        (
            instruction.kind,
            a.descriptor(A_ADDRESS, step),
            b.descriptor(B_ADDRESS, step),
            instruction.encode(),
        )
        for step in range(a.num_steps)
    ]
    found = [
        (kind, SmemDescriptor.decode(a_bits), SmemDescriptor.decode(b_bits), idesc)
        for kind, a_bits, b_bits, idesc in compiled_mmas(ptx)
    ]
    assert found == expected


@pytest.mark.parametrize("dtype, d_format, negate", [
    ("bf16", "fp32", (True, False)),
    ("bf16", "fp32", (False, True)),
    ("fp16", "fp16", (False, False)),
    ("e4m3", "fp16", (True, True)),
])  # fmt: skip
def test_negate_and_d_format_are_those_that_cute_compiles(dtype, d_format, negate, trace):
    tile = KMajorTile(128, 64 if dtype != "e4m3" else 128, 8 if dtype == "e4m3" else 16)
    _, ptx = trace(lambda: gemm(tile, tile, dtype, negate, d_format), launch=True)
    expected = InstructionDescriptor(
        128, 128, dtype, dtype, d_format, negate_a=negate[0], negate_b=negate[1]
    )
    found = {idesc for _, _, _, idesc in compiled_mmas(ptx)}
    assert found == {expected.encode()}
    assert InstructionDescriptor.decode(found.pop(), expected.kind) == expected


@pytest.mark.parametrize("fmt, kind", [("bf16", "f16"), ("e4m3", "f8f6f4")])
@pytest.mark.parametrize("b_mn_major", [False, True], ids=["K-major B", "MN-major B"])
@pytest.mark.parametrize("cta_group", [1, 2])
def test_the_shapes_that_are_built_are_the_shapes_that_the_emulator_executes(
    cta_group, b_mn_major, fmt, kind
):
    """The fields hold M in steps of 16 and N in steps of 8: all that they can say.

    The emulator takes every N of the ISA, in steps of 8, of a pair 16; what is built here has wider steps at 128 rows.
    """
    bits = InstructionDescriptor(128, 64, fmt, fmt, b_mn_major=b_mn_major).encode()
    for m in range(0, 512, 16):
        for n in range(0, 512, 8):
            with contextlib.suppress(ValueError):
                InstructionDescriptor(m, n, fmt, fmt, b_mn_major=b_mn_major, cta_group=cta_group)
                executed = decode_instruction(shaped(bits, m, n), kind, cta_group)
                assert (executed.m, executed.n) == (m, n)
                continue
            step = 8 * cta_group
            if m in (64 * cta_group, 128 * cta_group, 128) and n in range(step, 257, step):
                continue
            with pytest.raises(EmulatorError):
                decode_instruction(shaped(bits, m, n), kind, cta_group)


def shaped(bits: int, m: int, n: int) -> int:
    """The instruction descriptor with other sizes."""
    return bits & ~(63 << 17 | 31 << 24) | n // 8 << 17 | m // 16 << 24


# --- refusals ----------------------------------------------------------------------------------------


def instruction(**changes):
    return InstructionDescriptor(
        **{"m": 128, "n": 128, "a_format": "bf16", "b_format": "bf16", **changes}
    )


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: SmemDescriptor(8, 16, 1024), "start_bytes = 8.*16 bytes.*align"),
        (lambda: SmemDescriptor(1 << 18, 16, 1024), "start_bytes = 262144.*262128.*shared-memory"),
        (lambda: SmemDescriptor(0, 16, -16), "stride_bytes = -16"),
        (lambda: instruction(m=256), "m = 256: cta_group::1 takes 64 or 128.*pad"),
        (lambda: instruction(n=264), "n = 264.*multiples of 16 from 16 to 256.*split"),
        (lambda: instruction(n=0), "n = 0"),
        (lambda: instruction(m=64, n=100), "n = 100: cta_group::1 with m = 64 takes multiples of 8"),
        (lambda: instruction(n=72), "n = 72: cta_group::1 with m = 128 takes multiples of 16"),
        (lambda: instruction(m=256, n=48, cta_group=2), "n = 48: cta_group::2 with m = 256 takes multiples of 32"),
        (
            lambda: instruction(m=64, n=24, a_format="e4m3", b_format="e4m3", b_mn_major=True),
            "n = 24.*multiples of 16.*MN-major",
        ),
        (lambda: instruction(a_format="e4m3"), "A is e4m3 and B is bf16.*convert one"),
        (lambda: instruction(a_format="fp4"), "a_format = 'fp4'.*bf16, fp16, e4m3, e5m2"),
        (lambda: instruction(d_format="fp16"), "bf16 accumulates in fp32 only"),
        (lambda: instruction(d_format="bf16"), "d_format = 'bf16': accepted are fp16, fp32"),
        (lambda: instruction(cta_group=4), "cta_group = 4"),
        (lambda: SmemDescriptor.decode(0x40000040 << 32), "version 0.*sm_100 takes 1"),
        (lambda: SmemDescriptor.decode(0x40004040 << 32 | 1 << 14), "reserved bits 0x4000"),
        (lambda: SmemDescriptor.decode(0x40024040 << 32), "field 'base' is 1"),
        (lambda: SmemDescriptor.decode(0x40104040 << 32), "field 'mode' is 1"),
        (lambda: SmemDescriptor.decode(0x20004040 << 32), "swizzle code 1"),
        (lambda: InstructionDescriptor.decode(0x8200490 | 1 << 6, "f16"), "reserved bits 0x40"),
        (lambda: InstructionDescriptor.decode(0x8200490 | 4, "f16"), "field 'sparse' is 4"),
        (lambda: InstructionDescriptor.decode(0x8200490 | 7 << 7, "f16"), "field 'a' is 7; accepted: 1 bf16, 0 fp16"),
        (lambda: InstructionDescriptor.decode(0x8200490, "i8"), "kind::i8.*no such kind"),
        (lambda: InstructionDescriptor.decode(1 << 32, "f16"), "not a 32-bit number"),
    ],
)  # fmt: skip
def test_refusals_name_value_limit_and_remedy(make, message):
    with pytest.raises(ValueError, match=message):
        make()
