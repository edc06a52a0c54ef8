"""Calls the append kernel once and compares the cache with the expected one: rows, or bytes of nvfp4 or mxfp8."""

from __future__ import annotations

import torch

from cute_fa4 import mxfp8, nvfp4
from cute_fa4.calls.append import prepare_append
from cute_fa4.calls.operands.scales import checked_scales
from cute_fa4.commands.trial_pages import DTYPES, page_table, pages
from cute_fa4.dtypes import row_of
from cute_fa4.layouts.cache_scales import INTERLEAVED4
from cute_fa4.operands import CallTensors
from cute_fa4.scales import Scales
from cute_fa4.sm100.append.config import AppendConfig

QUERIES = (5, 3)  # new rows of the two sequences
PAGE = 8  # rows of a page: sequences have two or three
ROWS = 20  # of a sequence without pages: more than it has
HEADS = 2


def wrong_elements(config: AppendConfig, device: str) -> tuple[float, float]:
    """Every bit must be right: the error is the number of wrong elements, and 0 is allowed."""
    generator, (long, short) = torch.Generator().manual_seed(0), QUERIES
    dtype, held = DTYPES[config.new_dtype], (12, 7)
    new = (long, short) if config.packed else (long, long)
    total = [h + n for h, n in zip(held, new, strict=True)]
    depths = {"k": config.depth, "v": config.depth_v}
    rows = {
        x: [torch.randn(n, HEADS, depth, generator=generator).to(dtype) for n in total]
        for x, depth in depths.items()
    }
    descales = {
        f"{x}_descale": 0.01 + torch.rand(2, HEADS, generator=generator)
        for x, _ in Scales.of(config.descales).given
    }
    stored = _stored(config, rows, descales) if config.of_blocks else rows
    before = {x: [r.clone() for r in stored[x]] for x in stored}
    for x in before:
        for b, sequence in enumerate(before[x]):
            sequence[held[b] :] = 0
    table = page_table(total, PAGE) if config.paged else None
    order = [1, 0] if config.cache_batch_idx else [0, 1]

    def cache(x, sequences):
        kept = sequences[0].dtype
        if table is not None:
            rows = torch.nan_to_num(pages([x.float() for x in sequences], table, PAGE)).to(kept)
        else:
            rows = torch.zeros(2, ROWS, *sequences[0].shape[1:], dtype=kept)
            for b, sequence in enumerate(sequences):
                rows[order[b], : len(sequence)] = sequence
        if x == "v_block_scale" and config.v_block_scale_layout == INTERLEAVED4:
            return nvfp4.interleaved(rows.transpose(1, 2)).transpose(1, 2).contiguous()
        return rows

    def new_rows(x):
        parts = [sequence[held[b] :] for b, sequence in enumerate(rows[x])]
        return (torch.cat(parts) if config.packed else torch.stack(parts)).to(device)

    caches = {x: cache(x, before[x]).to(device) for x in before}
    lengths = torch.tensor(held, dtype=torch.int32, device=device)
    offsets = None
    if config.packed:
        offsets = torch.tensor([0, long, long + short], dtype=torch.int32, device=device)
    given = None if table is None else table[order].to(device)
    picked = None
    if config.cache_batch_idx:
        picked = torch.tensor(order, dtype=torch.int32, device=device)
    new_k, new_v = map(new_rows, rows)
    scales = {x: of.to(device) for x, of in descales.items()}
    row, seen = row_of(config.dtype), dict(caches)
    if row.cache_scales is not None:  # bytes up to here
        kinds = {True: DTYPES[row.element], False: row.cache_scales.torch}
        seen = {x: of.view(kinds[x in rows]) for x, of in caches.items()}
    scales |= {x: of for x, of in seen.items() if x not in rows}
    tensors = CallTensors(
        q=torch.empty(2, 1, HEADS, config.depth, dtype=dtype, device=device),
        k=seen["k"],
        v=seen["v"],
        seqused_k=lengths,
        page_table=given,
        cache_batch_idx=picked,
        new_k=new_k,
        new_v=new_v,
        cu_seqlens_k_new=offsets,
        **scales,
    )
    checked = checked_scales(tensors, 2, v_layout=config.v_block_scale_layout)
    append = prepare_append(tensors, 2, scales=checked, four_over_six=config.four_over_six)
    assert append is not None  # there are rows
    append(tensors)
    wrong = sum((got.cpu() != cache(x, stored[x])).sum().item() for x, got in caches.items())
    return float(wrong), 0.5


def _stored(config: AppendConfig, rows: dict, descales: dict) -> dict:
    """Bytes of numbers of k and v, and of their scales, by the names of the tensors: of each sequence one tensor."""
    found: dict[str, list] = {}
    for x, sequences in rows.items():
        for b, sequence in enumerate(sequences):
            factors = descales[f"{x}_descale"][b] if f"{x}_descale" in descales else [1.0] * HEADS
            parts = [_quantized(config, sequence[:, h], factors[h]) for h in range(HEADS)]
            for name, of in zip((x, f"{x}_block_scale"), zip(*parts, strict=True), strict=True):
                found.setdefault(name, []).append(torch.stack([t.view(torch.uint8) for t in of], 1))
    return found


def _quantized(config: AppendConfig, rows: torch.Tensor, factor) -> tuple:
    """-> (numbers, scales of their blocks) of the rows of a head."""
    if row_of(config.dtype).in_byte > 1:
        return nvfp4.quantize(rows, factor, config.four_over_six)[:2]
    return mxfp8.quantise(rows.float() / factor)
