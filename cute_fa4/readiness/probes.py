"""Small kernels that ask the machine one question each: a copy, a neighbour, and cycles of single instructions.

Every one runs on the emulator, too, where a cycle is an instruction and says nothing about a chip.
"""

from __future__ import annotations

from functools import cache

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from cute_fa4.sm100.instructions import exp2, tensor_memory
from cute_fa4.tma import copies, tensor_maps

ROWS, COLUMNS = 8, 64  # of the box: eight rows of 128 bytes, one period of the swizzle
WARP = 32
WORDS = ROWS * COLUMNS // 2
REPEATS = 32  # of an instruction in a timed line
QUESTIONS = (
    "claim", "lat_tmem", "lat_tmem_alloc", "mbarrier_round_trip", "bar_sync", "lat_mufu", "lat_shared",
)  # fmt: skip


def compiled(kernel, device: str, arch: str, *arguments):
    """The function of a host function of this file, which takes its tensors and runs on torch's stream."""
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    if device == "cpu":
        from cute_fa4 import emulator

        return emulator.compile(
            kernel, *arguments, stream, checks="ptx", options="--enable-tvm-ffi"
        )
    return cute.compile(kernel, *arguments, stream, options=f"--enable-tvm-ffi --gpu-arch {arch}")


# --- a copy ---------------------------------------------------------------------------------------------------


