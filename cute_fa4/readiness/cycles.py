"""A kernel that measures cycles of single instructions, one after another, in one warp of each CTA.

On the emulator a cycle is one instruction and says nothing about a GPU.
"""

from __future__ import annotations

import cutlass
import cutlass.cute as cute
import torch
from cutlass import Float32, Int32, Int64
from cutlass.cute.runtime import make_fake_compact_tensor

from cute_fa4.readiness.probes import WARP, compiled
from cute_fa4.sm100.instructions import exp2, tensor_memory

REPEATS = 32  # of an instruction in a timed line
QUESTIONS = (
    "claim", "lat_tmem", "lat_tmem_alloc", "mbarrier_round_trip", "bar_sync", "lat_mufu", "lat_shared",
)  # fmt: skip


@cute.kernel
def cycles_kernel(out: cute.Tensor):
    """One warp, one CTA per SM: cycles of each of QUESTIONS; CTA 0 writes the results."""
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
    claim = of_claim(thread, claimed, response)
    alloc = of_alloc(place)
    tmem = of_tensor_memory(thread, place, kept)
    round_trip = of_round_trip(thread, barrier)
    sync = of_sync()
    mufu = of_exponential(thread, kept)
    shared = of_shared(words)
    cute.arch.sync_threads()
    cute.arch.relinquish_tmem_alloc_permit()
    cute.arch.dealloc_tmem(cute.arch.retrieve_tmem_ptr(Float32, 16, place), 32)
    if (block == 0) & (thread == 0):
        found = (claim, tmem, alloc, round_trip, sync, mufu, shared)
        for i in cutlass.range_constexpr(len(found)):
            out[i] = found[i]


@cute.jit
def of_claim(thread, claimed, response):
    """A claim of another block, from issue to response."""
    begin = cute.arch.clock()
    if thread == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(claimed, 16)
        cute.arch.issue_clc_query(claimed, response, multicast=False)
    cute.arch.mbarrier_wait(claimed, 0)
    return cute.arch.clock() - begin


@cute.jit
def of_alloc(place):
    """An allocation of 32 columns of tensor memory; `place` receives their address."""
    begin = cute.arch.clock()
    cute.arch.alloc_tmem(32, place)
    cycles = cute.arch.clock() - begin
    cute.arch.sync_threads()
    return cycles


@cute.jit
def of_tensor_memory(thread, place, kept):
    """A load: the next address is the loaded value, 0."""
    address = cute.make_tensor(place, cute.make_layout(1))[0]
    tensor_memory.store(address, [Int32(0), Int32(0)])
    tensor_memory.wait_store()
    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):
        value, _ = tensor_memory.load(address, 2)
        tensor_memory.wait_load()
        address = address + value.bitcast(Int32)
    kept[thread] = address.to(Float32)  # the compiler removes unused values
    return (cute.arch.clock() - begin) // REPEATS


@cute.jit
def of_round_trip(thread, barrier):
    """An arrival at an mbarrier and the wait for it."""
    begin = cute.arch.clock()
    for i in cutlass.range_constexpr(REPEATS):
        if thread == 0:
            cute.arch.mbarrier_arrive(barrier)
        cute.arch.mbarrier_wait(barrier, i & 1)
    return (cute.arch.clock() - begin) // REPEATS


@cute.jit
def of_sync():
    """bar.sync of a warp."""
    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):
        cute.arch.sync_threads()
    return (cute.arch.clock() - begin) // REPEATS


@cute.jit
def of_exponential(thread, kept):
    """ex2: the next exponent is the previous result."""
    x = Float32(thread)
    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):
        x = exp2.hardware(x)
    kept[thread] = x
    return (cute.arch.clock() - begin) // REPEATS


@cute.jit
def of_shared(words):
    """A load of shared memory: the next address is the loaded value, 0."""
    at = Int32(0)
    begin = cute.arch.clock()
    for _ in cutlass.range_constexpr(REPEATS):
        at = words[at]
    return (cute.arch.clock() - begin) // REPEATS + at


@cute.jit
def cycles(out: cute.Tensor, grid: Int32, stream):
    cycles_kernel(out).launch(grid=[grid, 1, 1], block=[WARP, 1, 1], smem=1024, stream=stream)


def measured_cycles(device: str, arch: str, blocks: int, times: int) -> dict[str, int]:
    """The median over `times` launches of CTA 0's cycles, by question. blocks: some must be left to claim."""
    function = compiled(
        cycles, device, arch, make_fake_compact_tensor(Int32, (len(QUESTIONS),)), Int32(0)
    )
    out = torch.zeros((times, len(QUESTIONS)), dtype=torch.int32, device=device)
    for row in out:
        function(row, blocks)
    found = out.cpu().median(dim=0).values.tolist()
    return dict(zip(QUESTIONS, found, strict=True))
