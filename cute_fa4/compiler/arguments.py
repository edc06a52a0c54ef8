"""Fake arguments: types and symbols instead of data, for the compiler.

Sizes are 32-bit symbols. Sizes that must agree have one symbol, so that the compiled function checks the agreement.
Strides are 64-bit symbols divisible by what TMA needs; the head dim is a number.
"""

from __future__ import annotations

from itertools import compress

from cute_fa4.compiler.fake_tensors import fake_dense, fake_elements, fake_rows
from cute_fa4.dtypes import DTYPES
from cute_fa4.operands import (
    BLOCKS,
    LENGTHS,
    LENGTHS_OF_QUERIES,
    LENGTHS_OF_SEQUENCES,
    NAMES,
    OFFSETS_OF_SEQUENCES,
    OPERANDS,
    axes_of_list,
)
from cute_fa4.scales import BLOCK, HEAD, Scales
from cute_fa4.sm100.append.config import AppendConfig
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.backward.joint import COUNTERS
from cute_fa4.sm100.blueprint.cache_blocks import in_words
from cute_fa4.sm100.blueprint.listed import CUT_WORDS, ORDER_WORDS, has_tensors
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.launches import kept_shapes
from cute_fa4.sm100.combine.config import CombineConfig


def fake_arguments(config: FA4Config) -> dict:
    """Arguments with types and symbols instead of data, by the parameter names of SM100Kernel.__call__."""
    from cutlass import Float32, Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    batch, total_q, seqlen_q, heads_q, heads_kv = (
        sym_int(symbol=name) for name in ("batch", "total_q", "seqlen_q", "heads_q", "heads_kv")
    )
    packed_q = config.q_layout == "packed"
    rows_q = (total_q,) if packed_q else (batch, seqlen_q)
    keys = _key_sizes(config, batch, heads_kv)

    def values(sizes, depth, dtype=config.qkv_dtype):
        return fake_rows(dtype, (*sizes, depth))

    rows_o, lse = _results(config, rows_q, heads_q)
    counts = [fake_elements("i32", (2,))] * config.count_skipped
    return dict(
        mQ=values((*rows_q, heads_q), config.q_depth),
        mK=values(keys, config.stored_depth, config.stored_dtype),
        mV=values(keys, config.stored_ov_depth, config.stored_dtype),
        mO=values(rows_o, config.ov_depth, config.o_dtype),
        mLSE=lse,
        softmax_scale=Float32(1.0),
        **_lengths(config),
        max_seqlen_q=Int32(1),
        mask_sizes=_mask_sizes(config),
        sink=fake_elements(config.sink_dtype, (heads_q,)) if config.sink else None,
        aux=_aux(config),
        split=_split(config),
        in_cache=_in_cache(config) if config.seqused_k else None,
        descales=_descales(config),
        rope=_rope(config, keys, (*rows_q, heads_q)),
        blocks=_blocks(config),
        skip=(Float32(0.0), *counts) if config.skip_softmax else None,
        stream=make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _mask_sizes(config: FA4Config | BackwardConfig) -> tuple | None:
    from cutlass import Int32

    return tuple(Int32(1) for _ in range(config.mask.num_sizes)) or None


def _aux(config: FA4Config | BackwardConfig) -> tuple | None:
    return (
        tuple(fake_elements(dtype, (None,) * rank, free_last=True) for dtype, rank in config.aux)
        or None
    )


def _lengths(config: FA4Config) -> dict:
    """Tensors of lengths and pages that are parameters of the launch, by name; None: the kernel has no such tensor."""
    return {
        name: _index_tensor(name) if _has(config, name) else None
        for name in NAMES[LENGTHS]
        if OPERANDS[name].within is None
    }


def _in_cache(config: FA4Config) -> tuple:
    """The argument in_cache: the new keys of each query, and the tensors that locate its rows in a cache."""
    from cutlass import Int32

    names = [name for name in NAMES[LENGTHS] if OPERANDS[name].within == "in_cache"]
    return Int32(0), *(_index_tensor(name) for name in names if _has(config, name))


def _has(config: FA4Config, name: str) -> bool:
    """Whether the kernel has this tensor of lengths or pages."""
    asked = OPERANDS[name].config
    assert asked is not None, f"{name}: no field of the configuration asks for it"
    field, value = asked
    return getattr(config, field) == value


def _index_tensor(name: str):
    """(batch,), (batch + 1,), (batch, pages): a sum of symbols has no spelling, so the caller checks sizes."""
    from cutlass.cute import sym_int

    return fake_elements("i32", tuple(sym_int() for _ in OPERANDS[name].axes))


def _descales(config: FA4Config) -> tuple | None:
    """(batch, heads_kv); per row (batch, seqlen_q, heads, 1) or (total_q, heads, 1), per key as k without its depth.

    Per block, bytes: as q and k, with a byte for each block in place of the depth. Last those of a 4-bit cache: as k
    and v, with a word for four blocks, where those of V are not linear with a byte for each; or those of a latent
    cache: (pages, rows of a page, 2), in words.
    """
    of_q, of_keys = (
        3 if config.q_layout == "dense" else 2,
        2 if config.kv_layout == "packed" else 3,
    )
    every = []
    for tensor, kind in Scales.of(config.descales).given:
        rank, dtype = 2, "f32"
        if kind != HEAD:
            rank = of_q + 1 if tensor == "q" else of_keys + (kind == BLOCK)
        if kind == BLOCK:
            dtype = "u8"
        every.append(fake_elements(dtype, (None,) * rank, free_last=True))
    if config.cache_blocks:
        elements = ("i32" if in_words(config, name) else "u8" for name in "kv")
        every += [fake_elements(dtype, (None,) * (of_keys + 1)) for dtype in elements]
    if config.latent_blocks:
        every.append(fake_elements("i32", (None,) * of_keys))
    return tuple(every) or None


def _rope(config: FA4Config, keys: tuple, queries: tuple) -> tuple | None:
    """The columns of K that all heads share, as K of one head, or in separate pages with a page table.

    They are followed by those of Q, if Q has them in a separate tensor, and by scales, with the dimensions of rows.
    """
    from cutlass.cute import sym_int

    if not config.rope_depth:
        return None
    dtype, rows = config.rope_stored_dtype, (*keys[:-1], 1)
    further: tuple = ()
    if config.rope_page_size:
        rows = sym_int(symbol="rope_pages"), config.rope_page_size, 1
        further = (fake_elements("i32", (sym_int(), sym_int())),)
    if config.mixes_rope:
        further += (fake_rows(dtype, (*queries, config.rope_depth)),)
    if config.scale_dtype:
        further += (fake_elements("f32", (None,) * (len(rows) - 1), free_last=True),)
    return fake_rows(dtype, (*rows, config.rope_depth)), *further


def _blocks(config: FA4Config) -> tuple | None:
    """Counts and entries of the lists of partial blocks, of full ones, where those of a sequence begin, the order."""
    if not config.lists_blocks:
        return None
    names = compress(NAMES[BLOCKS], has_tensors(config))
    sizes: list = [(None,) * len(axes_of_list(name, config.packed_lists)) for name in names]
    sizes += [(None, ORDER_WORDS) if config.cut_lists else (None,)] * config.longest_first
    return tuple(fake_elements("i32", of_tensor) for of_tensor in sizes)


def _results(config: FA4Config, rows_q: tuple, heads_q) -> tuple:
    """-> (sizes of O before the depth, log-sum-exp)."""
    from cutlass.cute import sym_int

    if config.share_keys:  # a slot for each piece, with the heads of a tile
        heads, positions = config.heads_per_tile, sym_int(symbol="positions")
        in_slots = (sym_int(),) if config.q_layout == "packed" else (sym_int(), positions)
        return (*in_slots, heads), fake_elements("f32", (sym_int(symbol="slots"), heads, positions))
    lse_rows = (*rows_q[:-1], heads_q, rows_q[-1])
    if config.split_keys:
        rows_o = (sym_int(symbol="parts_and_rows"), *rows_q[1:], heads_q)
        return rows_o, fake_elements("f32", (sym_int(symbol="parts"), *lse_rows))
    of_rows = (2, *lse_rows) if config.write_max else lse_rows
    return (*rows_q, heads_q), fake_elements("f32", of_rows) if config.write_lse else None


def _split(config: FA4Config) -> tuple | None:
    from cutlass import Int32
    from cutlass.cute import sym_int

    if config.share_keys:
        return Int32(1), Int32(1), fake_elements("i32", (sym_int(symbol="blocks"), 2))
    if config.own_parts or config.cut_lists:
        number = sym_int(symbol="ctas" if config.own_parts else "slots")
        return *[Int32(1)] * config.own_parts, *(
            fake_dense("f32", (number, *shape)) for shape in kept_shapes(config)
        )
    if config.in_runs:
        return Int32(1), Int32(0), Int32(1)
    return (Int32(1), Int32(0)) if config.split_keys else None


def fake_append_arguments(config: AppendConfig) -> dict:
    """The same for AppendKernel.__call__: one cache and one set of new rows for K and for V each."""
    from cutlass import Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    heads = sym_int(symbol="heads_kv")
    new = (sym_int(symbol="total_new"), heads) if config.packed else (sym_int(), sym_int(), heads)
    cache = (sym_int(symbol="blocks"), sym_int(symbol="rows_of_block"), heads)

    def values(sizes, depth, dtype):
        row = DTYPES[dtype]
        return fake_rows(row.element, (*sizes, depth // row.in_byte))

    return dict(
        new_k=values(new, config.depth, config.new_dtype),
        new_v=values(new, config.depth_v, config.new_dtype),
        k_cache=values(cache, config.depth, config.dtype),
        v_cache=values(cache, config.depth_v, config.dtype),
        cache_seqlens=fake_elements("i32", (sym_int(),)),
        offsets=fake_elements("i32", (sym_int(),)) if config.packed else None,
        page_table=fake_elements("i32", (sym_int(), sym_int())) if config.paged else None,
        batch=Int32(1),
        cache_batch_idx=fake_elements("i32", (sym_int(),)) if config.cache_batch_idx else None,
        descales=(
            *(
                fake_elements("f32", (None,) * (2 if kind == HEAD else 3), free_last=True)
                for _, kind in Scales.of(config.descales).given
            ),
            *(fake_elements("u8", (None,) * 4) for _ in "kv" if config.of_blocks),
        )
        or None,
        stream=make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def fake_combine_arguments(config: CombineConfig) -> dict:
    """The same for CombineKernel.__call__."""
    from cutlass import Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    parts, heads, rows = (sym_int(symbol=name) for name in ("parts", "heads_q", "rows"))
    total, seqlen_q = sym_int(symbol="parts_and_rows"), sym_int(symbol="seqlen_q")
    further = () if config.packed else (seqlen_q,)
    of_lse = (heads, rows) if config.packed else (rows, heads, seqlen_q)
    partial_o, partial_lse = (total, *further, heads), (parts, *of_lse)
    if config.shared:
        slots, of_tile, positions = (sym_int(symbol=x) for x in ("slots", "of_tile", "positions"))
        in_slots = (sym_int(),) if config.packed else (slots, positions)
        partial_o, partial_lse = (*in_slots, of_tile), (slots, of_tile, positions)
    words = CUT_WORDS if config.cut else 2 * config.shared
    if config.cut:
        partial_o = partial_lse = tuple(sym_int(symbol=x) for x in ("slots", "positions"))
    return dict(
        partial_o=fake_rows(config.partial_dtype, (*partial_o, config.depth)),
        partial_lse=fake_elements("f32", partial_lse),
        parts=fake_elements("i32", (sym_int(symbol="blocks"), words)) if words else None,
        out=fake_rows(config.o_dtype, (rows, *further, heads, config.depth)),
        lse=fake_elements("f32", of_lse) if config.write_lse else None,
        **{
            name: _index_tensor(name) if given else None
            for name, given in zip(
                LENGTHS_OF_QUERIES, (config.packed, config.seqused_q), strict=True
            )
        },
        max_seqlen_q=Int32(1),
        sink=fake_elements(config.sink_dtype, (heads,)) if config.sink else None,
        stream=make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def fake_backward_arguments(config: BackwardConfig) -> dict:
    """The same for BackwardKernel.__call__."""
    from cutlass import Float32, Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    names = "batch", "seqlen_q", "seqlen_k", "heads_q", "heads_kv"
    batch, rows_q, rows_k, heads_q, heads_kv = (sym_int(symbol=name) for name in names)
    of_batch = () if config.packed else (batch,)
    queries, keys = (*of_batch, rows_q, heads_q), (*of_batch, rows_k, heads_kv)

    def values(sizes, depth, dtype=config.dtype):
        return fake_rows(dtype, (*sizes, depth))

    in_batch = LENGTHS_OF_SEQUENCES if config.used else OFFSETS_OF_SEQUENCES
    lengths = Int32(1), Int32(1), *(fake_elements("i32", (sym_int(),)) for _ in in_batch)
    sides = (queries, config.depth), (keys, config.depth), (keys, config.depth_v)
    written: tuple = tuple(values(*side, config.grad_dtype) for side in sides)
    if config.joint:
        counters = fake_rows("i32", (sym_int(symbol="counters"), COUNTERS))
        total = () if config.accumulate else (values(*sides[0], "f32"),)
        written = *written, counters, *total
    if config.wanted:
        ctas = sym_int(symbol="ctas")
        lines = tuple(fake_rows("f32", (ctas, sym_int())) for _ in config.summed)
        written = lines, Int32(1)
    return dict(
        q=values(queries, config.depth),
        k=values(keys, config.depth),
        v=values(keys, config.depth_v),
        o=values(queries, config.depth_v),
        lse=fake_elements("f32", (*of_batch, heads_q, rows_q)),
        do=values(queries, config.depth_v),
        dlse=fake_elements("f32", (*of_batch, heads_q, rows_q)) if config.dlse else None,
        written=written,
        stats=fake_rows("f32", (heads_q, sym_int(symbol="tiles"), config.numbers_of_tile)),
        softmax_scale=Float32(1.0),
        mask_sizes=_mask_sizes(config),
        aux=_aux(config),
        lengths=lengths if config.packed else None,
        lists=_fake_lists(config),
        stream=make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def _fake_lists(config: BackwardConfig) -> tuple | None:
    """Counts, entries and order of tiles for both owners, or for that of queries alone without an order."""
    from cutlass.cute import sym_int

    if not config.listed:
        return None
    dims = [3, 4] if config.wanted else [3, 4, 1] * 2
    return tuple(fake_elements("i32", tuple(sym_int() for _ in range(rank))) for rank in dims)


def _key_sizes(config: FA4Config, batch, heads_kv) -> tuple:
    """Sizes of K and V before the depth."""
    from cutlass.cute import sym_int

    if config.kv_layout == "dense":
        if config.cache_batch_idx:
            batch = sym_int(symbol="cache_batch")
        return (batch, sym_int(symbol="seqlen_k"), heads_kv)
    if config.kv_layout == "packed":
        return (sym_int(symbol="total_k"), heads_kv)
    pages = sym_int(symbol="num_pages")
    rows = config.page_size
    if config.binds_page_size:
        rows = sym_int(symbol="page_size", divisibility=config.page_size)
    return (pages, heads_kv, rows) if config.page_heads_first else (pages, rows, heads_kv)
