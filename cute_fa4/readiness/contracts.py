"""Documented hardware behavior that no GPU has confirmed for these kernels, one small launch each.

Each stage fails, hangs or crashes separately, so the first run on a GPU names the behavior itself and not a kernel
that relies on ten of them. The report then shows where it is documented, and the problems that others reported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from cute_fa4 import dtypes, flash_attn_func, flash_attn_varlen_func
from cute_fa4.readiness import training
from cute_fa4.readiness.basics import NO_CLAIMS, OF_P
from cute_fa4.readiness.company import captured
from cute_fa4.readiness.stage import CLAIMS, Context, Stage, error_of, require, same_bits
from cute_fa4.reference import attention_float64

PAIRS = {"CUTE_FA4_PAIR": "on"}
E4M3 = dtypes.E4M3.torch
GATHER4 = "cp.async.bulk.tensor.2d.shared::{}.global.tile::gather4.mbarrier::complete_tx::bytes"


@dataclass(frozen=True)
class Contract:
    """One documented behavior.

    executes   prefixes of the PTX instructions that the launch must execute
    documents  where it is documented
    reports    problems reported by others, with links
    """

    name: str
    asks: str
    run: Callable[[Context], dict]
    executes: tuple[str, ...]
    documents: str
    reports: str = "none known"
    environment: dict = field(default_factory=dict)

    @property
    def stage(self) -> Stage:
        suspect = f"{self.documents}; reports of others: {self.reports}"
        environment = NO_CLAIMS | self.environment
        return Stage(self.name, self.asks, self.run, suspect, seconds=60, environment=environment)


# --- pairs of CTAs --------------------------------------------------------------------------------------------


def pair_of_allocations(context: Context, commits: bool = False) -> dict:
    """Both CTAs of a pair allocate tensor memory together, write it, read it back and free it."""
    from cute_fa4.readiness import probes

    found = probes.of_pairs(context.size(64, 1), commits, context.device, context.arch)
    expected = torch.arange(found.numel(), device=found.device, dtype=torch.float32)
    require(torch.equal(found, expected), "tensor memory of a pair holds other numbers")
    return {"pairs": found.numel() // (2 * probes.WARP)}


def multicast_commit(context: Context) -> dict:
    """The same, and a commit of CTA 0 arrives on the mbarrier of both."""
    return pair_of_allocations(context, commits=True)


def claims_of_pairs(context: Context) -> dict:
    """More blocks than SMs: CTA 0 of a pair claims a block for both."""
    batch, length, heads = context.size((8, 700, 16), (1, 520, 1))
    q, k, v = (context.random(batch, length, heads, 64, seed=seed) for seed in range(3))
    out = flash_attn_func(q, k, v)
    return {"error": error_of(out, q, k, v, "pairs that claim blocks")}


# --- clusters that merge --------------------------------------------------------------------------------------


def merge_in_a_cluster(context: Context) -> dict:
    """One query, 256 keys: two CTAs of a cluster take half each, and one sends its part to the other."""
    q = context.random(1, 1, 8, 64)
    k, v = (context.random(1, 256, 1, 64, seed=seed) for seed in (1, 2))
    out = flash_attn_func(q, k, v, num_splits=0)
    return {"error": error_of(out, q, k, v, "parts of a cluster")}


# --- rows one by one ------------------------------------------------------------------------------------------


def gathered_rows(context: Context, queries: int = 1) -> dict:
    """Pages of three keys, which no box of eight rows fits; a third of the table is never read."""
    keys, page = 100, 3
    pages = -(-keys // page)
    q = context.random(1, queries, 2, 64)
    k, v = (context.random(pages, page, 2, 64, seed=seed) for seed in (1, 2))
    order = torch.randperm(pages, generator=torch.Generator().manual_seed(0))
    table = torch.full((1, pages + pages // 2), 1 << 30, dtype=torch.int32)
    table[0, :pages] = order
    out = flash_attn_varlen_func(
        q, k, v, page_table=table.to(context.device), seqused_k=context.int32(keys)
    )
    k, v = (x[order.to(x.device)].reshape(1, -1, 2, 64)[:, :keys] for x in (k, v))
    return {"error": error_of(out, q, k, v, f"gathered rows, {queries} queries")}


def gathered_rows_of_pairs(context: Context) -> dict:
    """The same for a pair of CTAs, each of which gathers half of the rows for both."""
    return gathered_rows(context, queries=140)


# --- products -------------------------------------------------------------------------------------------------


def error_of_8_bits(out, q, k, v, what: str, **options) -> float:
    """Largest error relative to attention over |v|; raises Wrong beyond the error of 8-bit P."""
    q, k, v = (x.double().cpu() for x in (q, k, v))
    exact, _ = attention_float64(q, k, v, **options)
    of_sizes, _ = attention_float64(q, k, v.abs(), **options)
    error = float((out.double().cpu() - exact).norm() / of_sizes.norm())
    require(error <= OF_P, f"{what}: off by {error:.2e} in the norm, {OF_P:.2e} is allowed")
    return error


def scales_of_blocks(context: Context) -> dict:
    """MXFP8: scales of q and k come through shared memory into tensor memory."""
    from cute_fa4 import mxfp8

    q, k, v = (context.random(1, 40, 2, 64, seed=seed) for seed in range(3))
    (q8, q_scale), (k8, k_scale) = (mxfp8.quantise(x.float()) for x in (q, k))
    v8 = v.to(E4M3)
    out = flash_attn_func(q8, k8, v8, q_descale=q_scale, k_descale=k_scale)
    meant = mxfp8.dequantise(q8, q_scale), mxfp8.dequantise(k8, k_scale), v8
    return {"error": error_of_8_bits(out, *meant, "scales of blocks")}


def odd_widths(context: Context) -> dict:
    """Head dims 80 and 144: products whose N is a multiple of 16 and of nothing larger."""
    errors = {}
    for head_dim in (80, 144):
        q, k, v = (context.random(1, 40, 1, head_dim, seed=seed) for seed in range(3))
        what = f"head dim {head_dim}"
        errors[what] = error_of(flash_attn_func(q, k, v), q, k, v, what)
    return {"errors": errors}


def two_kinds(context: Context) -> dict:
    """64 8-bit and 32 16-bit columns of q and K accumulate one S."""
    q, k, v = (context.random(1, 40, 1, depth, seed=i) for i, depth in enumerate((96, 96, 64)))
    own, v8 = [x[..., :64].to(E4M3) for x in (q, k)], v.to(E4M3)
    q_rope, k_rope = (x[..., 64:].contiguous() for x in (q, k))
    out = flash_attn_func(*own, v8, q_rope=q_rope, k_rope=k_rope)
    q, k = (
        torch.cat((x.float(), x_rope.float()), -1)
        for x, x_rope in ((own[0], q_rope), (own[1], k_rope))
    )
    return {"error": error_of_8_bits(out, q, k, v8, "8 and 16 bits in one S")}


def latent_pairs(context: Context) -> dict:
    """128 heads of a latent cache: CTA pairs whose MMAs have 128 rows, 64 in each CTA."""
    from cute_fa4.mla import flash_mla_with_kvcache

    q = context.random(1, 1, 128, 576)
    cache = context.random(3, 64, 1, 576, seed=1)
    used = context.int32(130)
    out, _ = flash_mla_with_kvcache(q, cache, context.int32(2, 0, 1)[None], used)
    rows = cache[torch.tensor([2, 0, 1], device=cache.device)].reshape(1, -1, 1, 576)[:, :130]
    return {"error": error_of(out, q, rows, rows[..., :512], "pairs over a latent cache")}


# --- launches -------------------------------------------------------------------------------------------------


def dependent_merge(context: Context) -> dict:
    """A split call, whose merge may start early, captured, and replayed concurrently with copies on another stream."""
    q = context.random(1, 36, 4, 64)
    k, v = (context.random(1, 300, 1, 64, seed=seed) for seed in (1, 2))
    out, ballast = torch.empty_like(q), context.random(context.size(1 << 24, 16))

    def call():
        flash_attn_func(q, k, v, num_splits=3, out=out)

    replay = captured(context, call)
    replay()
    context.synchronize()
    first = out.clone()
    error = error_of(out, q, k, v, "the merge of parts")
    side = torch.cuda.Stream() if context.on_gpu else None
    for _ in range(context.size(200, 1)):
        with torch.cuda.stream(side):
            ballast.clone()
        out.fill_(float("nan"))
        replay()
        context.synchronize()
        require(same_bits(out, first), "a replay differs from the first one")
    return {"error": error}


def sums_in_turns(context: Context) -> dict:
    """Three pairs of CTAs have keys of one dQ: the first stores, the second adds, the last loads the sum."""
    given = training.tensors(context, 520, (1, 1), (128, 128))
    found = training.backward(*given)
    return {"error": training.error_of(found, given, "sums of three pairs")}


CONTRACTS = (
    Contract(
        "contract: tensor memory of a pair",
        "do two CTAs allocate and free tensor memory together?",
        pair_of_allocations,
        ("tcgen05.alloc.cta_group::2", "tcgen05.dealloc.cta_group::2"),
        'PTX ISA, "tcgen05.alloc", .cta_group::2',
        "cutlass#3435 (freed before the other CTA had allocated), cutlass#3316 (the other CTA not launched yet)",
    ),
    Contract(
        "contract: multicast commit",
        "does one commit arrive in both CTAs of a pair?",
        multicast_commit,
        ("tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster",),
        'PTX ISA, "tcgen05.commit", .multicast::cluster',
        "facebookexperimental/triton#783, tilelang#2644 (pairs in a cluster of four)",
    ),
    Contract(
        "contract: claims of pairs",
        "does the answer to a claim come to both CTAs of a pair?",
        claims_of_pairs,
        (
            "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.multicast",
        ),
        'PTX ISA, "clusterlaunchcontrol.try_cancel", .multicast::cluster::all',
        "facebookexperimental/triton#908 (one CTA announced the bytes), marin#8870 (a claim after a refusal)",
        PAIRS | {CLAIMS: "on"},
    ),
    Contract(
        "contract: st.async in a cluster",
        "do parts of keys merge through the shared memory of another CTA?",
        merge_in_a_cluster,
        ("st.async", "mapa.shared::cluster", "barrier.cluster.wait"),
        'PTX ISA, "st.async" and "mapa"; docs/decisions/0010',
        "facebookexperimental/triton#1105, triton#11730 (a CTA ends while another reaches it)",
    ),
    Contract(
        "contract: gathered rows",
        "does TMA bring four rows of a list, and zeros for those that do not exist?",
        gathered_rows,
        (GATHER4.format("cta"),),
        'PTX ISA, "cp.async.bulk.tensor", .tile::gather4',
        "FlashMLA csrc/sm100/prefill/sparse/fwd/head128/phase1.cuh (equal invalid rows are slow)",
    ),
    Contract(
        "contract: gathered rows of a pair",
        "the same where each CTA of a pair brings half of the rows?",
        gathered_rows_of_pairs,
        (f"{GATHER4.format('cluster')}.cta_group::2",),
        'PTX ISA, "cp.async.bulk.tensor", .cta_group::2 with .tile::gather4',
        environment=PAIRS,
    ),
    Contract(
        "contract: scales of blocks",
        "does the tensor core read the scales that tcgen05.cp puts into tensor memory?",
        scales_of_blocks,
        ("tcgen05.cp.cta_group::1.32x128b.warpx4", "tcgen05.mma.cta_group::1.kind::mxf8f6f4"),
        'PTX ISA, "tcgen05.cp" and "tcgen05.mma", .block_scale; docs/decisions/0026',
    ),
    Contract(
        "contract: N of 80 and 144",
        "are products right whose N is a multiple of 16 alone?",
        odd_widths,
        ("tcgen05.mma.cta_group::1.kind::f16",),
        'PTX ISA, "tcgen05.mma", shapes of .kind::f16: N from 16 to 256 in steps of 16',
    ),
    Contract(
        "contract: two kinds in one accumulator",
        "do products of 8 and of 16 bits add up in one S?",
        two_kinds,
        ("tcgen05.mma.cta_group::1.kind::f8f6f4", "tcgen05.mma.cta_group::1.kind::f16"),
        'PTX ISA, "tcgen05 memory consistency model": pipelined for one kind and shape; docs/decisions/0028',
    ),
    Contract(
        "contract: pairs of 128 rows",
        "are products of M = 128 right that a pair shares, 64 rows in each CTA?",
        latent_pairs,
        ("tcgen05.mma.cta_group::2.kind::f16",),
        'PTX ISA, "tcgen05.mma", layouts of .cta_group::2 with M = 128; docs/decisions/0017',
    ),
    Contract(
        "contract: sums in turns",
        "do pairs of CTAs add to a sum in memory one after another, and load it?",
        sums_in_turns,
        (
            "ld.acquire.gpu.global",
            "red.release.gpu.global.add",
            "cp.reduce.async.bulk.tensor",
            "st.async",
        ),
        'PTX ISA, "ld", .acquire, "red", .release, "fence.proxy.async"; docs/decisions/0077; CUTE_FA4_PAIR=off',
        "flash-attention#2033 (unfenced announcements), FBGEMM#4982 (a wait for a CTA that adds nothing), DeepEP#642 "
        "(TMA loads before a proxy fence)",
    ),
    Contract(
        "contract: a merge that starts early",
        "is a dependent launch right in a graph, beside another stream?",
        dependent_merge,
        ("griddepcontrol.wait", "griddepcontrol.launch_dependents"),
        'PTX ISA, "griddepcontrol"; CUDA C++ Programming Guide, "Programmatic Dependent Launch"; CUTE_FA4_PDL=off',
        "flashinfer#4172, flashinfer#2708, sglang#34542, sglang#34789, TensorRT-LLM#14066",
    ),
)
STAGES = tuple(contract.stage for contract in CONTRACTS)
