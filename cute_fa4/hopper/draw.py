"""Random tensors of a problem: rows, scales, pages, and fillers for unused rows."""

from __future__ import annotations

import math
from itertools import accumulate

import torch

from cute_fa4 import BlockSparseTensors, nvfp4
from cute_fa4.calls.operands.latent_rows import (
    LATENT,
    ROPE,
    numbers_in_pages,
    numbers_of,
    rows_from,
)
from cute_fa4.dtypes import E4M3, E8M0
from cute_fa4.hopper.variant import DTYPES, Problem, Variant
from cute_fa4.mla import write_latent_rows
from cute_fa4.sm100.choose.choose_config import LATENT_BYTES_IN_PAGE, LATENT_PAGE_ROW_BYTES


def values(variant: Variant, device: str, *shape: int, of: str = "k"):
    """Normal numbers; all heads of K share the last columns where the variant says so."""
    drawn = torch.randn(*shape, variant.depth(of), device=device)
    if variant.rope and of == "k":
        shared = drawn[..., :1, -variant.rope :]
        if variant.rope_dtype:
            shared = shared.to(DTYPES[variant.rope_dtype]).float()
        drawn[..., -variant.rope :] = shared
    return drawn.to(variant.dtype_of(of))


O_SCALE = 64.0
"""For 8-bit outputs: averages of 70,000 values are 0.004, of one 4; normal e4m3 numbers are 0.016 to 448."""


def scales(variant: Variant, problem: Problem, device: str) -> dict:
    """The scales that a call of this variant passes, one for each sequence and head."""
    shape = len(problem.keys), problem.heads // variant.group
    names = ("k_descale", "v_descale") if variant.cache in DTYPES else ()
    drawn = {name: 0.5 + 1.5 * torch.rand(shape, device=device) for name in names}
    if variant.out:
        drawn["o_scale"] = torch.full((1,), O_SCALE, device=device)
    return drawn


def of_tokens(rows):
    """(a scale between 0.5 and 2 for each token and head, the rows times it)."""
    scale = 0.5 + 1.5 * torch.rand(rows.shape[:-1], device=rows.device)
    return scale, rows.double() * scale.double()[..., None]


COLUMNS_OF_A_SCALE = E4M3.block


