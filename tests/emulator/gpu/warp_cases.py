"""Exchange between the lanes of a warp: shfl, vote, redux, match, elect, activemask, special registers."""

import numpy as np

from tests.emulator.gpu.ptx_cases import FULL, Case, Results, kernel

LANES = np.arange(32)
VALUES = LANES * LANES * 97 + 7
SET_VALUES = "mul.lo.s32 %r0, lane, lane; mad.lo.s32 %r0, %r0, 97, 7;\n    "


def case(name, body, results, section, **options):
    text = kernel(body, threads=results.threads)
    return Case(
        f"warp/{name}", text, (results.fresh,), (results.expected,), section=section, **options
    )


def cases():
    """All cases of this file."""
    yield from shuffles()
    yield from partial_shuffles()
    yield votes()
    yield from reductions()
    yield from matches()
    yield elections()
    yield divergence()
    yield warp_barrier()
    yield lane_registers()
    yield thread_registers()
    yield shared_sizes()
    yield implicit_cluster()


# --- shfl.sync ------------------------------------------------------------------------------------------------


def shuffle(mode, values, b, c):
    """(value, predicate) per lane, as the pseudo code of PTX ISA "shfl.sync" computes them."""
    result, valid = [], []
    for lane in range(32):
        bval, cval, segment = int(b[lane]) & 31, c & 31, c >> 8 & 31
        last = (lane & segment) | (cval & ~segment & 31)
        first = lane & segment
        if mode == "up":
            j = lane - bval
            p = j >= last
        elif mode == "down":
            j = lane + bval
            p = j <= last
        elif mode == "bfly":
            j = lane ^ bval
            p = j <= last
        else:
            j = first | (bval & ~segment & 31)
            p = j <= last
        result.append(values[j if p else lane])
        valid.append(p)
    return np.array(result), np.array(valid)


def shuffles():
    """Shifts below, at and above the segment and past 31; segments of 32, 16, 8 lanes, and clamps in their midst."""
    clamps = {
        "up": (0, 16 << 8, 24 << 8, 0x1805, 4),
        "idx": (31, 16 << 8 | 31, 24 << 8 | 31, 0x1805, 20),
    }
    for mode in ("idx", "bfly", "up", "down"):
        results, body = Results(), SET_VALUES
        for c in clamps.get(mode, clamps["idx"]):
            for b in (0, 1, 5, 8, 31, 33):
                value, valid = shuffle(mode, VALUES, np.full(32, b), c)
                body += f"shfl.sync.{mode}.b32 %r1|%p1, %r0, {b}, {c:#x}, -1;\n    "
                body += results.save("%r1", value) + results.save_pred("%p1", valid)
            value, valid = shuffle(mode, VALUES, LANES * 5 + 3, c)  # another b in every lane
            body += "mad.lo.s32 %r2, lane, 5, 3;"
            body += f"shfl.sync.{mode}.b32 %r1|%p1, %r0, %r2, {c:#x}, -1;\n    "
            body += results.save("%r1", value) + results.save_pred("%p1", valid)
        yield case(f"shfl.{mode}", body, results, "shfl.sync")


def partial_shuffles():
    """Both halves of a warp in different code; lanes that have exited; a guard."""
    results = Results()
    body = SET_VALUES + "setp.lt.u32 %p2, lane, 16; @%p2 bra LOW;\n    "
    high, high_valid = shuffle("down", VALUES, np.full(32, 3), 16 << 8 | 31)
    low, low_valid = shuffle("bfly", VALUES, np.full(32, 6), 16 << 8 | 31)
    body += "shfl.sync.down.b32 %r1|%p1, %r0, 3, 0x101f, 0xffff0000; bra MEET;\n    "
    body += "LOW: shfl.sync.bfly.b32 %r1|%p1, %r0, 6, 0x101f, 0xffff;\n    MEET:"
    body += results.save("%r1", np.where(LANES < 16, low, high))
    body += results.save_pred("%p1", np.where(LANES < 16, low_valid, high_valid))
    yield case("shfl.halves", body, results, "shfl.sync")

    results = Results()
    body = SET_VALUES + "setp.ge.u32 %p2, lane, 24; @%p2 bra END;\n    "
    value, valid = shuffle("idx", VALUES, np.full(32, 23), 31)
    body += "shfl.sync.idx.b32 %r1|%p1, %r0, 23, 0x1f, 0xffffff;\n    "
    body += results.save("%r1", value) + results.save_pred("%p1", valid)
    expected = results.expected
    expected[:, 24:] = results.fresh[:, 24:]
    yield Case("warp/shfl.exited", kernel(body), (results.fresh,), (expected,), section="shfl.sync")

    results = Results()
    body = SET_VALUES + "mov.b32 %r1, 5; and.b32 %r2, lane, 1; setp.eq.b32 %p2, %r2, 0;\n    "
    value, _ = shuffle("bfly", VALUES, np.full(32, 2), 31)
    body += "@%p2 shfl.sync.bfly.b32 %r1, %r0, 2, 0x1f, 0x55555555;\n    "
    body += results.save("%r1", np.where(LANES % 2, 5, value))
    yield case("shfl.guarded", body, results, "shfl.sync")


