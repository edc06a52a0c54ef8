"""Copies of plain bytes: cp.async.bulk both ways, its groups and mbarriers, and cp.async."""

import numpy as np

from tests.emulator.gpu.ptx_cases import (
    FILL,
    Case,
    fill_shared,
    init_barriers,
    kernel,
    read_shared,
    wait,
    write_shared,
)

THREADS = 64
AT = 1024  # shared offset of the data; the mbarriers are at 0


def cases():
    """All cases of this file."""
    yield bulk_loads()
    yield bulk_loads_before_expectation()
    yield bulk_phases()
    yield bulk_stores()
    yield bulk_store_groups()
    yield from asynchronous_copies()
    yield asynchronous_arrivals()


def pattern(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def case(name, body, buffers, expected, shared, section="cp.async.bulk"):
    text = kernel(body, buffers=len(buffers), threads=THREADS)
    return Case(
        name, text, buffers, expected, block=(THREADS, 1, 1), shared=shared, section=section
    )


LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def bulk_loads():
    """Sizes from the smallest, sources and targets that are aligned to 16 bytes and no more; one mbarrier."""
    pieces = ((0, 16, 16), (48, 64, 48), (160, 1040, 1024), (1296, 32, 2000))  # to, from, bytes
    data, image = pattern(4096, 1), np.full(3584, FILL, np.uint8)
    total = sum(nbytes for _, _, nbytes in pieces)
    body = init_barriers(1) + fill_shared(AT, len(image), THREADS)
    body += f"@!%p0 bra WAIT; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {total};\n    "
    for to, start, nbytes in pieces:
        image[to : to + nbytes] = data[start : start + nbytes]
        body += f"add.s32 %r1, smem, {AT + to}; add.s64 %d1, a1, {start}; {LOAD} [%r1], [%d1], {nbytes}, [smem];"
    body += "WAIT:" + wait("smem", 0) + read_shared(AT, len(image), THREADS)
    buffers = (np.zeros_like(image), data)
    return case("bulk/loads", body, buffers, (image, data), AT + len(image))


def bulk_loads_before_expectation():
    """complete_tx may come before expect_tx: the arrival is the second of the phase."""
    data = pattern(1024, 2)
    body = init_barriers(2) + fill_shared(AT, 1024, THREADS)
    body += f"@!%p0 bra WAIT; mbarrier.arrive.shared::cta.b64 _, [smem]; add.s32 %r1, smem, {AT};"
    body += f"{LOAD} [%r1], [a1], 1024, [smem]; mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 1024;\n    "
    body += "WAIT:" + wait("smem", 0) + read_shared(AT, 1024, THREADS)
    return case(
        "bulk/late expect_tx", body, (np.zeros(1024, np.uint8), data), (data, data), AT + 1024
    )


def bulk_phases():
    """Four phases of one mbarrier into the same 256 bytes."""
    data = pattern(1024, 3)
    body = init_barriers(1) + f"add.s32 %r1, smem, {AT};"
    for i in range(4):
        body += fill_shared(AT, 256, THREADS)
        body += f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], 256; add.s64 %d1, a1, {256 * i};"
        body += f"@%p0 {LOAD} [%r1], [%d1], 256, [smem];" + wait("smem", i & 1)
        body += read_shared(AT, 256, THREADS, to=256 * i)
    return case("bulk/phases", body, (np.zeros(1024, np.uint8), data), (data, data), AT + 256)


STORE = "cp.async.bulk.global.shared::cta.bulk_group"


