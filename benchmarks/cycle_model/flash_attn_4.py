"""flash-attn-4 on the emulator: the cubin that a B200 would run, and traces of it; its own process.

    python -m benchmarks.cycle_model.flash_attn_4 OUT.pickle --head-dim 128 --causal

The package asks a driver for the number of SMs while it compiles; here it is told one CTA, or one
pair of CTAs, so that a persistent kernel walks over several work tiles in the cluster that is
recorded. The number is in the host code only: the machine code is that of 148 SMs.

Needs flash-attn-4 (the extra `compare` of this project).
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
from pathlib import Path

from benchmarks.cycle_model import trace
from benchmarks.cycle_model.workloads import Workload, workloads_of


class Hardware:
    """Stands in for cutlass.utils.HardwareInfo, which needs a driver: one cluster fits."""

    sms = 1

    def __init__(self, *_args, **_kwargs):
        pass

    def get_device_multiprocessor_count(self) -> int:
        return self.sms

    def get_max_active_clusters(self, cluster_size: int) -> int:
        return self.sms // cluster_size


# Arguments between the scale and max_seqlen_q, and where among them the pair of auxiliary data is.
OPTIONAL_ARGUMENTS = 18
AUXILIARY_DATA = 10


class Capture:
    """cutlass.cute as the package sees it, with a compile() that compiles for the emulator.

    What it compiles is kept as `kernel`. The package does not call it: its tensors are fake.
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


def uses_pairs(head_dim: int, causal: bool) -> bool:
    """Whether the package takes two CTAs a tile: its interface.py, use_2cta_instrs."""
    return not causal and head_dim == 128


def capture(head_dim: int, causal: bool, group: int, arch: str) -> Capture:
    """Compile the forward kernel of flash_attn_func. Must be the process's first import of it."""
    sms = 2 if uses_pairs(head_dim, causal) else 1
    return capture_compiled(head_dim, causal, group, arch, sms)


def capture_compiled(head_dim: int, causal: bool, group: int, arch: str, sms: int) -> Capture:
    """As capture, for a chip of any architecture the package knows, with so many SMs."""
    Hardware.sms = sms
    os.environ["FLASH_ATTENTION_ARCH"] = arch.removesuffix("a")
    os.environ["CUTE_DSL_ARCH"] = arch
    os.environ["FLASH_ATTENTION_NUM_SMS"] = "148"

    import cutlass.cute
    import cutlass.utils
    import cutlass.utils.hardware_info
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    cutlass.utils.HardwareInfo = Hardware
    cutlass.utils.hardware_info.HardwareInfo = Hardware
    import flash_attn.cute.interface as interface

    interface.cute = captured = Capture(cutlass.cute, arch)
    with FakeTensorMode():
        # Long enough that the package chooses what it chooses for long sequences.
        heads = 16 * group
        q = torch.empty((2, 4096, heads, head_dim), dtype=torch.bfloat16, device="cuda")
        k, v = (q.new_empty((2, 4096, heads // group, head_dim)) for _ in range(2))
        interface.flash_attn_func(q, k, v, causal=causal)
    return captured


def launch(captured: Capture, work: Workload):
    """Call the compiled function with data of a workload's size."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def tensor(seqlen, heads):
        shape = (1, seqlen, heads, work.head_dim)
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    q = tensor(work.seqlen_q, work.heads_q)
    k, v = (tensor(work.seqlen_k, work.heads_kv) for _ in range(2))
    # The order of the package's own call (interface.py, call_args): tensors, LSE, scale, everything
    # optional, auxiliary data, the longest query.
    optional = [None] * OPTIONAL_ARGUMENTS
    optional[AUXILIARY_DATA] = (None, None)
    out = torch.empty_like(q)
    captured.kernel(q, k, v, out, None, work.head_dim**-0.5, *optional, work.seqlen_q)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--group", type=int, default=1)
    parser.add_argument("--arch", default="sm_100a")
    args = parser.parse_args()
    with trace.installed():
        captured = capture(args.head_dim, args.causal, args.group, args.arch)
        works = workloads_of(
            args.head_dim,
            args.causal,
            args.group,
            packed=args.group > 1,
            pair=uses_pairs(args.head_dim, args.causal),
            persistent=not args.causal,
        )
        traces = {work: trace.record(lambda work=work: launch(captured, work)) for work in works}
    kernel = captured.kernel
    args.out.write_bytes(pickle.dumps((kernel.__ptx__, kernel.__cubin__, traces)))


if __name__ == "__main__":
    main()
