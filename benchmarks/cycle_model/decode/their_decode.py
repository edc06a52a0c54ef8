"""flash-attn-4's decode kernel on the emulator, in a separate process (see cycle_model/flash_attn_4.py).

python -m benchmarks.cycle_model.decode.their_decode OUT.pickle '{"head_dim": 128, ..., "split": true}'
"""

from __future__ import annotations

import argparse
import json
import pickle
from pathlib import Path

from benchmarks.cycle_model import flash_attn_4
from benchmarks.cycle_model.decode.variants import TheirKernel, Work, works
from cute_fa4.emulator.model import trace

# Arguments of the compiling call: enough keys for the path of long sequences.
KEYS = 4096
PARTS = 4


class FirstKernel(flash_attn_4.Capture):
    """Keeps the first kernel that is compiled; where keys are split, the second merges."""

    def compile(self, *args, **kwargs):
        first = self.kernel
        kernel = super().compile(*args, **kwargs)
        self.kernel = first or kernel
        return kernel


def call(interface, kernel: TheirKernel) -> None:
    """The package's public call for a paged cache."""
    import torch

    def tensor(*shape, dtype=torch.bfloat16):
        return torch.empty(shape, dtype=dtype, device="cuda")

    batch, heads_kv, pages = 2, 8, KEYS // kernel.page_size
    q = tensor(batch, kernel.seqlen_q, heads_kv * kernel.group, kernel.head_dim)
    k, v = (tensor(batch * pages, kernel.page_size, heads_kv, kernel.head_dim) for _ in range(2))
    interface.flash_attn_varlen_func(
        q,
        k,
        v,
        page_table=tensor(batch, pages, dtype=torch.int32),
        seqused_k=tensor(batch, dtype=torch.int32),
        causal=kernel.causal,
        num_splits=PARTS if kernel.split else 1,
    )


def launch(captured, kernel: TheirKernel, work: Work) -> None:
    """Call the compiled function with one sequence that has a key head for each block."""
    import torch

    generator = torch.Generator().manual_seed(0)

    def tensor(*shape):
        return torch.randn(shape, generator=generator).to(torch.bfloat16)

    depth, heads_kv = kernel.head_dim, work.blocks
    pages = work.keys // kernel.page_size
    q = tensor(1, kernel.seqlen_q, heads_kv * kernel.group, depth)
    k, v = (tensor(pages, kernel.page_size, heads_kv, depth) for _ in range(2))
    out, lse = torch.empty_like(q), None
    if kernel.split:
        out = torch.empty((1, *q.shape), dtype=torch.float32)
        lse = torch.empty((1, 1, q.shape[2], q.shape[1]))
    optional = dict.fromkeys(flash_attn_4.OPTIONAL_ARGUMENTS)
    optional["aux"] = (None, None)
    optional["used_k"] = torch.tensor([work.keys], dtype=torch.int32)
    optional["page_table"] = torch.randperm(pages, generator=generator).to(torch.int32)[None]
    captured.kernel(q, k, v, out, lse, depth**-0.5, *optional.values(), kernel.seqlen_q)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("kernel", help="fields of TheirKernel as JSON")
    args = parser.parse_args()
    kernel = TheirKernel(**json.loads(args.kernel))
    with trace.installed():
        captured = flash_attn_4.capture_call(
            lambda interface: call(interface, kernel), "sm_100a", 1, FirstKernel
        )
        traces = {
            work: trace.record(lambda work=work: launch(captured, kernel, work))
            for work in works(kernel.goes_on)
        }
    found = captured.kernel
    args.out.write_bytes(pickle.dumps((found.__ptx__, found.__cubin__, traces)))


if __name__ == "__main__":
    main()