@cute.kernel
def copy_kernel(rows: tensor_maps.TMAOperand, out: cute.Tensor, first: Int32, valid: Int32):
    base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
    barrier = cute.recast_ptr(base + ROWS * COLUMNS * 2, dtype=Int64)
    thread, _, _ = cute.arch.thread_idx()
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
        cute.arch.mbarrier_arrive_and_expect_tx(barrier, ROWS * COLUMNS * 2)
    cute.arch.sync_threads()
    if cute.arch.make_warp_uniform(cute.arch.warp_idx()) == 0:
        at, further = tensor_maps.clipped_load(first, valid, 0)
        copies.load_tile(rows, cutlass.BFloat16, base.toint(), barrier, at, further)
    cute.arch.mbarrier_wait(barrier, 0)
    words = cute.make_tensor(cute.recast_ptr(base, dtype=Int32), cute.make_layout(WORDS))
    for i in cutlass.range_constexpr(WORDS // WARP):
        out[i * WARP + thread] = words[i * WARP + thread]


@cute.jit
def copy_rows(k: cute.Tensor, out: cute.Tensor, first: Int32, valid: Int32, stream):
    view = tensor_maps.clipped_load_view(k, tensor_maps.row_space(k))
    operand = tensor_maps.make_operand(view, cutlass.BFloat16, ROWS, COLUMNS)
    copy_kernel(operand, out, first, valid).launch(
        grid=[1, 1, 1], block=[WARP, 1, 1], smem=2048, stream=stream
    )


@cache
def copy_function(device: str, arch: str):
    k = make_fake_compact_tensor(
        cutlass.BFloat16, (cute.sym_int(), 1, COLUMNS), stride_order=(2, 1, 0), assumed_align=16
    )
    out = make_fake_compact_tensor(Int32, (WORDS,))
    return compiled(copy_rows, device, arch, k, out, Int32(0), Int32(0))


def copied(k: torch.Tensor, first: int, valid: int, arch: str) -> torch.Tensor:
    """Rows [first, first + valid) of k (total, 1, 64), zeros behind them: (8, 64), as one TMA load brings them."""
    out = torch.empty(WORDS, dtype=torch.int32, device=k.device)
    copy_function(k.device.type, arch)(k, out, first, valid)
    # 128-byte swizzle: the 16 bytes j of row r stand at j xor r.
    chunks = out.view(torch.bfloat16).view(ROWS, 8, 8)
    order = torch.arange(8, device=k.device) ^ torch.arange(ROWS, device=k.device)[:, None]
    return chunks[torch.arange(ROWS, device=k.device)[:, None], order].reshape(ROWS, COLUMNS)


# --- a neighbour ----------------------------------------------------------------------------------------------


@cute.kernel
def neighbour_kernel(out: cute.Tensor, rounds: Int32):
    """Takes all of tensor memory, writes it, reads it back, gives it back; again and again."""
    base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
    place = cute.recast_ptr(base, dtype=Int32)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    total = Float32(0)
    for n in cutlass.range(rounds, unroll=1):
        cute.arch.alloc_tmem(512, place)
        cute.arch.sync_threads()
        address = cute.make_tensor(place, cute.make_layout(1))[0]
        tensor_memory.store(address, [Float32(block + thread + n + i) for i in range(8)])
        tensor_memory.wait_store()
        values = tensor_memory.load(address, 8)
        tensor_memory.wait_load()
        for value in values:
            total = total + value
        cute.arch.sync_threads()
        cute.arch.dealloc_tmem(cute.arch.retrieve_tmem_ptr(Float32, 16, place), 512)
        cute.arch.sync_threads()
    cute.arch.relinquish_tmem_alloc_permit()
    out[block * WARP + thread] = total


@cute.jit
def neighbour(out: cute.Tensor, rounds: Int32, stream):
    neighbour_kernel(out, rounds).launch(
        grid=[cute.size(out) // WARP, 1, 1], block=[WARP, 1, 1], smem=1024, stream=stream
    )


@cache
def neighbour_function(device: str, arch: str):
    out = make_fake_compact_tensor(Float32, (cute.sym_int(divisibility=WARP),))
    return compiled(neighbour, device, arch, out, Int32(0))


def expected_of_neighbour(blocks: int, rounds: int, device) -> torch.Tensor:
    """What `neighbour` writes: sums of small whole numbers, exact in float32."""
    own = torch.arange(blocks, device=device)[:, None] + torch.arange(WARP, device=device)
    return (8 * rounds * own + 8 * (rounds * (rounds - 1) // 2) + 28 * rounds).float().ravel()


# --- cycles ---------------------------------------------------------------------------------------------------


@cute.kernel
def cycles_kernel(out: cute.Tensor):
    """One warp, one CTA an SM: cycles of each of QUESTIONS; CTA 0 writes."""
    base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
    response = cute.recast_ptr(base, dtype=Int32)
    claimed = cute.recast_ptr(base + 16, dtype=Int64)
    barrier = cute.recast_ptr(base + 24, dtype=Int64)
    place = cute.recast_ptr(base + 32, dtype=Int32)
    words = cute.make_tensor(cute.recast_ptr(base + 128, dtype=Int32), cute.make_layout(WARP))
    kept = cute.make_tensor(cute.recast_ptr(base + 256, dtype=Float32), cute.make_layout(WARP))
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if thread == 0:
        cute.arch.mbarrier_init(claimed, 1)
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    words[thread] = Int32(0)
    cute.arch.sync_threads()

    begin = cute.arch.clock()
    if thread == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(claimed, 16)
        cute.arch.issue_clc_query(claimed, response, multicast=False)
    cute.arch.mbarrier_wait(claimed, 0)
    claim = cute.arch.clock() - begin

    begin = cute.arch.clock()
    cute.arch.alloc_tmem(32, place)
    alloc = cute.arch.clock() - begin
    cute.arch.sync_threads()
    address = cute.make_tensor(place, cute.make_layout(1))[0]
    tensor_memory.store(address, [Int32(0), Int32(0)])
    tensor_memory.wait_store()
    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):  # the next address is what was read: 0
        value, _ = tensor_memory.load(address, 2)
        tensor_memory.wait_load()
        address = address + value.bitcast(Int32)
    kept[thread] = address.to(Float32)  # what nobody uses, the compiler leaves out
    tmem = (cute.arch.clock() - begin) // REPEATS

    begin = cute.arch.clock()
    for i in cutlass.range_constexpr(REPEATS):
        if thread == 0:
            cute.arch.mbarrier_arrive(barrier)
        cute.arch.mbarrier_wait(barrier, i & 1)
    round_trip = (cute.arch.clock() - begin) // REPEATS

    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):
        cute.arch.sync_threads()
    sync = (cute.arch.clock() - begin) // REPEATS

    x = Float32(thread)
    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):
        x = exp2.hardware(x)
    kept[thread] = x
    mufu = (cute.arch.clock() - begin) // REPEATS

    at = Int32(0)
    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):
        at = words[at]
    shared = (cute.arch.clock() - begin) // REPEATS + at

    cute.arch.sync_threads()
    cute.arch.relinquish_tmem_alloc_permit()
    cute.arch.dealloc_tmem(cute.arch.retrieve_tmem_ptr(Float32, 16, place), 32)
    if (block == 0) & (thread == 0):
        found = (claim, tmem, alloc, round_trip, sync, mufu, shared)
        for i in cutlass.range_constexpr(len(found)):
            out[i] = found[i]


@cute.jit
def cycles(out: cute.Tensor, grid: Int32, stream):
    cycles_kernel(out).launch(grid=[grid, 1, 1], block=[WARP, 1, 1], smem=1024, stream=stream)


def measured_cycles(device: str, arch: str, blocks: int, times: int) -> dict[str, int]:
    """The median over `times` launches of what CTA 0 saw, by question. blocks: some must be left to claim."""
    function = compiled(
        cycles, device, arch, make_fake_compact_tensor(Int32, (len(QUESTIONS),)), Int32(0)
    )
    out = torch.zeros((times, len(QUESTIONS)), dtype=torch.int32, device=device)
    for row in out:
        function(row, blocks)
    found = out.cpu().median(dim=0).values.tolist()
    return dict(zip(QUESTIONS, found, strict=True))
