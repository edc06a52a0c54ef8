"""cp.reduce.async.bulk against NumPy: operations, types, both destinations, and what orders them."""

import numpy as np
import pytest

from cute_fa4.emulator.machine.memory import GlobalMemory
from cute_fa4.emulator.machine.tensor_map import decode_tensor_map
from cute_fa4.emulator.ptx.errors import RaceError, UnknownInstruction
from tests.emulator.core.ptx_bench import run_ptx

N = 64  # bytes of one reduction: several elements of every type


def aligned(values):
    """The values at an address that is a multiple of 16."""
    storage = np.zeros(values.nbytes + 16, np.uint8)
    start = -storage.ctypes.data % 16
    out = storage[start : start + values.nbytes].view(values.dtype)
    out[:] = values
    return out


TO_GLOBAL = """
    mov.b32 %r2, dyn; mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 0; @!%p1 bra END;
    ld.param.b64 %rd1, [p0]; ld.param.b64 %rd2, [p1];
    mov.b32 %r3, 0;
    COPY: cvt.u64.u32 %rd3, %r3; add.s64 %rd3, %rd2, %rd3; ld.global.b32 %r4, [%rd3];
    add.s32 %r5, %r2, %r3; st.shared.b32 [%r5], %r4;
    add.s32 %r3, %r3, 4; setp.lt.u32 %p2, %r3, 64; @%p2 bra COPY;
    fence.proxy.async.shared::cta;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.{what} [%rd1], [%r2], 64;
    cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
    END:
"""
# Each operation once, and each type once, in PTX's table.
CASES = {
    "add.f32": (np.float32, np.add),
    "add.u64": (np.uint64, np.add),
    "add.noftz.f16": (np.float16, np.add),
    "add.f64": (np.float64, np.add),
    "min.s32": (np.int32, np.minimum),
    "max.s64": (np.int64, np.maximum),
    "min.f16": (np.float16, np.minimum),
    "and.b32": (np.uint32, np.bitwise_and),
    "or.b64": (np.uint64, np.bitwise_or),
    "xor.b32": (np.uint32, np.bitwise_xor),
    "inc.u32": (np.uint32, lambda old, new: np.where(old >= new, 0, old + 1)),
    "dec.u32": (np.uint32, lambda old, new: np.where((old == 0) | (old > new), new, old - 1)),
}


