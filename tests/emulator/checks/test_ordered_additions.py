"""use(checks=("ptx", "ordered_additions")): bulk additions of floats to the same bytes need an order.

Two CTAs add 64 bytes to the same place. A counter gives them turns. CTA 1 begins, so both run at a time: an acquire
from a CTA that has ended would order all that it did.
"""

import re

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import RaceError
from tests.emulator.core.ptx_bench import run_ptx
from tests.emulator.test_bulk_reduce import aligned

CHECKS = "ptx", "ordered_additions"
ADD = """
    mov.b32 %r2, dyn; mov.u32 %r1, %tid.x; setp.eq.b32 %p1, %r1, 0; @!%p1 bra END;
    ld.param.b64 %rd1, [p0]; ld.param.b64 %rd2, [p1]; mov.u32 %r6, %ctaid.x;
    sub.u32 %r6, 1, %r6;
    mov.b32 %r3, 0; mov.b32 %r4, 0;
    FILL: add.s32 %r5, %r2, %r3; st.shared.b32 [%r5], %r4;
    add.s32 %r3, %r3, 4; setp.lt.u32 %p2, %r3, 64; @%p2 bra FILL;
    fence.proxy.async.shared::cta;
    WAIT: ld.acquire.gpu.global.u32 %r7, [%rd2]; setp.lt.u32 %p2, %r7, %r6; @%p2 bra WAIT;
    cp.reduce.async.bulk.global.shared::cta.bulk_group.add.WHAT [%rd1], [%r2], 64;
    cp.async.bulk.commit_group;
    cp.async.bulk.wait_group 0;
    red.release.gpu.global.add.u32 [%rd2], 1;
    END:
"""
MISSING = {
    "the turn is not awaited": (r"WAIT:.*bra WAIT;", ""),
    "the wait does not acquire": (r"ld\.acquire\.gpu", "ld.relaxed.gpu"),
    "the end does not release": (r"red\.release\.gpu", "red.relaxed.gpu"),
    "an addition is read, not complete": (r"wait_group 0", "wait_group.read 0"),
}


def add(text: str, checks, kind=np.float32, what="f32"):
    place, counter = (
        aligned(np.zeros(64 // np.dtype(kind).itemsize, kind)),
        aligned(np.zeros(4, np.uint32)),
    )
    run_ptx(text.replace("WHAT", what), place, counter, shared=256, grid=(2, 1, 1), checks=checks)


def test_additions_in_turns_are_ordered():
    add(ADD, CHECKS)


@pytest.mark.parametrize("defect", MISSING)
def test_additions_without_an_order_are_refused(defect):
    pattern, by = MISSING[defect]
    broken, number = re.subn(pattern, by, ADD)
    assert number == 1
    with pytest.raises(RaceError):
        add(broken, CHECKS)


def test_only_floats_and_only_where_asked():
    """Sums of integers have no order, and published kernels add floats in any."""
    pattern, by = MISSING["the turn is not awaited"]
    unordered = re.sub(pattern, by, ADD)
    add(unordered, "ptx")
    add(unordered, CHECKS, np.uint32, "u32")
