"""What reports say: lines with their texts, what came at a barrier that is short, how to name an address."""

import re

import numpy as np
import pytest

from cute_fa4.emulator.ptx.errors import Deadlock, EmulatorError, IllegalAccess
from cute_fa4.emulator.ptx.labels import KernelLabels
from cute_fa4.emulator.ptx.parser import parse
from tests.emulator.core.ptx_bench import module_text, program_of, run_ptx

WAIT = """{ .reg .pred P1;
    WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r4], 0; @P1 bra.uni DONE; bra.uni WAIT;
    DONE: }
"""
# 128 bytes are expected, and one copy brings 64.
SHORT = """
    mov.b32 %r4, dyn; mov.u32 %r2, %laneid; setp.eq.b32 %p1, %r2, 0; ld.param.b64 %rd1, [p0];
    @%p1 mbarrier.init.shared.b64 [%r4], 1;
    @%p1 fence.mbarrier_init.release.cluster;
    bar.warp.sync -1;
    @%p1 mbarrier.arrive.expect_tx.shared.b64 _, [%r4], 128;
    @%p1 cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r4+128], [%rd1], 64, [%r4];
"""


def error_of(body, kind=EmulatorError, **launch):
    with pytest.raises(kind) as error:
        run_ptx(body, np.zeros(64, np.uint32), shared=1024, **launch)
    return str(error.value)


def test_inline_assembly_has_the_line_of_its_statement():
    """The compiler counts lines inside of it from there: .loc 1 42 is the third line of a text that line 40 has."""
    body = """
        .loc 1 40 8
        // begin inline asm
        { .reg .pred P1;
        .loc 1 42 8
        mbarrier.try_wait.parity.shared.b64 P1, [%r1], 0;
        }
        // end inline asm
        add.s32 %r1, %r1, 1;
        .loc 1 50 8
        mov.b32 %r2, %r1;
    """
    text = '.file 1 "/kernel.py"\n' + module_text(body)
    lines = [ins.source[1] for ins in parse(text).kernels["bench"].instructions if ins.source]
    assert lines == [40, 40, 50, 50]


def test_a_report_prints_the_source_line(tmp_path):
    """As it stands in the file; nothing, where there is none."""
    source = tmp_path / "kernel.py"
    source.write_text("first\n    scale = row_scale[slot]\n")
    text = '.file 1 "{}"\n' + module_text(".loc 1 2 4\nld.shared.b32 %r1, [%r2];")
    for path, shown in ((source, True), (tmp_path / "missing.py", False)):
        module = parse(text.replace("{}", str(path), 1))
        [ins] = [i for i in module.kernels["bench"].instructions if i.opcode == "ld.shared.b32"]
        warp_lines = _located(ins)
        assert f"Python line {path}:2" in warp_lines
        assert ("\n      scale = row_scale[slot]" in warp_lines) == shown


def _located(ins):
    from cute_fa4.emulator.machine.cta import CTA, Cluster, Machine
    from cute_fa4.emulator.machine.warp import Issuer, Warp

    cta = CTA(Cluster(Machine()))
    return Issuer(cta, Warp(cta, 0, 2, 1), ins).where()


def test_a_deadlock_lists_what_came_at_the_barrier_that_is_short():
    """Expected, arrived, and copied, each with its line: the wrong byte count is among them."""
    text = error_of(SHORT + WAIT, Deadlock)
    events = text[text.index("in this phase:") :].split("\n")[1:4]
    assert "lacks 64 bytes; awaited with parity 0; in this phase:" in text
    for event, (what, opcode) in zip(
        events,
        (
            ("expects 128 bytes", "expect_tx"),
            ("1 arrival ", "expect_tx"),
            ("64 bytes came", "cp.async.bulk"),
        ),
        strict=True,
    ):
        assert event.startswith(f"  {what}") and opcode in event and "PTX line" in event


def test_a_barrier_that_got_nothing_in_this_phase_shows_the_phase_before():
    """Two phases are waited for, one comes."""
    body = SHORT.replace("128;", "64;", 1) + WAIT
    second = WAIT.replace("WAIT", "AGAIN").replace("DONE", "READY").replace("[%r4], 0", "[%r4], 1")
    text = error_of(body + second, Deadlock)
    assert (
        "lacks 1 of 1 arrivals (warp 0); awaited with parity 1; nothing came in this phase, and in phase 0:"
        in text
    )
    assert re.search(r"\n  64 bytes came +warp 0 +PTX line \d+ ", text)


