"""Tensor maps changed on the device: every field against the decoder, and the fences that a change needs."""

import struct

import numpy as np
import pytest

from cute_fa4.emulator.instructions.tensor_map_edits import edited
from cute_fa4.emulator.machine.tensor_map import decode_tensor_map
from cute_fa4.emulator.ptx.errors import ProxyError, TensorMapError
from tests.emulator.core.ptx_bench import run_ptx
from tests.emulator.test_bulk_copy import aligned, tensor_map

ROWS, COLUMNS = 16, 64


def fields(words):
    return decode_tensor_map(struct.pack("<32I", *words))


def test_every_field_is_the_one_that_the_decoder_reads():
    """PTX ISA, tensormap.replace: ranks are given less one, sizes and strides as they are."""
    tensor = aligned((ROWS, COLUMNS), np.uint16)
    words = struct.unpack("<32I", tensor_map(tensor, (64, 8), 16))
    address = tensor.ctypes.data + 4096
    assert fields(edited(words, "global_address", 0, address)).address == address
    assert fields(edited(words, "global_dim", 1, 1 << 32)).sizes == (COLUMNS, 1 << 32)
    far = 16 << 34  # bits beyond 36 are in a separate word
    assert fields(edited(words, "global_stride", 0, far)).strides == (2, far)
    assert fields(edited(words, "box_dim", 0, 32)).box == (32, 8)
    assert fields(edited(words, "box_dim", 1, 256)).box == (64, 256)
    assert fields(edited(words, "element_stride", 1, 2)).element_strides == (1, 2)
    assert fields(edited(words, "elemtype", 0, 6)).dtype == "f16"
    assert fields(edited(words, "swizzle_mode", 0, 3)).span == 128
    assert fields(edited(words, "fill_mode", 0, 1)).fill_nan
    assert fields(edited(words, "rank", 0, 2)).rank == 3
    for name, value in (("rank", 5), ("box_dim", 257), ("global_stride", 8), ("element_stride", 9)):
        with pytest.raises(TensorMapError, match="accepted"):
            edited(words, name, 0, value)


# p0 map in global memory, p1 tensor, p2 result; the map in shared memory at +128 gets another address: row 4 on.
BODY = """
    mov.b32 %r2, dyn; mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 0;
    ld.param.b64 %rd1, [p0]; ld.param.b64 %rd2, [p1]; ld.param.b64 %rd3, [p2]; add.s64 %rd2, %rd2, 512;
    shl.b32 %r4, %r1, 2; cvt.u64.u32 %rd4, %r4; add.s64 %rd5, %rd1, %rd4; add.s32 %r5, %r2, %r4;
    ld.global.b32 %r6, [%rd5]; st.shared.b32 [%r5+128], %r6; bar.warp.sync -1;
    add.s32 %r7, %r2, 128;
    @%p1 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r7], %rd2;
    @%p1 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r7], 1, 12;
    bar.warp.sync -1;
    {copy}
    {acquire}
    @%p1 mbarrier.init.shared.b64 [%r2], 1;
    @%p1 fence.mbarrier_init.release.cluster; bar.warp.sync -1;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 1024;
    @%p1 cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes
        [%r2+1024], [%rd1, {{0, 0}}], [%r2];
    WAIT: mbarrier.try_wait.parity.shared.b64 %p4, [%r2], 0; @!%p4 bra WAIT;
    ld.shared.b32 %r8, [%r5+1024]; add.s64 %rd3, %rd3, %rd4; st.global.b32 [%rd3], %r8;
"""
COPY = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%rd1], [%r7], 128;"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%rd1], 128;"


def launch(copy, acquire, checks="hardware"):
    tensor = aligned((ROWS, COLUMNS), np.uint16)
    tensor[...] = np.arange(ROWS)[:, None]
    storage = np.zeros(256, np.uint8)
    start = -storage.ctypes.data % 128
    device_map = storage[start : start + 128]
    device_map[:] = np.frombuffer(tensor_map(tensor, (64, 8), 16), np.uint8)
    out = np.zeros(32, np.uint32)
    run_ptx(
        BODY.format(copy=copy, acquire=acquire), device_map, tensor, out, shared=4096, checks=checks
    )
    return out.view(np.uint16)


def test_a_changed_map_is_copied_fenced_and_used():
    """The first row of the tensor by the new map is row 4."""
    assert (launch(COPY, ACQUIRE) == 4).all()


def test_a_change_without_acquire_is_reported():
    with pytest.raises(ProxyError, match="has not executed fence.proxy.tensormap::generic.acquire"):
        launch(COPY, "")
    assert (launch(COPY, "", checks=None) == 4).all()


def test_a_map_that_is_changed_in_global_memory_needs_a_release():
    change = (
        "@%p1 tensormap.replace.tile.global_dim.global.b1024.b32 [%rd1], 1, 16; bar.warp.sync -1;"
    )
    with pytest.raises(ProxyError, match="generic.release"):
        launch(change, ACQUIRE)
    release = "fence.proxy.tensormap::generic.release.gpu;"
    assert (launch(change + release, ACQUIRE) == 0).all(), "the address is the old one"
