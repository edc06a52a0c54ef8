"""flash-attn-4 on the emulator: the cubin for a B200, and traces of it, in a separate process.

    python -m benchmarks.cycle_model.flash_attn_4 OUT.pickle '{"maker": "flash-attn-4", "causal": true}'

The package queries a driver for the number of SMs while it compiles. Here the answer is one CTA, or one CTA pair,
so that a persistent kernel processes several work tiles in the recorded cluster. The number is only in the host
code; the machine code is that for 148 SMs.

Needs flash-attn-4 (the extra `compare` of this project).
"""

from __future__ import annotations

import os
import tempfile

from benchmarks.cycle_model import peer_process
from benchmarks.cycle_model.our_kernel import all_tiles, torch_dtype
from benchmarks.cycle_model.workloads import KEYS_A_TILE, ListedWorkload, Workload, workloads_of
from cute_fa4.emulator.model import trace


class Hardware:
    """Stands in for cutlass.utils.HardwareInfo, which needs a driver: one cluster fits."""

    sms = 1

    def __init__(self, *_args, **_kwargs):
        pass

    def get_device_multiprocessor_count(self) -> int:
        return self.sms

    def get_max_active_clusters(self, cluster_size: int) -> int:
        return self.sms // cluster_size


# Arguments between the scale and max_seqlen_q.
OPTIONAL_ARGUMENTS = (
    *("cu_q", "cu_k", "used_q", "used_k", "page_table", "window_left", "window_right", "sink"),
    *("descale", "block_sparse", "aux", "splits", "tile_count", "virtual_batch", "heads_in_l2"),
    *("cu_blocks", "cu_split_blocks", "blocks_to_batch"),
)


class Capture:
    """cutlass.cute as the package sees it, with a compile() that compiles for the emulator.

    Stores the compiled function as `kernel`. The package does not call it, because its tensors are fake.
    """

    def __init__(self, cute, arch: str):
        self._cute = cute
        self.arch = arch
        self.kernel = None

    def __getattr__(self, name):
        return getattr(self._cute, name)

    def compile(self, *args, options: str | None = None, **kwargs):
        from cute_fa4 import emulator

        with tempfile.TemporaryDirectory() as folder:
            options = f"{options or ''} --keep-cubin --dump-dir={folder}"
            self.kernel = emulator.bind(
                self._cute.compile, *args, options=options, arch=self.arch, **kwargs
            )
        return self.kernel


def capture(variant, arch: str) -> Capture:
    """Compile the forward kernel of a kernels.Variant. Must be the process's first import of it."""
    return capture_compiled(variant, arch, 2 if variant.pair else 1)


def capture_compiled(variant, arch: str, sms: int) -> Capture:
    """As capture, for a chip of any architecture the package knows, with so many SMs."""
    return capture_call(lambda interface: _call(interface, variant), arch, sms)


def capture_call(call, arch: str, sms: int, kind: type[Capture] = Capture) -> Capture:
    """What call(the package's interface) compiles, kept by a Capture of this kind."""
    Hardware.sms = sms
    os.environ["FLASH_ATTENTION_ARCH"] = arch.removesuffix("a")
    os.environ["CUTE_DSL_ARCH"] = arch
    os.environ["FLASH_ATTENTION_NUM_SMS"] = "148"

    import cutlass.cute
    import cutlass.utils
    import cutlass.utils.hardware_info
    from torch._subclasses.fake_tensor import FakeTensorMode

    cutlass.utils.HardwareInfo = Hardware
    cutlass.utils.hardware_info.HardwareInfo = Hardware
    import flash_attn.cute.interface as interface

    interface.cute = captured = kind(cutlass.cute, arch)
    with FakeTensorMode():
        call(interface)
    return captured


