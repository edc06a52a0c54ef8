"""The model on a GPU where time can be measured: flash-attn-4's sm_90 kernel on an H200.

    build     compile the package's sm_90a kernel without a GPU; its cubin, its launch parameters
              for every shape, and the modelled cycles go into a folder
    measure   on a machine with an H200: launch the same cubin with the same parameters, CUDA
              events, random data (benchmarks/hopper_check.py)

The control codes, pipes, barriers and the copy engine are those of the Blackwell model; wgmma and registers replace
tcgen05. The emulator records wgmma but does not execute it, because the order of events does not depend on the
scores.

A launch's parameters contain the tensor maps of Q, K, V and O, whose format differs between GPUs and which contain
addresses. So their inputs are stored, and the driver of the H200 encodes them again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from benchmarks.cycle_model import flash_attn_4
from benchmarks.cycle_model.problems import Problem
from benchmarks.cycle_model.workloads import TILES, Workload
from cute_fa4.emulator.model import trace
from cute_fa4.emulator.model.constants import Constant

ARCH = "sm_90a"
SM90_SMS = 132
# flash-attn-4, config.py, select_sm90_tile: 128 x 128 tiles at d = 128.
SM90_ROWS = 128
OPTIONAL_ARGUMENTS = 12  # after the scale, in the package's call for sm_90
AUXILIARY_DATA = 9

_VENDOR = "CUDA C++ programming guide, throughput table, compute capability 9.0"
_HOPPER = "Luo et al., Dissecting the NVIDIA Hopper architecture (arXiv 2402.13499)"
_MEASURED = "measured on an H200: benchmarks/hopper_constants.cu"
_ASSUMED = "no source; as on Blackwell"

H200: dict[str, Constant] = {
    "sms": Constant(132, "SMs", "vendor"),
    "clock_ghz": Constant(1.98, "GHz", "vendor, boost; what it ran at is measured"),
    "launch_us": Constant(0.5, "us", "measured: benchmarks/hopper_check.py, nothing in a graph"),
    "rate_fma": Constant(128, "FMA/cycle/SM", _VENDOR),
    "rate_alu": Constant(64, "results/cycle/SM", _VENDOR),
    "rate_convert": Constant(64, "results/cycle/SM", _VENDOR),
    "rate_mufu": Constant(16, "results/cycle/SM", _VENDOR),
    "rate_uniform": Constant(64, "results/cycle/SM", _ASSUMED),
    "rate_shared": Constant(128, "bytes/cycle/SM", _VENDOR),
    "rate_wgmma": Constant(4096, "FLOP/cycle/SM", f"{_MEASURED}: 64.0 cycles; also the vendor's"),
    "wgmma_tail": Constant(57, "cycles", f"{_MEASURED}: a product that is waited for"),
    "wgmma_in_flight": Constant(6, "wgmmas/SM", f"{_MEASURED}: the next one waits to issue"),
    # Accumulators lie in registers, where arithmetic competes with them.
    "wgmma_slows_mufu": Constant(1.65, "factor", f"{_MEASURED}: ex2 with fadd, ffma, fmul"),
    "wgmma_slows_fma": Constant(1.52, "factor", f"{_MEASURED}: mean of ffma, fadd, fmul"),
    "wgmma_slows_alu": Constant(2.09, "factor", f"{_MEASURED}: fmnmx; conversions are taken alike"),
    "rate_tmem_load": Constant(512, "bytes/cycle/SM", "sm_90 has none"),
    "rate_tmem_store": Constant(512, "bytes/cycle/SM", "sm_90 has none"),
    "pipe_efficiency": Constant(1.0, "fraction", "as on Blackwell"),
    "lat_mufu": Constant(18, "cycles", _ASSUMED),
    "lat_tmem": Constant(0, "cycles", "sm_90 has none"),
    "lat_shared": Constant(30, "cycles", f"{_HOPPER}: 29 to 33"),
    "lat_constant": Constant(35, "cycles", _ASSUMED),
    "lat_special": Constant(25, "cycles", _ASSUMED),
    "lat_global": Constant(700, "cycles", _ASSUMED),
    "lat_local": Constant(38, "cycles", f"{_HOPPER}: L1"),
    "lat_uniform": Constant(12, "cycles", _ASSUMED),
    "lat_read": Constant(10, "cycles", _ASSUMED),
    "lat_fence": Constant(20, "cycles", _ASSUMED),
    "lat_membar_gpu": Constant(575, "cycles", "as on a B300"),
    "lat_tmem_alloc": Constant(0, "cycles", "sm_90 has none"),
    "mbarrier_arrive": Constant(35, "cycles", f"{_MEASURED}: arrive to wake 70, halved"),
    "mbarrier_wake": Constant(35, "cycles", f"{_MEASURED}: arrive to wake 70, halved"),
    "remote_arrive": Constant(102, "cycles", _ASSUMED),
    "bar_sync": Constant(29, "cycles", f"{_MEASURED}: 256 threads"),
    "cluster_sync": Constant(373, "cycles", _ASSUMED),
    "tma_latency": Constant(600, "cycles", f"{_HOPPER}: L2 through TMA, loaded"),
    "tma_rate": Constant(42, "bytes/cycle/SM", f"{_HOPPER}: L2 5.5 to 7 TB/s / 132 / 1.7 GHz"),
    "store_latency": Constant(200, "cycles", _ASSUMED),
    "reduce_rate": Constant(
        17.8, "bytes/cycle/SM", "measured on an H100: benchmarks/hopper_shared.cu"
    ),
    "contention": Constant(0.0, "fraction", "as on a B200"),
    "hbm_tbs": Constant(4.8, "TB/s", "vendor"),
    # launch_us has the first, and caches are warm
    "kernel_start_us": Constant(0.0, "us", "in launch_us"),
    "cold_start_us": Constant(0.0, "us", "not used: measured with warm caches"),
    "cta_gap": Constant(385, "cycles", f"{_MEASURED}: CTAs that leave at once, 364 to 395"),
    "cold_memory": Constant(0.0, "fraction", "not used: measured with warm caches"),
    "second_run_speed": Constant(1.0, "factor", "not used"),
}


@dataclass(frozen=True)
class HopperVariant:
    """What grid.py asks of a kernel; flash-attn-4's launch of sm_90."""

    causal: bool
    head_dim: int = 128
    maker: str = flash_attn_4.__name__
    rows: int = SM90_ROWS
    pair: bool = False
    packed: bool = False
    persistent: bool = False
    group: int = 1
    window: int = 0
    ragged: bool = False
    page_size: int = 0

    @property
    def name(self) -> str:
        return f"fa4_sm90_d{self.head_dim}_{'causal' if self.causal else 'full'}"


