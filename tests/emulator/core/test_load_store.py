"""ld, st, atom in every state space, from PTX, against NumPy."""

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import IllegalAccess, UninitializedRead, UnknownInstruction
from tests.emulator.core.ptx_bench import run_lanes, run_ptx, store

LANES = np.arange(32)
# Address of element %tid.x (times %r2 bytes) of array p0 in %rd1.
AT = "ld.param.b64 %rd1, [p0]; mov.u32 %r3, %tid.x; mul.wide.u32 %rd2, %r3, {size}; add.s64 %rd1, %rd1, %rd2;"


@pytest.mark.parametrize("kind", ["u8", "s8", "u16", "s16", "b32", "u32", "s32", "f32", "b64"])
def test_global_load_extends_to_the_register(kind):
    """Registers wider than the type: zero extension, sign extension for .s types."""
    size = int(kind[1:]) // 8
    rng = np.random.default_rng(size)
    data = rng.integers(0, 256, 32 * size, np.uint8).view(f"{'i' if kind[0] == 's' else 'u'}{size}")
    out = np.zeros(32, np.uint64)
    body = AT.format(size=size) + f"ld.global.{kind} %rd3, [%rd1];"
    body += "ld.param.b64 %rd1, [p1]; mul.wide.u32 %rd2, %r3, 8; add.s64 %rd1, %rd1, %rd2; st.global.b64 [%rd1], %rd3;"
    run_ptx(body, data, out)
    assert (out == data.astype(np.int64).view(np.uint64)).all()


@pytest.mark.parametrize("kind", ["b8", "u16", "b32", "f32", "v2.b32", "b64"])
@pytest.mark.parametrize("space", ["global", "shared", "local", ""])
def test_a_store_chops_a_wider_register(space, kind):
    """PTX ISA, "Operand Size Exceeding Instruction-Type Size": the low part of a 64-bit register is stored."""
    count, size = (2 if kind[0] == "v" else 1), int(kind.rpartition(".")[2][1:]) // 8
    data = np.random.default_rng(size).integers(0, 1 << 63, 32, np.uint64)
    out = np.zeros((32, 2), np.uint64)
    address = {
        "shared": "mov.b32 %r4, dyn; shl.b32 %r5, %r3, 4; add.s32 %r4, %r4, %r5;",
        "local": ".local .align 16 .b8 depot[16]; mov.b64 %rd4, depot;",
    }.get(space, "ld.param.b64 %rd4, [p1]; mul.wide.u32 %rd5, %r3, 16; add.s64 %rd4, %rd4, %rd5;")
    at = "[%r4]" if space == "shared" else "[%rd4]"
    prefix = f".{space}" if space else ""
    value = "{%rd3, %rd3}" if count == 2 else "%rd3"
    body = AT.format(size=8) + "ld.global.b64 %rd3, [%rd1];" + address
    body += f"st{prefix}.{kind} {at}, {value};"
    if space in ("shared", "local"):
        for i in range(count):
            body += f"ld.{space}.b{8 * size} %rd{6 + i}, {at[:-1]}+{size * i}];"
        body += "ld.param.b64 %rd4, [p1]; mul.wide.u32 %rd5, %r3, 16; add.s64 %rd4, %rd4, %rd5;"
        for i in range(count):
            body += f"st.global.b{8 * size} [%rd4+{size * i}], %rd{6 + i};"
    run_ptx(body, data, out, **({"shared": 512} if space == "shared" else {}))
    stored = out.view(np.uint8)[:, : size * count].reshape(32, count, size)
    expected = data.view(np.uint8).reshape(32, 1, 8)[:, :, :size]
    assert (stored == expected).all() and not out.view(np.uint8)[:, size * count :].any()


def test_vector_round_trip_through_shared_memory():
    """Lane l writes 16 bytes at 16 l; lane l reads those of lane 31 - l."""
    out = run_lanes(
        """
        mov.u32 %r2, %laneid; mov.b32 %r3, dyn; shl.b32 %r4, %r2, 4; add.s32 %r5, %r3, %r4;
        add.s32 %r6, %r2, 100; add.s32 %r7, %r2, 200; add.s32 %r8, %r2, 300;
        st.shared.v4.b32 [%r5], {%r2, %r6, %r7, %r8};
        bar.warp.sync -1;
        sub.s32 %r9, 31, %r2; shl.b32 %r9, %r9, 4; add.s32 %r9, %r3, %r9;
        ld.shared::cta.v2.b32 {%r10, %r11}, [%r9+8];
        add.s32 %r1, %r10, %r11;
        """,
        shared=512,
    )
    assert (out == 2 * (31 - LANES) + 500).all()


