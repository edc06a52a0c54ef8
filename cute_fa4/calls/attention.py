"""A checked call -> a configuration, an allocation, one launch: the path common to the attention functions.

    given            layout that is compiled
    offsets of q     q, out packed       otherwise dense
    offsets of k     k, v packed         otherwise dense
    page_table       k, v paged

CUDA tensors are launched on torch's current stream without synchronising; CPU tensors are executed by the emulator.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import torch

from cute_fa4.calls.asked import dtypes_of, head_dim_of, kernel_of
from cute_fa4.calls.grid import check_grid
from cute_fa4.calls.launch import function_for
from cute_fa4.calls.longest_first import plan_in_order
from cute_fa4.calls.operands.apart import check_apart, named_aux
from cute_fa4.calls.operands.four_bits import columns_of
from cute_fa4.calls.operands.memory import largest_extent
from cute_fa4.calls.operands.rope_view import RopeView
from cute_fa4.calls.operands.scales import of_made_up_keys
from cute_fa4.calls.operands.strides import gathers_rows, views_for_descriptors
from cute_fa4.calls.operands.tensors import DTYPE_NAMES, OUT_OF
from cute_fa4.calls.options import AUX_DTYPES, SINK_DTYPES, check_aux
from cute_fa4.calls.plan import Plan, Results, Views
from cute_fa4.calls.request import Options, Where
from cute_fa4.calls.skipping import check_tensors_of
from cute_fa4.calls.split_keys.halves import HalvesPlan, comes_in_halves, half_of
from cute_fa4.calls.split_keys.plans import OwnPartsPlan, SplitPlan
from cute_fa4.calls.split_keys.split import Clustered, OwnParts, Split, split_of
from cute_fa4.compiler import policy
from cute_fa4.layouts.cache_scales import LINEAR
from cute_fa4.operands import BLOCKS, LENGTHS, NAMES, OPERANDS, ROWS, CallTensors, fields_given
from cute_fa4.scales import Scales
from cute_fa4.sm100.choose.choose_config import config_for
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.launches import WHOLE, launches
from cute_fa4.system.devices import Target, target_of


def plan_attention(
    given: CallTensors,
    where: Where,
    options: Options,
    return_lse: bool,
    in_float32: bool = False,
) -> Callable:
    """Prepare a checked call up to its launch. Every refusal is raised here; the result launches.

    given: the tensors of the caller, of which those of `where` are views. in_float32: out, of float32 if given, is not
    rounded to the dtype of q, because it will be merged; with return_lse, and with a sink for at most one of the
    results that are merged.

    A Plan, or a function that launches with these tensors only, because there is nothing to launch or the keys are
    placeholders made here.
    """
    q, k, v, out = where.tensors.of(ROWS)
    target_of(q.device)  # refuses devices
    batch, seqlen_q = where.batch(q), where.seqlen_q(q)
    rows = batch * seqlen_q if where.q_layout == "dense" else q.shape[0]
    check_aux(options, batch, q.shape[-2], rows)
    check_out_apart(where, options)
    dtype = dtype_of_out(q, out, in_float32)
    results = Results(q, v, where.q_layout, return_lse, dtype, options.return_max)
    if q.numel() == 0 or batch == 0 or seqlen_q == 0:
        return lambda tensors: results.returned(*results.allocated(q, out))
    if k.numel() == 0 or (
        where.tensors.page_table is not None and where.tensors.page_table.numel() == 0
    ):
        if where.q_layout == "dense" and where.tensors.seqused_q is None:
            return lambda tensors: _fill_without_keys(results, q, out, options)
        where = _one_hidden_key(where, batch)
        if options.rope is not None:
            k = where.tensors.k
            where = where.replaced(k=k.new_zeros((*k.shape[:-1], q.shape[-1])))
        scales = of_made_up_keys(options.scales)
        options = replace(options, num_splits=1, tokens_per_split=None, rope=None, scales=scales)
        options = replace(options, blocks=None, skip_factor=None)  # every key is hidden
        where = where.replaced(skipped_tiles=None)
        tensors = CallTensors(
            **where.tensors.named(ROWS, LENGTHS),
            learnable_sink=options.sink,
            aux_tensors=options.aux,
            **({} if scales is None else scales.tensors),
        )
        hidden = _plan_with_keys(tensors, where, options, return_lse, in_float32)
        return lambda _: hidden(tensors)
    return _plan_with_keys(given, where, options, return_lse, in_float32)


def _plan_with_keys(
    given: CallTensors, where: Where, options: Options, return_lse: bool, in_float32: bool
) -> Plan:
    """The plan of a call that has rows and keys. The arguments are those of plan_attention."""
    q, k, v, out = where.tensors.of(ROWS)
    target, seqlen_q = target_of(q.device), where.seqlen_q(q)
    dtype = dtype_of_out(q, out, in_float32)
    results = Results(q, v, where.q_layout, return_lse, dtype, options.return_max)
    rope = 0 if options.rope is None else options.rope.depth
    if comes_in_halves(q, v, rope) and not options.latent:
        whole = given._replace(out=results.new_out(q) if out is None else out)
        of_v, v, out = (half_of(x, first=True) for x in (whole.v, v, whole.out))
        given, where = given._replace(v=of_v), where.replaced(v=v, out=out)
        half = _plan_with_keys(given, where, options, return_lse, in_float32)
        return HalvesPlan(half, results, whole)
    *views, rows_per_page = views_for_descriptors(q, k, v, out, where)
    config = config_of(where, options, rows_per_page, return_lse, target)
    skips = None if options.skip_factor is None else math.log2(options.skip_factor)
    launched = (
        (options.softmax_scale, seqlen_q, options.mask.sizes or None, _in_cache(where), skips),
        results,
        Views((given.q, given.k, given.v, out), views),
        target.executor != "nothing" and not _decided_by_contents(q.device, where),
        0
        if out is None
        else largest_extent(
            (
                *where.tensors.of(LENGTHS),
                *where.tensors.of(BLOCKS),
                options.sink,
                *(options.scales.tensors.values() if options.scales else ()),
                getattr(options.rope, "page_table", None),
            )
        ),
        None if options.scales is None else options.scales.views,
        None if options.rope is None else RopeView(options.rope),
    )
    with_lse = Results(q, v, where.q_layout, True, dtype)
    in_order = plan_in_order(q, k, where, options, config, target, with_lse, launched)
    if in_order is not None:
        return in_order
    split = split_of(q, k, where, options, config, in_float32)
    cut = WHOLE if split is None else split.cut
    early = policy.dependent_launch()
    attention, combine = launches(config, cut, return_lse, in_float32, early)
    function = function_for(attention, target)
    if isinstance(split, OwnParts):
        return OwnPartsPlan(function, split, *launched)
    if not cut.merges and not in_float32:
        return Plan(function, *launched)
    merge = None if combine is None else function_for(combine, target)
    # in_float32 without parts is one part; clusters round their result, so split_of gives none then.
    parts = Split(1) if split is None or isinstance(split, Clustered) else split
    if isinstance(parts, Split):
        parts = parts.in_runs(q, where, attention)
    return SplitPlan(function, merge, parts, combine is not None and combine.sink, *launched)


def _in_cache(where: Where) -> tuple[int, Callable] | None:
    """-> (keys per query in addition to seqused_k, the function that takes from a call the location of its cache rows).
    None: no tensor gives the number of keys."""
    if where.tensors.seqused_k is None:
        return None
    names = (name for name in NAMES[LENGTHS] if OPERANDS[name].within == "in_cache")
    return int(where.excludes_new), fields_given(where.tensors, names)


def check_out_apart(where: Where, options: Options) -> None:
    """out shares no memory with lengths, pages, sinks and aux tensors; check_out has checked q, k and v."""
    out = where.tensors.out
    if out is None:
        return
    read = where.tensors.named(LENGTHS, BLOCKS)
    scales = {} if options.scales is None else options.scales.tensors
    rope = {} if options.rope is None else options.rope.named
    read |= {"learnable_sink": options.sink, "skipped_tiles": where.tensors.skipped_tiles}
    check_apart({"out": out}, read | named_aux(options.aux) | scales | rope)


def _decided_by_contents(device: torch.device, where: Where) -> bool:
    """Whether lengths, pages and lists lie in host memory: they are checked there, and give the longest sequence."""
    of_contents = where.tensors.has(LENGTHS) or where.tensors.has(BLOCKS)
    return device.type == "cpu" and of_contents


def _fill_without_keys(results: Results, q, out, options: Options):
    """No row sees a key, so nothing is launched: a TMA descriptor cannot describe a tensor without rows."""
    out, lse = results.allocated(q, out)
    out.zero_()
    if lse is not None:
        lse.fill_(-math.inf)
        if options.sink is not None and not options.latent:  # as kernels have it: steps/sinks.py
            lse.copy_(options.sink[:, None].expand(lse.shape[1:]))
    return results.returned(out, lse)


def _one_hidden_key(where: Where, batch: int) -> Where:
    """The same where only the device knows which rows out has: K and V of one zero row outside every sequence."""
    _, k, v, _ = where.tensors.of(ROWS)
    shape = [1] * (k.dim() - 2) + list(k.shape[-2:])
    where = where.replaced(cache_batch_idx=None, cache_leftpad=None)
    if where.kv_layout == "paged":
        shape[1] = max(k.shape[1], 8)
        table = torch.zeros((batch, 1), dtype=torch.int32, device=k.device)
        where = where.replaced(page_table=table)
    elif where.kv_layout == "dense":
        shape[0] = batch
    if where.kv_layout != "packed":
        none = torch.zeros((batch,), dtype=torch.int32, device=k.device)
        where = replace(where.replaced(seqused_k=none), excludes_new=False)
    return where.replaced(k=k.new_zeros(shape), v=v.new_zeros((*shape[:-1], v.shape[-1])))


def dtype_of_out(q, out, in_float32: bool = False) -> torch.dtype:
    """The dtype of `out` if given, else that of q; for 8-bit q the default of its dtype."""
    if in_float32:
        return torch.float32
    if out is not None:
        return out.dtype
    return OUT_OF.get(q.dtype, q.dtype)


def is_float32(out) -> bool:
    """Whether the caller's out takes a result that is not rounded."""
    return out is not None and out.dtype is torch.float32