# --- vote, redux, match, elect -----------------------------------------------------------------------------------


def votes():
    """Mixed, all-true, all-false and negated predicates, in the whole warp and in the upper half alone."""
    results, body = Results(), "setp.ge.u32 %p9, lane, 16;\n    "
    predicates = {
        "setp.lt.u32 %p1, lane, 3;": LANES < 3,
        "setp.lt.u32 %p1, lane, 32;": LANES < 32,
        "setp.gt.u32 %p1, lane, 32;": LANES > 32,
        "setp.ge.u32 %p1, lane, 16;": LANES >= 16,
    }
    for text, true in predicates.items():
        body += text
        for sign, value in (("", true), ("!", ~true)):
            for guard, mask, members in (("", FULL, LANES >= 0), ("@%p9 ", 0xFFFF0000, LANES > 15)):
                of = value[members]
                ballot = int(sum(1 << int(lane) for lane in LANES[members & value]))
                skipped = (~members).astype(int)
                body += (
                    f"mov.b32 %r1, 1; {guard}vote.sync.ballot.b32 %r1, {sign}%p1, {mask:#x};\n    "
                )
                body += results.save("%r1", np.where(skipped, 1, ballot))
                for mode, outcome in (
                    ("all", of.all()),
                    ("any", of.any()),
                    ("uni", of.all() or not of.any()),
                ):
                    body += "setp.ne.b32 %p3, lane, lane;"
                    body += f"{guard}vote.sync.{mode}.pred %p3, {sign}%p1, {mask:#x};\n    "
                    body += results.save_pred("%p3", members & outcome)
    return case("vote", body, results, "vote.sync")


REDUCTIONS = {
    "add.u32": lambda v: int(v.sum()),
    "add.s32": lambda v: int(v.sum()),
    "min.u32": lambda v: min(int(x) & FULL for x in v),
    "max.u32": lambda v: max(int(x) & FULL for x in v),
    "min.s32": lambda v: int(v.min()),
    "max.s32": lambda v: int(v.max()),
    "and.b32": lambda v: int(np.bitwise_and.reduce(v)),
    "or.b32": lambda v: int(np.bitwise_or.reduce(v)),
    "xor.b32": lambda v: int(np.bitwise_xor.reduce(v)),
}


def reductions():
    """Values of both signs; the whole warp, and two groups of lanes in different code."""
    values = LANES * 0x01234567 % 1001 - 500
    results, body = (
        Results(),
        "mul.lo.s32 %r0, lane, 0x01234567; rem.u32 %r0, %r0, 1001; sub.s32 %r0, %r0, 500;",
    )
    values = (LANES * 0x01234567 & FULL) % 1001 - 500
    for operation, reduce in REDUCTIONS.items():
        body += f"redux.sync.{operation} %r1, %r0, -1;\n    " + results.save("%r1", reduce(values))
    yield case("redux", body, results, "redux.sync")

    results = Results()
    body = "sub.s32 %r0, lane, 9; setp.lt.u32 %p1, lane, 11; @%p1 bra LOW;\n    "
    low, values = LANES < 11, LANES - 9
    saves = [
        results.save("%r1", np.where(low, reduce(values[low]), reduce(values[~low])))
        for reduce in REDUCTIONS.values()
    ]
    for mask in (FULL << 11 & FULL, (1 << 11) - 1):
        for operation, text in zip(REDUCTIONS, saves, strict=True):
            body += f"redux.sync.{operation} %r1, %r0, {mask:#x}; {text}"
        body += "bra END;\n    LOW: " if mask >> 31 else ""
    yield case("redux.groups", body, results, "redux.sync")