def test_generic_addresses_find_shared_global_param_and_local_memory():
    """The same ld instruction reads four memories, one per quarter of the warp."""
    data = np.full(8, 1000, np.uint32)
    out = np.zeros(32, np.uint32)
    body = """
        .local .align 8 .b8 depot[16];
        mov.b32 %r2, dyn; mov.b32 %r3, 2000; st.shared.b32 [%r2], %r3;
        cvt.u64.u32 %rd1, %r2; cvta.shared.u64 %rd2, %rd1;
        mov.b64 %rd3, depot; mov.u32 %r4, %laneid; st.local.b32 [%rd3+8], %r4;
        cvta.local.u64 %rd4, %rd3; add.s64 %rd4, %rd4, 8;
        mov.b64 %rd5, p1; cvta.param.u64 %rd5, %rd5;
        ld.param.b64 %rd6, [p1];
        shr.u32 %r5, %r4, 3;
        setp.eq.b32 %p1, %r5, 0; setp.eq.b32 %p2, %r5, 1; setp.eq.b32 %p3, %r5, 2;
        selp.b64 %rd7, %rd4, %rd5, %p3; selp.b64 %rd7, %rd2, %rd7, %p2; selp.b64 %rd7, %rd6, %rd7, %p1;
        ld.b32 %r1, [%rd7];
    """
    run_ptx(body + store("%r1"), out, data, shared=64)
    low = data.ctypes.data & 0xFFFFFFFF
    assert out.tolist() == [1000] * 8 + [2000] * 8 + list(range(16, 24)) + [low] * 8


def test_module_variables_have_their_initial_values():
    out = run_lanes(
        "mov.u32 %r2, %laneid; and.b32 %r2, %r2, 3; mul.wide.u32 %rd1, %r2, 4; mov.b64 %rd2, table;"
        "add.s64 %rd1, %rd1, %rd2; ld.global.b32 %r1, [%rd1];",
        module_variables=".global .align 4 .b32 table[4] = {5, 6, 7, 8};",
    )
    assert (out == 5 + LANES % 4).all()


@pytest.mark.parametrize(
    "operation, start, expected",
    [
        ("add.u32", 5, 5 + LANES.sum()),
        ("max.s32", 5, 31),
        ("min.u32", 5, 0),
        ("or.b32", 64, 95),
        ("and.b32", 3, 0),
        ("exch.b32", 5, 31),
    ],
)
def test_atomics_combine_all_lanes_in_lane_order(operation, start, expected):
    """The last lane's exchange stays; the sums do not depend on the order."""
    data, out = np.array([start], np.uint32), np.zeros(32, np.uint32)
    body = (
        f"ld.param.b64 %rd1, [p1]; mov.u32 %r2, %laneid; atom.global.{operation} %r1, [%rd1], %r2;"
    )
    run_ptx(body + store("%r1"), out, data)
    assert data[0] == expected
    assert out[0] == start, "lane 0 sees the value before"


def test_compare_and_swap_has_one_winner():
    data, out = np.array([9], np.uint32), np.zeros(32, np.uint32)
    body = "ld.param.b64 %rd1, [p1]; mov.u32 %r2, %laneid; add.s32 %r2, %r2, 100;"
    body += "atom.acquire.gpu.global.cas.b32 %r1, [%rd1], 9, %r2;"
    run_ptx(body + store("%r1"), out, data)
    assert data[0] == 100 and out.tolist() == [9] + [100] * 31


def test_red_adds_floats_in_shared_memory():
    out = run_lanes(
        """
        mov.b32 %r2, dyn; mov.b32 %r3, 0; st.shared.b32 [%r2], %r3;
        mov.b32 %f1, 0f3F000000;
        red.shared.add.f32 [%r2], %f1;
        ld.shared.b32 %r1, [%r2];
        """,
        shared=64,
    )
    assert (out.view(np.float32) == 16.0).all(), "32 halves"


def test_uninitialised_shared_read_names_place_and_line():
    with pytest.raises(UninitializedRead) as error:
        run_lanes("mov.b32 %r2, dyn; ld.shared.b32 %r1, [%r2+4];", shared=64)
    text = str(error.value)
    assert (
        "0x404 (dynamic +0x4)" in text and "ld.shared.b32 %r1, [%r2+4]" in text and "warp 0" in text
    )


def test_out_of_bounds_names_the_array():
    data = np.zeros(31, np.uint32)
    with pytest.raises(IllegalAccess, match="0 bytes after the end of array 0, 124 bytes"):
        run_ptx("mov.u32 %r1, %laneid;" + store("%r1"), data)


def test_inactive_lanes_do_not_fault():
    data = np.zeros(31, np.uint32)
    run_ptx("mov.u32 %r1, %laneid; setp.eq.b32 %p1, %r1, 31; @%p1 ret;" + store("%r1"), data)
    assert (data == np.arange(31)).all()


def test_too_much_shared_memory_is_refused_at_launch():
    with pytest.raises(IllegalAccess, match="232448"):
        run_ptx("bar.warp.sync -1;", shared=232448 + 1)


def test_an_opcode_without_meaning_is_refused_before_anything_runs():
    data = np.zeros(32, np.uint32)
    with pytest.raises(UnknownInstruction, match=r"frobnicate\.b32"):
        run_ptx("mov.b32 %r1, 1;" + store("%r1") + "frobnicate.b32 %r1, %r1;", data)
    assert not data.any()
