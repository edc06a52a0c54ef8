"""tcgen05 instructions, parsed from PTX and executed on a real CTA: layouts, asynchrony, pairs, refusals."""

import cutlass
import cutlass.cute as cute
import numpy as np
import pytest
from cutlass.cute.nvgpu import tcgen05 as cute_tcgen05
from cutlass.cute.nvgpu.tcgen05 import Pack, Repetition

from cute_fa4.emulator.checks import Ordering
from cute_fa4.emulator.checks.tensor import new_shadow
from cute_fa4.emulator.instructions.instruction_table import lookup
from cute_fa4.emulator.instructions.tcgen05_registers import register_places
from cute_fa4.emulator.machine.cta import CTA, Cluster, Machine
from cute_fa4.emulator.machine.mbarrier import MBarrier
from cute_fa4.emulator.machine.tensor_memory import TensorMemory
from cute_fa4.emulator.machine.warp import SHARED_BASE, Wait, Warp
from cute_fa4.emulator.ptx.errors import (
    EmulatorError,
    IllegalAccess,
    TensorMemoryError,
    UninitializedRead,
)
from cute_fa4.emulator.ptx.parser import parse

MODULE = """.version 8.8
.target sm_100a
.address_size 64
.visible .entry bench()
{{
    .reg .b16 %rs<4>;
    .reg .b32 %r<256>;
    .reg .b64 %rd<16>;
    .reg .pred %p<4>;
    {body}
    ret;
}}
"""
BAR = 1024  # offset of the first dynamic byte: where the mbarriers of these tests are
SLOT = 2048  # where tcgen05.alloc writes the address


class Bench:
    """A cluster of CTAs with one warp of each index 0..3; executes single PTX instructions."""

    def __init__(self, ctas=1):
        self.machine = Machine()
        cluster = Cluster(self.machine, (ctas, 1, 1))
        self.ctas = [CTA(cluster, rank, (rank, 0, 0), 0, 128 * 1024) for rank in range(ctas)]
        for cta in self.ctas:
            cta.tmem = TensorMemory()
            cta.warps = [Warp(cta, index, 300, 8) for index in range(4)]

    @property
    def tmem(self):
        return self.ctas[0].tmem

    def run(self, text, warp=0, rank=0, lanes=0xFFFFFFFF, **registers):
        """Execute PTX text in one warp after setting registers: r3=..., rd2=..., p1=bitmask."""
        warp = self.ctas[rank].warps[warp]
        kernel = next(iter(_kernels(text)))
        for name, value in registers.items():
            kind, number = name.rstrip("0123456789"), int(name.lstrip("prsd"))
            if kind == "p":
                warp.P[number] = value
            else:
                self.register(warp, name)[...] = value
        result = None
        for ins in kernel.instructions:
            if ins.opcode == "ret":
                break
            warp.ins, warp.mask = ins, lanes
            result = lookup(ins.opcode, ins)(warp, ins)
        return result

    def register(self, warp, name):
        operand = ROWS[name]
        if name.startswith("rd"):
            return warp.R.reshape(-1).view(np.uint64)[operand.row * 16 :][:32]
        return warp.R[operand.row]

    def get(self, name, warp=0, rank=0):
        return self.register(self.ctas[rank].warps[warp], name)

    def finish(self):
        self.machine.engine.drain()

    def barrier(self, rank=0, offset=BAR, count=1):
        barrier = MBarrier(count)
        self.ctas[rank].shared.own(offset, barrier)
        return barrier


def _kernels(text):
    module = parse(MODULE.format(body=text))
    return module.kernels.values()


def _register_operands():
    """Name -> Reg: the same declarations give the same rows in every text."""
    text = " ".join(f"mov.b32 %r{i}, 0;" for i in range(256))
    text += " ".join(f"mov.b64 %rd{i}, 0;" for i in range(16))
    text += " ".join(f"mov.b16 %rs{i}, 0;" for i in range(4))
    names = [f"r{i}" for i in range(256)] + [f"rd{i}" for i in range(16)]
    names += [f"rs{i}" for i in range(4)]
    instructions = next(iter(_kernels(text))).instructions
    return {name: ins.operands[0] for name, ins in zip(names, instructions, strict=False)}


ROWS = _register_operands()


def vector(first, count):
    return "{" + ", ".join(f"%r{first + i}" for i in range(count)) + "}"


def fill(tmem):
    """Allocate everything and write lane * 1000 + column to every word."""
    tmem.allocate(512)
    lanes, columns = np.arange(128), np.arange(512)[:, None]
    tmem.write(0, 0, (lanes * 1000 + columns).astype(np.uint32))