def matches():
    """any: five classes of values; all: agreement, and one lane that disagrees; 64 bits: in the high word."""
    results = Results()
    body = "rem.u32 %r0, lane, 5; mul.lo.s32 %r0, %r0, 1000; setp.ge.u32 %p9, lane, 8;\n    "
    same = (LANES[:, None] % 5 == LANES % 5) @ (1 << LANES.astype(np.int64))
    body += "match.any.sync.b32 %r1, %r0, -1;\n    " + results.save("%r1", same)
    body += "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 32; match.any.sync.b64 %r1, %d0, -1;\n    "
    body += results.save("%r1", same)
    part = LANES >= 8
    body += "mov.b32 %r1, 3; @%p9 match.any.sync.b32 %r1, %r0, 0xffffff00;\n    "
    body += results.save("%r1", np.where(part, same & 0xFFFFFF00, 3))
    yield case("match.any", body, results, "match.sync")

    results = Results()
    body = "mov.b32 %r0, 77; match.all.sync.b32 %r1|%p1, %r0, -1;\n    "
    body += results.save("%r1", FULL) + results.save_pred("%p1", True)
    body += "setp.eq.b32 %p2, lane, 31; selp.b32 %r0, 5, 77, %p2; setp.ge.u32 %p9, lane, 31;"
    body += "match.all.sync.b32 %r1|%p1, %r0, -1;\n    "
    body += results.save("%r1", 0) + results.save_pred("%p1", False)
    body += "mov.b32 %r1, 9; @!%p9 match.all.sync.b32 %r1|%p1, %r0, 0x7fffffff;\n    "
    body += results.save("%r1", np.where(LANES < 31, 0x7FFFFFFF, 9))
    body += "cvt.u64.u32 %d0, %r0; shl.b64 %d0, %d0, 40; match.all.sync.b64 %r1|%p1, %d0, -1;\n    "
    body += results.save("%r1", 0) + results.save_pred("%p1", False)
    yield case("match.all", body, results, "match.sync")


def elections():
    """Which lane is elected is the hardware's choice (PTX ISA: "deterministic"); it must be one, known to all."""
    results, body = Results(), ""
    for mask in (FULL, 0xFFFFFFF0, 0x80000000, 0x00F0F000, 0xAAAAAAAA):
        members = mask >> LANES & 1
        leader = (mask & -mask).bit_length() - 1
        body += f"mov.b32 %r1, 99; setp.ne.b32 %p1, lane, lane; shr.u32 %r3, {mask:#x}, lane;"
        body += "and.b32 %r3, %r3, 1; setp.ne.b32 %p2, %r3, 0;"
        body += f"@%p2 elect.sync %r1|%p1, {mask:#x};\n    "
        body += results.save("%r1", np.where(members, leader, 99))
        body += results.save_pred("%p1", leader == LANES)
    everything = np.ones(results.expected.nbytes, bool)
    question = "which lane does elect.sync elect? (emulator: the lowest)"
    return case("elect", body, results, "elect.sync", open=(everything,), question=question)


# --- divergence ---------------------------------------------------------------------------------------------------


def divergence():
    """activemask in both sides of a branch, in a loop that lanes leave one by one, and behind bar.warp.sync."""
    results = Results()
    saves = [results.save("%r1", np.where(LANES < 10, 0x3FF, 0xFFFFFC00))]
    body = "setp.lt.u32 %p1, lane, 10; @%p1 bra LOW; activemask.b32 %r1;"
    body += f"{saves[0]} bra MEET; LOW: activemask.b32 %r1; {saves[0]} MEET: bar.warp.sync -1;"
    body += "activemask.b32 %r1;\n    " + results.save("%r1", FULL)
    # lane l goes round l + 1 times; the masks it sees add up to popc of those still there
    counts = [sum(32 - i for i in range(lane + 1)) for lane in range(32)]
    body += "mov.b32 %r2, 0; mov.b32 %r4, 0; ROUND: activemask.b32 %r3; popc.b32 %r3, %r3;"
    body += (
        "add.s32 %r4, %r4, %r3; add.s32 %r2, %r2, 1; setp.le.u32 %p1, %r2, lane; @%p1 bra ROUND;"
    )
    body += "bar.warp.sync -1;\n    " + results.save("%r4", counts)
    return case("activemask", body, results, "activemask, bar.warp.sync")


