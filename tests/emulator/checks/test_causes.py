"""Reports name the cause with the symptom: a wait that was over before it began, bytes that were not announced."""

import re

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import (
    BarrierError,
    Deadlock,
    EmulatorError,
    RaceError,
    TensorMemoryError,
    UninitializedRead,
)
from cute_fa4.emulator.ptx.labels import KernelLabels
from tests.emulator.checks.planted_bugs import ALLOCATE, FREE, INIT, START, WAIT
from tests.emulator.core.ptx_bench import run_ptx

NAMES = KernelLabels(
    roles=((range(0, 1), "fill"), (range(1, 2), "read")),
    barriers=((1024, "full"), (1032, "empty")),
)
TWO_BARRIERS = INIT.format(count=32).replace(
    "bar.sync 0;", "@%p2 mbarrier.init.shared.b64 [%r2+1032], 32; bar.sync 0;"
)
# Warp 0 fills one buffer four times, warp 1 reads it; each keeps the parity of its waits in %r6.
RING = """
    mov.b32 %r4, 0;
    @!%p1 bra READ;
    mov.b32 %r6, {fill_begins};
  FILL:
    E: mbarrier.try_wait.parity.shared.b64 %p3, [%r2+1032], %r6;
    @!%p3 bra E;
    st.shared.b32 [%r3], %r4;
    mbarrier.arrive.shared.b64 _, [%r2+1024];
    {fill_flips} add.s32 %r4, %r4, 1; setp.lt.s32 %p4, %r4, 4;
    @%p4 bra FILL;
    bra END;
  READ:
    mov.b32 %r6, {read_begins};
  NEXT:
    F: mbarrier.try_wait.parity.shared.b64 %p3, [%r2+1024], %r6;
    @!%p3 bra F;
    ld.shared.b32 %r7, [%r3];
    mbarrier.arrive.shared.b64 _, [%r2+1032];
    {read_flips} add.s32 %r4, %r4, 1; setp.lt.s32 %p4, %r4, 4;
    @%p4 bra NEXT;
  END:
"""
FLIP = "xor.b32 %r6, %r6, 1;"
CORRECT = dict(fill_begins=1, read_begins=0, fill_flips=FLIP, read_flips=FLIP)
# Two copies of 512 bytes.
COPIES = """
    @%p2 mbarrier.arrive.expect_tx.shared.b64 _, [%r2+1024], {announced};
    @%p2 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2], [%rd2], 512, [%r2+1024];
    @%p2 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r2+512], [%rd2+512], 512, [%r2+1024];
"""
READ = WAIT.format(name=0, parity=0) + "ld.shared.b32 %r7, [%r3+512]; st.global.b32 [%rd1], %r7;"


def launch(body, **options):
    out, source = np.zeros(256, np.uint32), np.arange(256, dtype=np.uint32)
    options = {"threads": 64, "shared": 16384, "checks": "hardware", "labels": NAMES} | options
    run_ptx(START + body, out, source, **options)
    return out


def report(body, error, **options):
    with pytest.raises(error) as raised:
        launch(body, **options)
    return str(raised.value)


def ring(**changes):
    return TWO_BARRIERS + RING.format(**CORRECT | changes)


@pytest.mark.parametrize("mode", ["in_order", "together", "random", "hostile"])
def test_correct_kernels_run(mode):
    launch(ring(), mode=mode)
    for body in (INIT.format(count=1) + COPIES.format(announced=1024) + READ, ALLOCATE + FREE):
        launch(body, mode=mode)


def test_a_phase_that_does_not_flip_names_the_wait_and_who_completed_its_phase():
    """The reader always asks for parity 0; what is noticed is that the one that fills is overtaken."""
    text = report(ring(read_flips=""), BarrierError)
    assert "empty: phases 0 to 3 completed before this wait looked" in text
    found = re.search(
        r"cause\? read waited for full with parity 0 at PTX line \d+, which passed at once: phase 0 was past, and the "
        r"same wait had seen it before; the next phase has parity 1. In phase 0:\n +32 arrivals +fill +PTX line \d+",
        text,
    )
    assert found


def test_the_other_side_that_does_not_flip_is_named_too():
    text = report(ring(fill_flips=""), BarrierError)
    assert "full: phases 0 to 3 completed before this wait looked" in text
    assert "cause? fill waited for empty with parity 1 at PTX line" in text


def test_a_reader_that_begins_with_the_wrong_parity_is_told_which_the_first_is():
    text = report(ring(read_begins=1), UninitializedRead)
    assert re.search(
        r"cause\? read waited for full with parity 1 at PTX line \d+, which passed at once: no phase of it had "
        r"completed; the first phase has parity 0",
        text,
    )


def test_a_filler_that_begins_with_the_wrong_parity_is_told_what_it_awaits():
    text = report(ring(fill_begins=0), Deadlock)
    assert (
        "empty, phase 0, lacks 32 of 32 arrivals; awaited with parity 0: of the first phase; a wait for parity 1 "
        "passes at once before it; nothing has ever come"
    ) in text


@pytest.mark.parametrize("mode, error", [("in_order", RaceError), ("hostile", EmulatorError)])
def test_too_few_bytes_announced_says_both_numbers_and_all_lines(mode, error):
    """The phase completes with the first copy: a race, or a copy in flight at the end."""
    body = INIT.format(count=1) + COPIES.format(announced=512) + READ
    text = report(body, error, mode=mode)
    head = "cause? full: 512 bytes were announced for phase 0, and 1024 bytes came, so it completed too early:"
    assert head in text
    rows = text[text.index(head) :].split("\n")[1:5]
    assert "expects 512 bytes" in rows[0] and "expect_tx" in rows[0]
    assert all("512 bytes came" in row and "cp.async.bulk" in row for row in rows[2:])


@pytest.mark.parametrize(
    "announced, lacks",
    [(1536, "512 bytes"), (256, "an expect_tx of the 768 bytes that came already")],
)
def test_too_many_bytes_announced_or_less_than_the_first_copy_never_end(announced, lacks):
    body = INIT.format(count=1) + COPIES.format(announced=announced) + READ
    text = report(body, Deadlock)
    assert f"full, phase 0, lacks {lacks}; awaited with parity 0; in this phase:" in text
    assert re.search(rf"\n  expects {announced} bytes .*expect_tx", text)
    assert len(re.findall(r"\n  512 bytes came .*cp.async.bulk", text)) == 2


def test_columns_that_are_not_freed_lead_to_their_allocation():
    text = report(ALLOCATE, TensorMemoryError)
    assert "allocated are columns 0 to 31" in text
    assert re.search(r"allocated by\n.*\n.*\n  PTX line \d+: tcgen05\.alloc", text)


def test_waits_that_explain_nothing_are_not_named():
    """A barrier may be waited for again: the race of a warp that did so has no cause there unless it read."""
    again = WAIT.format(name=0, parity=0) + WAIT.format(name=1, parity=0)
    body = (
        INIT.format(count=64)
        + "mbarrier.arrive.shared.b64 _, [%r2+1024];"
        + again
        + "@%p1 st.shared.b32 [%r3], %r1; @!%p1 ld.shared.b32 %r4, [%r3];"
    )
    assert "cause?" not in report(body, RaceError)
