"""ld and st in vectors and with extension, generic addresses, atom and red in global and shared memory."""

import numpy as np

from tests.emulator.gpu.ptx_cases import FULL, Case, Results, kernel

LANES = np.arange(32)


def cases():
    """All cases of this file."""
    yield from vectors()
    yield extensions()
    yield generic()
    yield from atomics()
    yield contended()
    yield compare_and_swap_loop()
    yield subnormal_adds()


def pattern(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


VECTORS = (
    ("v2", "u8"), ("v4", "s8"), ("v2", "b16"), ("v4", "u16"), ("v2", "u32"), ("v4", "b32"),
    ("v4", "f32"), ("v2", "b64"), ("v2", "f64"),
)  # fmt: skip


def vectors():
    """Thread t copies vector 31 - t through shared memory, or directly, into place t."""
    for space in ("global", "shared"):
        body, data, expected, at = "", [], [], 0
        for number, (vector, kind) in enumerate(VECTORS):
            count, bits = int(vector[1:]), int(kind[1:])
            size = count * bits // 8
            register = {"f32": "%f", "f64": "%d"}.get(
                kind, {8: "%h", 16: "%h", 32: "%r", 64: "%d"}[bits]
            )
            names = ", ".join(f"{register}{i + 1}" for i in range(count))
            kind = {"f64": "b64"}.get(kind, kind)
            body += f"sub.s32 %r20, 31, lane; mul.wide.u32 %d20, %r20, {size}; mul.wide.u32 %d21, lane, {size};"
            body += "add.s64 %d20, %d20, a1; add.s64 %d21, %d21, a0;"
            body += f"ld.global.{vector}.{kind} {{{names}}}, [%d20+{at}];"
            if space == "shared":
                body += f"mul.lo.s32 %r21, lane, {size}; add.s32 %r21, %r21, smem;"
                body += f"st.shared.{vector}.{kind} [%r21], {{{names}}};"
                body += f"ld.shared.{vector}.{kind} {{{names}}}, [%r21];"
            body += f"st.global.{vector}.{kind} [%d21+{at}], {{{names}}};\n    "
            chunk = pattern(32 * size, number).reshape(32, size)
            data.append(chunk.reshape(-1))
            expected.append(chunk[::-1].reshape(-1))
            at += 32 * size
        data, expected = np.concatenate(data), np.concatenate(expected)
        yield Case(
            f"memory/vectors {space}", kernel(body, buffers=2), (np.zeros_like(data), data),
            (expected, data), shared=512, section="ld, st",
        )  # fmt: skip


def extensions():
    """8 and 16 bits into 32-bit registers, signed and unsigned; stores of the low bits of a register."""
    data = pattern(64, 5)
    results, body = Results(), ""
    for kind, dtype in (
        ("u8", np.uint8),
        ("s8", np.int8),
        ("u16", np.uint16),
        ("s16", np.int16),
        ("b16", np.uint16),
    ):
        size = dtype().itemsize
        values = data.view(dtype)[:32].astype(np.int64)
        body += f"mul.wide.u32 %d1, lane, {size}; add.s64 %d1, %d1, a1; "
        if kind == "b16":
            body += "ld.global.b16 %h1, [%d1]; cvt.u32.u16 %r1, %h1;\n    "
        else:
            body += f"ld.global.{kind} %r1, [%d1];\n    "
        body += results.save("%r1", values)
        body += f"mad.lo.s32 %r2, %r1, 0x01010101, 0x7f1; mul.lo.s32 %r3, lane, {size}; add.s32 %r3, %r3, smem;"
        source = "%h1" if kind == "b16" else "%r2"
        body += f"st.shared.{kind} [%r3], {source}; ld.shared.{kind.replace('b', 'u')} %r4, [%r3];\n    "
        back = values if kind == "b16" else values * 0x01010101 + 0x7F1
        body += results.save("%r4", (back & (256**size - 1)).astype(f"u{size}").view(dtype))
    return Case(
        "memory/extension", kernel(body, buffers=2), (results.fresh, data), (results.expected, data),
        shared=64, section="ld, st: operand size exceeding instruction-type size",
    )  # fmt: skip


def generic():
    """cvta both ways, isspacep, and generic ld, st, atom that reach shared memory."""
    data = pattern(128, 6).view(np.uint32)
    results = Results()
    body = "shl.b32 %r1, lane, 2; add.s32 %r1, smem, %r1; cvt.u64.u32 %d1, %r1; cvta.shared.u64 %d1, %d1;"
    body += "mul.wide.u32 %d2, lane, 4; add.s64 %d2, %d2, a1; cvta.global.u64 %d3, %d2;"
    body += "ld.b32 %r2, [%d3]; st.b32 [%d1], %r2; ld.shared.b32 %r3, [%r1];\n    "
    body += results.save("%r3", data)
    body += "atom.add.u32 %r4, [%d1], 5; ld.b32 %r5, [%d1];\n    "
    body += results.save("%r4", data) + results.save("%r5", data.astype(np.int64) + 5)
    body += "cvta.to.shared.u64 %d4, %d1; cvt.u32.u64 %r6, %d4; sub.s32 %r6, %r6, smem;\n    "
    body += results.save("%r6", 4 * LANES)
    body += "cvta.to.global.u64 %d5, %d3; sub.s64 %d5, %d5, a1; cvt.u32.u64 %r7, %d5;\n    "
    body += results.save("%r7", 4 * LANES)
    for space in ("shared", "global", "local"):
        body += f"isspacep.{space} %p1, %d1; isspacep.{space} %p2, %d3;\n    "
        body += results.save_pred("%p1", space == "shared")
        body += results.save_pred("%p2", space == "global")
    return Case(
        "memory/generic", kernel(body, buffers=2), (results.fresh, data), (results.expected, data),
        shared=128, section="Generic Addressing",
    )  # fmt: skip


# --- atom and red --------------------------------------------------------------------------------------------------


def signed(value, bits=32):
    return (value + (1 << bits - 1)) % (1 << bits) - (1 << bits - 1)


INTEGER_ATOMICS = {
    "add.u32": lambda o, b, c: o + b,
    "add.s32": lambda o, b, c: o + b,
    "min.u32": lambda o, b, c: min(o, b),
    "max.u32": lambda o, b, c: max(o, b),
    "min.s32": lambda o, b, c: min(signed(o), signed(b)),
    "max.s32": lambda o, b, c: max(signed(o), signed(b)),
    "and.b32": lambda o, b, c: o & b,
    "or.b32": lambda o, b, c: o | b,
    "xor.b32": lambda o, b, c: o ^ b,
    "exch.b32": lambda o, b, c: b,
    "cas.b32": lambda o, b, c: c if o == b else o,
    "inc.u32": lambda o, b, c: 0 if o >= b else o + 1,
    "dec.u32": lambda o, b, c: b if o == 0 or o > b else o - 1,
}


def atomics():
    """Every operation with 32 pairs of operands, a separate word for each thread: old value and memory afterwards."""
    rng = np.random.default_rng(7)
    a = rng.integers(0, 1 << 32, 32, np.uint64).astype(np.uint32)
    b = rng.integers(0, 1 << 32, 32, np.uint64).astype(np.uint32)
    a[:8] = [0, 1, 5, 5, FULL, 0x80000000, 0x7FFFFFFF, 6]
    b[:8] = [0, 0, 5, 6, 1, 1, 1, 5]
    c = np.uint32(FULL) - b
    for space in ("global", "shared"):
        results, body = Results(), ""
        for form in ("atom", "red"):
            for name, function in INTEGER_ATOMICS.items():
                if form == "red" and name[:4] in ("exch", "cas."):
                    continue
                after = [
                    function(int(x), int(y), int(z)) & FULL for x, y, z in zip(a, b, c, strict=True)
                ]
                body += "mul.wide.u32 %d1, lane, 4; add.s64 %d2, %d1, a1; ld.global.b32 %r1, [%d2];"
                body += "ld.global.b32 %r2, [%d2+128]; not.b32 %r3, %r2;"
                if space == "shared":
                    body += (
                        "shl.b32 %r5, lane, 2; add.s32 %r5, %r5, smem; st.shared.b32 [%r5], %r1;"
                    )
                    place = "%r5"
                else:
                    body += "add.s64 %d3, %d1, a2; st.global.b32 [%d3], %r1;"
                    place = "%d3"
                operands = f"[{place}], %r2" + (", %r3" if name.startswith("cas") else "")
                if form == "atom":
                    body += f"atom.{space}.{name} %r4, {operands};\n    " + results.save("%r4", a)
                else:
                    body += f"red.{space}.{name} {operands};\n    "
                body += f"ld.{space}.b32 %r4, [{place}];\n    " + results.save("%r4", after)
        data = np.concatenate([a, b])
        # the scratch words of the global form end as the last operation leaves them
        scratch = (
            np.array(after, np.uint32) if space == "global" else np.full(32, FRESH_WORD, np.uint32)
        )
        yield Case(
            f"memory/atomics {space}", kernel(body, buffers=3),
            (results.fresh, data, np.full(32, FRESH_WORD, np.uint32)),
            (results.expected, data, scratch), shared=128, section="atom, red",
        )  # fmt: skip


FRESH_WORD = 0x12345678


def contended():
    """128 threads of two CTAs on the same words: operations whose result does not depend on the order."""
    t = np.arange(128, dtype=np.int64)
    values = (t * 0x9E3779B1 & FULL).astype(np.uint32)
    start = np.array([5, 7, 0xFFFFFFF0, 3, 0, FULL, 0x55, 40, 0, 0, 0, 0], np.uint32)
    body = "mul.lo.s32 %r1, thread, 0x9E3779B1; cvt.u64.u32 %d1, %r1; cvt.rn.f32.u32 %f1, thread;\n    "
    body += "cvt.rn.f64.u32 %d9, thread;"
    body += "red.global.add.u32 [a0], %r1; atom.global.max.u32 %r2, [a0+4], %r1; red.global.min.u32 [a0+8], %r1;"
    body += "red.relaxed.gpu.global.max.s32 [a0+12], %r1; red.global.or.b32 [a0+16], %r1;"
    body += "red.global.and.b32 [a0+20], %r1; atom.acq_rel.gpu.global.xor.b32 %r2, [a0+24], %r1;"
    body += "atom.global.inc.u32 %r2, [a0+28], 49; red.global.add.f32 [a0+32], %f1;"
    body += "red.global.add.u64 [a0+40], %d1;\n    "
    after = start.copy()
    after[0] = (5 + int(values.astype(np.int64).sum())) & FULL
    after[1], after[2] = max(7, values.max()), min(0xFFFFFFF0, values.min())
    after[3] = max(3, int(values.view(np.int32).max()))
    after[4] = np.bitwise_or.reduce(values)
    after[5] = np.bitwise_and.reduce(values)
    after[6] = np.bitwise_xor.reduce(values) ^ 0x55
    after[7] = (40 + 128) % 50
    after[8] = np.float32(t.sum()).view(np.uint32)  # below 2^24: exact in every order
    after[10:12] = np.array([int(values.astype(np.uint64).sum())], np.uint64).view(np.uint32)
    return Case(
        "memory/contended", kernel(body, threads=64), (start,), (after,), grid=(2, 1, 1),
        block=(64, 1, 1), section="atom, red",
    )  # fmt: skip


def compare_and_swap_loop():
    """64 threads add 1 to 64 with a loop around cas: 32 and 64 bits."""
    body = "ld.relaxed.gpu.global.b32 %r1, [a0]; mov.b32 %r9, 0;\n    "
    body += "AGAIN: mad.lo.s32 %r2, tid, 1, %r1; add.s32 %r2, %r2, 1; atom.global.cas.b32 %r3, [a0], %r1, %r2;"
    body += "setp.ne.b32 %p1, %r3, %r1; mov.b32 %r1, %r3; @%p1 bra AGAIN;\n    "
    body += "ld.relaxed.gpu.global.b64 %d1, [a0+8];\n    "
    body += "ROUND: add.s64 %d2, %d1, 0x100000001; atom.global.cas.b64 %d3, [a0+8], %d1, %d2;"
    body += "setp.ne.b64 %p1, %d3, %d1; mov.b64 %d1, %d3; @%p1 bra ROUND;\n    "
    start = np.array([100, 0, 3, 4], np.uint32)
    after = np.array([100 + 64 * 65 // 2, 0, 3 + 64, 4 + 64], np.uint32)
    return Case(
        "memory/cas loop", kernel(body, threads=64), (start,), (after,), block=(64, 1, 1), section="atom",
    )  # fmt: skip


def subnormal_adds():
    """add.f32 of subnormals: shared memory keeps them, global memory flushes operands and results to zero."""
    smallest, half = 1, 0x00400000  # 2^-149 and 2^-127
    pairs = (
        (smallest, smallest),
        (half, half),
        (0x00800000, 0x80400000),
        (0x80000001, 0),
        (0x3F800000, half),
    )
    results, body = Results(1), ""

    def flushed(bits):
        return bits if bits & 0x7F800000 else bits & 0x80000000

    for a, b in pairs:
        total = np.array([a], np.uint32).view(np.float32) + np.array([b], np.uint32).view(
            np.float32
        )
        body += f"mov.b32 %r1, {a:#x}; mov.b32 %f1, {b:#x}; st.shared.b32 [smem], %r1;"
        body += "atom.shared.add.f32 %f2, [smem], %f1; ld.shared.b32 %r2, [smem];\n    "
        body += results.save("%r2", int(total.view(np.uint32)[0]))
    global_values = []
    for number, (a, b) in enumerate(pairs):
        fa, fb = (np.array([flushed(x)], np.uint32).view(np.float32) for x in (a, b))
        global_values.append(flushed(int((fa + fb).view(np.uint32)[0])))
        body += f"mov.b32 %r1, {a:#x}; mov.b32 %f1, {b:#x}; st.global.b32 [a1+{4 * number}], %r1;"
        body += f"atom.global.add.f32 %f2, [a1+{4 * number}], %f1;\n    "
    scratch = np.zeros(len(pairs), np.uint32)
    return Case(
        "memory/subnormal add", kernel("@!%p0 bra END;" + body, buffers=2, threads=1),
        (results.fresh, scratch), (results.expected, np.array(global_values, np.uint32)),
        shared=64, section="atom: .add.f32",
        disagreement="the emulator keeps subnormals in global memory too",
    )  # fmt: skip
