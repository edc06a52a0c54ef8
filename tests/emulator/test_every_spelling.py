"""Spellings that differ in a word only, each executed: laws that hold whatever the word is.

tcgen05.mma, .ws, .sp, scaled   ones times ones are K; with sparse A they are K, too, of twice the elements
.ashift                     rows of ones, moved, are rows of ones
tcgen05.st, then .ld        what was stored
mbarrier                    n arrivals take n off the count; what is awaited is over
"""

import numpy as np
import pytest

from cute_fa4.emulator.instructions.tcgen05_registers import register_places
from tests.emulator.core.ptx_bench import run_ptx, store
from tests.emulator.spellings import INSTRUCTIONS
from tests.emulator.test_tcgen05 import Bench, fill, vector


def spellings(chapter, *names):
    """Those with a meaning of some instructions of a chapter."""
    chosen = [one for one in INSTRUCTIONS if one.chapter == chapter and one.name in names]
    assert len(chosen) == len(names)
    return [s for one in chosen for s in one.with_meaning]


# kind -> (K, the byte pattern of ones as 32 bits, formats in the instruction descriptor)
KINDS = {
    "f16": (16, 0x3C003C00, 1 << 4),
    "tf32": (8, 0x3F800000, 1 << 4 | 2 << 7 | 2 << 10),
    "f8f6f4": (32, 0x38383838, 1 << 4),
    "i8": (32, 0x01010101, 2 << 4),
    "mxf8f6f4": (32, 0x38383838, 1 << 23),
    "mxf4": (64, 0x22222222, 1 << 7 | 1 << 10 | 1 << 23),
    "mxf4nvf4": (64, 0x22222222, 1 << 7 | 1 << 10 | 1 << 23),
}
SCALE_OF_ONE, FIRST_TWO = 0x7F7F7F7F, 0x44444444
N, SCALES, METADATA, A = 64, 128, 192, 200  # tensor-memory columns, besides N
PRODUCTS = ("mma", "mma with .ashift", "mma, block-scaled", "mma.ws", "mma.sp")


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_ones_times_ones_are_k(kind, group):
    k, ones, formats = KINDS[kind]
    bench = Bench(group)
    for cta in bench.ctas:
        cta.tmem.allocate(256)
        cta.tmem.write(0, SCALES, np.full((64, 128), SCALE_OF_ONE, np.uint32))
        cta.tmem.write(0, METADATA, np.full((2, 128), FIRST_TWO, np.uint32))
        cta.tmem.write(0, A, np.full((8, 128), ones, np.uint32))
        cta.shared.write(8192, np.full(8192, ones, np.uint32).view(np.uint8))
    chosen = [
        s
        for s in spellings("tcgen05", *PRODUCTS)
        if f".kind::{kind}." in f"{s}." and f".cta_group::{group}" in s
    ]
    assert len(chosen) >= 10
    descriptor = 8192 >> 4 | 8 << 16 | 8 << 32 | 1 << 46
    words = formats | N // 8 << 17 | 128 * group // 16 << 24
    expected = np.full((N, 128), k, np.int32 if kind == "i8" else np.float32)
    for spelling in chosen:
        scales = "[%r2], [%r3], " if "block_scale" in spelling else ""
        sparse = ".sp." in spelling
        a, metadata = "[%r5]" if ".ashift" in spelling else "%rd0", "[%r4], " * sparse
        for cta in bench.ctas:
            cta.tmem.written[:N] = False
        bench.run(
            f"{spelling} [%r0], {a}, %rd0, {metadata}%r1, {scales}0;",
            lanes=1, r0=0, r1=words | sparse << 2, r2=SCALES, r3=SCALES + 32, r4=METADATA, r5=A, rd0=descriptor,
        )  # fmt: skip
        bench.finish()
        for cta in bench.ctas:
            assert np.array_equal(cta.tmem.read(0, 0, 128, N).view(expected.dtype), expected), (
                spelling
            )


def test_what_is_stored_is_loaded():
    """Every shape and repetition; packed loads after unpacking stores."""
    bench = Bench()
    fill(bench.tmem)
    random = np.random.default_rng(0)
    pairs = list(zip(spellings("tcgen05", "st"), spellings("tcgen05", "ld"), strict=True))
    assert len(pairs) == 74
    for st, ld in pairs:
        shape, repeat = st.split(".")[4:6]
        count = len(register_places(shape, int(repeat[1:]))[0])
        sent = random.integers(0, 2**32, (count, 32), np.uint32)
        split = ", 256" if shape == "16x32bx2" else ""
        values = {f"r{8 + i}": row for i, row in enumerate(sent)}
        bench.run(f"{st} [%r0]{split}, {vector(8, count)};", r0=0, **values)
        bench.finish()
        zeros = {f"r{8 + i}": 0 for i in range(count)}
        bench.run(f"{ld} {vector(8, count)}, [%r0]{split};", r0=0, **zeros)
        got = np.array([bench.get(f"r{8 + i}") for i in range(count)])
        assert np.array_equal(got, sent), (st, ld)


def test_reductions_are_over_what_is_loaded():
    bench = Bench()
    bench.tmem.allocate(256)
    numbers = np.random.default_rng(1).normal(size=(256, 128)).astype(np.float32)
    bench.tmem.write(0, 0, numbers.view(np.uint32))
    chosen = spellings("tcgen05", "ld.red")
    assert len(chosen) == 168
    for spelling in chosen:
        shape, repeat = spelling.split(".")[5:7]
        count, split = int(repeat[1:]), ", 128" if shape == "16x32bx2" else ""
        bench.run(f"{spelling} {vector(8, count)}, %r4, [%r0]{split};", r0=0)
        kind = {"u32": np.uint32, "s32": np.int32}.get(spelling[-3:], np.float32)
        rows = numbers[:count, :32].view(kind)
        if split:
            rows = np.hstack((rows[:, :16], numbers[128 : 128 + count, :16].view(kind)))
        rows = np.abs(rows) if ".abs" in spelling else rows
        exact = rows.min(0) if ".min." in spelling else rows.max(0)
        assert np.array_equal(bench.get("r4").view(kind), exact), spelling


