"""flash-attn-4's kernels, rewritten in the same way: known to be right on hardware, they test this software.

    build(directory)     compiles them with the package's own interface; needs the extra `compare` and no GPU
    check(directory)     runs them on the GPU against float64; needs neither

4.0.0b36, bf16: causal with one CTA (d = 128, 64), full with CTA pairs (d = 128; cta_group::2).
"""

from __future__ import annotations

import importlib
import json
import math
import os
import sys
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import torch

from cute_fa4.hopper.check import LARGEST_RELATIVE_ERROR, WrongResult, attention, bits
from cute_fa4.hopper.variant import Variant
from cute_fa4.system import forks

_scratch = forks.ScratchDirectory("cute_fa4-hopper-")

KERNELS = {
    "fa4_d128_causal": (128, True),
    "fa4_d64_causal": (64, True),
    "fa4_d128_full": (128, False),
}
SHAPES = ((1, 256, 2), (1, 300, 2), (2, 1024, 4), (1, 4096, 2))  # batch, length, heads
SM_COUNT = 132  # of an H100 or H200: its persistent kernels launch this many CTAs


class _Hardware:
    """Replaces cutlass.utils.HardwareInfo, which queries a driver."""

    def __init__(self, *_):
        pass

    def get_device_multiprocessor_count(self) -> int:
        return SM_COUNT

    def get_max_active_clusters(self, cluster_size: int) -> int:
        return SM_COUNT // cluster_size


class _Compiled(Exception):
    """Raised after compilation, instead of a launch."""


def build(directory) -> list[dict]:
    """Their records for the manifest. Needs a separate process: it makes flash-attn-4 see a GPU that does not exist."""
    os.environ.update(FLASH_ATTENTION_ARCH="sm_100", CUTE_DSL_ARCH="sm_100a")
    os.environ["FLASH_ATTENTION_NUM_SMS"] = str(SM_COUNT)
    import cutlass.cute as cute
    import cutlass.utils
    from cutlass.utils import hardware_info
    from torch._subclasses.fake_tensor import FakeTensorMode

    cutlass.utils.HardwareInfo = hardware_info.HardwareInfo = _Hardware
    interface: Any = importlib.import_module(
        "flash_attn.cute.interface"
    )  # optional: the extra compare

    from cute_fa4.hopper.build import build_compiled

    compiled = []

    def compile_only(function, *arguments, options=None, **named):
        options = f"{options or ''} --keep-ptx --dump-dir={scratch}"
        compiled.append(cute.compile(function, *arguments, options=options, **named))
        raise _Compiled

    interface.cute = types.SimpleNamespace(**{**vars(cute), "compile": compile_only})
    records = []
    with tempfile.TemporaryDirectory(dir=_scratch.path()) as scratch:
        for name, (head_dim, causal) in KERNELS.items():
            try:
                with FakeTensorMode():
                    shape = (1, 256, 2, head_dim)
                    q, k, v = (
                        torch.empty(shape, dtype=torch.bfloat16, device="cuda") for _ in "qkv"
                    )
                    interface.flash_attn_func(q, k, v, causal=causal)
            except _Compiled:
                records.append(build_compiled(compiled[-1], name, Path(directory)))
    return records


def check(directory) -> list[dict]:
    """A row for each kernel and shape; WrongResult if an error is larger than flash-attn-4's on Blackwell."""
    from cute_fa4.hopper.load import open_function

    rows = []
    for name, (head_dim, causal) in KERNELS.items():
        kernel = open_function(directory, name)
        for batch, length, heads in SHAPES:
            torch.manual_seed(0)
            shape = (batch, length, heads, head_dim)
            q, k, v = (torch.randn(shape, device="cuda").bfloat16() for _ in "qkv")
            begin, first, second = time.perf_counter(), _run(kernel, q, k, v), _run(kernel, q, k, v)
            seconds = (time.perf_counter() - begin) / 2
            error = _error(first, q, k, v, Variant(head_dim, causal=causal))
            rows.append(dict(kernel=name, shape=shape, relative_error=error, seconds=seconds))
            if not error <= LARGEST_RELATIVE_ERROR["bf16"] or not bits(first).equal(bits(second)):
                raise WrongResult(f"{name} {shape}: relative error {error:.2e}, or launches differ")
    return rows


def _run(kernel, q, k, v):
    """Its 25 arguments: q, k, v, o, lse, scale, ten options, aux data, seven more, the longest q."""
    out = torch.full_like(q, math.nan)
    scale = q.shape[-1] ** -0.5
    kernel(q, k, v, out, None, scale, *[None] * 10, (None, None), *[None] * 7, q.shape[1])
    return out


def _error(out, q, k, v, variant: Variant) -> float:
    difference = norm = 0.0
    for b in range(len(q)):
        for head in range(q.shape[2]):
            exact, _ = attention(variant, q[b], k[b], v[b], head, None)
            difference += float((out[b, :, head].double() - exact).square().sum())
            norm += float(exact.square().sum())
    return math.sqrt(difference / norm)


if __name__ == "__main__":  # python -m cute_fa4.hopper.foreign DIR: build in a separate process
    print(json.dumps(build(sys.argv[1])))
