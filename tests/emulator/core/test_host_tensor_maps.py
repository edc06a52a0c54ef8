"""Compiled host code that calls cuTensorMapEncodeTiled: cutlass.experimental's tensor maps of a view."""

import cutlass
import cutlass.cute as cute
import pytest
import torch
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4 import emulator

cuda = pytest.importorskip(
    "cutlass.experimental.cuda", reason="this version of the DSL has no cutlass.experimental"
)
prims = pytest.importorskip("cutlass.experimental.primitives")

TILE = 64  # rows and columns of a box: 128 bytes a row of fp16


@cute.kernel
def copy_tile(source: cutlass.GridConstant[cuda.TensorMap], out: cute.Tensor):
    thread, _, _ = cute.arch.thread_idx()
    tile = cutlass.Array(
        cutlass.Float16, (TILE, TILE), space=cutlass.AddressSpace.smem, alignment=1024
    )
    full = cutlass.Array(cutlass.Int64, 1, space=cutlass.AddressSpace.smem)
    if prims.elect_sync():
        prims.mbarrier_init(full, 1)
    prims.fence_mbarrier_init()
    prims.barrier_cta_sync(0)
    if prims.elect_sync():
        prims.mbarrier_arrive_expect_tx(full, source.global_tx_bytes())
        prims.cp_async_bulk_tensor_shared_cta_global(tile, source.get_ptr(), (TILE, 32), full)
    while not prims.mbarrier_try_wait_parity(full, 0, time_limit=10000000):
        pass
    for row in cutlass.range(TILE):
        for part in cutlass.range_constexpr(TILE // 32):
            out[row, part * 32 + thread] = tile[row, part * 32 + thread]


@cute.jit
def copy(source: cute.Tensor, out: cute.Tensor):
    tensor_map = cuda.create_tensor_map_tiled_from_view(
        source,
        box_dims=(TILE, TILE),
        stride_order=(1, 0),
        swizzle=cuda.TensorMapSwizzle.none,
    )
    copy_tile(tensor_map, out).launch(grid=(1, 1, 1), block=(32, 1, 1))


@pytest.fixture(scope="module")
def compiled():
    source, out = (
        make_fake_compact_tensor(
            cutlass.Float16, (cute.sym_int(), cute.sym_int()), stride_order=(1, 0), assumed_align=16
        )
        for _ in range(2)
    )
    return emulator.compile(copy, source, out)


def test_a_tensor_map_of_the_host_code_is_that_of_the_view(compiled):
    """A box at column 64 and row 32; rows after the tensor's last are zeros."""
    x = torch.arange(80 * 128).reshape(80, 128).half()
    out = torch.empty(TILE, TILE, dtype=torch.float16)
    compiled(x, out)
    assert torch.equal(out[:48], x[32:, 64:]) and not out[48:].any()


def test_what_the_driver_refuses_is_an_error_with_the_parameter(compiled):
    x = torch.zeros(0, 128, dtype=torch.float16)
    with pytest.raises(emulator.TensorMapError, match=r"sizes is \(128, 0\); accepted: 1 to 2\^32"):
        compiled(x, torch.empty(TILE, TILE, dtype=torch.float16))
