"""Rewritten PTX: assembles for Hopper, computes the same where the emulator can tell, and refuses what it must."""

import re

import numpy as np
import pytest

from cute_fa4.emulator.instructions.tcgen05_registers import register_places
from cute_fa4.hopper.in_software import SCRATCH_BYTES, SHAPES
from cute_fa4.hopper.ptx_blocks import UnsupportedInstruction
from cute_fa4.hopper.ptx_text import tokens
from cute_fa4.hopper.rewrite import rewrite, rewrite_instructions
from cute_fa4.sm100.choose.choose_config import choose_config
from tests.emulator.core.ptx_bench import module_text, run_lanes

# Each instruction in the forms that kernels of the CuTe DSL have it.
FORMS = """
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [dyn+8], %r1;
@%p1 tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, %r2;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;
tcgen05.wait::ld.sync.aligned;
tcgen05.wait::st.sync.aligned;
tcgen05.fence::before_thread_sync;
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3 + 4];
tcgen05.ld.sync.aligned.16x256b.x1.b32 {%r1, %r2, %r3, %r4}, [%r5];
@!%p1 tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3], {%r1, %r2};
@%p1 tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, 0x8200490, 1;
tcgen05.mma.cta_group::1.kind::f16 [%r1], [%r2], %rd2, %r3, %p2;
tcgen05.mma.cta_group::2.kind::f8f6f4.collector::a::discard [%r1], %rd1, %rd2, %r3, {%r4, %r5}, %p2;
tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale [%r1], %rd1, %rd2, 0x8900010, [%r4], [%r5], 1;
@%p1 tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%r1], %rd1, %rd2, %r3, [%r4+4], [%r5], %p2;
@%p1 tcgen05.cp.cta_group::1.32x128b.warpx4 [%r1], %rd1;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];
tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %rs1;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [dyn], [dyn+16];
{ .reg .b128 %h; mov.b128 %h, {%rd1, %rd2}; clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %h; }
{ .reg .b128 %h; mov.b128 %h, {%rd1, %rd2}; clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r1, %h; }
{ .reg .b128 %h; mov.b128 %h, {%rd1, %rd2}; clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1, %r2, %r3, _}, %h; }
@%p1 cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
cp.async.bulk.tensor.2d.cta_group::2.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%r1], [%rd1, {%r2, %r3}], [%r4], %rs1;
cp.async.bulk.tensor.2d.cta_group::1.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3}], [%r4];
setmaxnreg.dec.sync.aligned.u32 40;
fma.rn.ftz.f32x2 %rd1, %rd2, %rd3, %rd1;
fma.rn.f32.bf16 %f1, %rs1, %rs2, %f2;
@%p1 add.rn.f32.f16 %f1, %rs1, %f1;
max.f32 %f1, %f1, %f2, %f3;
redux.sync.max.f32 %f1, %f2, 0xffffffff;
@%p1 redux.sync.min.NaN.f32 %f1, %f2, -1;
@%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r1], [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7];
@%p1 cp.async.bulk.tensor.2d.shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes.cta_group::2 [%r1+8], [%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r7];
"""  # noqa: E501


def test_every_form_assembles(assemble):
    forms = FORMS.strip().splitlines()
    for form in forms:
        said = assemble(rewrite(module_text(form)).ptx)
        assert said == "", f"{form}\n{said}"


@pytest.mark.parametrize(
    "made, written", [("8.6", "8.6"), ("8.8", "8.8"), ("9.4", "8.8"), ("10.1", "8.8")]
)
def test_a_newer_toolkits_version_is_lowered_to_one_that_older_assemblers_know(made, written):
    text = module_text("").replace(".version 8.8", f".version {made}")
    assert f".version {made}" in text, "the text of a test has another version"
    assert f".version {written}\n" in rewrite(text).ptx


def test_nothing_of_blackwell_is_left():
    ptx = rewrite(module_text(FORMS)).ptx
    assert ".target sm_90a" in ptx
    left = [t.opcode for t in tokens(ptx) if t.kind == "instruction"]
    pattern = r"tcgen05|clusterlaunchcontrol|setmaxnreg|redux.*f32|.*f32x2|.*cta_group|.*gather4"
    pattern += r"|(fma|add|sub).*f32\.b?f16"
    assert not [opcode for opcode in left if re.match(pattern, opcode)]


def test_what_hopper_knows_stays_as_it_was():
    body = """
    mbarrier.try_wait.parity.shared.b64 %p1, [dyn], 1;
    elect.sync %r1|%p2, -1;
    cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes [dyn], [%rd1, {%r2, %r3}], [dyn+8];
    bar.sync 1, 128;
    max.f32 %f1, %f1, %f2;
    """
    assert rewrite_instructions(body) == body
    assert rewrite(module_text(body)).scratch_bytes == 0