def bulk_stores():
    """Three stores in two groups; bytes between the targets stay as they were."""
    pieces = ((16, 0, 32), (64, 1008, 16), (128, 512, 1024))  # to, from, bytes
    data, out = pattern(2048, 4), np.full(1280, 0x11, np.uint8)
    expected = out.copy()
    body = write_shared(AT, 2048, THREADS) + "@!%p0 bra END;\n    "
    for number, (to, start, nbytes) in enumerate(pieces):
        expected[to : to + nbytes] = data[start : start + nbytes]
        body += f"add.s32 %r1, smem, {AT + start}; add.s64 %d1, a0, {to}; {STORE} [%d1], [%r1], {nbytes};"
        body += "cp.async.bulk.commit_group;" if number else ""
    body += "cp.async.bulk.wait_group 1; cp.async.bulk.wait_group 0;\n    "
    return case("bulk/stores", body, (out, data), (expected, data), AT + 2048)


def bulk_store_groups():
    """The source is overwritten after wait_group.read; what was stored is what was there before."""
    data = pattern(1024, 5)
    body, out = f"add.s32 %r1, smem, {AT};", np.zeros(1024, np.uint8)
    for i in range(4):
        body += write_shared(AT, 256, THREADS, start=256 * i) + f"add.s64 %d1, a0, {256 * i};"
        body += f"@%p0 {STORE} [%d1], [%r1], 256; @%p0 cp.async.bulk.commit_group;"
        body += "@%p0 cp.async.bulk.wait_group.read 0; bar.sync 0;\n    "
    body += "@%p0 cp.async.bulk.wait_group 0;\n    "
    return case("bulk/store groups", body, (out, data), (data, data), AT + 256)


def asynchronous_copies():
    """cp.async of 4, 8 and 16 bytes, whole, cut short by src-size and, with 0, only zeros."""
    for modifier, sizes in (("ca", (4, 8, 16)), ("cg", (16,))):
        data = pattern(THREADS * 16 * 3, 6)
        body, images, at = "", [], 0
        for size in sizes:
            for kept in (None, size // 2, 0):
                body += f"mul.lo.s32 %r1, tid, {size}; add.s32 %r1, smem, %r1; mul.wide.u32 %d1, tid, {size};"
                body += f"add.s64 %d1, %d1, a1; mov.b32 %r2, {kept or 0};"
                length = "" if kept is None else ", %r2"
                body += f"cp.async.{modifier}.shared.global [%r1+{at}], [%d1], {size}{length};"
                body += "cp.async.commit_group;\n    "
                image = data[: THREADS * size].reshape(THREADS, size).copy()
                if kept is not None:
                    image[:, kept:] = 0
                images.append(image.reshape(-1))
                at += THREADS * size
        image = np.concatenate(images)
        body += "cp.async.wait_group 2; cp.async.wait_all; bar.sync 0;" + read_shared(
            0, at, THREADS
        )
        yield case(
            f"cp.async/{modifier}",
            body,
            (np.zeros_like(image), data),
            (image, data),
            at,
            "cp.async",
        )


def asynchronous_arrivals():
    """cp.async.mbarrier.arrive: .noinc takes one of the expected arrivals, without it the count stays."""
    data = pattern(THREADS * 32, 7)
    body = (
        init_barriers(THREADS, 1)
        + "mul.lo.s32 %r1, tid, 16; add.s32 %r1, smem, %r1; mul.wide.u32 %d1, tid, 16;"
    )
    body += f"add.s64 %d1, %d1, a1; cp.async.cg.shared.global [%r1+{AT}], [%d1], 16;"
    body += "cp.async.mbarrier.arrive.noinc.shared.b64 [smem];" + wait("smem", 0)
    body += f"cp.async.cg.shared.global [%r1+{AT + 1024}], [%d1+1024], 16;"
    # every thread adds its own arrival before thread 0 gives the expected one
    body += "cp.async.mbarrier.arrive.shared.b64 [smem+8]; bar.sync 0;"
    body += "@%p0 mbarrier.arrive.shared::cta.b64 _, [smem+8]; add.s32 %r2, smem, 8;" + wait(
        "%r2", 0
    )
    body += read_shared(AT, 2048, THREADS)
    return case("cp.async/arrivals", body, (np.zeros(2048, np.uint8), data), (data, data), AT + 2048,
                "cp.async.mbarrier.arrive")  # fmt: skip