def _call(interface, variant) -> None:
    """The package's public call: two sequences of 4096, for which it chooses as for long ones."""
    import torch

    batch, seqlen, heads = 2, 4096, 16 * variant.group

    depths = variant.head_dim, variant.head_dim_v or variant.head_dim

    def tensor(*rows, heads, depth=variant.head_dim):
        shape = (*rows, heads, depth)
        return torch.empty(shape, dtype=torch_dtype(variant.dtype), device="cuda")

    def numbers(*shape):
        return torch.empty(shape, dtype=torch.int32, device="cuda")

    options = dict(causal=variant.causal)
    if variant.window:
        options["window_size"] = (variant.window - 1, 0)
    heads_kv = heads // variant.group
    if variant.ragged:
        q = tensor(batch * seqlen, heads=heads)
        k, v = (tensor(batch * seqlen, heads=heads_kv, depth=depth) for depth in depths)
        options |= dict(cu_seqlens_q=numbers(batch + 1), cu_seqlens_k=numbers(batch + 1))
        interface.flash_attn_varlen_func(
            q, k, v, max_seqlen_q=seqlen, max_seqlen_k=seqlen, **options
        )
        return
    q = tensor(batch, seqlen, heads=heads)
    if variant.page_size:
        pages = seqlen // variant.page_size
        rows = batch * pages, variant.page_size
        k, v = (tensor(*rows, heads=heads_kv, depth=depth) for depth in depths)
        options |= dict(page_table=numbers(batch, pages), seqused_k=numbers(batch))
        interface.flash_attn_varlen_func(q, k, v, **options)
        return
    k, v = (tensor(batch, seqlen, heads=heads_kv, depth=depth) for depth in depths)
    if variant.q_block:
        counts = batch, heads, seqlen // variant.q_block
        entries = *counts, seqlen // KEYS_A_TILE
        shapes = (counts, entries) * 2
        options["block_sparse_tensors"] = interface.BlockSparseTensorsTorch(
            *(numbers(*shape) for shape in shapes), block_size=(variant.q_block, KEYS_A_TILE)
        )
    interface.flash_attn_func(q, k, v, **options)


def launch(captured: Capture, work: Workload):
    """Call the compiled function with data of a workload's size."""
    import torch

    generator = torch.Generator().manual_seed(0)

    depths = work.head_dim, work.head_dim_v or work.head_dim

    def tensor(*rows, heads, depth=work.head_dim):
        shape = (*rows, heads, depth)
        return torch.randn(shape, generator=generator).to(torch_dtype(work.dtype))

    def numbers(*values):
        return torch.tensor(values, dtype=torch.int32)

    # The order of the package's own call (interface.py, call_args): tensors, LSE, scale, everything
    # optional, auxiliary data, the longest query.
    optional = dict.fromkeys(OPTIONAL_ARGUMENTS)
    optional["aux"] = (None, None)
    if work.window:
        optional |= dict(window_left=work.window - 1, window_right=0)
    if work.ragged and not work.tiles:
        # Two empty sequences and one of a row: the grid has two CTAs a head, the second without work.
        q = tensor(1, heads=work.heads_q)
        k, v = (tensor(1, heads=work.heads_kv, depth=depth) for depth in depths)
        optional |= dict(cu_q=numbers(0, 0, 0, 1), cu_k=numbers(0, 0, 0, 1))
    elif work.ragged:
        q = tensor(work.seqlen_q, heads=work.heads_q)
        k, v = (tensor(work.seqlen_k, heads=work.heads_kv, depth=depth) for depth in depths)
        optional |= dict(cu_q=numbers(0, work.seqlen_q), cu_k=numbers(0, work.seqlen_k))
    elif work.page_size:
        q = tensor(1, work.seqlen_q, heads=work.heads_q)
        pages = -(-work.seqlen_k // work.page_size)
        rows = pages, work.page_size
        k, v = (tensor(*rows, heads=work.heads_kv, depth=depth) for depth in depths)
        table = torch.randperm(pages, generator=generator).to(torch.int32)[None]
        optional |= dict(used_k=numbers(work.seqlen_k), page_table=table)
    else:
        q = tensor(1, work.seqlen_q, heads=work.heads_q)
        k, v = (tensor(1, work.seqlen_k, heads=work.heads_kv, depth=depth) for depth in depths)
    if isinstance(work, ListedWorkload):  # as full blocks: none is partial
        each = 1, work.heads_q, 1
        full = tuple(x.expand(*each, *x.shape[3:]).contiguous() for x in all_tiles(work))
        none = tuple(torch.zeros_like(x) for x in full)
        optional["block_sparse"] = (*none, *full, *[None] * 4)
    out = torch.empty((*q.shape[:-1], depths[1]), dtype=torch.bfloat16)
    if q.dtype.itemsize == 1:  # which it takes as bytes
        q, k, v = (x.view(torch.uint8) for x in (q, k, v))
    scale = work.head_dim**-0.5
    captured.kernel(q, k, v, out, None, scale, *optional.values(), work.seqlen_q)


def record(variant, arch: str) -> tuple:
    """(ptx, cubin, traces) of the kernel of a variant."""
    with trace.installed():
        captured = capture(variant, arch)
        traces = {}
        for work in workloads_of(variant):
            second = work.ragged and not work.tiles
            traces[work] = trace.record(lambda work=work: launch(captured, work), int(second))
    return captured.kernel.__ptx__, captured.kernel.__cubin__, traces


if __name__ == "__main__":
    peer_process.main(__doc__, record)