def test_bytes_that_are_missing_at_the_end_lead_to_their_lines():
    """A CTA that does not wait ends with an error of the copy; without one, with the events of the barrier."""
    body = SHORT[: SHORT.index("@%p1 cp.async")]
    text = error_of(body, checks="ptx")
    assert "ended while mbarrier" in text and "expects 128 bytes" in text


def test_an_address_without_a_name_says_how_to_name_it():
    text = error_of(SHORT + WAIT)
    assert 'labels=KernelLabels(barriers=((0x0, "a name", "who waits", "who arrives"),))' in text
    named = error_of(SHORT + WAIT, labels=KernelLabels(barriers=((0, "kv.full"),)))
    assert "kv.full" in named and "KernelLabels" not in named
    unwritten = error_of("mov.b32 %r4, dyn; ld.shared.b32 %r1, [%r4+64];")
    assert 'KernelLabels(shared=((0x40, nbytes, "a name"),))' in unwritten


def test_mapa_of_a_rank_that_does_not_exist_faults_where_it_is_used():
    """Compilers hoist mapa above the branch that guards the use (CUTLASS's persistent GEMMs)."""
    body = """
        mov.b32 %r4, dyn; mapa.shared::cluster.u32 %r5, %r4, {rank}; mov.b32 %r6, 7;
        setp.eq.b32 %p1, %r4, {guard}; @%p1 st.shared::cluster.b32 [%r5], %r6;
    """
    launch = {"grid": (2, 1, 1), "cluster": (2, 1, 1)}
    for rank in (2, 255, 0xFFFFFFFF):
        run_ptx(body.format(rank=rank, guard=0), shared=64, **launch)
        with pytest.raises(IllegalAccess, match=r"rank (2|255 or above), but the cluster has 2"):
            run_ptx(body.format(rank=rank, guard="%r4"), shared=64, **launch)


@pytest.mark.parametrize(
    "conversion, high, low",
    [
        ("cvt.s64.s32 %rd2, %rd1;", 0xFFFFFFFF, 0x80000085),  # chopped, then sign-extended
        ("cvt.u64.u32 %rd2, %rd1;", 0, 0x80000085),
        ("cvt.s64.s8 %rd2, %rd1;", 0xFFFFFFFF, 0xFFFFFF85),
        ("cvt.s32.s8 %rd2, %rd1;", 0xFFFFFFFF, 0xFFFFFF85),  # the result is extended, too
        ("cvt.s16.s8 %rd2, %rd1;", 0xFFFFFFFF, 0xFFFFFF85),
        ("cvt.u16.u8 %rd2, %rd1;", 0, 0x85),
        ("cvt.rn.f64.s8 %rd2, %rd1;", 0xC05EC000, 0),  # -123.0
    ],
)
def test_cvt_takes_registers_wider_than_its_types(conversion, high, low):
    """PTX ISA, "Operand Size Exceeding Instruction-Type Size": sources are chopped, results extended."""
    body = f"""
        mov.b64 %rd1, 0x1234567880000085; {conversion}
        ld.param.b64 %rd3, [p0]; st.global.b64 [%rd3], %rd2;
    """
    out = np.zeros(2, np.uint32)
    run_ptx(body, out)
    assert [hex(word) for word in out.tolist()] == [hex(low), hex(high)]


def test_a_wide_cvt_keeps_its_guard_and_its_text():
    program = program_of("setp.eq.b32 %p1, %r1, %r1; @!%p1 cvt.s64.s32 %rd2, %rd1;")
    parts = [ins for members in program.members for ins in members if "cvt" in ins.opcode]
    assert [ins.opcode for ins in parts] == ["cvt.u32.u64", "cvt.s64.s32"]
    assert {ins.guard for ins in parts} == {(1, True)}
    assert {ins.text for ins in parts} == {"@!%p1 cvt.s64.s32 %rd2, %rd1"}
