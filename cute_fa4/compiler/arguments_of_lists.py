"""Fake arguments of the kernels that make lists for attention: of key blocks (work/lists), of keys (indexer)."""

from __future__ import annotations

from cute_fa4.compiler.fake_tensors import fake_elements, fake_rows
from cute_fa4.dtypes import E4M3
from cute_fa4.sm100.blueprint.listed import OF_CUT
from cute_fa4.sm100.indexer.config import DEPTH, IndexerConfig, TopKConfig
from cute_fa4.sm100.work.lists.config import BlockListsConfig


def fake_block_lists_arguments(config: BlockListsConfig) -> dict:
    """Fake arguments of __call__ of ListsKernel, OrderKernel, LongestKernel and CutKernel."""
    from cutlass import Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    def numbers(rank: int, dtype: str = "i32"):
        return fake_elements(dtype, (None,) * rank)

    def pair(rank: int):
        return numbers(rank), numbers(rank)

    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    if config.makes == "order":
        sizes = tuple(sym_int() for _ in range(5))
        kinds = fake_elements("u8", sizes, free_last=True)
        return dict(kinds=kinds, counts=numbers(3), entries=numbers(4), stream=stream)
    if config.makes in ("longest", "cut"):
        given = dict(counts=pair(3), first_blocks=numbers(1), flags=(Int32(1), Int32(1)))
        number, written = 6, {"order": numbers(1)}
        if config.makes == "longest":
            given["offsets"] = numbers(1)
        if config.makes == "cut":
            written = {x: fake_elements("i32", (None, n)) for x, n in OF_CUT.items()}
        return dict(**given, sizes=tuple(Int32(1) for _ in range(number)), **written, stream=stream)
    results: tuple = (numbers(4, "u8"),)
    if config.makes == "tiles":
        results = numbers(3), numbers(4), numbers(3), numbers(4), numbers(4, "u8")
    return dict(
        counts=pair(3),
        entries=pair(4),
        places=pair(1),
        lengths=pair(1),
        flags=tuple(Int32(1) for _ in range(5)),
        sizes=tuple(Int32(1) for _ in range(6)),
        results=results,
        stream=stream,
    )


def fake_indexer_arguments(config: IndexerConfig) -> dict:
    """Fake arguments of IndexerKernel.__call__."""
    from cutlass import Int32
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    names = "batch", "queries", "rows", "pages", "keys"
    batch, queries, rows, pages, keys = (sym_int(symbol=name) for name in names)
    by_row = config.ends == "rows"
    return dict(
        q=fake_rows(E4M3.name, (batch, queries, config.heads, DEPTH)),
        k=fake_rows(E4M3.name, (rows, pages, DEPTH)),
        k_scale=fake_elements("f32", (rows, pages), free_last=True),
        weights=fake_elements("f32", (batch, queries, config.heads), free_last=True),
        starts=None if config.page_size else fake_elements("i32", (batch, queries)),
        ends=fake_elements("i32", (batch, queries) if by_row else (batch,)),
        pages=fake_elements("i32", (batch, sym_int())) if config.page_size else None,
        logits=fake_elements("f32", (batch, queries, keys)),
        tiles_each=Int32(1),
        stream=make_fake_stream(use_tvm_ffi_env_stream=True),
    )


def fake_topk_arguments(config: TopKConfig) -> dict:
    """Fake arguments of TopKKernel.__call__, of any configuration."""
    from cutlass.cute import sym_int
    from cutlass.cute.runtime import make_fake_stream

    rows = sym_int(symbol="rows")
    return dict(
        logits=fake_elements("f32", (rows, sym_int())),
        starts=fake_elements("i32", (rows,)),
        ends=fake_elements("i32", (rows,)),
        indices=fake_elements("i32", (rows, sym_int())),
        stream=make_fake_stream(use_tvm_ffi_env_stream=True),
    )