# --- mbarrier -----------------------------------------------------------------------------------------

# One thread; %r2 and %rd2 are the shared and the generic address of an mbarrier.
START = """
    mov.u32 %r1, %tid.x; mov.b32 %r2, dyn; cvt.u64.u32 %rd2, %r2; cvta.shared.u64 %rd2, %rd2; mov.b32 %r3, 0;
    setp.ne.u32 %p1, %r1, 0; @%p1 bra END;
    mbarrier.init.shared::cta.b64 [%r2], {count};
"""
END = "\nEND:" + store("%r3")


def address(spelling):
    """The operand: generic where the spelling names no state space."""
    return "[%r2]" if ".shared" in spelling else "[%rd2]"


def test_arrivals_of_every_spelling_count():
    chosen = spellings("mbarrier", "arrive", "arrive_drop")
    assert len(chosen) == 92
    lines = []
    for s in chosen:
        result = "_" if "shared::cluster" in s else "%rd4"
        operands = ", 16" if "expect_tx" in s else ", 1" if "noComplete" in s else ""
        lines.append(f"{s} {result}, {address(s)}{operands};")
        if "expect_tx" in s:
            lines.append("mbarrier.complete_tx.shared::cta.b64 [%r2], 16;")
    out = np.zeros(32, np.uint32)
    body = START.format(count=500) + "\n".join(lines)
    body += "mbarrier.arrive.shared::cta.b64 %rd4, [%r2]; mbarrier.pending_count.b64 %r3, %rd4;"
    run_ptx(body + END, out, shared=1024)
    assert out[0] == 500 - len(chosen)


def test_waits_and_bytes_of_every_spelling():
    """A phase with all spellings of bytes; then each way to look at it says that it is over."""
    sent = spellings("mbarrier", "expect_tx, complete_tx")
    waits = spellings("mbarrier", "test_wait, try_wait")
    assert (len(sent), len(waits)) == (24, 60)
    body = START.format(count=1)
    body += "\n".join(f"{s} {address(s)}, 16;" for s in sent)
    body += "mbarrier.arrive.shared::cta.b64 %rd4, [%r2];"
    for s in waits:
        phase = "0" if ".parity" in s else "%rd4"
        body += f"\n{s} %p2, {address(s)}, {phase}; @%p2 add.s32 %r3, %r3, 1;"
    out = np.zeros(32, np.uint32)
    run_ptx(body + END, out, shared=1024)
    assert out[0] == len(waits)


# --- asynchronous accesses of shared memory -------------------------------------------------------------


def test_stores_and_reductions_of_every_spelling_reach_their_word():
    """Word i of its own for each: 5 before, 3 is the operand; one mbarrier counts the bytes of all."""
    operations = {
        "add": 8, "min": 3, "max": 5, "and": 1, "or": 7, "xor": 6, "inc": 0, "dec": 3,
    }  # fmt: skip
    chosen = spellings("cluster", "st.async, red.async")
    assert len(chosen) == 68
    lines, expected, nbytes = [], [], 0
    for number, s in enumerate(chosen):
        base = "%r2" if ".shared" in s else "%rd2"
        at = 64 + 16 * number
        wide = s.endswith("64")
        value = "%rd5" if wide else "%r5"
        count = int(s.rsplit(".v", 1)[1][0]) if ".v" in s else 1
        source = f"{{{', '.join([value] * count)}}}" if count > 1 else value
        lines.append(f"{s} [{base}+{at}], {source}, [{base}];")
        nbytes += count * (8 if wide else 4)
        expected.append(3 if s.startswith("st") else operations[s.split(".")[-2]])
    results = "".join(
        f"ld.shared.b32 %r6, [%r2+{64 + 16 * i}]; setp.ne.u32 %p2, %r6, {value}; @%p2 add.s32 %r3, %r3, 1;\n"
        for i, value in enumerate(expected)
    )
    clear = "".join(
        f"st.shared.v4.b32 [%r2+{64 + 16 * i}], {{%r7, %r8, %r7, %r8}};\n"
        for i in range(len(chosen))
    )
    body = (
        START.format(count=1) + "mov.b32 %r5, 3; mov.b64 %rd5, 3; mov.b32 %r7, 5; mov.b32 %r8, 0;"
    )
    body += f"{clear} mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {nbytes};"
    body += "\n".join(lines)
    body += "\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0; @!%p3 bra WAIT;\n"
    out = np.full(32, 99, np.uint32)
    run_ptx(body + results + END, out, shared=4096)
    assert out[0] == 0


def test_arrivals_after_copies_of_threads_count():
    chosen = spellings("mbarrier", "cp.async.mbarrier.arrive")
    assert len(chosen) == 6
    body = START.format(count=4) + "\n".join(f"{s} {address(s)};" for s in chosen)
    body += "\nWAIT: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 1; @!%p3 bra WAIT;"
    body += "mbarrier.arrive.shared::cta.b64 %rd4, [%r2];"
    body += "\nLAST: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r2], 0; @!%p3 bra LAST; mov.b32 %r3, 1;"
    out = np.zeros(32, np.uint32)
    run_ptx(body + END, out, shared=1024)
    assert (
        out[0] == 1
    )  # the three with .noinc count, the others add to the count what they take off