# --- allocation ------------------------------------------------------------------------------------


def test_alloc_writes_the_address_and_dealloc_takes_it():
    bench = Bench()
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], %r1;"
    for number, columns in enumerate((128, 64, 128)):
        assert bench.run(alloc, r0=SLOT + 4 * number, r1=columns) is None
    addresses = bench.ctas[0].shared.read(SLOT, 12).view(np.uint32).tolist()
    assert addresses == [0, 128, 192]
    assert bench.tmem.blocks == {0: 128, 128: 64, 192: 128}
    dealloc = "tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r0, 64;"
    bench.run(dealloc, r0=128)
    with pytest.raises(
        TensorMemoryError, match="allocated are columns 0 to 127, columns 192 to 319"
    ):
        bench.run(dealloc, r0=128)
    bench.run("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;")
    with pytest.raises(TensorMemoryError, match="after tcgen05.relinquish_alloc_permit"):
        bench.run(alloc, r0=SLOT, r1=32)


def test_alloc_through_a_generic_address():
    bench = Bench()
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.b32 [%rd0], 32;"
    bench.run(alloc, rd0=SHARED_BASE + SLOT)
    assert bench.ctas[0].shared.read(SLOT, 4).view(np.uint32)[0] == 0


def test_alloc_waits_for_room():
    bench = Bench()
    alloc = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r0], 256;"
    bench.tmem.allocate(512)
    wait = bench.run(alloc, r0=SLOT)
    assert isinstance(wait, Wait)
    assert not wait.ready()
    bench.tmem.deallocate(0, 512)
    assert wait.ready()
    assert bench.run(alloc, r0=SLOT) is None


def test_the_allocs_of_a_pair_wait_for_each_other():
    bench = Bench(2)
    alloc = "tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r0], 128;"
    wait = bench.run(alloc, r0=SLOT)
    assert isinstance(wait, Wait)
    assert not wait.ready()
    assert bench.run(alloc, rank=1, r0=SLOT | 1 << 24) is None
    assert wait.ready()
    assert bench.run(alloc, r0=SLOT) is None
    assert [cta.tmem.blocks for cta in bench.ctas] == [{0: 128}, {0: 128}]


def test_a_pair_needs_a_cluster():
    with pytest.raises(EmulatorError, match="cluster of 1 CTAs"):
        Bench().run("tcgen05.alloc.cta_group::2.sync.aligned.shared::cta.b32 [%r0], 32;", r0=SLOT)


# --- loads and stores ------------------------------------------------------------------------------


SHAPES = {"32x32b": 128, "16x64b": 128, "16x128b": 64, "16x256b": 32, "16x32bx2": 128}
COLUMNS_PER_REPEAT = {"32x32b": 1, "16x64b": 2, "16x128b": 4, "16x256b": 8, "16x32bx2": 2}


def _cute_places(shape, repeat, packed):
    """(lane, column) of [register, thread] by the layouts of CuTe's own copy atoms; evaluated while tracing.

    An atom maps (thread, value) to lane * columns + column, in elements: 32-bit words, or for packed
    loads 16-bit elements of which each column holds one.
    """
    places = []

    @cute.jit
    def trace():
        operation = getattr(cute_tcgen05, f"Ld{shape}Op")
        operation = operation(Repetition(repeat), Pack.PACK_16b_IN_32b if packed else Pack.NONE)
        atom = cute.make_copy_atom(operation, cutlass.Float16 if packed else cutlass.Float32)
        count = cute.size(atom.layout_dst_tv, mode=[1])
        places.extend(
            [cute.crd2idx((t, v), atom.layout_dst_tv) for t in range(32)] for v in range(count)
        )

    cute.compile(trace, options="--gpu-arch sm_100a")
    columns = COLUMNS_PER_REPEAT[shape] * repeat * (2 if packed else 1)
    return np.array(places) // columns, np.array(places) % columns


