"""PTX from a file: arguments of every kind, tensor maps by the driver's parameters, aligned tensors, CUDA C++."""

import shutil
import struct
import subprocess

import numpy as np
import pytest
import torch

from cute_fa4 import emulator
from cute_fa4.emulator.host import ptx_files
from cute_fa4.emulator.ptx.errors import IllegalAccess, TensorMapError
from tests.emulator.gpu.tensor_map_fields import random_fields

SCALE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry scale(.param .u64 y, .param .u64 x, .param .f32 factor, .param .u32 n, .param .align 4 .b8 pair[8])
{
    .reg .pred %p<3>; .reg .b32 %r<8>; .reg .f32 %f<8>; .reg .b64 %rd<8>;
    ld.param.b64 %rd1, [y]; ld.param.b64 %rd2, [x]; ld.param.f32 %f1, [factor]; ld.param.b32 %r1, [n];
    ld.param.b32 %r6, [pair+4];
    mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x; mad.lo.s32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1; @%p1 ret;
    mul.wide.u32 %rd3, %r5, 4; add.s64 %rd1, %rd1, %rd3; add.s64 %rd2, %rd2, %rd3;
    ld.global.f32 %f2, [%rd2]; cvt.rn.f32.s32 %f4, %r6; fma.rn.f32 %f3, %f1, %f2, %f4; st.global.f32 [%rd1], %f3;
    ret;
}
"""


def test_a_kernel_of_a_file_takes_tensors_numbers_and_structures(tmp_path):
    path = tmp_path / "scale.ptx"
    path.write_text(SCALE)
    kernel = ptx_files.load(path)
    x, y = torch.randn(50), np.zeros(50, np.float32)
    with emulator.use(mode="random", seed=1) as run:
        kernel.launch(y, x, 3, 50, struct.pack("<ii", 0, 7), grid=2, block=32)
    assert np.allclose(y, 3 * x.numpy() + 7) and run.launches == 1 and run.level == "hardware"
    assert emulator.ptx_files.load(SCALE, "scale").entry == "scale"


def test_memory_that_was_not_handed_over_is_refused():
    kernel = ptx_files.load(SCALE)
    x, y = torch.randn(50), torch.empty(40)
    with pytest.raises(IllegalAccess, match=r"the tensor \(40,\) float32 \(y\)"):
        kernel.launch(y, x, 3.0, 50, bytes(8), grid=2, block=32)


@pytest.mark.parametrize(
    "arguments, error, message",
    [
        ((), TypeError, "scale takes 5 arguments, 0 were given; parameters: y"),
        ((None, None, 1.0, 1 << 32, bytes(8)), ValueError, "n: 4294967296 does not fit 4 bytes"),
        ((None, None, "x", 1, bytes(8)), TypeError, "factor: str for a parameter of 4 bytes"),
        ((None, None, 1.0, 1, bytes(4)), ValueError, "pair: 4 bytes for a parameter of 8"),
        ((None, None, torch.zeros(1), 1, bytes(8)), TypeError, "factor: a tensor"),
    ],
)
def test_arguments_that_do_not_fit_are_named(arguments, error, message):
    with pytest.raises(error, match=message):
        ptx_files.load(SCALE).launch(*arguments, grid=1, block=32)


def test_an_entry_that_is_not_there_is_named():
    with pytest.raises(ValueError, match="entry 'gemm': the PTX has scale"):
        ptx_files.load(SCALE, "gemm")


def test_tensor_maps_are_those_of_the_independent_encoder():
    """All fields but the reach of a load (bit 85), which the driver sets where a tensor spans 128 KiB."""
    rng = np.random.default_rng(0)
    compared = 0
    for _ in range(200):
        fields = random_fields(rng)
        address = 1 << 30
        try:
            made = ptx_files.encode_tiled(
                fields.dtype, address + fields.shift, fields.sizes, fields.strides, fields.box,
                fields.steps, 0 if fields.span == 16 else fields.span, (0, 64, 128, 256)[fields.l2], fields.nan,
            )  # fmt: skip
        except TensorMapError:
            continue  # stricter than the driver: rows narrower than the swizzle
        expected, words = (struct.unpack("<32I", b) for b in (fields.encode(address), made))
        assert (
            words[2] & ~(1 << 21) == expected[2]
            and words[:2] + words[3:] == expected[:2] + expected[3:]
        )
        compared += 1
    assert compared > 100


def test_a_wide_tensor_has_the_reach_bit():
    for rows, bit in ((1023, 0), (1024, 1)):
        made = ptx_files.encode_tiled("bf16", 1 << 20, (64, rows), (128,), (64, 8))
        assert struct.unpack("<32I", made)[2] >> 21 & 1 == bit


@pytest.mark.parametrize(
    "change, message",
    [
        ({"dtype": "int4"}, "dtype is 'int4'"),
        ({"strides": (24,)}, "strides is"),
        ({"box": (512, 8)}, "box is"),
        ({"swizzle": 48}, "swizzle is 48"),
        ({"sizes": (64,)}, "the number of strides is 1; accepted: 0"),
        ({"address": 8}, "global address"),
    ],
)
def test_maps_that_the_driver_refuses_are_refused(change, message):
    good = {
        "dtype": "bf16",
        "address": 1 << 20,
        "sizes": (64, 8),
        "strides": (128,),
        "box": (64, 8),
    }
    with pytest.raises(TensorMapError, match=message):
        ptx_files.encode_tiled(**{**good, **change})


@pytest.mark.parametrize("align", [16, 128, 256, 1024])
def test_aligned_tensors_begin_where_they_were_asked_to(align):
    for shape in ((3, 5), (0,), (7,)):
        made = ptx_files.aligned_empty(*shape, dtype=torch.bfloat16, align=align)
        assert made.data_ptr() % align == 0 and made.shape == shape and made.is_contiguous()
    values = torch.arange(15.0)[1:]
    moved = ptx_files.aligned(values, align)
    assert torch.equal(moved, values) and moved.data_ptr() % align == 0
    assert ptx_files.aligned(moved, align) is moved
    with pytest.raises(ValueError, match="powers of two"):
        ptx_files.aligned_empty(1, dtype=torch.float32, align=48)


CUDA = """
#include <cstdint>
struct alignas(64) Map { char bytes[128]; };
extern "C" __global__ void __launch_bounds__(32) first_rows(const __grid_constant__ Map map, unsigned *out, int row) {
    __shared__ alignas(1024) unsigned tile[8 * 32];
    __shared__ alignas(8) uint64_t bar;
    unsigned b = (unsigned)__cvta_generic_to_shared(&bar), t = (unsigned)__cvta_generic_to_shared(tile);
    if (threadIdx.x == 0) {
        asm volatile("mbarrier.init.shared.b64 [%0], 1;\\nfence.mbarrier_init.release.cluster;" :: "r"(b) : "memory");
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], 1024;" :: "r"(b) : "memory");
        asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                     " [%0], [%1, {%3, %4}], [%2];"
                     :: "r"(t), "l"(&map), "r"(b), "r"(0), "r"(row) : "memory");
    }
    __syncthreads();
    asm volatile("{ .reg .pred p; W: mbarrier.try_wait.parity.shared.b64 p, [%0], 0; @!p bra W; }"
                 :: "r"(b) : "memory");
    out[threadIdx.x] = tile[threadIdx.x];
}
"""


def test_a_cuda_kernel_runs_with_a_tensor_map(tmp_path):
    """nvcc makes the PTX; the map is that of cuTensorMapEncodeTiled's parameters. Row 5 of the tensor comes first."""
    if not shutil.which("nvcc"):
        pytest.skip(
            "nvcc is not installed: pip install -e '.[hopper]' and put it on PATH, or a CUDA toolkit"
        )
    source, ptx = tmp_path / "kernel.cu", tmp_path / "kernel.ptx"
    source.write_text(CUDA)
    subprocess.run(
        ["nvcc", "--ptx", "-arch=sm_100a", "-std=c++17", str(source), "-o", str(ptx)],
        check=True,
        timeout=120,
    )
    tensor = ptx_files.aligned_empty(20, 32, dtype=torch.int32, align=128)
    tensor.copy_(torch.arange(20)[:, None].expand(20, 32))
    tensor_map = ptx_files.encode_tiled("u32", tensor, (32, 20), (128,), (32, 8))
    out = torch.zeros(32, dtype=torch.int32)
    kernel = ptx_files.load(ptx)
    with pytest.raises(IllegalAccess, match="outside"):
        kernel.launch(tensor_map, out, 5, grid=1, block=32)  # only the map knows of the tensor
    with ptx_files.reachable(tensor):
        kernel.launch(tensor_map, out, 5, grid=1, block=32)
    assert (out == 5).all()