def test_a_load_for_a_pair_needs_scratch_at_the_end_of_shared_memory():
    line, *_ = [f for f in FORMS.splitlines() if "cp.async" in f and "cta_group::2" in f]
    found = rewrite(module_text(line, directives=".reqntid 96, 2, 1"))
    assert found.scratch_bytes == SCRATCH_BYTES == 8 * 1024 // 32
    assert found.threads == 192 and found.entries == ("bench",)
    assert "mov.b32 tc_s, dyn;" in found.ptx


@pytest.mark.parametrize(
    "instruction",
    [
        "tcgen05.ld.sync.aligned.16x32bx2.x1.b32 {%r1}, [%r5], 16;",
        "tcgen05.ld.sync.aligned.32x32b.x2.pack::16b.b32 {%r1, %r2}, [%r5];",
        "tcgen05.mma.cta_group::1.kind::mxf4.block_scale [%r1], %rd1, %rd2, %r3, [%r4], [%r5], %p1;",
        "tcgen05.mma.cta_group::2.kind::mxf8f6f4.block_scale [%r1], %rd1, %rd2, %r3, [%r4], [%r5], %p1;",
        "tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %rd1, %rd2, %r3, %p1;",
        "tcgen05.cp.cta_group::1.128x256b [%r1], %rd1;",
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group "
        "[%rd1, {%r2, %r3, %r4, %r5, %r6}], [%r1];",
        "redux.sync.max.abs.f32 %f1, %f2, 0xffffffff;",
        "redux.sync.max.f32 %f1, %f2, 0xffff;",
    ],
)
def test_what_is_not_modelled_is_refused_by_name(instruction):
    with pytest.raises(UnsupportedInstruction, match=re.escape(instruction.split()[0])):
        rewrite(module_text(instruction))


@pytest.mark.parametrize("shape", SHAPES)
def test_registers_lie_where_the_emulator_has_them(shape):
    """From register 0 of a thread to register r it is as far in every thread, as far as SHAPES says."""
    lane, column = register_places(shape, 8)
    for r in range(len(lane)):
        assert set(zip(lane[r] - lane[0], column[r] - column[0], strict=True)) == {SHAPES[shape](r)}


MMA = "@lead tcgen05.mma.cta_group::1.kind::f16 [%r1], %rd1, %rd2, 0x8200490, 1;"


@pytest.mark.parametrize(
    "before, wide",
    [
        ("elect.sync _|lead, 0xffffffff;", True),
        ("elect.sync %r9|lead, -1; add.s32 %r1, %r1, 1;", True),
        ("elect.sync _|lead, 0xffff;", False),  # half of the warp
        ("elect.sync _|lead, -1; $L__1:", False),  # others may come to a label
        ("elect.sync _|lead, -1; @lead bra $L__1; $L__1:", False),
        ("setp.eq.u32 lead, %r1, 0;", False),
    ],
)
def test_a_warp_shares_an_mma_only_where_all_its_lanes_are(before, wide):
    text = rewrite_instructions(f"{{ .reg .pred lead; {before} {MMA} }}")
    (mode,) = re.findall(r"tc_p5, (\d+);|\[tc_p5\], (\d+);", text)
    assert bool(int(mode[0] or mode[1]) >> 8 & 1) == wide
    assert ("@!lead bra" in text) != wide


def test_a_declaration_ends_what_was_known_of_a_predicate():
    text = rewrite_instructions(
        f"{{ .reg .pred lead; elect.sync _|lead, -1; }} {{ .reg .pred lead; {MMA} }}"
    )
    assert "@!lead bra" in text


PACKED = """
    mov.u32 %r2, %laneid;
    mul.lo.u32 %r3, %r2, 0x9E3779B1;
    and.b32 %r3, %r3, 0xBFFFFFFF;
    xor.b32 %r4, %r3, 0x00345678;
    mov.b64 %rd1, {{%r3, %r4}};
    mov.b64 %rd2, {{%r4, %r3}};
    {instruction}
    mov.b64 {{%r5, %r6}}, %rd1;
    shf.l.wrap.b32 %r6, %r6, %r6, 13;
    xor.b32 %r1, %r5, %r6;
"""


@pytest.mark.parametrize(
    "instruction",
    [
        "fma.rn.f32x2 %rd1, %rd1, %rd2, %rd1;",  # the result is an operand too
        "fma.rn.ftz.f32x2 %rd1, %rd2, %rd2, %rd1;",
        "add.rz.f32x2 %rd1, %rd1, %rd2;",
        "mul.rn.f32x2 %rd1, %rd2, %rd1;",
    ],
)
def test_two_scalar_operations_give_the_bits_of_the_packed_one(instruction):
    body = PACKED.format(instruction=instruction)
    rewritten = rewrite_instructions(body)
    assert "f32x2" not in rewritten
    expected = run_lanes(body)
    assert len(np.unique(expected)) > 8  # it depends on the operands
    np.testing.assert_array_equal(run_lanes(rewritten), expected)