def _lengths_of(where: Where) -> dict:
    """Configuration fields for the lengths and pages of a call."""
    given = (name for name in NAMES[LENGTHS] if getattr(where.tensors, name) is not None)
    found = (OPERANDS[name].config for name in given)
    return dict(field for field in found if field is not None)


def config_of(
    where: Where, options: Options, rows_per_page: int, return_lse: object, target: Target
) -> FA4Config:
    """The configuration of a checked call whose grid fits; rows_per_page: as views_for_descriptors found."""
    q, k, v, out = where.tensors.of(ROWS)
    check_tensors_of(q, k, v, options)
    dtypes, schedules = dtypes_of(q, k, options), policy.of_schedules(options.batch_invariant)
    exact = schedules["maximum"] == "exact"
    kernel = kernel_of(q, k, v, where, options, dtypes, exact, target.arch)
    config = config_for(
        **kernel.choices,
        **dtypes,
        qkv_dtype=DTYPE_NAMES[q.dtype],
        o_dtype=DTYPE_NAMES[dtype_of_out(q, None if is_float32(out) else out)],
        descales=Scales() if options.scales is None else options.scales.said,
        v_block_scale_layout=LINEAR if options.scales is None else options.scales.v_layout,
        head_dim=head_dim_of(q, options),
        head_dim_v=columns_of(v),
        group=q.shape[-2] // k.shape[-2],
        latent=options.latent,
        write_lse=bool(return_lse),
        write_max=options.return_max,
        arch=target.arch,
        **schedules,
        mask=options.mask.mask,
        **_lengths_of(where),
        rope_depth=0 if options.rope is None else options.rope.depth,
        rope_page_size=0 if options.rope is None else options.rope.page_size,
        page_size=0 if where.tensors.page_table is None else k.shape[1],
        fold_pages=rows_per_page % 8 == 0 or gathers_rows(where, k),
        sink=options.sink is not None,
        sink_dtype="f32" if options.sink is None else SINK_DTYPES[options.sink.dtype],
        score_mod=options.score_mod,
        mask_mod=options.mask_mod,
        aux=tuple((AUX_DTYPES[tensor.dtype], tensor.dim()) for tensor in options.aux),
        skip_softmax=options.skip_factor is not None,
        count_skipped=where.tensors.skipped_tiles is not None,
        **({} if options.blocks is None else options.blocks.fields),
    )
    check_grid(config, q, where)
    return config
