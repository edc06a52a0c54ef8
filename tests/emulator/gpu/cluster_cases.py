"""Clusters: ranks, mapa, distributed shared memory, remote arrivals and copies, multicast, barrier.cluster."""

import numpy as np

from tests.emulator.gpu.ptx_cases import (
    CLUSTER_SYNC,
    FILL,
    Case,
    Results,
    fill_shared,
    init_barriers,
    kernel,
    read_shared,
    wait,
    write_shared,
)
from tests.emulator.gpu.tensor_map_fields import TensorMapFields

WIDTH = 32  # threads of a CTA
AT = 1024


def cases():
    """All cases of this file."""
    for cluster, grid in (((2, 1, 1), (4, 1, 1)), ((2, 2, 1), (4, 2, 1)), ((1, 1, 2), (1, 3, 4))):
        yield registers(cluster, grid)
    yield explicit_cluster()
    yield neighbours()
    yield generic()
    yield rotation()
    yield remote_atomics()
    yield remote_arrivals()
    yield remote_expectation()
    yield asynchronous_stores()
    yield asynchronous_reduction()
    yield copies_to_the_neighbour()
    yield from multicasts()


def case(name, body, results, cluster=(2, 1, 1), shared=2048, section="", **options):
    text = kernel(body, threads=WIDTH, cluster=cluster)
    options.setdefault("grid", (results.threads // WIDTH, 1, 1))
    return Case(
        f"cluster/{name}", text, (results.fresh,), (results.expected,), block=(WIDTH, 1, 1),
        cluster=cluster, shared=shared, section=section, **options,
    )  # fmt: skip


def registers(cluster, grid):
    """Every register of the cluster, from the linear CTA index."""
    ctas = int(np.prod(grid))
    results = Results(WIDTH * ctas)
    c = np.arange(WIDTH * ctas) // WIDTH
    index = [c % grid[0], c // grid[0] % grid[1], c // (grid[0] * grid[1])]
    inside = [i % d for i, d in zip(index, cluster, strict=True)]
    expected = {
        "%cluster_ctarank": inside[0] + cluster[0] * (inside[1] + cluster[1] * inside[2]),
        "%cluster_nctarank": int(np.prod(cluster)),
    }
    for axis, letter in enumerate("xyz"):
        expected |= {
            f"%cluster_ctaid.{letter}": inside[axis],
            f"%cluster_nctaid.{letter}": cluster[axis],
            f"%clusterid.{letter}": index[axis] // cluster[axis],
            f"%nclusterid.{letter}": grid[axis] // cluster[axis],
            f"%ctaid.{letter}": index[axis],
        }
    body = ""
    for name, value in expected.items():
        body += f"mov.u32 %r1, {name}; " + results.save("%r1", value)
    name = f"registers {'x'.join(map(str, cluster))}"
    return case(name, body, results, cluster, grid=grid, section="Special Registers")


def explicit_cluster():
    """A launch with clusters: %is_explicit_cluster, a predicate, is true."""
    results = Results(2 * WIDTH)
    body = "mov.pred %p1, %is_explicit_cluster; " + results.save_pred("%p1", True)
    return case("explicit cluster", body, results, section="Special Registers",
                refusal="cannot write to operand Pred")  # fmt: skip


THREADS = np.arange(4 * WIDTH)
CTA, LANE = THREADS // WIDTH, THREADS % WIDTH
RANK, PEER = "mov.u32 %r40, %cluster_ctarank;", "xor.b32 %r41, %r40, 1;"
MINE = "shl.b32 %r42, lane, 2; add.s32 %r42, smem, %r42;"
THEIRS = "mapa.shared::cluster.u32 %r43, %r42, %r41;\n    "


def neighbours():
    """Store into the neighbour's memory, read one's own; then read the neighbour's, in vectors too."""
    results = Results(4 * WIDTH)
    body = RANK + PEER + MINE + THEIRS + "mad.lo.s32 %r1, thread, 13, 5;" + CLUSTER_SYNC
    body += (
        "st.shared::cluster.b32 [%r43], %r1;" + CLUSTER_SYNC + "ld.shared.b32 %r2, [%r42];\n    "
    )
    body += results.save("%r2", (THREADS ^ WIDTH) * 13 + 5)
    body += "add.s32 %r3, %r2, 1000; bar.sync 0; st.shared::cta.b32 [%r42+512], %r3;" + CLUSTER_SYNC
    body += "ld.shared::cluster.u32 %r4, [%r43+512];\n    " + results.save(
        "%r4", THREADS * 13 + 1005
    )
    body += "and.b32 %r5, lane, 28; shl.b32 %r5, %r5, 2; add.s32 %r5, smem, %r5;"
    body += "mapa.shared::cluster.u32 %r6, %r5, %r41; ld.shared::cluster.v4.b32 {%r7, %r8, %r9, %r10}, [%r6+512];\n    "
    for i in range(4):
        body += results.save(f"%r{7 + i}", (THREADS - LANE % 4 + i) * 13 + 1005)
    return case("neighbours", body + CLUSTER_SYNC, results, section="mapa, ld, st")


def generic():
    """Generic addresses of one's own and of the neighbour's memory: mapa.u64, ranks, windows, ld, st, atom."""
    results = Results(4 * WIDTH)
    body = RANK + PEER + MINE + THEIRS + "cvt.u64.u32 %d1, %r42; cvta.shared.u64 %d1, %d1;"
    body += "mapa.u64 %d2, %d1, %r41; getctarank.u64 %r1, %d1; getctarank.u64 %r2, %d2;"
    body += "getctarank.shared::cluster.u32 %r3, %r43;\n    "
    body += results.save("%r1", CTA % 2) + results.save("%r2", CTA % 2 ^ 1)
    body += results.save("%r3", CTA % 2 ^ 1)
    for space, own, peer in (("shared::cta", 1, 0), ("shared::cluster", 1, 1), ("global", 0, 0)):
        body += f"isspacep.{space} %p1, %d1; isspacep.{space} %p2, %d2;\n    "
        body += results.save_pred("%p1", own) + results.save_pred("%p2", peer)
    body += CLUSTER_SYNC + "mul.lo.s32 %r4, thread, 9; st.b32 [%d2], %r4;" + CLUSTER_SYNC
    body += "ld.b32 %r5, [%d1]; ld.b32 %r6, [%d2];\n    "
    body += results.save("%r5", (THREADS ^ WIDTH) * 9) + results.save("%r6", THREADS * 9)
    body += "cvt.u64.u32 %d3, %r43; cvta.shared::cluster.u64 %d3, %d3;" + CLUSTER_SYNC
    body += (
        "atom.cluster.add.u32 %r7, [%d3], 3;" + CLUSTER_SYNC + "ld.shared.b32 %r8, [%r42];\n    "
    )
    body += results.save("%r7", THREADS * 9) + results.save("%r8", (THREADS ^ WIDTH) * 9 + 3)
    return case("generic", body + CLUSTER_SYNC, results, section="Generic Addressing, mapa")


def rotation():
    """A word per CTA goes round a cluster of 4, one rank a round; the barrier relaxed, with fences, and unaligned."""
    results = Results(4 * WIDTH)
    body = RANK + MINE + "add.s32 %r41, %r40, 1; and.b32 %r41, %r41, 3;" + THEIRS
    body += "add.s32 %r1, thread, 100;" + CLUSTER_SYNC
    value = THREADS + 100
    for step in range(5):
        body += f"st.shared::cluster.b32 [%r43+{128 * step}], %r1; fence.acq_rel.cluster;"
        aligned = ".aligned" if step % 2 else ""
        body += f"barrier.cluster.arrive.relaxed{aligned}; barrier.cluster.wait{aligned};"
        body += f"fence.acq_rel.cluster; ld.shared.b32 %r1, [%r42+{128 * step}]; add.s32 %r1, %r1, {step};\n    "
        value = np.roll(value, WIDTH) + step
        body += results.save("%r1", value)
    return case("rotation", body + CLUSTER_SYNC, results, (4, 1, 1), section="barrier.cluster")


def remote_atomics():
    """All threads of a cluster count in the memory of rank 0; every CTA reads the sum there."""
    results = Results(4 * WIDTH)
    body = (
        RANK
        + "mov.b32 %r1, 7; @%p0 st.shared.b32 [smem], %r1; mapa.shared::cluster.u32 %r2, smem, 0;"
    )
    body += (
        CLUSTER_SYNC
        + "add.s32 %r3, lane, 1; red.relaxed.cluster.shared::cluster.add.u32 [%r2], %r3;"
    )
    body += "atom.relaxed.cluster.shared::cluster.add.u32 %r4, [%r2], 1;" + CLUSTER_SYNC
    body += "ld.shared::cluster.u32 %r5, [%r2];\n    "
    body += results.save("%r5", 7 + 2 * (sum(range(1, WIDTH + 1)) + WIDTH))
    return case("atomics", body + CLUSTER_SYNC, results, section="atom, red")


ACQUIRE = ".acquire.cluster"


def remote_arrivals():
    """All 64 threads of a pair arrive at both barriers after writing; waiters see what they wrote."""
    results = Results(4 * WIDTH)
    body = init_barriers(2 * WIDTH, 6) + RANK + PEER + MINE + THEIRS + CLUSTER_SYNC
    body += "mapa.shared::cluster.u32 %r44, smem, %r41; mapa.shared::cluster.u32 %r45, smem, %r40;"
    body += "mul.lo.s32 %r1, thread, 11; st.shared::cluster.b32 [%r43+512], %r1;"
    for register in ("%r44", "%r45"):  # the neighbour's, and one's own through its cluster address
        body += f"mbarrier.arrive.release.cluster.shared::cluster.b64 _, [{register}];"
    body += wait("smem", 0, ACQUIRE) + "ld.shared.b32 %r2, [%r42+512];\n    "
    body += results.save("%r2", (THREADS ^ WIDTH) * 11)
    # second barrier: the neighbour's thread 0 arrives with count 4, one's own with 2
    body += "@%p0 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r44+8], 4;"
    body += "@%p0 mbarrier.arrive.shared::cta.b64 _, [smem+8], 2; add.s32 %r3, smem, 8;"
    body += (
        wait("%r3", 0, ACQUIRE)
        + "mbarrier.test_wait.parity.shared::cta.b64 %p1, [smem+8], 0;\n    "
    )
    body += results.save_pred("%p1", True)
    return case("arrivals", body + CLUSTER_SYNC, results, section="mbarrier.arrive")


def remote_expectation():
    """Rank 1 expects bytes on the barrier of rank 0, and completes them: arrive.expect_tx and complete_tx, remote."""
    results = Results(2 * WIDTH)
    body = init_barriers(2) + RANK + "mapa.shared::cluster.u32 %r1, smem, 0;" + CLUSTER_SYNC
    body += "setp.eq.b32 %p1, %r40, 0; setp.ne.b32 %p2, lane, 0; @%p1 bra OWNER; @%p2 bra DONE;"
    body += "mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%r1], 96;"
    body += "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], 64;"
    body += "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%r1], 32;"
    body += "mbarrier.complete_tx.relaxed.cluster.shared::cluster.b64 [%r1], 64; bra DONE;\n    "
    body += "OWNER: @%p0 mbarrier.arrive.shared::cta.b64 _, [smem];" + wait("smem", 0, ACQUIRE)
    body += "DONE: bar.warp.sync -1;\n    " + results.save("lane", np.arange(2 * WIDTH) % WIDTH)
    return case("expectation", body + CLUSTER_SYNC, results, section="mbarrier.expect_tx")


def asynchronous_stores():
    """st.async of 4, 8 and 16 bytes into the neighbour, whose barrier counts them."""
    results = Results(4 * WIDTH)
    body = (
        init_barriers(1)
        + RANK
        + PEER
        + f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {28 * WIDTH};"
    )
    body += "mul.lo.s32 %r42, lane, 16; add.s32 %r42, smem, %r42;" + THEIRS
    body += (
        "mapa.shared::cluster.u32 %r44, smem, %r41; mul.lo.s32 %r1, thread, 7; add.s32 %r2, %r1, 1;"
    )
    body += "add.s32 %r3, %r1, 2; add.s32 %r4, %r1, 3; mov.b64 %d1, {%r3, %r4};" + CLUSTER_SYNC
    opcode = "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes"
    body += f"{opcode}.b32 [%r43+1024], %r1, [%r44]; {opcode}.b64 [%r43+1032], %d1, [%r44];"
    body += f"{opcode}.v4.b32 [%r43+512], {{%r4, %r3, %r2, %r1}}, [%r44];" + wait(
        "smem", 0, ACQUIRE
    )
    body += "ld.shared.b32 %r5, [%r42+1024]; ld.shared.v2.b32 {%r6, %r7}, [%r42+1032];"
    body += "ld.shared.v4.b32 {%r8, %r9, %r10, %r11}, [%r42+512];\n    "
    theirs = (THREADS ^ WIDTH) * 7
    for register, offset in ((5, 0), (6, 2), (7, 3), (8, 3), (9, 2), (10, 1), (11, 0)):
        body += results.save(f"%r{register}", theirs + offset)
    return case("st.async", body + CLUSTER_SYNC, results, section="st.async")


def asynchronous_reduction():
    """red.async of all lanes into one word of the neighbour."""
    results = Results(4 * WIDTH)
    body = (
        init_barriers(1)
        + RANK
        + PEER
        + f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {4 * WIDTH};"
    )
    body += (
        "mov.b32 %r1, 50; @%p0 st.shared.b32 [smem+512], %r1; mov.b32 %r42, smem;"
        + THEIRS
        + CLUSTER_SYNC
    )
    body += "red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r43+512], lane, [%r43];"
    body += wait("smem", 0, ACQUIRE) + "ld.shared.b32 %r2, [smem+512];\n    "
    body += results.save("%r2", 50 + sum(range(WIDTH)))
    return case("red.async", body + CLUSTER_SYNC, results, section="red.async")


def pattern(nbytes, seed=0):
    return np.random.default_rng(seed).integers(0, 256, nbytes, np.uint8)


def copies_to_the_neighbour():
    """cp.async.bulk from one's own to the neighbour's shared memory; the neighbour's barrier counts the bytes."""
    data, nbytes = pattern(2 * 512, 1), 512
    body = (
        init_barriers(1)
        + RANK
        + PEER
        + "mul.wide.u32 %d1, %r40, 512; add.s64 a1, a1, %d1; add.s64 a0, a0, %d1;"
    )
    body += f"@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {nbytes};" + write_shared(
        AT, nbytes, WIDTH
    )
    body += f"add.s32 %r1, smem, {AT}; add.s32 %r42, smem, {AT + nbytes};" + THEIRS
    body += "mapa.shared::cluster.u32 %r44, smem, %r41;" + CLUSTER_SYNC
    body += "@%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    body += f" [%r43], [%r1], {nbytes}, [%r44];"
    body += wait("smem", 0, ACQUIRE) + read_shared(AT + nbytes, nbytes, WIDTH) + CLUSTER_SYNC
    expected = np.roll(data, 512)
    text = kernel(body, buffers=2, threads=WIDTH, cluster=(2, 1, 1))
    return Case(
        "cluster/bulk copy", text, (np.zeros_like(data), data), (expected, data), grid=(2, 1, 1),
        block=(WIDTH, 1, 1), cluster=(2, 1, 1), shared=AT + 2 * nbytes, section="cp.async.bulk",
    )  # fmt: skip


TENSOR = "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def multicasts():
    """Each CTA of a pair loads half of a tile into both; then one CTA alone loads into the other, by mask 2."""
    fields = TensorMapFields("bf16", (64, 14), (128,), (64, 8), 128)
    data = pattern(16 * 128, 2)
    half, region = fields.box_bytes, 2 * fields.box_bytes + 64
    whole = np.full(region, FILL, np.uint8)
    for rank in range(2):
        for position, place in fields.elements((0, 8 * rank), half * rank):
            element = 0 if place is None else data[place : place + 2]  # rows 14, 15: outside
            whole[position : position + 2] = element
    bulk = np.full(region, FILL, np.uint8)
    bulk[: 2 * half] = data
    other = np.full(region, FILL, np.uint8)
    other[:half] = whole[:half]
    untouched = np.full(region, FILL, np.uint8)

    start = init_barriers(1) + RANK + fill_shared(AT, region, WIDTH)
    start += f"mul.lo.s32 %r1, %r40, {half}; add.s32 %r1, %r1, {AT}; add.s32 %r1, smem, %r1;"
    start += "mov.b32 %r10, 0; shl.b32 %r11, %r40, 3; mov.b16 %h1, 3;"
    end = f"mul.wide.u32 %d1, %r40, {region}; add.s64 a0, a0, %d1;" + read_shared(AT, region, WIDTH)
    expect = "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [smem], {};".format
    tile = f"@%p0 {TENSOR}.multicast::cluster [%r1], [m0, {{%r10, %r11}}], [smem], %h1;"
    pair = start + expect(2 * half) + CLUSTER_SYNC + tile + wait("smem", 0) + end + CLUSTER_SYNC
    plain = (
        start
        + expect(2 * half)
        + CLUSTER_SYNC
        + f"mul.wide.u32 %d2, %r40, {half}; add.s64 %d2, %d2, a1;"
    )
    plain += f"@%p0 {BULK}.multicast::cluster [%r1], [%d2], {half}, [smem], %h1;" + wait("smem", 0)
    plain += end + CLUSTER_SYNC
    single = start + "mov.b16 %h1, 2; setp.eq.b32 %p1, %r40, 1; setp.eq.and.b32 %p2, %r40, 0, %p0;"
    single += "@!%p1 bra ISSUE; " + expect(half) + "ISSUE: bar.warp.sync -1;" + CLUSTER_SYNC
    single += (
        tile.replace("%p0", "%p2") + "@!%p1 bra READ;" + wait("smem", 0) + "READ: bar.warp.sync -1;"
    )
    single += end + CLUSTER_SYNC

    for name, body, expected in (
        ("tensor multicast", pair, (whole, whole)),
        ("bulk multicast", plain, (bulk, bulk)),
        ("tensor multicast to one", single, (untouched, other)),
    ):
        out = np.concatenate(expected)
        yield Case(
            f"cluster/{name}", kernel(body, buffers=2, maps=1, threads=WIDTH, cluster=(2, 1, 1)),
            (np.zeros_like(out), data), (out, data), (fields,), grid=(2, 1, 1), block=(WIDTH, 1, 1),
            cluster=(2, 1, 1), shared=AT + region, section="cp.async.bulk.tensor, .multicast::cluster",
        )  # fmt: skip