MIXED = """
    mov.u32 %r2, %laneid;
    mul.lo.u32 %r3, %r2, 0x9E3779B1;
    and.b32 %r3, %r3, 0xBBFFBBFF;
    mov.b32 {{%rs1, %rs2}}, %r3;
    cvt.rn.f32.s32 %f1, %r3;
    mul.rn.f32 %f1, %f1, 0f30000001;
    {instruction}
    mov.b32 %r1, %f1;
"""


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize(
    "instruction",
    [
        "fma.rn.f32.{} %f1, %rs1, %rs2, %f1;",  # the result is an operand too
        "fma.rz.f32.{} %f1, %rs1, %rs1, %f1;",
        "add.rn.f32.{} %f1, %rs1, %f1;",
        "sub.rn.f32.{} %f1, %rs1, %f1;",
    ],
)
def test_a_conversion_and_an_operation_give_the_bits_of_the_mixed_one(instruction, dtype):
    body = MIXED.format(instruction=instruction.format(dtype))
    rewritten = rewrite_instructions(body)
    assert f"f32.{dtype} %f1" not in rewritten
    expected = run_lanes(body)
    assert len(np.unique(expected)) > 8  # it depends on the operands
    np.testing.assert_array_equal(run_lanes(rewritten), expected)


def test_moved_bits_give_the_numbers_of_a_conversion_from_4_bits():
    """Every byte, eight a lane: each of the 16 numbers in both halves."""
    bodies = [
        f"""
    .reg .b8 byte<4>;
    mov.u32 %r2, %laneid;
    add.u32 %r3, %r2, {first};
    mov.b32 {{byte0, byte1, byte2, byte3}}, %r3;
    cvt.rn.f16x2.e2m1x2 %r1, byte0;
"""
        for first in range(0, 256, 32)
    ]
    expected = np.concatenate([run_lanes(body) for body in bodies])
    assert len(np.unique(expected)) == 256
    rewritten = [rewrite_instructions(body) for body in bodies]
    assert not any("e2m1" in body for body in rewritten)
    found = np.concatenate([run_lanes(body) for body in rewritten])
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("operation", ["max", "min", "max.NaN"])
@pytest.mark.parametrize("numbers", ["ordinary", "a NaN"])
def test_shuffles_give_the_bits_of_a_reduction(operation, numbers):
    """Lane i has (i ^ 5) - 7, of either sign; lane 3 perhaps NaN, which max leaves out and max.NaN passes on."""
    body = f"""
    mov.u32 %r2, %laneid;
    xor.b32 %r3, %r2, 5;
    sub.s32 %r3, %r3, 7;
    cvt.rn.f32.s32 %f1, %r3;
    setp.eq.u32 %p1, %r2, {3 if numbers == "a NaN" else 99};
    selp.f32 %f1, 0f7FC00000, %f1, %p1;
    redux.sync.{operation}.f32 %f2, %f1, 0xffffffff;
    mov.b32 %r1, %f2;
"""
    rewritten = rewrite_instructions(body)
    assert "redux" not in rewritten
    np.testing.assert_array_equal(run_lanes(rewritten), run_lanes(body))


def test_a_guard_keeps_what_it_guards():
    body = """
    mov.u32 %r2, %laneid;
    setp.gt.u32 %p1, %r2, 9;
    cvt.rn.f32.u32 %r1, %r2;
    mov.b64 %rd1, {%r1, %r1};
    @!%p1 add.rn.f32x2 %rd1, %rd1, %rd1;
    mov.b64 {%r1, %r3}, %rd1;
    """
    lanes = np.arange(32, dtype=np.float32)
    found = run_lanes(rewrite_instructions(body)).view(np.float32)
    np.testing.assert_array_equal(found, np.where(lanes > 9, lanes, 2 * lanes))


@pytest.fixture(scope="module")
def attention_ptx():
    from cute_fa4.aot import build

    config = choose_config(qkv_dtype="bf16", head_dim=64, causal=True, write_lse=True)
    return build.build(config, config.name).ptx


def test_the_attention_kernel_assembles(attention_ptx, assemble):
    found = rewrite(attention_ptx)
    assert assemble(found.ptx) == ""
    assert found.threads == 512 and len(found.entries) == 1 and found.scratch_bytes == 0
    # It asks for all of tensor memory, and every thread asks whether its block is still there.
    assert found.ptx.count("cute_fa4_alloc, (") == 1 and found.ptx.count("cute_fa4_begin, (") == 1


def test_every_mma_of_the_attention_kernel_is_shared_by_its_warp(attention_ptx):
    modes = re.findall(r"\[tc_p5\], (\d+);", rewrite(attention_ptx).ptx)
    assert len(modes) == attention_ptx.count("tcgen05.mma.") and all(int(m) >> 8 & 1 for m in modes)


def test_the_software_tensor_core_compiles(needs_nvcc, attention_ptx, tmp_path):
    from cute_fa4.hopper.build import assemble

    found = rewrite(attention_ptx)
    assemble(found.ptx, found.threads, tmp_path / "kernel.cubin")
    assert (tmp_path / "kernel.cubin").read_bytes()[:4] == b"\x7fELF"