def warp_barrier():
    """Lanes of two branches exchange through shared memory, ordered by bar.warp.sync of the whole warp alone."""
    results = Results()
    body = "shl.b32 %r5, lane, 2; add.s32 %r5, smem, %r5; mov.b32 %r6, 0; mov.b32 %r7, 0;"
    body += "setp.lt.u32 %p1, lane, 16; @%p1 bra LOW; mad.lo.s32 %r1, lane, 3, 1; st.shared.b32 [%r5], %r1;"
    body += "bar.warp.sync 0xffff0000; bra MEET; LOW: mad.lo.s32 %r1, lane, 7, 2; st.shared.b32 [%r5], %r1;"
    body += "bar.warp.sync 0x0000ffff; MEET: bar.warp.sync -1;"
    body += "xor.b32 %r2, lane, 16; shl.b32 %r2, %r2, 2; add.s32 %r2, smem, %r2; ld.shared.b32 %r1, [%r2];\n    "
    other = LANES ^ 16
    body += results.save("%r1", np.where(other < 16, other * 7 + 2, other * 3 + 1))
    return case("bar.warp.sync", body, results, "bar.warp.sync", shared=128)


# --- special registers ----------------------------------------------------------------------------------------------


def lane_registers():
    """%lanemask_* and %laneid, from their definitions."""
    bit = 1 << LANES.astype(np.int64)
    expected = {
        "%laneid": LANES, "%lanemask_eq": bit, "%lanemask_lt": bit - 1, "%lanemask_le": 2 * bit - 1,
        "%lanemask_gt": ~(2 * bit - 1) & FULL, "%lanemask_ge": ~(bit - 1) & FULL,
    }  # fmt: skip
    results, body = Results(), ""
    for name, value in expected.items():
        body += f"mov.u32 %r1, {name}; " + results.save("%r1", value)
    return case("lanemask", body, results, "Special Registers")


def thread_registers():
    """Thread and CTA indices of blocks of 8 x 4 x 2 in a grid of 3 x 2 x 1; sizes of shared memory."""
    threads = np.arange(64 * 6)
    t, c = threads % 64, threads // 64
    expected = {
        "%tid.x": t % 8, "%tid.y": t // 8 % 4, "%tid.z": t // 32,
        "%ntid.x": 8, "%ntid.y": 4, "%ntid.z": 2,
        "%ctaid.x": c % 3, "%ctaid.y": c // 3, "%ctaid.z": 0,
        "%nctaid.x": 3, "%nctaid.y": 2, "%nctaid.z": 1,
        "%dynamic_smem_size": 1000,
        "%cluster_ctarank": 0, "%cluster_nctarank": 1,
        "%clusterid.x": c % 3, "%clusterid.y": c // 3, "%nclusterid.x": 3, "%nclusterid.y": 2,
        "%cluster_ctaid.x": 0, "%cluster_nctaid.x": 1,
    }  # fmt: skip
    results, body = Results(64 * 6), ""
    for name, value in expected.items():
        body += f"mov.u32 %r1, {name}; " + results.save("%r1", value)
    return Case(
        "warp/indices", kernel(body, threads=64), (results.fresh,), (results.expected,),
        grid=(3, 2, 1), block=(8, 4, 2), shared=1000, section="Special Registers",
    )  # fmt: skip


def shared_sizes():
    """1000 dynamic bytes: 1024 in units of 128; the aggregate is 1000 and the 1024 that the system reserves (H200)."""
    results, body = Results(), ""
    for name, value in (("%total_smem_size", 1024), ("%aggr_smem_size", 2024)):
        body += f"mov.u32 %r1, {name}; " + results.save("%r1", value)
    return case(
        "shared sizes", body, results, "Special Registers: %total_smem_size, %aggr_smem_size", shared=1000,
        disagreement="the emulator counts the reserved 1024 bytes in both, and does not round to 128",
    )  # fmt: skip


def implicit_cluster():
    """A launch without clusters: %is_explicit_cluster, a predicate, is false."""
    results = Results()
    body = "mov.pred %p1, %is_explicit_cluster; " + results.save_pred("%p1", False)
    return case(
        "implicit cluster",
        body,
        results,
        "Special Registers",
        refusal="cannot write to operand Pred",
    )