@pytest.mark.parametrize("what", CASES)
def test_global_memory_is_combined_element_by_element(what):
    kind, operation = CASES[what]
    random = np.random.default_rng(0)
    old, new = (
        aligned(random.integers(0, 9, N // np.dtype(kind).itemsize).astype(kind)) for _ in "on"
    )
    expected = operation(old, new).astype(kind)
    run_ptx(TO_GLOBAL.format(what=what), old, new, shared=256, checks="ptx")
    assert np.array_equal(old, expected)


def test_bf16_sums_round_to_nearest_even():
    """1 + 2^-8 lies between two bf16 numbers; even is 1. 1 + 3 2^-8 is rounded up to 1 + 2^-6."""

    def bits(x):
        return (np.float32(x).view(np.uint32) >> 16).astype(np.uint16)

    old = aligned(np.full(32, bits(1.0), np.uint16))
    new = aligned(np.tile(np.array([bits(2**-8), bits(3 * 2**-8)]), 16))
    run_ptx(TO_GLOBAL.format(what="add.noftz.bf16"), old, new, shared=256)
    assert old[:2].tolist() == [bits(1.0), bits(1 + 2**-6)]


def test_types_that_ptx_does_not_have_are_refused():
    for what in ("min.f32", "add.s64", "inc.s32", "and.u32"):
        with pytest.raises(UnknownInstruction):
            zeros = aligned(np.zeros(16, np.uint32))
            run_ptx(TO_GLOBAL.format(what=what), zeros, zeros, shared=256)


def test_ctas_may_add_to_one_place_but_not_store_there():
    """Three CTAs add 1: reductions meet. The same with a bulk store is a race."""
    old, ones = aligned(np.zeros(16, np.float32)), aligned(np.ones(16, np.float32))
    run_ptx(TO_GLOBAL.format(what="add.f32"), old, ones, shared=256, grid=(3, 1, 1), checks="ptx")
    assert (old == 3).all()
    store = TO_GLOBAL.replace(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.{what}",
        "cp.async.bulk.global.shared::cta.bulk_group",
    )
    with pytest.raises(RaceError, match="in another cluster"):
        run_ptx(store, old, ones, shared=256, grid=(3, 1, 1), checks="ptx")


TO_CLUSTER = """
    mov.b32 %r2, dyn; mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 0; mov.u32 %r3, %cluster_ctarank;
    add.s32 %r4, %r3, 5; mov.b32 %r9, 64; mov.b32 %r10, 0;
    shl.b32 %r5, %r1, 2; add.s32 %r6, %r2, %r5;
    setp.lt.u32 %p2, %r1, 16;
    @%p2 st.shared.b32 [%r6], %r4; @%p2 st.shared.b32 [%r6+128], %r10;
    @%p1 mbarrier.init.shared.b64 [%r2+256], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    fence.proxy.async.shared::cta;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+256], 128;
    barrier.cluster.arrive; barrier.cluster.wait;
    mapa.shared::cluster.u32 %r7, %r2, 0;
    @%p1 cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32
        [%r7+128], [%r2], 64, [%r7+256];
    setp.ne.b32 %p3, %r3, 0; @%p3 bra LEAVE;
    WAIT: mbarrier.try_wait.parity.shared.b64 %p4, [%r2+256], 0; @!%p4 bra WAIT;
    @%p2 ld.shared.b32 %r8, [%r6+128];
    LEAVE: barrier.cluster.arrive; barrier.cluster.wait;
    @%p3 bra END; @!%p2 bra END;
    ld.param.b64 %rd1, [p0]; cvt.u64.u32 %rd2, %r5; add.s64 %rd1, %rd1, %rd2; st.global.b32 [%rd1], %r8;
    END:
"""


@pytest.mark.parametrize("mode", ["in_order", "hostile"])
def test_both_ctas_of_a_cluster_add_to_one_of_them(mode):
    """5 of rank 0 and 6 of rank 1 make 11, in any order, once the mbarrier has the bytes of both."""
    out = np.zeros(16, np.uint32)
    run_ptx(
        TO_CLUSTER, out, shared=512, grid=(2, 1, 1), cluster=(2, 1, 1), mode=mode, checks="hardware"
    )
    assert (out == 11).all()


# --- byte masks, and reductions of tensors ------------------------------------------------------------

MASKED = TO_GLOBAL.replace(
    "cp.reduce.async.bulk.global.shared::cta.bulk_group.{what} [%rd1], [%r2], 64;",
    "mov.b16 %rs1, {mask}; "
    "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%rd1], [%r2], 64, %rs1;",
)


@pytest.mark.parametrize("mask", [0x0000, 0xA00F, 0xFFFF])
def test_a_mask_chooses_bytes_of_each_16(mask):
    """Nothing, a run with two lonely bytes, everything."""
    old, new = aligned(np.zeros(N, np.uint8)), aligned(np.arange(1, N + 1, dtype=np.uint8))
    run_ptx(MASKED.format(mask=mask), old, new, shared=256, checks="ptx")
    chosen = np.array([mask >> i % 16 & 1 for i in range(N)])
    assert np.array_equal(old, new * chosen)


@pytest.mark.parametrize("operation", ["inc", "dec"])
def test_tensors_wrap_around(operation):
    """cp.reduce.async.bulk.tensor of u32, as atom.inc and atom.dec."""
    data = aligned(np.arange(16, dtype=np.uint32))
    words = data.ctypes.data & 0xFFFFFFFF, data.ctypes.data >> 32, 2 << 7, 0, 0, 0, 0, 0, 15
    fields = {13: 15 << 24}
    tensor_map = decode_tensor_map(
        np.array([*words, *(fields.get(i, 0) for i in range(9, 32))], np.uint32).tobytes()
    )
    memory = GlobalMemory()
    memory.register(data.ctypes.data, data.nbytes, "data", keep=data)
    old, new = data.copy(), np.full(16, 9, np.uint32)
    tensor_map.store(memory, (0,), 1024, new.view(np.uint8), reduce=operation)
    assert np.array_equal(data, CASES[f"{operation}.u32"][1](old, new))
