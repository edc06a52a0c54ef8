"""The basic stages: devices, one copy, the smallest launch, every head dim. No kernel claims blocks."""

from __future__ import annotations

import platform

import torch

from cute_fa4 import flash_attn_func
from cute_fa4.dtypes import E4M3
from cute_fa4.readiness.stage import CLAIMS, Context, Stage, error_of, require
from cute_fa4.reference import attention_float64
from cute_fa4.sm100.choose.choose_config import DEPTHS

NO_CLAIMS = {CLAIMS: "off"}
# Each tensor is an allocation of the driver, so that no other tensor is adjacent to K or V.
NO_POOL = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
# (rows of K, first row, rows that are valid): all, some, the last ones, none past the end, few in a short tensor.
BOXES = ((2048, 0, 8), (2048, 0, 3), (2048, 2041, 7), (2048, 2048, 0), (5, 2, 3))


def device(context: Context) -> dict:
    """Versions, and whether the device can run the kernel."""
    from cute_fa4.aot.manifest import versions
    from cute_fa4.compiler import toolkit

    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        **versions(),
        "ptxas": toolkit.ptxas(),
        "cuda of the driver": toolkit.driver_version(),
    }
    if not context.on_gpu:
        return {"device": "cpu (emulator)", **found}
    require(torch.cuda.is_available(), f"torch {torch.__version__} finds no CUDA device")
    from cute_fa4.bench.timing import CudaMachine
    from cute_fa4.system.devices import refusal_of_compute_capability

    why = refusal_of_compute_capability(torch.cuda.get_device_capability())
    require(why is None, str(why))
    described = CudaMachine().describe()
    return {"device": described["gpu"], **found, **described}


def keys_begin_an_allocation(context: Context) -> dict:
    """One TMA load, clipped at run time, of a K at the start of its allocation: docs/decisions/0005."""
    from cute_fa4.readiness import probes

    for rows, first, valid in BOXES:
        k = context.random(rows, 1, probes.COLUMNS)
        found = probes.copied(k, first, valid, context.arch)
        expected = torch.zeros_like(found)
        expected[:valid] = k[first : first + valid, 0]
        what = f"{rows} rows, a box of {valid} from row {first}"
        require(torch.equal(found, expected), f"{what}: the copy brought other rows")
    return {"boxes": len(BOXES)}


def smallest_launch(context: Context) -> dict:
    """One query, one key, one head, head dim 64, one CTA: the output is V."""
    q, k, v = (context.random(1, 1, 1, 64, seed=seed) for seed in range(3))
    out = flash_attn_func(q, k, v)
    require(torch.equal(out, v), "one key: the output must be the value, bit for bit")
    return {}


HEAD_DIMS = (
    8,
    64,
    72,
    128,
)  # in the quick run: the smallest, one chunk, a chunk and half a step, two chunks


def head_dims(context: Context) -> dict:
    """Every head dim and dtype, with and without a causal mask; two query tiles, a partial key tile."""
    worst = {}
    dtypes = context.size((torch.bfloat16, torch.float16), (torch.bfloat16,))
    for head_dim in context.size(DEPTHS, HEAD_DIMS):
        for dtype in dtypes:
            for causal in context.size((False, True), (True,)):
                length = context.size(700, 130)
                q, k, v = (
                    context.random(
                        1, length, 2 if name == "q" else 1, head_dim, dtype=dtype, seed=i
                    )
                    for i, name in enumerate("qkv")
                )
                what = f"head dim {head_dim}, {dtype}, causal={causal}"
                out = flash_attn_func(q, k, v, causal=causal)
                worst[what] = error_of(out, q, k, v, what, causal=causal)
    return {"errors": worst}


OF_P = 2.0**-4 + 2.0**-8  # three mantissa bits, and a margin for everything else


def eight_bits(context: Context) -> dict:
    """e4m3 with per-head and per-token scales: many and few queries, also 16-bit; half a key tile at the end."""
    e4m3, heads, errors = E4M3.torch, (4, 2), {}
    many, few = (e4m3, context.size(300, 130)), (torch.bfloat16, 3)
    for granularity in context.size(("heads", "tokens"), ("tokens",)):
        for dtype, queries in context.size((many, few, (e4m3, 3)), (few,)):
            shapes = (queries, heads[0]), (320, heads[1]), (320, heads[1])
            q, k, v = (context.random(1, *s, 64, seed=i) for i, s in enumerate(shapes))
            q, k, v = q.to(dtype), k.to(e4m3), v.to(e4m3)
            of_tokens = (1, 320, heads[1]) if granularity == "tokens" else (1, heads[1])
            scales = [
                0.5 + context.random(*of_tokens, dtype=torch.float32, seed=i).abs() for i in (3, 4)
            ]
            out = flash_attn_func(q, k, v, causal=True, k_descale=scales[0], v_descale=scales[1])
            of_k, of_v = (x.double().view(1, -1, heads[1], 1).cpu() for x in scales)
            meant = q.cpu().double(), k.cpu().double() * of_k, v.cpu().double() * of_v
            exact, _ = attention_float64(*meant, causal=True)
            of_sizes, _ = attention_float64(*meant[:2], meant[2].abs(), causal=True)
            what = f"{queries} queries of {dtype}, scales of {granularity}"
            error = float((out.cpu().double() - exact).norm() / of_sizes.norm())
            require(error <= OF_P, f"{what}: off by {error:.2e} in the norm, {OF_P:.2e} is allowed")
            errors[what] = error
    return {"errors": errors}


STAGES = (
    Stage(
        "device",
        "which device and driver, and does the kernel run there?",
        device,
        "the driver, or the package on another GPU",
        environment=NO_CLAIMS,
    ),
    Stage(
        "keys begin an allocation",
        "does a load whose rows are cut at run time read nothing outside of its tensor?",
        keys_begin_an_allocation,
        "tma/tensor_maps.py: the dimension that wraps, or bit 85 (docs/decisions/0005)",
        environment=NO_CLAIMS | NO_POOL,
    ),
    Stage(
        "smallest launch",
        "does the attention kernel end, and is its output right, for one query and one key?",
        smallest_launch,
        "sm100/kernel.py: launch, tensor memory, barriers; blueprint/barriers.py has who waits for whom",
        environment=NO_CLAIMS,
    ),
    Stage(
        "head dims",
        "is every head dim right?",
        head_dims,
        "layouts/umma_descriptors.py and layouts/operand_tiles.py: strides of a padded depth",
        seconds=300,
        environment=NO_CLAIMS,
    ),
    Stage(
        "eight bits",
        "are 8-bit tensors right, with scales of heads and of tokens?",
        eight_bits,
        "steps/half_powers.py, steps/token_scales.py and roles/token_scales.py; few_rows/dequantized/ for few queries "
        "of 16 bits",
        seconds=120,
        environment=NO_CLAIMS,
    ),
)
