"""tcgen05.ld.red (not on sm_100a) against NumPy, and cache policies."""

import numpy as np
import pytest

from cute_fa4.emulator.machine.memory import GlobalMemory
from cute_fa4.emulator.ptx.errors import EmulatorError, RegisterHazard
from cute_fa4.emulator.ptx.parser import parse
from cute_fa4.emulator.run.launch import execute_grid
from cute_fa4.emulator.run.program import Program
from tests.emulator.core.ptx_bench import module_text, run_ptx

# Four registers of each lane go to tensor memory and come back with their reduction, which p1 takes.
BODY = """
    mov.u32 %r1, %tid.x; mov.b32 %r2, dyn; ld.param.b64 %rd1, [p0]; ld.param.b64 %rd3, [p1];
    shl.b32 %r3, %r1, 4; cvt.u64.u32 %rd2, %r3; add.s64 %rd1, %rd1, %rd2;
    ld.global.b32 %r10, [%rd1]; ld.global.b32 %r11, [%rd1+4]; ld.global.b32 %r12, [%rd1+8];
    ld.global.b32 %r13, [%rd1+12];
    tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r2], 32; ld.shared.b32 %r20, [%r2];
    tcgen05.st.sync.aligned.32x32b.x4.b32 [%r20], {{%r10, %r11, %r12, %r13}}; tcgen05.wait::st.sync.aligned;
    tcgen05.ld.red.sync.aligned.32x32b.x4.{what} {{%r14, %r15, %r16, %r17}}, %r18, [%r20];
    {wait}
    shr.u64 %rd2, %rd2, 2; add.s64 %rd3, %rd3, %rd2; st.global.b32 [%rd3], %r18;
    tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r20, 32;
"""
WAIT = "tcgen05.wait::ld.sync.aligned;"


def run(what, values, wait=WAIT, target="sm_103a"):
    module = parse(module_text(BODY.format(what=what, wait=wait), 2).replace("sm_100a", target))
    memory, out = GlobalMemory(), np.zeros(32, np.uint32)
    for array in (values, out):
        memory.register(array.ctypes.data, array.nbytes, "array", keep=array)
    params = np.array([a.ctypes.data for a in (values, out)], np.uint64).tobytes()
    execute_grid(
        Program(module.kernels["bench"], module),
        params=params,
        block=(32, 1, 1),
        dynamic_shared_bytes=64,
        memory=memory,
        checks="ptx",
    )
    return out


@pytest.mark.parametrize(
    "what, kind, expected",
    [
        ("max.f32", np.float32, lambda x: np.fmax.reduce(x, 1)),
        ("min.NaN.f32", np.float32, lambda x: np.minimum.reduce(x, 1)),
        ("max.abs.f32", np.float32, lambda x: np.fmax.reduce(np.abs(x), 1)),
        ("min.s32", np.int32, lambda x: x.min(1)),
        ("max.u32", np.uint32, lambda x: x.max(1)),
    ],
)
def test_a_lane_gets_the_reduction_of_what_it_loads(what, kind, expected):
    """PTX ISA, tcgen05.ld.red: a NaN counts only with .NaN. Row 3 has one, row 4 nothing else."""
    values = np.random.default_rng(0).normal(size=(32, 4)) * 100
    values = values.astype(np.int32).view(kind) if kind != np.float32 else values.astype(kind)
    if kind == np.float32:
        values[3, 1] = values[4] = np.nan
    out = run(what, values).view(kind)
    wanted = expected(values)
    assert np.array_equal(out, wanted, equal_nan=kind == np.float32)


def test_the_reduction_is_undefined_before_the_wait():
    with pytest.raises(RegisterHazard):
        run("max.f32", np.zeros((32, 4), np.float32), wait="")


def test_sm_100a_does_not_have_it():
    with pytest.raises(
        EmulatorError, match="sm_100a does not have tcgen05.ld.red; sm_103a, sm_110a"
    ):
        run("max.f32", np.zeros((32, 4), np.float32), target="sm_100a")


def test_cache_policies_are_opaque():
    """A copy takes one and moves what it would without; a fraction is above 0 and at most 1."""
    body = "createpolicy.fractional.L2::evict_first.b64 %rd1, {};"
    run_ptx(
        body.format("1.0")
        + "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %rd2, 0.5;"
    )
    with pytest.raises(EmulatorError, match="accepted: above 0, up to 1"):
        run_ptx(body.format("1.5"))