@pytest.mark.parametrize("repeat", [1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_register_places_equal_those_of_cute(shape, repeat, monkeypatch):
    monkeypatch.setenv("CUTE_DSL_ARCH", "sm_100a")
    lanes, columns = register_places(shape, repeat)
    if shape == "16x32bx2":  # CuTe puts the second half directly after the first
        columns = columns + repeat * (np.arange(32) >= 16)
    ours = np.stack((lanes, columns))
    assert np.array_equal(ours, np.stack(_cute_places(shape, repeat, packed=False)))
    # Packed: value 2r and 2r + 1 of CuTe are the two halves of register r.
    lane16, column16 = _cute_places(shape, repeat, packed=True)
    assert np.array_equal(lane16[0::2], lanes)
    assert np.array_equal(column16[0::2], 2 * columns)
    assert np.array_equal(column16[1::2], 2 * columns + 1)


@pytest.mark.parametrize("shape", SHAPES)
def test_every_word_of_a_shape_is_moved_once(shape):
    lanes, columns = register_places(shape, 4)
    if shape == "16x32bx2":
        columns = columns + 4 * (np.arange(32) >= 16)
    words = set(zip(lanes.ravel().tolist(), columns.ravel().tolist(), strict=True))
    assert len(words) == lanes.size
    rows = 32 if shape == "32x32b" else 16
    assert words == {(r, c) for r in range(rows) for c in range(COLUMNS_PER_REPEAT[shape] * 4)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("warp", [0, 3])
def test_ld_reads_the_places_of_the_table(shape, warp):
    bench = Bench()
    fill(bench.tmem)
    split = ", 64" if shape == "16x32bx2" else ""
    lanes, columns = register_places(shape, 2)
    text = f"tcgen05.ld.sync.aligned.{shape}.x2.b32 {vector(8, len(lanes))}, [%r0+4]{split};"
    bench.run(text, warp=warp, r0=32 * warp << 16 | 96)
    for register in range(len(lanes)):
        second = 64 * (np.arange(32) >= 16) if split else 0
        expected = (32 * warp + lanes[register]) * 1000 + 100 + columns[register] + second
        assert np.array_equal(bench.get(f"r{8 + register}", warp), expected)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("packing", [False, True])
def test_ld_inverts_st(shape, packing):
    bench = Bench()
    bench.tmem.allocate(512)
    split = ", 32" if shape == "16x32bx2" else ""
    count = len(register_places(shape, 2)[0])
    rng = np.random.default_rng(0)
    sent = rng.integers(0, 2**32, (count, 32), np.uint32)
    values = {f"r{8 + i}": row for i, row in enumerate(sent)}
    un, pack = (".unpack::16b", ".pack::16b") if packing else ("", "")
    st = f"tcgen05.st.sync.aligned.{shape}.x2{un}.b32 [%r0]{split}, {vector(8, count)};"
    ld = f"tcgen05.ld.sync.aligned.{shape}.x2{pack}.b32 {vector(64, count)}, [%r0]{split};"
    bench.run(st, warp=1, r0=32 << 16, **values)
    bench.finish()
    bench.run(ld, warp=1, r0=32 << 16)
    received = np.array([bench.get(f"r{64 + i}", 1) for i in range(count)])
    assert np.array_equal(received, sent)
    assert bench.tmem.written.sum() == sent.size * (2 if packing else 1)


def test_st_is_in_flight_until_wait_st():
    """It takes the registers at issue, writes later, and the wait ends with the write."""
    bench = Bench()
    bench.tmem.allocate(32)
    wait_text = "tcgen05.wait::st.sync.aligned;"
    assert bench.run(wait_text) is None
    bench.run("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r0], %r1;", r0=0, r1=5)
    bench.get("r1")[:] = 6
    assert not bench.tmem.written.any()
    wait = bench.run(wait_text)
    assert isinstance(wait, Wait)
    assert not wait.ready()
    assert bench.run(wait_text, warp=1) is None  # another warp's stores are its own
    bench.finish()
    assert wait.ready()
    assert bench.run(wait_text) is None
    assert (bench.tmem.words[0, :32] == 5).all()


def test_ld_of_a_store_in_flight_sees_unwritten_words():
    bench = Bench()
    bench.tmem.allocate(32)
    bench.run("tcgen05.st.sync.aligned.32x32b.x1.b32 [%r0], %r1;", r0=0, r1=5)
    with pytest.raises(UninitializedRead, match="tcgen05.ld of tensor memory lane 0, column 0"):
        bench.run("tcgen05.ld.sync.aligned.32x32b.x1.b32 %r2, [%r0];")


def test_pending_rows_under_ptx_rules():
    bench = Bench()
    fill(bench.tmem)
    text = "tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r0];"
    bench.run(text, r0=0)
    assert not getattr(bench.ctas[0].warps[0], "pending_rows", None)
    order = bench.machine.ordering = Ordering("ptx")
    bench.tmem.shadow = new_shadow()
    order.begin_cluster(bench.machine.cluster)
    bench.run(text, r0=0)
    assert bench.ctas[0].warps[0].pending_rows == {ROWS["r1"].row, ROWS["r2"].row}
    bench.run("tcgen05.wait::ld.sync.aligned;")
    assert not bench.ctas[0].warps[0].pending_rows


@pytest.mark.parametrize(
    ("text", "warp", "address", "message"),
    [
        ("ld.sync.aligned.32x32b.x1.b32 %r1, [%r0]", 1, 0, "lane 0 .* by warp 1.*lanes 32 to 63"),
        ("ld.sync.aligned.32x32b.x1.b32 %r1, [%r0]", 0, 16 << 16, "accepted as first lane: 0"),
        ("st.sync.aligned.16x64b.x1.b32 [%r0], %r1", 2, 72 << 16, "first lane: 64 or 80"),
        ("ld.sync.aligned.32x32b.x1.b32 %r1, [%r0]", 0, 512, "columns 512 to 512"),
        ("ld.sync.aligned.32x32b.x2.b32 %r1, [%r0]", 0, 0, "1 registers, but the shape moves 2"),
        ("ld.sync.aligned.16x256b.x64.b32 %r1, [%r0]", 0, 0, "would need 256 registers"),
    ],
)
def test_refused_accesses(text, warp, address, message):
    bench = Bench()
    fill(bench.tmem)
    bench.machine.ordering = Ordering("ptx")
    with pytest.raises(EmulatorError, match=message):
        bench.run(f"tcgen05.{text};", warp=warp, r0=address)


@pytest.mark.parametrize("level", [None, "hardware"])
def test_the_first_lanes_mean_the_quarter_of_the_warp(level):
    """Except at level "ptx": DeepGEMM's epilogues read with lane 0 in every warp."""
    bench = Bench()
    fill(bench.tmem)
    if level:
        bench.machine.ordering = Ordering(level)
        bench.tmem.shadow = new_shadow()
        bench.machine.ordering.begin_cluster(bench.machine.cluster)
    bench.run("tcgen05.ld.sync.aligned.32x32b.x1.b32 %r1, [%r0];", warp=3, r0=7)
    assert np.array_equal(bench.get("r1", 3), (96 + np.arange(32)) * 1000 + 7)


def test_the_address_must_be_uniform():
    bench = Bench()
    fill(bench.tmem)
    with pytest.raises(EmulatorError, match="must be the same in all lanes"):
        bench.run("tcgen05.ld.sync.aligned.32x32b.x1.b32 %r1, [%r0];", r0=np.arange(32))


# --- MMA and commit ----------------------------------------------------------------------------------


ONES = np.full(64 * 1024, 0x3F80, np.uint16).view(np.uint8)  # bf16 1.0 everywhere
IDESC = 1 << 4 | 1 << 7 | 1 << 10
DESCRIPTOR = 8192 >> 4 | 1 << 16 | 64 << 32 | 1 << 46 | 2 << 61
MMA = "tcgen05.mma.cta_group::{group}.kind::f16 [%r0], {a}, %rd1, %r1, {rest};"


def mma(bench, m=128, n=64, group=1, a="%rd0", rest="%p1", lanes=1, d=0, enable=0, rank=0, **more):
    if not bench.ctas[0].shared.written[8192]:
        for cta in bench.ctas:
            cta.shared.write(8192, ONES[: 96 * 1024])
    text = MMA.format(group=group, a=a, rest=rest)
    registers = {"r0": d, "r1": IDESC | n // 8 << 17 | m // 16 << 24, "p1": enable}
    bench.run(text, lanes=lanes, rank=rank, rd0=DESCRIPTOR, rd1=DESCRIPTOR, **registers | more)


def test_mma_executes_at_completion_and_commit_comes_after_it():
    bench = Bench()
    bench.tmem.allocate(64)
    barrier = bench.barrier()
    mma(bench)
    mma(bench, enable=1)
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];"
    bench.run(commit, lanes=1, r2=BAR)
    engine = bench.machine.engine
    assert not bench.tmem.written.any()
    assert len(engine.heads()) == 1  # one queue
    for expected in (16.0, 32.0):
        assert not barrier.test(0)
        engine.complete_oldest()
        assert (bench.tmem.words[:64].view(np.float32) == expected).all()
    engine.complete_oldest()
    assert barrier.test(0)


@pytest.mark.parametrize(("enable", "rest", "expected"), [
    (1, "%p1", 17), (0, "%p1", 16), (0, "!%p1", 17), (2, "%p1", 16), (0, "1", 17), (0, "0", 16),
    (1, "%p1, 2", 16.25), (1, "{%r4, %r5, %r6, %r7}, %p1", 17),
])  # fmt: skip
def test_enable_input_d_and_the_optional_operands(enable, rest, expected):
    """D starts at 1, A*B is 16. Predicate bits of other lanes do not matter."""
    bench = Bench()
    bench.tmem.allocate(64)
    bench.tmem.write(0, 0, np.ones((64, 128), np.float32).view(np.uint32))
    mma(bench, enable=enable, rest=rest, r4=0, r5=0, r6=0, r7=0)
    bench.finish()
    assert (bench.tmem.words[:64].view(np.float32) == expected).all()


def test_disable_output_lane():
    bench = Bench()
    bench.tmem.allocate(64)
    mma(bench, rest="{%r4, %r5, %r6, %r7}, 0", r4=0, r5=0x80000001, r6=0, r7=0)
    bench.finish()
    assert np.flatnonzero(~bench.tmem.written[0]).tolist() == [32, 63]


def test_a_from_tensor_memory_with_a_collector_hint():
    bench = Bench()
    bench.tmem.allocate(128)
    bench.tmem.write(0, 64, np.full((8, 128), 0x40003F80, np.uint32))  # 1.0 low, 2.0 high
    bench.ctas[0].shared.write(8192, ONES[: 96 * 1024])
    text = "tcgen05.mma.cta_group::1.kind::f16.collector::a::fill [%r0], [%r2], %rd1, %r1, 0;"
    bench.run(text, lanes=1, r0=0, r1=IDESC | 8 << 17 | 8 << 24, r2=64, rd1=DESCRIPTOR)
    bench.finish()
    assert (bench.tmem.words[:64].view(np.float32) == 24).all()


def test_pair_mma_and_multicast_commit():
    """M 256: 128 rows in each CTA's own tensor memory; the commit arrives in both CTAs."""
    bench = Bench(2)
    for cta in bench.ctas:
        cta.tmem.allocate(64)
    barriers = [bench.barrier(0), bench.barrier(1)]
    mma(bench, m=256, group=2)
    commit = (
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        " [%r2], %rs0;"
    )
    bench.run(commit, lanes=1, r2=BAR, rs0=3)
    bench.finish()
    for cta, barrier in zip(bench.ctas, barriers, strict=True):
        assert (cta.tmem.words[:64].view(np.float32) == 16).all()
        assert barrier.test(0)


def test_commit_may_name_the_barrier_of_another_cta():
    bench = Bench(2)
    barrier = bench.barrier(1)
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];"
    bench.run(commit, lanes=1, r2=1 << 24 | BAR)
    bench.finish()
    assert barrier.test(0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"lanes": 3}, "by 2 threads would multiply as often; elect one thread"),
        ({"rest": "%p1, 16"}, "scale-input-d .*accepted: constants 0 to 15"),
        ({"rest": "{%r4, %r5}, %p1"}, "disable-output-lane of 2 registers; accepted: 4"),
        ({"m": 32}, "M .* is 32; accepted: 64, 128"),
        ({"d": 480}, "tensor memory ends at column 511"),
    ],
)
def test_refused_mmas(arguments, message):
    bench = Bench()
    bench.tmem.allocate(512)
    with pytest.raises(EmulatorError, match=message):
        mma(bench, **arguments)


