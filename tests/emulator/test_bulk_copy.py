"""Bulk copies and cp.async, parsed from PTX and executed on real CTAs: completion, groups, multicast, refusals."""

import struct

import numpy as np
import pytest

from cute_fa4.emulator.instructions.instruction_table import lookup
from cute_fa4.emulator.machine.cta import CTA, Cluster, Machine
from cute_fa4.emulator.machine.mbarrier import MBarrier
from cute_fa4.emulator.machine.memory import ParamMemory
from cute_fa4.emulator.machine.warp import PARAM_BASE, SHARED_BASE, Wait, Warp
from cute_fa4.emulator.ptx.errors import (
    BarrierError,
    EmulatorError,
    IllegalAccess,
    TensorMapError,
    UninitializedRead,
)
from cute_fa4.emulator.ptx.parser import parse

MODULE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry bench()
{{
    .reg .b16 %rs<4>;
    .reg .b32 %r<16>;
    .reg .b64 %rd<16>;
    .reg .pred %p<4>;
    {body}
    ret;
}}
"""
BAR, TILE = 1024, 2048  # shared offsets of the mbarrier and of the data
ROWS, COLUMNS = 20, 64  # bf16 rows of 128 bytes, and a row count that no box of 8 divides


def aligned(shape, dtype):
    """Zeros at an address that is a multiple of 16, as every TMA tensor needs."""
    count = int(np.prod(shape))
    storage = np.zeros(count * np.dtype(dtype).itemsize + 16, np.uint8)
    start = -storage.ctypes.data % 16
    return storage[start : start + count * np.dtype(dtype).itemsize].view(dtype).reshape(shape)


def tensor_map(tensor, box, span=128, rank=2):
    """Descriptor of a (rows, 64) bf16 tensor: the fields that these tests vary."""
    w = [0] * 32
    w[0], w[1] = tensor.ctypes.data & 0xFFFFFFFF, tensor.ctypes.data >> 32
    w[2] = rank - 1 << 4 | 10 << 7 | {16: 0, 128: 3}[span] << 13
    w[3], w[8], w[9] = tensor.strides[0] // 16, tensor.shape[1] - 1, tensor.shape[0] - 1
    w[13], w[14] = box[0] - 1 << 24, box[1] - 1
    return struct.pack("<32I", *w)


class Bench:
    """A cluster with one tensor in global memory, and its map in parameter memory at offset 0.

    Boxes: offset 0: (64, 8) with 128 B swizzle; offset 128: the same without; offset 256: one row.
    """

    def __init__(self, ctas=1):
        self.machine = Machine()
        cluster = Cluster(self.machine, (ctas, 1, 1))
        self.ctas = [CTA(cluster, rank, (rank, 0, 0), 0, 64 * 1024) for rank in range(ctas)]
        for cta in self.ctas:
            cta.warps = [Warp(cta, 0, 80, 8)]
        self.tensor = aligned((ROWS, COLUMNS), np.uint16)
        self.tensor[...] = np.arange(1, ROWS * COLUMNS + 1).reshape(ROWS, COLUMNS)
        self.machine.memory.register(self.tensor.ctypes.data, self.tensor.nbytes, "tensor")
        maps = tensor_map(self.tensor, (64, 8)) + tensor_map(self.tensor, (64, 8), 16)
        self.machine.params = ParamMemory(maps + tensor_map(self.tensor, (64, 1), 16))

    def run(self, text, rank=0, lanes=1, **registers):
        """Execute one PTX instruction after setting registers: r3=..., rd2=..., rs1=..., p1=bitmask."""
        warp = self.ctas[rank].warps[0]
        for name, value in registers.items():
            kind, number = name.rstrip("0123456789"), int(name.lstrip("prsd"))
            if kind == "p":
                warp.P[number] = value
            elif kind == "rd":
                warp.R.reshape(-1).view(np.uint64)[REGISTERS[name].row * 16 :][:32] = value
            else:
                warp.R[REGISTERS[name].row] = np.asarray(value).astype(np.uint32)
        ins = instructions(text)[0]
        warp.ins, warp.mask = ins, lanes
        return lookup(ins.opcode, ins)(warp, ins)

    def barrier(self, rank=0, expect=0):
        barrier = MBarrier(1)
        self.ctas[rank].shared.own(BAR, barrier)
        barrier.arrive(1, None, expect)
        return barrier

    def tile(self, rank=0, nbytes=1024, offset=TILE):
        return self.ctas[rank].shared.read(offset, nbytes)

    @property
    def engine(self):
        return self.machine.engine


def instructions(text):
    return next(iter(parse(MODULE.format(body=text)).kernels.values())).instructions


def _registers():
    """Name -> Reg: the same declarations give the same rows in every text."""
    names = [f"r{i}" for i in range(16)] + [f"rd{i}" for i in range(16)]
    names += [f"rs{i}" for i in range(4)]
    width = {"r": 32, "rd": 64, "rs": 16}
    text = " ".join(f"mov.b{width[n.rstrip('0123456789')]} %{n}, 0;" for n in names)
    return {n: ins.operands[0] for n, ins in zip(names, instructions(text), strict=False)}


REGISTERS = _registers()
SWIZZLED, PLAIN, ONE_ROW = PARAM_BASE, PARAM_BASE + 128, PARAM_BASE + 256
LOAD = "cp.async.bulk.tensor.2d.shared::cta.global.tile.mbarrier::complete_tx::bytes"
LOAD_CLUSTER = LOAD.replace("shared::cta", "shared::cluster")
LOAD_OPERANDS = "[%r0], [%rd0, {%r1, %r2}], [%r3]"
AT = {"r0": TILE, "r1": 0, "r2": 0, "r3": BAR, "rd0": PLAIN}


# --- tensor loads -----------------------------------------------------------------------------------


def test_load_lands_and_counts_its_bytes_at_completion():
    bench = Bench()
    barrier = bench.barrier(expect=1024)
    bench.run(f"{LOAD} {LOAD_OPERANDS};", **AT | {"r2": 4})
    assert not barrier.test(0)
    with pytest.raises(UninitializedRead):
        bench.tile()
    bench.tensor[4] = 7  # the copy reads at completion
    bench.engine.drain()
    assert barrier.test(0)
    assert np.array_equal(bench.tile().view(np.uint16).reshape(8, 64), bench.tensor[4:12])


def test_swizzled_load():
    """Row r, 16-byte chunk c lies at chunk c ^ (row of the absolute address % 8)."""
    bench = Bench()
    bench.barrier(expect=1024)
    bench.run(f"{LOAD} {LOAD_OPERANDS};", **AT | {"r0": TILE + 128, "rd0": SWIZZLED})
    bench.engine.drain()
    chunks = bench.tile(offset=TILE + 128).view(np.uint16).reshape(8, 8, 8)
    for row in range(8):
        for chunk in range(8):
            expected = bench.tensor[row, 8 * chunk : 8 * chunk + 8]
            assert np.array_equal(chunks[row, chunk ^ (row + 1) % 8], expected)


@pytest.mark.parametrize("first", [-3, 16, 20, 100])
def test_clipped_load_counts_the_whole_box(first):
    bench = Bench()
    barrier = bench.barrier(expect=1024)
    bench.run(f"{LOAD} {LOAD_OPERANDS};", **AT | {"r2": first})
    bench.engine.drain()
    assert barrier.test(0)
    rows = bench.tile().view(np.uint16).reshape(8, 64)
    for i, row in enumerate(range(first, first + 8)):
        assert np.array_equal(rows[i], bench.tensor[row] if 0 <= row < ROWS else np.zeros(64))


def test_load_by_several_lanes_is_several_loads():
    """Lanes 0 and 5 load rows 0 and 8, each with its own coordinates and destination."""
    bench = Bench()
    barrier = bench.barrier(expect=2048)
    places = {"r0": TILE + 1024 * (np.arange(32) == 5), "r2": 8 * (np.arange(32) == 5)}
    bench.run(
        f"{LOAD}.L2::cache_hint {LOAD_OPERANDS}, %rd1;", lanes=0x21, **AT | places | {"rd1": 9}
    )
    bench.engine.drain()
    assert barrier.test(0)
    assert np.array_equal(
        bench.tile(nbytes=2048).view(np.uint16).reshape(16, 64), bench.tensor[:16]
    )


def test_load_with_the_map_in_global_memory():
    bench = Bench()
    bench.barrier(expect=1024)
    storage = np.zeros(192, np.uint8)
    start = -storage.ctypes.data % 64
    storage[start : start + 128] = np.frombuffer(tensor_map(bench.tensor, (64, 8), 16), np.uint8)
    bench.machine.memory.register(storage.ctypes.data, 192, "map")
    bench.run(f"{LOAD} {LOAD_OPERANDS};", **AT | {"rd0": storage.ctypes.data + start})
    bench.engine.drain()
    assert np.array_equal(bench.tile().view(np.uint16).reshape(8, 64), bench.tensor[:8])


def test_multicast_lands_at_the_same_offset_of_every_cta_of_the_mask():
    bench = Bench(4)
    barriers = [bench.barrier(rank, expect=1024) for rank in range(4)]
    text = f"{LOAD_CLUSTER}.multicast::cluster.L2::cache_hint {LOAD_OPERANDS}, %rs0, %rd1;"
    bench.run(text, **AT | {"rs0": 0b1011, "rd1": 0})
    bench.engine.drain()
    assert [barrier.test(0) for barrier in barriers] == [True, True, False, True]
    for rank in (0, 1, 3):
        assert np.array_equal(bench.tile(rank).view(np.uint16).reshape(8, 64), bench.tensor[:8])
    with pytest.raises(UninitializedRead):
        bench.tile(2)


def test_a_pair_load_may_signal_the_even_cta():
    """CTA 1 loads into its own memory and clears bit 24 of the address of its mbarrier."""
    bench = Bench(2)
    even, odd = bench.barrier(0, expect=1024), bench.barrier(1, expect=1024)
    own = 1 << 24
    text = f"{LOAD_CLUSTER}.L2::cache_hint.cta_group::2 {LOAD_OPERANDS}, %rd1;"
    bench.run(text, rank=1, **AT | {"r0": own | TILE, "r3": (own | BAR) & ~own, "rd1": 0})
    bench.engine.drain()
    assert even.test(0)
    assert not odd.test(0)
    assert np.array_equal(bench.tile(1).view(np.uint16).reshape(8, 64), bench.tensor[:8])


def test_a_pair_multicast_signals_one_parity():
    bench = Bench(4)
    barriers = [bench.barrier(rank, expect=2048) for rank in range(4)]
    text = f"{LOAD_CLUSTER}.multicast::cluster.cta_group::2 {LOAD_OPERANDS}, %rs0;"
    bench.run(text, **AT | {"rs0": 0b1111})
    bench.engine.drain()
    assert [barrier.test(0) for barrier in barriers] == [True, False, True, False]


def test_without_cta_group_2_the_barrier_must_be_with_the_destination():
    bench = Bench(2)
    with pytest.raises(
        IllegalAccess, match="signals an mbarrier of rank 1; accepted: one of its CTA"
    ):
        bench.run(f"{LOAD_CLUSTER} {LOAD_OPERANDS};", **AT | {"r3": 1 << 24 | BAR})


def test_a_load_into_a_cta_that_has_ended_is_reported():
    bench = Bench(2)
    bench.barrier(1, expect=1024)
    bench.run(f"{LOAD_CLUSTER}.multicast::cluster {LOAD_OPERANDS}, %rs0;", **AT | {"rs0": 2})
    bench.ctas[1].finished = True
    with pytest.raises(IllegalAccess, match=r"CTA \(1, 0, 0\), which has ended"):
        bench.engine.drain()


def test_gather4_loads_four_rows():
    bench = Bench()
    barrier = bench.barrier(expect=512)
    text = LOAD_CLUSTER.replace(".tile", ".tile::gather4")
    rows = {"r4": 3, "r5": 3, "r6": 19, "r7": 25}
    bench.run(
        f"{text} [%r0], [%rd0, {{%r1, %r4, %r5, %r6, %r7}}], [%r3];", **AT | {"rd0": ONE_ROW} | rows
    )
    bench.engine.drain()
    assert barrier.test(0)
    loaded = bench.tile(nbytes=512).view(np.uint16).reshape(4, 64)
    assert np.array_equal(loaded[:3], bench.tensor[[3, 3, 19]])
    assert not loaded[3].any()


def test_gather4_in_the_second_half_of_a_swizzle_pattern_fills_zeros_for_rows_that_do_not_exist():
    # Four rows of 128 bytes are half of the eight that the swizzle permutes; their place is that of their address.
    # PTX ISA, "cp.async.bulk.tensor": the bytes of rows outside of the tensor count on the mbarrier, too.
    bench = Bench()
    barrier = bench.barrier(expect=1024)
    text = LOAD_CLUSTER.replace(".tile", ".tile::gather4")
    for at, rows in ((0, (19, -1, 0, 20)), (512, (4, 4, -(2**31), 2**31 - 1))):
        named = dict(zip(("r4", "r5", "r6", "r7"), rows, strict=True))
        bench.run(
            f"{text} [%r0], [%rd0, {{%r1, %r4, %r5, %r6, %r7}}], [%r3];",
            **AT | {"rd0": ONE_ROW, "r0": TILE + at} | named,
        )
    bench.engine.drain()
    assert barrier.test(0)
    loaded = bench.tile(nbytes=1024).view(np.uint16).reshape(8, 64)
    assert np.array_equal(loaded[[0, 2, 4, 5]], bench.tensor[[19, 0, 4, 4]])
    assert not loaded[[1, 3, 6, 7]].any()


@pytest.mark.parametrize(
    ("opcode", "column", "rows", "message"),
    [
        ("gather4", 4, (0, 1, 2, 3), "column 4 of a bf16 tensor .*, 8 bytes; accepted: multiples of 16"),
        ("scatter4", 0, (0, -1, 2, 3), "accepted: no negative coordinate"),
        ("scatter4", -8, (0, 1, 2, 3), "accepted: no negative coordinate"),
    ],
)  # fmt: skip
def test_coordinates_that_are_illegal_for_four_rows(opcode, column, rows, message):
    coordinates = "{%r1, %r4, %r5, %r6, %r7}"
    text = (
        LOAD_CLUSTER.replace(".tile", ".tile::gather4") + f" [%r0], [%rd0, {coordinates}], [%r3];"
    )
    if opcode == "scatter4":
        text = f"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group [%rd0, {coordinates}], [%r0];"
    named = dict(zip(("r1", "r4", "r5", "r6", "r7"), (column, *rows), strict=True))
    with pytest.raises(TensorMapError, match=message):
        Bench().run(text, **AT | {"rd0": ONE_ROW} | named)


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"r0": TILE + 64}, IllegalAccess, "TMA destination: shared offset 0x840 is not aligned to 128"),
        ({"r3": BAR + 4}, IllegalAccess, "mbarrier: shared offset 0x404 is not aligned to 8"),
        ({"r0": 1 << 24 | TILE}, IllegalAccess, "rank 1, but the cluster has 1"),
        ({"rd0": PLAIN + 32}, TensorMapError, "accepted: multiples of 64"),
        ({"rd0": SHARED_BASE + 2048}, TensorMapError, "in shared memory; accepted: parameters, global"),
        ({"rd0": PARAM_BASE + 320}, IllegalAccess, "the kernel has 384 bytes of parameters"),
    ],
)  # fmt: skip
def test_refused_loads(change, kind, message):
    with pytest.raises(kind, match=message):
        Bench().run(f"{LOAD} {LOAD_OPERANDS};", **AT | change)


def test_rank_of_the_opcode_must_be_that_of_the_map():
    text = LOAD.replace("2d", "3d")
    with pytest.raises(
        TensorMapError, match="a 3d copy with the tensor map of a bf16 tensor 64x20"
    ):
        Bench().run(f"{text} [%r0], [%rd0, {{%r1, %r2, %r2}}], [%r3];", **AT)


def test_load_without_an_initialised_barrier_fails_at_completion():
    bench = Bench()
    bench.run(f"{LOAD} {LOAD_OPERANDS};", **AT)
    with pytest.raises(BarrierError, match="no mbarrier is initialised") as caught:
        bench.engine.drain()
    assert "TMA load of 1024 bytes at (0, 0)" in str(caught.value)


# --- stores and their groups ---------------------------------------------------------------------------


STORE = "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
COMMIT = "cp.async.bulk.commit_group;"


def test_store_reads_late_and_writes_later():
    """Two steps: .read is over after the first, the plain wait after the second; rows beyond 20 are dropped."""
    bench = Bench()
    shared = bench.ctas[0].shared
    shared.write(TILE, np.full(1024, 1, np.uint8))
    bench.run(
        f"{STORE}.L2::cache_hint [%rd0, {{%r1, %r2}}], [%r0], %rd1;", **AT | {"r2": 16, "rd1": 0}
    )
    assert bench.run("cp.async.bulk.wait_group 0;") is None  # nothing is committed yet
    bench.run(COMMIT)
    read = bench.run("cp.async.bulk.wait_group.read 0;")
    full = bench.run("cp.async.bulk.wait_group 0;")
    assert isinstance(read, Wait)
    assert isinstance(full, Wait)
    assert bench.run("cp.async.bulk.wait_group 1;") is None
    shared.write(TILE, np.full(1024, 2, np.uint8))  # too early: the source was not read yet
    assert not bench.engine.operations()[0].outlives_cta
    bench.engine.complete_oldest()
    assert (read.ready(), full.ready()) == (True, False)
    assert bench.engine.operations()[
        0
    ].outlives_cta  # the CTA may end before its global writes land
    shared.write(TILE, np.full(1024, 3, np.uint8))  # now it may be overwritten
    before = bench.tensor[:16].copy()
    bench.engine.drain()
    assert full.ready()
    assert (bench.tensor[16:] == 0x0202).all()
    assert np.array_equal(bench.tensor[:16], before)


def test_wait_group_counts_groups_of_the_thread():
    """Three groups of lane 0, none of lane 1; wait N is over when all but the newest N are written."""
    bench = Bench()
    bench.ctas[0].shared.write(TILE, np.zeros(1024, np.uint8))
    for _ in range(3):
        bench.run(f"{STORE} [%rd0, {{%r1, %r2}}], [%r0];", **AT)
        bench.run(COMMIT)
    waits = [bench.run(f"cp.async.bulk.wait_group {n};") for n in range(4)]
    assert waits[3] is None
    assert bench.run("cp.async.bulk.wait_group 0;", lanes=2) is None
    over = []
    while bench.engine.pending:
        bench.engine.complete_oldest()
        over.append(sum(wait.ready() for wait in waits[:3]))
    # The three reads come first, then each write ends one more wait.
    assert over == [0, 0, 0, 1, 2, 3]


def test_swizzled_store_inverts_swizzled_load():
    bench = Bench()
    bench.barrier(expect=1024)
    before = bench.tensor.copy()
    bench.run(f"{LOAD} {LOAD_OPERANDS};", **AT | {"rd0": SWIZZLED, "r2": 2})
    bench.engine.drain()
    bench.tensor[...] = 0
    bench.run(f"{STORE} [%rd0, {{%r1, %r2}}], [%r0];", **AT | {"rd0": SWIZZLED, "r2": 2})
    bench.engine.drain()
    assert np.array_equal(bench.tensor[2:10], before[2:10])
    assert not bench.tensor[[0, 1, *range(10, 20)]].any()


def test_store_of_unwritten_shared_memory_is_reported():
    bench = Bench()
    bench.run(f"{STORE} [%rd0, {{%r1, %r2}}], [%r0];", **AT)
    with pytest.raises(UninitializedRead, match="1024 of them were never written"):
        bench.engine.drain()


def test_reduce_adds_in_bf16():
    """1.5 + 0.25 = 1.75 is exact in bf16."""
    bench = Bench()
    bench.tensor[...] = 0x3FC0
    bench.ctas[0].shared.write(TILE, np.full(512, 0x3E80, np.uint16).view(np.uint8))
    text = "cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group"
    bench.run(f"{text} [%rd0, {{%r1, %r2}}], [%r0];", **AT)
    bench.engine.drain()
    assert (bench.tensor[:8] == 0x3FE0).all()
    assert (bench.tensor[8:] == 0x3FC0).all()


# --- plain bulk copies ------------------------------------------------------------------------------------


BULK = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"


def test_bulk_load_and_store():
    bench = Bench()
    barrier = bench.barrier(expect=256)
    source = bench.tensor.ctypes.data
    bench.run(f"{BULK} [%r0], [%rd0], %r1, [%r3];", **AT | {"rd0": source, "r1": 256})
    bench.engine.drain()
    assert barrier.test(0)
    assert np.array_equal(bench.tile(nbytes=256).view(np.uint16), bench.tensor[:2].ravel())
    target = "cp.async.bulk.global.shared::cta.bulk_group [%rd0], [%r0], 128;"
    bench.run(target, rd0=source + 10 * 128, r0=TILE)
    bench.engine.drain()
    assert np.array_equal(bench.tensor[10], bench.tensor[0])


def test_bulk_copy_into_another_cta():
    bench = Bench(2)
    barrier = bench.barrier(1, expect=64)
    bench.ctas[0].shared.write(TILE, np.arange(64, dtype=np.uint8))
    text = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    other = 1 << 24
    bench.run(f"{text} [%r0], [%r1], 64, [%r3];", r0=other | 4096, r1=TILE, r3=other | BAR)
    bench.engine.drain()
    assert barrier.test(0)
    assert np.array_equal(bench.tile(1, 64, 4096), np.arange(64))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"r1": 24}, "bulk copy of 24 bytes; accepted: multiples of 16"),
        ({"r1": 0}, "bulk copy of 0 bytes"),
        ({"r0": TILE + 8}, "not aligned to 16"),
        ({"rd0": PARAM_BASE}, "lies in param memory"),
    ],
)
def test_refused_bulk_loads(change, message):
    bench = Bench()
    good = AT | {"rd0": bench.tensor.ctypes.data, "r1": 64}
    with pytest.raises(IllegalAccess, match=message):
        bench.run(f"{BULK} [%r0], [%rd0], %r1, [%r3];", **good | change)


def test_prefetches_check_and_do_nothing():
    bench = Bench()
    bench.run("prefetch.tensormap [%rd0];", rd0=SWIZZLED)
    bench.run("cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%rd0, {%r1, %r2}];", **AT)
    bench.run("cp.async.bulk.prefetch.L2.global [%rd0], 64;", rd0=bench.tensor.ctypes.data)
    assert not bench.engine.pending
    bench.machine.params = ParamMemory(bytes(128))
    with pytest.raises(TensorMapError, match="global address is 0x0"):
        bench.run("prefetch.tensormap [%rd0];", rd0=PARAM_BASE)
    with pytest.raises(IllegalAccess, match="outside every tensor"):
        bench.run("cp.async.bulk.prefetch.L2.global [%rd0], 64;", rd0=16)


# --- cp.async ---------------------------------------------------------------------------------------------


ALL = 0xFFFFFFFF


@pytest.mark.parametrize(("level", "size"), [("ca", 4), ("ca", 8), ("ca", 16), ("cg", 16)])
def test_cp_async_copies_one_item_a_lane(level, size):
    bench = Bench()
    lanes = np.arange(32)
    text = f"cp.async.{level}.shared.global [%r0], [%rd0], {size};"
    source = bench.tensor.ctypes.data + 16 * lanes.astype(np.uint64)
    bench.run(text, lanes=ALL, r0=TILE + size * lanes, rd0=source)
    with pytest.raises(UninitializedRead):
        bench.tile(nbytes=size)
    bench.engine.drain()
    expected = bench.tensor.view(np.uint8).ravel()[: 32 * 16].reshape(32, 16)[:, :size]
    assert np.array_equal(bench.tile(nbytes=32 * size).reshape(32, size), expected)


@pytest.mark.parametrize("operand", ["%r4", "%p1"])
def test_cp_async_fills_with_zeros(operand):
    """src-size 0, 4, 8, 12, 16, ... by lane; or the predicate ignore-src in the lanes of a mask."""
    bench = Bench()
    lanes = np.arange(32)
    counts = 4 * (lanes % 5) if operand == "%r4" else np.where(lanes % 2, 0, 16)
    text = f"cp.async.cg.shared.global.L2::128B [%r0], [%rd0], 16, {operand};"
    source = bench.tensor.ctypes.data + 16 * lanes.astype(np.uint64)
    bench.run(text, lanes=ALL, r0=TILE + 16 * lanes, rd0=source, r4=4 * (lanes % 5), p1=0xAAAAAAAA)
    bench.engine.drain()
    got, data = bench.tile(nbytes=512).reshape(32, 16), bench.tensor.view(np.uint8).ravel()
    for lane in range(32):
        expected = np.zeros(16, np.uint8)
        expected[: counts[lane]] = data[16 * lane : 16 * lane + counts[lane]]
        assert np.array_equal(got[lane], expected)


def test_cp_async_groups_and_wait_all():
    bench = Bench()
    text = "cp.async.ca.shared.global [%r0], [%rd0], 4;"
    source = bench.tensor.ctypes.data
    for number in range(2):
        bench.run(text, lanes=ALL, r0=TILE + 128 * number + 4 * np.arange(32), rd0=source)
        bench.run("cp.async.commit_group;", lanes=ALL)
    bench.run(text, lanes=ALL, r0=TILE + 256, rd0=source)  # in no group
    newest = bench.run("cp.async.wait_group 1;", lanes=ALL)
    groups = bench.run("cp.async.wait_group 0;", lanes=ALL)
    everything = bench.run("cp.async.wait_all;", lanes=ALL)
    over = []
    while bench.engine.pending:
        bench.engine.complete_oldest()
        over.append((newest.ready(), groups.ready(), everything.ready()))
    assert over == [(True, False, False), (True, True, False), (True, True, True)]


@pytest.mark.parametrize(("noinc", "count"), [(".noinc", 33), ("", 1)])
def test_cp_async_arrives_on_a_barrier(noinc, count):
    """32 lanes arrive: counted by .noinc, additional otherwise; one ordinary arrival is left to the test."""
    bench = Bench()
    barrier = MBarrier(count)
    bench.ctas[0].shared.own(BAR, barrier)
    bench.run(
        "cp.async.ca.shared.global [%r0], [%rd0], 4;",
        lanes=ALL, r0=TILE + 4 * np.arange(32), rd0=bench.tensor.ctypes.data,
    )  # fmt: skip
    bench.run(f"cp.async.mbarrier.arrive{noinc}.shared.b64 [%r3];", lanes=ALL, r3=BAR)
    barrier.arrive(1)
    assert not barrier.test(0)
    bench.engine.drain()
    assert barrier.test(0)


@pytest.mark.parametrize(
    ("text", "registers", "message"),
    [
        ("cp.async.cg.shared.global [%r0], [%rd0], 8;", {}, r"of 8 bytes; accepted: \(16,\)"),
        ("cp.async.ca.shared.global [%r0], [%rd0], 16;", {"r0": TILE + 8}, "not aligned to 16"),
        ("cp.async.ca.shared.global [%r0], [%rd0], 4, %r4;", {"r4": 8}, "src-size 8"),
    ],
)
def test_refused_cp_async(text, registers, message):
    bench = Bench()
    with pytest.raises(EmulatorError, match=message):
        bench.run(text, **{"r0": TILE, "rd0": bench.tensor.ctypes.data} | registers)