def of_blocks(rows):
    """(e8m0, 2^-3 to 2^1, for each 32 columns, the rows times it)."""
    sizes = (*rows.shape[:-1], rows.shape[-1] // COLUMNS_OF_A_SCALE)
    power = torch.randint(-3, 2, sizes, device=rows.device)
    meant = rows.double() * (2.0**power).repeat_interleave(COLUMNS_OF_A_SCALE, -1)
    return (power + 127).to(torch.uint8).view(E8M0.torch), meant


GLOBAL_SCALE = 0.25
"""Of 4-bit caches; blocks of 16 normal numbers have block scales around 1 with it."""


def of_4_bits(rows):
    """(codes, scales of 16 columns, the numbers that they mean)."""
    codes, scales, factor = nvfp4.quantize(rows, GLOBAL_SCALE)
    return codes, scales, nvfp4.dequantize(codes, scales, factor)


FULL, PARTIAL = 0, 1
"""Kinds of a block of scores that is listed; two more kinds are not."""


def kind_of_block(head, of_queries, of_keys):
    return (3 * of_queries + 5 * of_keys + head) % 4


def two_thirds(batch, head, q_idx, kv_idx):
    """The mask of partial blocks."""
    return (q_idx + kv_idx) % 3 != 0


def block_lists(variant: Variant, problem: Problem, device: str) -> BlockSparseTensors:
    assert variant.blocks is not None
    rows = (problem.queries[0], problem.keys[0])
    numbers = [-(-n // size) for n, size in zip(rows, variant.blocks, strict=True)]
    heads, of_queries, of_keys = (torch.arange(n, device=device) for n in (problem.heads, *numbers))
    kinds = kind_of_block(heads[:, None, None], of_queries[:, None], of_keys)[None]
    lists: dict = {}
    for name, kind in (("mask", PARTIAL), ("full", FULL)):
        lists[f"{name}_block_cnt"] = (kinds == kind).sum(-1, dtype=torch.int32)
        first = (kinds == kind).int().argsort(dim=-1, descending=True, stable=True)
        lists[f"{name}_block_idx"] = first.to(torch.int32)
    return BlockSparseTensors(**lists, block_size=variant.blocks)


def starts(numbers) -> list[int]:
    """
    >>> starts((5, 0, 7))
    [0, 5, 5, 12]
    """
    return list(accumulate(numbers, initial=0))


def int32(numbers, device: str):
    return torch.tensor(numbers, dtype=torch.int32, device=device)


SPARE_PAGES = 3


def pages(variant: Variant, problem: Problem, device: str):
    """(the index of each page of each sequence in a pool, page table with garbage after each sequence)."""
    numbers = [-(-n // variant.page_size) for n in problem.keys]
    most = max(max(numbers), 1) + 2
    order = torch.randperm(sum(numbers) + SPARE_PAGES, device=device)
    table = torch.randint(-(2**31), 2**31 - 1, (len(numbers), most), device=device).to(torch.int32)
    for i, first in enumerate(starts(numbers)[:-1]):
        table[i, : numbers[i]] = order[first : first + numbers[i]].to(torch.int32)
    return order, table


def pool(variant: Variant, problem: Problem, device: str, order, of: str):
    """(pages with NaN in unused rows, the rows of each sequence)."""
    heads = problem.heads // variant.group
    rows = [values(variant, device, n, heads, of=of) for n in problem.keys]
    pages = in_pages(rows, variant.page_size, order, math.nan)
    return (pages.transpose(1, 2).contiguous() if variant.heads_first else pages), rows


def in_pages(rows, size: int, order, filler):
    """Rows of each sequence -> (pages, size, ...), in this order, with the filler in unused rows."""
    blank = torch.full((), filler, device=order.device).to(rows[0].dtype)
    pages = blank.expand(len(order), size, *rows[0].shape[1:]).clone()
    first = 0
    for own in rows:
        number = -(-len(own) // size)
        padded = blank.expand(number * size, *own.shape[1:]).clone()
        padded[: len(own)] = own
        pages[order[first : first + number]] = padded.view(number, size, *own.shape[1:])
        first += number
    return pages


NO_NUMBER = 255
"""Byte that is NaN as e4m3 and e8m0, four of them as a float32 scale, two as bf16."""


def latent_pool(variant: Variant, problem: Problem, device: str, order):
    """As pool(): (latent cache, dequantized rows of K)."""
    if variant.cache == "row pages":
        return _row_pages(variant, problem, device, order)
    if variant.cache != "rows":
        return pool(variant, problem, device, order, "k")
    stored = []
    for keys in problem.keys:
        row = values(variant, device, keys, 1)
        stored.append(rows_from(row[..., :LATENT], row[..., LATENT:]))
    cache = in_pages(stored, variant.page_size, order, NO_NUMBER)
    return cache, [numbers_of(rows) for rows in stored]


def _row_pages(variant: Variant, problem: Problem, device: str, order):
    """Pages of rows of 584 bytes, a multiple of 576 bytes apart, NaN where no row is."""
    size = variant.page_size
    used = size * LATENT_BYTES_IN_PAGE
    apart = -(-used // LATENT_PAGE_ROW_BYTES) * LATENT_PAGE_ROW_BYTES
    pages = torch.full((len(order), apart), NO_NUMBER, dtype=torch.uint8, device=device)
    cache = pages[:, :used].view(len(order), size, 1, LATENT_BYTES_IN_PAGE)
    first, places = 0, []
    for keys in problem.keys:
        key = torch.arange(keys, device=device)
        places.append(order[first + key // size] * size + key % size)
        row = values(variant, device, keys, 1)[:, 0]
        latent, rope = row.split((LATENT - ROPE, ROPE), -1)
        write_latent_rows(cache, latent, rope, places[-1])
        first += -(-keys // size)
    numbers = numbers_in_pages(cache).flatten(0, 1)
    return cache, [numbers[place] for place in places]


def listed(variant: Variant, problem: Problem, table, rows) -> tuple:
    """(indices, the rows that each query of each sequence lists): keys in any order, with -1; lists may be short."""
    queries, size = problem.queries[0], variant.page_size
    indices = table.new_full((len(rows), queries, variant.listed), -1)
    seen: list[list] = []
    for i, own in enumerate(rows):
        seen.append([])
        for query in range(queries):
            keys = torch.randperm(len(own), device=own.device)[: variant.listed - 1]
            places = torch.randperm(variant.listed, device=own.device)[: len(keys)]
            rows_of_pool = table[i, keys // size] * size + (keys % size).to(torch.int32)
            indices[i, query, places] = rows_of_pool
            seen[-1].append(own[keys])
    return indices, seen