def test_an_error_at_completion_names_the_mma_and_where_it_was_issued():
    bench = Bench()
    mma(bench)
    with pytest.raises(TensorMemoryError, match="not allocated") as caught:
        bench.finish()
    assert "MMA 128x64x16 bf16 x bf16" in str(caught.value)
    assert "PTX line" in str(caught.value)


@pytest.mark.parametrize(("mask", "message"), [(0, "0x0000"), (4, "0x0004")])
def test_commit_refuses_ctas_that_do_not_exist(mask, message):
    bench = Bench(2)
    commit = (
        "tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64"
        " [%r2], %rs0;"
    )
    with pytest.raises(IllegalAccess, match=message):
        bench.run(commit, lanes=1, r2=BAR, rs0=mask)


def test_commit_refuses_a_misaligned_barrier():
    commit = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r2];"
    with pytest.raises(IllegalAccess, match="not aligned to 8"):
        Bench().run(commit, lanes=1, r2=BAR + 4)


def test_mixing_cta_groups_is_refused():
    bench = Bench(2)
    bench.run("tcgen05.relinquish_alloc_permit.cta_group::2.sync.aligned;")
    with pytest.raises(TensorMemoryError, match="cta_group::1 in a kernel that has used"):
        mma(bench)


def test_fences_have_no_effect():
    bench = Bench()
    for when in ("before", "after"):
        assert bench.run(f"tcgen05.fence::{when}_thread_sync;", lanes=1) is None
