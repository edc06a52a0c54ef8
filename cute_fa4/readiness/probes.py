"""Small kernels that test one hardware behavior each: a copy, a neighbor, a pair. cycles.py has instruction timing.

All of them also run on the emulator.
"""

from __future__ import annotations

from functools import cache

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

from cute_fa4.sm100.instructions import tensor_core, tensor_memory
from cute_fa4.tma import copies, tensor_maps

ROWS, COLUMNS = 8, 64  # of the box: eight rows of 128 bytes, one period of the swizzle
WARP = 32
WORDS = ROWS * COLUMNS // 2


def compiled(kernel, device: str, arch: str, *arguments):
    """Compiles a host function of this file; the result takes tensors and runs on torch's stream."""
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
    """Rows [first, first + valid) of k (total, 1, 64), zeros after them: (8, 64), as one TMA load returns them."""
    out = torch.empty(WORDS, dtype=torch.int32, device=k.device)
    copy_function(k.device.type, arch)(k, out, first, valid)
    # 128-byte swizzle: 16-byte piece j of row r is stored at j xor r.
    chunks = out.view(torch.bfloat16).view(ROWS, 8, 8)
    order = torch.arange(8, device=k.device) ^ torch.arange(ROWS, device=k.device)[:, None]
    return chunks[torch.arange(ROWS, device=k.device)[:, None], order].reshape(ROWS, COLUMNS)


# --- a neighbour ----------------------------------------------------------------------------------------------


@cute.kernel
def neighbour_kernel(out: cute.Tensor, rounds: Int32):
    """Repeatedly allocates all of tensor memory, writes it, reads it back and frees it."""
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
    """The values that `neighbour` writes: sums of small whole numbers, exact in float32."""
    own = torch.arange(blocks, device=device)[:, None] + torch.arange(WARP, device=device)
    return (8 * rounds * own + 8 * (rounds * (rounds - 1) // 2) + 28 * rounds).float().ravel()


# --- a pair of CTAs -------------------------------------------------------------------------------------------


@cute.kernel
def pair_kernel(out: cute.Tensor, commits: cutlass.Constexpr):
    """Two CTAs allocate 32 columns together; each thread writes its index, reads it back, and stores it to out.

    commits: before reading, both wait for a commit of CTA 0 that follows no MMA
    """
    base = cute.arch.get_dyn_smem(cutlass.Int8, alignment=1024)
    place, barrier = cute.recast_ptr(base, dtype=Int32), cute.recast_ptr(base + 8, dtype=Int64)
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    if thread == 0:
        cute.arch.mbarrier_init(barrier, 1)
        cute.arch.mbarrier_init_fence()
    meet()
    cute.arch.alloc_tmem(32, place, is_two_cta=True)
    cute.arch.relinquish_tmem_alloc_permit(is_two_cta=True)
    cute.arch.sync_threads()
    address = cute.make_tensor(place, cute.make_layout(1))[0]
    own = Float32(block * WARP + thread)
    tensor_memory.store(address, [own, own])
    tensor_memory.wait_store()
    if cutlass.const_expr(commits):
        if block % 2 == 0:
            tensor_core.commit(barrier.toint(), cta_group=2)
        cute.arch.mbarrier_wait(barrier, 0)
    first, second = tensor_memory.load(address, 2)
    tensor_memory.wait_load()
    out[block * WARP + thread] = (first + second) * 0.5
    meet()
    cute.arch.dealloc_tmem(cute.arch.retrieve_tmem_ptr(Float32, 16, place), 32, is_two_cta=True)


def meet():
    """Cluster barrier of both CTAs."""
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def pairs(out: cute.Tensor, commits: cutlass.Constexpr, stream):
    pair_kernel(out, commits).launch(
        grid=[cute.size(out) // WARP, 1, 1],
        cluster=[2, 1, 1],
        block=[WARP, 1, 1],
        smem=1024,
        stream=stream,
    )


@cache
def pairs_function(device: str, arch: str, commits: bool):
    out = make_fake_compact_tensor(Float32, (cute.sym_int(divisibility=2 * WARP),))
    return compiled(pairs, device, arch, out, commits)


def of_pairs(number: int, commits: bool, device: str, arch: str) -> torch.Tensor:
    """The output of this many pairs of one-warp CTAs: 0, 1, 2, ..."""
    out = torch.full((number * 2 * WARP,), -1.0, device=device)
    pairs_function(device, arch, commits)(out)
    return out