# Eight shapes, of 16 heads: both masks, work of 0.1 to 5 ms.
SHAPES = [
    Problem(batch, 16, 16, seqlen, 128, causal)
    for causal in (False, True)
    for batch, seqlen in ((16, 1024), (8, 2048), (4, 4096), (2, 8192))
]


def workloads(variant: HopperVariant) -> list[Workload]:
    """One CTA with each number of key tiles."""
    return [
        Workload(variant.head_dim, variant.causal, 1, 1, variant.rows, tiles) for tiles in TILES
    ]


def capture(variant: HopperVariant) -> flash_attn_4.Capture:
    """Compile the package's sm_90a kernel for the emulator; the process's first import of it."""
    return flash_attn_4.capture_compiled(variant, ARCH, SM90_SMS)


def call(captured: flash_attn_4.Capture, q, k, v, out) -> None:
    """The package's own call for sm_90, interface.py, call_args."""
    optional = [None] * OPTIONAL_ARGUMENTS
    optional[AUXILIARY_DATA] = (None, None)
    captured.kernel(q, k, v, out, None, q.shape[-1] ** -0.5, *optional)


def record(captured: flash_attn_4.Capture, work: Workload) -> trace.Trace:
    """The trace of one CTA."""
    import torch

    def tensor(seqlen):
        return torch.zeros((1, seqlen, work.heads_q, work.head_dim), dtype=torch.bfloat16)

    q, k, v = tensor(work.seqlen_q), tensor(work.seqlen_k), tensor(work.seqlen_k)
    return trace.record(lambda: call(captured, q, k, v, torch.empty_like(q)))


@dataclass(frozen=True)
class LaunchParameters:
    """A launch with its tensor maps left open: they contain addresses, and their format depends on the GPU.

    params  the parameters, as in PTX; offsets: where each of them begins
    maps    what cuTensorMapEncodeTiled needs, without the address: its position in params, which
            tensor (q, k, v or o), and its other arguments
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared_bytes: int
    params: bytes
    offsets: list[int]
    maps: list[dict]


class _Launched(Exception):
    """Raised with the launch before the emulator executes anything."""


def launch_parameters(captured: flash_attn_4.Capture, problem: Problem) -> LaunchParameters:
    """The parameters that the package's host code passes to the kernel; nothing is executed.

    RuntimeError when the tensor map of a tensor is not in the parameters exactly once.
    """
    from unittest import mock

    import torch

    from cute_fa4.emulator.run import launch

    def tensor(heads):
        shape = (problem.batch, problem.seqlen, heads, problem.head_dim)
        return torch.empty(shape, dtype=torch.bfloat16)

    tensors = {
        "q": tensor(problem.heads_q),
        "k": tensor(problem.heads_kv),
        "v": tensor(problem.heads_kv),
        "o": tensor(problem.heads_q),
    }
    seen = {}

    def execute(program, *, params, grid, block, dynamic_shared_bytes, **_others):
        seen.update(
            entry=program.kernel.name,
            grid=tuple(grid),
            block=tuple(block),
            shared_bytes=dynamic_shared_bytes,
            params=bytes(params),
            offsets=[param.offset for param in program.kernel.params],
        )
        raise _Launched

    with mock.patch.object(launch, "execute_grid", execute):
        try:
            call(captured, *tensors.values())
        except _Launched:
            pass
    maps = [_tensor_map(seen["params"], name, value) for name, value in tensors.items()]
    return LaunchParameters(**seen, maps=maps)


def _tensor_map(params: bytes, name: str, value) -> dict:
    """The entry of LaunchParameters.maps for the tensor map of a tensor. RuntimeError without one."""
    from cute_fa4.emulator.machine.tensor_map import TENSOR_MAP_BYTES, decode_tensor_map

    word = struct.pack("<Q", value.data_ptr())
    found = [at for at in range(0, len(params) - 7, 8) if params[at : at + 8] == word]
    if len(found) != 1:
        raise RuntimeError(f"{len(found)} addresses of {name} in the launch parameters, expected 1")
    (at,) = found
    raw = params[at : at + TENSOR_MAP_BYTES]
    decoded = decode_tensor_map(raw)
    flags = struct.unpack_from("<I", raw, 8)[0]
    return {
        "tensor": name,
        "position": at,
        "sizes": decoded.sizes,
        "strides": decoded.strides[1:],
        "box": decoded.box,
        "swizzle": flags >> 13 & 3,
        "l2_promotion": flags >> 17 & 3,
    }
