"""Which combinations run, and why the others do not, as data, without a GPU and without compiling.

    >>> from cute_fa4 import capabilities
    >>> rows = capabilities(dtype="bf16", head_dim=128, compute_capability=(10, 0))
    >>> len(rows)  # two masks, with and without LSE
    4
    >>> rows[0].runs, rows[0].devices
    (True, ('cpu (emulator)', 'cuda, compute capability 10.0'))

A dispatcher asks once per combination and falls back on its own; the reasons are the texts that
flash_attn_func would raise. With lengths, pages or a cache the question is about a call of
flash_attn_varlen_func or flash_attn_with_kvcache (questions.py):

    >>> decode = dict(cache_seqlens=True, page_table=True, page_size=1, seqlen_k=32768, num_splits=0)
    >>> rows = capabilities(dtype="bf16", head_dim=128, group=8, causal=True, arch="sm_100a", **decode)
    >>> {(row.runs, row.families) for row in rows}
    {(True, ('mhaswap',))}
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from inspect import Parameter, signature
from typing import Any

import torch

from cute_fa4.calls import backward as backward_pass
from cute_fa4.calls import options
from cute_fa4.calls.ask.questions import (
    OF_LENGTHS,
    OPTIONS,
    TORCH_DTYPE,
    Sizes,
    function_of,
    refusal_and_families,
)
from cute_fa4.calls.operands.four_bits import KEY_DTYPE_NAMES, NAMES_OF_KEYS
from cute_fa4.calls.operands.tensors import DTYPE_NAMES
from cute_fa4.calls.options import check_whole_keys
from cute_fa4.calls.skipping import FACTOR
from cute_fa4.calls.split_keys.split import check_split
from cute_fa4.compiler import policy
from cute_fa4.dtypes import E4M3, OPERANDS, UNQUANTIZED, is_quantized
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.choose.choose_config import FAMILIES, LATENT_DEPTHS, choose_config
from cute_fa4.sm100.choose.rows_of_tiles import packs_gqa
from cute_fa4.sm100.choose.which_kernel import QUERIES, Call, kernels_of
from cute_fa4.sm100.indexer import config as indexer_config
from cute_fa4.sm100.latent.dequantized.schedule import STORED, STORED_IN_PAGES
from cute_fa4.sm100.two_tiles.pair.schedule import Pair
from cute_fa4.system.devices import (
    ARCH_OF_COMPUTE_CAPABILITY,
    EMULATED_ARCH,
    refusal_of_compute_capability,
)
from cute_fa4.system.messages import shown

# The values of a column that a question leaves open. Values without a kernel are included on purpose:
# callers of other attention packages have them, and their rows give the reasons.
DTYPES = OPERANDS
HEAD_DIMS = (32, 64, 72, 80, 96, 128, 192, 256, 512)
# Parameters of flash_attn_func that have a kernel whatever their value; the call checks the value itself.
BUILT_PARAMETERS = frozenset(
    (
        "window_size mask key_limit learnable_sink softcap num_splits tokens_per_split batch_invariant workspace "
        "pack_gqa score_mod mask_mod aux_tensors q_descale k_descale v_descale o_scale k_block_scale v_block_scale "
        "block_sparse_tensors q_quantize skip_softmax_threshold_scale_factor skipped_tiles"
    ).split()
)
# The BUILT_PARAMETERS with which no call chooses CTA pairs by default.
NOT_PAIRED = ("window_size", "mask", "softcap", "score_mod", "mask_mod")
LATENT = {"latent": True, "kv_layout": "paged", "page_size": 64, "seqused_k": True}
ARCHS = tuple(ARCH_OF_COMPUTE_CAPABILITY.values())


@dataclass(frozen=True)
class Capability:
    """One combination. runs: flash_attn_func accepts it; reasons: why not, with value and remedy.

    dtype is one of DTYPES; group is query heads per key/value head; devices says which
    tensors take this row when it runs; families are the kernels that such calls get, by their lengths
    (sm100/choose/which_kernel.py), or the one of the call that was asked about. pairs: calls of many queries and
    keys run on pairs of CTAs (sm100/choose/pays.py; docs/decisions/0020), others on CTAs alone; or the call that was
    asked about does. latent: of flash_mla_with_kvcache, whose q has `group` heads, of one query.
    """

    dtype: str
    head_dim: int
    head_dim_v: int
    causal: bool
    group: int
    return_lse: bool
    arch: str
    runs: bool = False
    reasons: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    families: tuple[str, ...] = ()
    latent: bool = False
    pairs: bool = False


def capabilities(
    *,
    dtype=None,
    head_dim: int | None = None,
    head_dim_v: int | None = None,
    causal: bool | None = None,
    group: int = 1,
    return_lse: bool | None = None,
    arch: str | None = None,
    compute_capability: tuple[int, int] | None = None,
    latent: bool = False,
    indexer: bool = False,
    heads_kv: int | None = None,
    batch: int | None = None,
    seqlen_q: int | None = None,
    seqlen_k: int | None = None,
    page_size: int | None = None,
    kv_dtype=None,
    backward: bool = False,
    **parameters,
) -> list[Capability]:
    """Every combination that fits the question, whether it runs, and why not.

    Columns left at None take every value of DTYPES, HEAD_DIMS, both masks, both LSE choices and
    ARCHS (head_dim_v: that of head_dim). dtype is a name of DTYPES or a torch dtype.
    compute_capability, such as (10, 3), asks about a device instead of an arch. Any other parameter
    of flash_attn_func may be given with the value that the call would have:
    capabilities(head_dim=128, num_splits=4).

    Lengths, page tables, rows of a cache and new rows ask about a call of flash_attn_with_kvcache, or, where there
    are only parameters of that, of flash_attn_varlen_func. The value of each is that of the call, or True for a
    tensor that fits: capabilities(cache_seqlens=True, cache_leftpad=True, page_table=True, page_size=3). So do lists
    of key blocks: capabilities(block_sparse_tensors=True, seqlen_q=4096) has blocks of 256 queries and 128 keys.
    Tensors count by shape, strides and dtype; their contents are not read. Further arguments, with defaults:

    heads_kv, batch     1, or as many sequences as the tensors say
    seqlen_q            queries of a sequence, and new rows where k and v are True: 1
    seqlen_k            keys for which a sequence has room in its cache: 4096
    page_size           keys of a page: 16
    kv_dtype            of its cache, or of k and v: that of q; "e4m3", "e5m2", "e2m1" (NVFP4) or "mxe4m3"
                        (MXFP8) under q of 16 bits

    capabilities(head_dim=192, head_dim_v=128, k_rope=True) asks whether the last 64 columns of k may be a separate
    tensor, which all heads share. With dtype="e4m3" and q_rope=True it asks whether these may have 16 bits.

    Such a row has the one reason that the call raises, and the one family that it launches.

    latent=True asks about flash_mla_with_kvcache, whose head dims are 576 and 512 and whose heads are all of one group:
    capabilities(latent=True, group=128). With is_fp8_kvcache=True rows of the cache have 656 bytes, with head_dim=512
    too 584; kv_dtype and q_quantize ask about a cache of 8-bit columns under q of 16 bits, return_max_logits=True about
    calls that return the largest scores and the log-sum-exp.

    indexer=True asks about the functions of cute_fa4.indexer with `group` heads, and with page_size about the one that
    reads a cache: capabilities(indexer=True, group=64, page_size=64). The family of such calls is "indexer".

    backward=True asks about calls whose q, k and v require gradients (docs/backward.md). A row then also has a
    reason where the call runs but its gradients are not supported.

    TypeError for a parameter that the function does not have.
    """
    if indexer:
        other = dict(head_dim_v=head_dim_v, causal=causal, return_lse=return_lse, kv_dtype=kv_dtype)
        other |= dict(heads_kv=heads_kv, batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
        _refuse_beside_indexer(other | parameters | {"latent": latent, "backward": backward})
        archs, refused = _archs(arch, compute_capability)
        columns_of_indexer = (
            DTYPE_NAMES.get(dtype, dtype or E4M3.name),
            head_dim or indexer_config.DEPTH,
        )
        return [_of_indexer(*columns_of_indexer, group, page_size or 0, a, refused) for a in archs]
    against = _against_gradients(parameters, latent, page_size, kv_dtype) if backward else []
    given = dict(heads_kv=heads_kv, batch=batch, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    given["page_size"] = page_size
    sizes: dict[str, Any] = {name: n for name, n in given.items() if n is not None}
    if kv_dtype is not None:
        kv_dtype = KEY_DTYPE_NAMES.get(kv_dtype, kv_dtype)
        if kv_dtype not in NAMES_OF_KEYS:
            raise ValueError(f"kv_dtype: {kv_dtype!r}; accepted: {', '.join(NAMES_OF_KEYS)}")
        sizes["kv_dtype"] = kv_dtype
    stored = _stored_in_latent(parameters, sizes, head_dim) if latent else None
    largest = latent and bool(parameters.pop("return_max_logits", False))
    call = None
    narrowed = any(parameters.get(name) is not None for name in ("block_sparse_tensors", FACTOR))
    if not latent and (sizes or narrowed or OF_LENGTHS & set(parameters)):
        call, parameters = Question(Sizes(group, **sizes), parameters), {}
    elif sizes:
        raise TypeError(f"{next(iter(sizes))}: with latent=True; accepted: None")
    unknown = sorted(set(parameters) - BUILT_PARAMETERS - OPTIONS)
    if unknown:
        raise _no_parameter(unknown, "flash_mla_with_kvcache" if latent else "flash_attn_func")
    shared_reasons: list[str] = []
    splits = parameters.get("num_splits", 1), parameters.get("tokens_per_split")
    try:
        check_split(*splits)
        if largest:
            check_whole_keys(*splits)
    except (TypeError, ValueError, NotImplementedError) as error:
        shared_reasons.append(str(error))
    invariant = parameters.get("batch_invariant")
    policy.check_batch_invariant(invariant)
    kernels = policy.of_kernels(invariant=invariant) | {
        "pack_gqa": bool(parameters.get("pack_gqa")) and packs_gqa(group) or None,
        "plain": all(parameters.get(name) is None for name in NOT_PAIRED),
    }
    if latent:
        head_dim = LATENT_DEPTHS[0] if head_dim is None else head_dim
        head_dim_v = LATENT_DEPTHS[1] if head_dim_v is None else head_dim_v
    archs, refused = _archs(arch, compute_capability)
    shared_reasons += refused
    columns = (
        DTYPES if dtype is None else (DTYPE_NAMES.get(dtype, str(dtype)),),
        HEAD_DIMS if head_dim is None else (head_dim,),
        (False, True) if causal is None else (causal,),
        (False, True) if return_lse is None else (return_lse,),
        archs,
    )
    fields = {"write_lse": True, "write_max": True} if largest else {}
    common = _Common(
        tuple(shared_reasons), policy.of_schedules(invariant) | fields, kernels, stored, call
    )
    rows = [
        _answered(
            Capability(
                dtype=name,
                head_dim=d,
                head_dim_v=d if head_dim_v is None else head_dim_v,
                causal=mask,
                group=group,
                return_lse=lse,
                arch=a,
                latent=latent,
            ),
            common,
        )
        for name, d, mask, lse, a in itertools.product(*columns)
    ]
    return [_with_gradients(row, against) for row in rows] if backward else rows


def _archs(arch: str | None, compute_capability) -> tuple[tuple[str, ...], list[str]]:
    """-> (architectures that a question is about, why a device of the compute capability runs none)."""
    if compute_capability is None:
        return (ARCHS if arch is None else (arch,)), []
    if arch is not None:
        raise TypeError("arch and compute_capability say the same thing: give one of them")
    major, minor = compute_capability
    refusal = refusal_of_compute_capability((major, minor))
    name = ARCH_OF_COMPUTE_CAPABILITY.get((major, minor), "none")
    return (name,), [] if refusal is None else [refusal]


def _refuse_beside_indexer(given: dict) -> None:
    """TypeError for an argument that a question about the indexer does not have."""
    for name, value in given.items():
        if value is not None and value is not False:
            raise TypeError(
                f"{name}: {shown(value)} with indexer=True; accepted: dtype, head_dim, group, page_size, and arch or "
                "compute_capability"
            )


def _of_indexer(
    dtype, head_dim: int, heads: int, page_size: int, arch: str, refused: list[str]
) -> Capability:
    """The row of calls of the indexer with so many heads; page_size 0: keys without pages."""
    why = list(refused)
    if dtype != E4M3.name:
        why.append(f"dtype {dtype} has no indexer; accepted: {E4M3.name}")
    if head_dim != indexer_config.DEPTH:
        why.append(f"head_dim={head_dim}; accepted: {indexer_config.DEPTH}; pad with zeros")
    known = EMULATED_ARCH if refused else arch
    config = indexer_config.IndexerConfig(heads, page_size=page_size, arch=known)
    why += config.refusals_of_call()
    row = Capability(str(dtype), head_dim, head_dim, False, heads, False, arch, reasons=tuple(why))
    if why:
        return row
    return replace(row, runs=True, devices=_devices(arch), families=("indexer",))


def _stored_in_latent(parameters: dict, sizes: dict, head_dim) -> Callable[[str], dict]:
    """Configuration fields of the rows of a latent cache, by q's dtype; takes what says it from the question.

    head_dim: of q, which tells rows of 584 bytes from those of 656
    """
    kv_dtype, said = sizes.pop("kv_dtype", None), parameters.get("q_quantize")
    policy.check_quantize(said)
    if parameters.pop("is_fp8_kvcache", False):
        in_pages = head_dim == LATENT_DEPTHS[1]
        return lambda dtype: STORED_IN_PAGES | {"page_size": 1} if in_pages else STORED

    def of(dtype: str) -> dict:
        if kv_dtype in (None, dtype):
            return {}
        if policy.stays_over_latent(said) or not is_quantized(kv_dtype) or dtype not in UNQUANTIZED:
            return {"kv_dtype": kv_dtype}
        return {"qkv_dtype": kv_dtype, "o_dtype": dtype, "descales": "Q"}

    return of


# Parameters that a call with gradients accepts, including names that only the public functions have.
_WITH_GRADIENTS = backward_pass.ACCEPTED | {"window_size", "softcap", "s_aux", "k_rope"}


def _against_gradients(parameters: dict, latent: bool, page_size, kv_dtype) -> list[str]:
    """Why a call has no gradients, whatever its dtype and head dims are."""
    given = parameters | {"latent": latent, "page_size": page_size, "kv_dtype": kv_dtype}
    off = [n for n, x in given.items() if not isinstance(x, torch.Tensor) and x in (None, False, 0)]
    found = [n for n in given if n not in _WITH_GRADIENTS and n not in off]
    why = [f"{name}: {shown(given[name])}, with gradients requested" for name in found]
    rope = given.get("k_rope")
    if isinstance(rope, torch.Tensor) and rope.dtype not in backward_pass.DTYPES:
        why.append(f"k_rope: {rope.dtype}, with gradients requested; accepted: that of k")
    mod = options.function_of("score_mod", given.get("score_mod"))
    if mod is not None and mod.without_slope:
        why.append(
            f"score_mod: {mod.without_slope}, which has no derivative, with gradients requested"
        )
    return why


def _with_gradients(row: Capability, against: list[str]) -> Capability:
    """The row of a call that wants gradients."""
    config = BackwardConfig(row.dtype, row.head_dim, row.head_dim_v, arch=row.arch)
    reasons = (*row.reasons, *against, *(f"gradients: {why}" for why in config.refusals()))
    if not reasons:
        return row
    return replace(row, reasons=reasons, runs=False, devices=(), families=(), pairs=False)


@dataclass(frozen=True)
class Question:
    """The call in question, without dtype, head dims, mask, LSE and arch, which are columns."""

    sizes: Sizes
    parameters: dict

    def __post_init__(self):
        unknown = sorted(set(self.parameters) - OPTIONS - OF_LENGTHS)
        function = function_of(name for name, value in self.parameters.items() if value is not None)
        if unknown:
            raise _no_parameter(unknown, function)


def _no_parameter(unknown: list[str], function: str) -> TypeError:
    """The message for a name that no call has."""
    near = get_close_matches(unknown[0], KNOWN, n=1)
    text = f"{', '.join(unknown)}: not a parameter of {function}"
    remedy = f"; did you mean {near[0]}?" if near else ""
    return TypeError(f"{text}; accepted: {', '.join(KNOWN)}{remedy}")


@dataclass(frozen=True)
class _Common:
    """The facts that all rows of a question have in common.

    reasons    why no row runs
    fields     of configurations, which all of them have
    kernels    fields of which_kernel.Call
    stored     configuration fields of the rows of a latent cache, as a function of q's dtype
    call       the call in question; None: of flash_attn_func, with any lengths
    """

    reasons: tuple[str, ...]
    fields: dict
    kernels: dict
    stored: Callable[[str], dict] | None
    call: Question | None


def _answered(row: Capability, common: _Common) -> Capability:
    """The row with its answer. row: the columns that a question has."""
    dtype, arch, call, kernels = row.dtype, row.arch, common.call, common.kernels
    reasons = list(common.reasons)
    families: tuple[str, ...] | None = None
    if dtype not in DTYPE_NAMES.values():
        accepted = " and ".join(DTYPE_NAMES.values())
        reasons.append(f"dtype {dtype} has no kernel; accepted: {accepted}")
    # The configuration checks the rest. If the row's own value is refused above, the configuration gets
    # an accepted one.
    problem = (
        dict(
            qkv_dtype=dtype if dtype in DTYPE_NAMES.values() else "bf16",
            head_dim=row.head_dim,
            head_dim_v=row.head_dim_v,
            group=row.group,
            causal=row.causal,
            write_lse=row.return_lse,
            arch=arch if arch in ARCHS else EMULATED_ARCH,
            pack_gqa=bool(kernels["pack_gqa"] or row.latent),
            **(LATENT if row.latent else {}),
        )
        | common.fields
    )
    problem |= common.stored(dtype) if common.stored else {}
    if call is None:
        reasons += choose_config(**problem).refusals()
    elif dtype in TORCH_DTYPE and arch in ARCHS:
        columns = {"causal": row.causal, "return_lse": row.return_lse}
        depths = row.head_dim, row.head_dim_v
        refusal, families = refusal_and_families(
            dtype, depths, call.sizes, arch, call.parameters | columns
        )
        reasons += [] if refusal is None else [refusal]
    if families is None and not reasons:
        families = _families(problem, kernels)
    if arch not in ARCHS and not common.reasons:
        reasons.append(f"arch {arch} has no kernel; accepted: {' and '.join(ARCHS)}")
    if reasons or families is None:
        return replace(row, reasons=tuple(reasons))
    return replace(
        row, runs=True, devices=_devices(arch), families=families, pairs=Pair.family in families
    )


def _families(problem: dict, kernels: dict) -> tuple[str, ...]:
    """For calls of a problem with any number of queries; over a latent cache with one query."""
    call = Call.of_choices(problem, **kernels)
    asked = kernels_of(call, queries=(1,) if call.latent else QUERIES)
    found = {kernel.family for kernel in asked}
    return tuple(family for family in FAMILIES if family in found)


def _devices(arch: str) -> tuple[str, ...]:
    gpus = [
        f"cuda, compute capability {major}.{minor}"
        for (major, minor), name in ARCH_OF_COMPUTE_CAPABILITY.items()
        if name == arch
    ]
    return (("cpu (emulator)",) if arch == EMULATED_ARCH else ()) + tuple(gpus)


_COLUMNS = signature(capabilities).parameters.values()
# Names that a question accepts.
KNOWN = sorted(
    {each.name for each in _COLUMNS if each.kind is Parameter.KEYWORD_ONLY}
    | BUILT_PARAMETERS
    | OPTIONS
    | OF_LENGTHS
    | {"is_fp8_kvcache", "return_max_logits"}
)
