"""multimem instructions against NumPy on three tensors: all operations, several types, bulk copies; what is refused."""

import numpy as np
import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.emulator.host import ptx_files
from cute_fa4.emulator.ptx.errors import IllegalAccess, RaceError

TEXT = """
.version 9.1
.target sm_100a
.address_size 64
.extern .shared .align 1024 .b8 dyn[];
.visible .entry multi(.param .u64 many, .param .u64 out) {{
    .reg .pred %p<3>; .reg .b16 %rs<4>; .reg .b32 %r<12>; .reg .b64 %rd<12>;
    ld.param.b64 %rd1, [many]; ld.param.b64 %rd2, [out]; mov.u32 %r1, %tid.x; mov.b32 %r2, dyn;
    mul.wide.u32 %rd3, %r1, 16; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3; setp.eq.u32 %p1, %r1, 0;
    {body}
    ret;
}}
"""
REPLICAS, BYTES = 3, 512  # 16 bytes for each lane


def run(body, tensors, out, threads=32, checks="ptx", shift=0):
    kernel = ptx_files.load(TEXT.format(body=body))
    with ptx_files.multicast(*tensors) as address, emulator.use(checks=checks):
        kernel.launch(address + shift, out, grid=1, block=threads, shared=1024)


def tensors(kind, seed=0, count=REPLICAS):
    """Small integers, which every type has, as bytes of CPU tensors; and as NumPy arrays of the type."""
    random = np.random.default_rng(seed)
    values = [
        random.integers(0, 9, BYTES // np.dtype(kind).itemsize).astype(kind) for _ in range(count)
    ]
    made = [ptx_files.aligned_empty(BYTES, dtype=torch.uint8) for _ in range(count)]
    for tensor, value in zip(made, values, strict=True):
        tensor.copy_(torch.from_numpy(value.view(np.uint8)))
    return made, values


OPERATIONS = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip
CASES = [
    ("add.v4.f32", np.float32, "{%r4, %r5, %r6, %r7}", "v4.b32"),
    ("add.acc::f32.v4.f16x2", np.float16, "{%r4, %r5, %r6, %r7}", "v4.b32"),
    ("min.f16x2", np.float16, "%r4", "b32"),
    ("add.f64", np.float64, "%rd4", "b64"),
    ("max.s64", np.int64, "%rd4", "b64"),
    ("and.b32", np.uint32, "%r4", "b32"),
    ("xor.b64", np.uint64, "%rd4", "b64"),
    ("or.b32", np.uint32, "%r4", "b32"),
]


def first_items(values, registers):
    """The elements of each lane's 16 bytes that a load of these registers touches."""
    width = 16 if registers.startswith("{") else 8 if "rd" in registers else 4
    lanes = values.view(np.uint8).reshape(32, 16)
    return np.ascontiguousarray(lanes[:, :width]).view(values.dtype), width


@pytest.mark.parametrize("what, kind, registers, stored", CASES)
def test_loads_combine_what_every_tensor_has(what, kind, registers, stored):
    many, values = tensors(kind)
    out = ptx_files.aligned_empty(BYTES, dtype=torch.uint8).zero_()
    body = f"multimem.ld_reduce.relaxed.sys.global.{what} {registers}, [%rd1]; st.global.{stored} [%rd2], {registers};"
    run(body, many, out)
    operation = OPERATIONS[what.split(".")[0]]
    exact = values[0]
    for other in values[1:]:
        exact = operation(exact, other)
    expected, width = first_items(exact.astype(kind), registers)
    got = np.ascontiguousarray(out.numpy().reshape(32, 16)[:, :width]).view(kind)
    assert np.array_equal(got, expected)


@pytest.mark.parametrize("what, kind, registers, stored", CASES)
def test_reductions_and_stores_reach_every_tensor(what, kind, registers, stored):
    many, values = tensors(kind)
    [own], [new] = tensors(kind, 1, 1)
    operation = OPERATIONS[what.split(".")[0]]
    run(
        f"ld.global.{stored} {registers}, [%rd2]; multimem.red.{what} [%rd1], {registers};",
        many,
        own,
    )
    added, width = first_items(new, registers)
    for tensor, value in zip(many, values, strict=True):
        got = np.ascontiguousarray(tensor.numpy().reshape(32, 16)[:, :width]).view(kind)
        assert np.array_equal(got, operation(first_items(value, registers)[0], added))
    run(
        f"ld.global.{stored} {registers}, [%rd2]; multimem.st.weak.global.{stored} [%rd1], {registers};",
        many,
        own,
    )
    for tensor in many:
        assert np.array_equal(
            tensor.numpy().reshape(32, 16)[:, :width], own.numpy().reshape(32, 16)[:, :width]
        )


BULK = """
    ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%rd2]; shl.b32 %r3, %r1, 4; add.s32 %r3, %r2, %r3;
    st.shared.v4.b32 [%r3], {%r4, %r5, %r6, %r7}; fence.proxy.async.shared::cta; bar.warp.sync -1; mov.b16 %rs1, 0xff01;
    @%p1 COPY; @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0;
"""


@pytest.mark.parametrize(
    "copy, result",
    [
        ("cp.async.bulk.global.shared::cta.bulk_group [%rd1], [%r2], 512", lambda old, new: new),
        ("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%rd1], [%r2], 512", np.add),
        (
            "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r2], 512, %rs1",
            lambda old, new: old & np.resize(np.array([~0xFF, ~0, 0, 0], np.int64).astype(np.uint32), 128)
            | new & np.resize(np.array([0xFF, 0, ~0, ~0], np.int64).astype(np.uint32), 128),
        ),
    ],
)  # fmt: skip
def test_bulk_copies_reach_every_tensor(copy, result):
    many, values = tensors(np.uint32)
    [own], [new] = tensors(np.uint32, 1, 1)
    run(BULK.replace("COPY", f"multimem.{copy}"), many, own)
    for tensor, value in zip(many, values, strict=True):
        assert np.array_equal(tensor.numpy().view(np.uint32), result(value, new))


def test_only_multimem_instructions_use_the_range_and_they_use_no_other():
    many, _ = tensors(np.uint32)
    out = ptx_files.aligned_empty(BYTES, dtype=torch.uint8)
    for message, body, shift in (
        ("which is not in a multimem address range", "multimem.st.b32 [%rd2], %r1;", 0),
        ("at multimem address .*: not aligned", "multimem.st.b64 [%rd1], %rd3;", 4),
        ("not in a multimem address range", "multimem.st.b32 [%rd1], %r1;", 16),
        ("write of 4 bytes", "st.global.b32 [%rd1], %r1;", 0),
    ):
        with pytest.raises(IllegalAccess, match=message):
            run(body, many, out, shift=shift)
    with pytest.raises(ValueError, match=r"tensors of \[512, 528\] bytes"):
        with ptx_files.multicast(many[0], torch.zeros(528, dtype=torch.uint8)):
            pass


def test_two_warps_that_write_without_order_race():
    """Different values to the same place of each tensor; reductions may meet."""
    many, _ = tensors(np.uint32)
    out = ptx_files.aligned_empty(2 * BYTES, dtype=torch.uint8)
    same = "sub.s64 %rd1, %rd1, %rd3; "
    run(same + "multimem.red.add.u32 [%rd1], %r1;", many, out, threads=64)
    with pytest.raises(RaceError):
        run(same + "multimem.st.b32 [%rd1], %r1;", many, out, threads=64)
