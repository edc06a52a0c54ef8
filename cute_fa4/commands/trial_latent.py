"""Calls a kernel over a latent cache (MLA) once, and compares with float64 over the numbers that the cache stands for.

    rows of the cache     of the call
    16 bits, or 8         a tensor of 576 or 512 columns; with scales of sequences or of rows where the kernel has them
    656 bytes             FlashMLA's, written by write_latent_rows
    584 bytes             DeepSeek V4's, likewise
    pages of one key      of one query without a mask a list (sparse attention), otherwise a page table of keys

Rows that belong to no sequence are NaN in all of their bytes.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from cute_fa4.calls.operands.latent_rows import numbers_in_pages, numbers_of
from cute_fa4.commands import trial_scales
from cute_fa4.commands.trial_pages import (
    ALLOWED_ERROR,
    ALLOWED_LSE_ERROR,
    DTYPES,
    NotTried,
    lengths_of_keys,
    num_splits,
    page_table,
)
from cute_fa4.mla import flash_mla_with_kvcache, write_latent_rows
from cute_fa4.scales import HEAD, ROW, Scales
from cute_fa4.sm100.blueprint import bands
from cute_fa4.sm100.blueprint.latent_rows import ROTARY_COLUMNS
from cute_fa4.sm100.choose.choose_config import LATENT_DEPTHS, LATENT_ROW_BYTES
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel

VALUES = LATENT_DEPTHS[1]  # columns of a row that are values
MOST_QUERIES = 130  # of one head, more rows than any tile has
ROWS_OF_PAGE = 4  # of a cache whose keys are listed
BYTES_IN_PAGE = 584
NAN = 0xFF  # a byte of which float8, bf16, fp16 and float32 have NaN
# Numbers of 8 bits become bf16 before S: 2^-9 of a key, in a score of a size of about 1.
ALLOWED_LSE_ERROR_OF_ROWS = 2e-2


def worst(config: FA4Config, device: str) -> tuple[float, float]:
    """-> (error, allowed) of the worst of out, log-sum-exp and largest scores."""
    cache, queries = _Cache(config, device), _queries(config)
    lengths = tuple(n + queries for n in lengths_of_keys(config))
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(2, queries, config.group, config.qk_depth, generator=generator)
    sink = torch.randn(config.group, generator=generator).to(DTYPES[config.sink_dtype])
    q = q.to(torch.bfloat16 if Scales.of(config.descales).q == ROW else DTYPES[config.qkv_dtype])
    rows, where = cache.filled(lengths, queries)
    given = where | _scales(config, cache, device)
    if config.sink:
        given["learnable_sink"] = sink.to(device)
    if config.o_dtype == "f32" and not config.split_keys:
        given["out"] = torch.empty(*q.shape[:-1], VALUES, device=device)
    if config.kv_dtype is not None and config.scale_dtype is None:
        given["q_quantize"] = "never"
    found = flash_mla_with_kvcache(
        q.to(device), num_splits=num_splits(config), return_max_logits=config.write_max, **given
    )
    differences = []
    for b in range(2):
        scores, values = _scored(config, q[b], rows[b], given, b)
        exact = _exact(scores, values, sink.double() if config.sink else None)
        largest = [scores.amax(-1)] if config.write_max else []
        of_call = [x[b].cpu().double() for x in found]
        for got, wanted in zip(of_call, [*exact, *largest], strict=True):
            difference = torch.where(got == wanted, 0.0, got - wanted).abs()
            differences.append(torch.nan_to_num(difference, nan=math.inf).max().item())
    number = len(found)
    errors = [max(differences[i::number]) for i in range(number)]
    allowed = _allowed(config)
    bounds = (allowed[0], *(allowed[1],) * (number - 1))
    return max(zip(errors, bounds, strict=True), key=lambda pair: pair[0] / pair[1])


def _queries(config: FA4Config) -> int:
    """Queries of each sequence for which calls choose this kernel."""
    wanted = config.schedule.family, getattr(config.schedule, "rows", None)
    for queries in range(1, MOST_QUERIES):
        call = Call(
            config.qkv_dtype, config.qk_depth, VALUES, kv_dtype=config.kv_dtype, group=config.group,
            seqlen_q=queries, latent=True, of_rows=config.scale_dtype is not None, descales=config.descales,
            mask=config.mask, arch=config.arch,
        )  # fmt: skip
        found = which_kernel(call)
        if found.family == wanted[0] and found.rows in (wanted[1], None):
            return queries
    raise NotTried(f"no number of queries of {config.group} heads asks for it")


class _Cache:
    """A latent cache in the form of a configuration, filled with NaN."""

    def __init__(self, config: FA4Config, device: str):
        if config.mask not in (bands.Full(), bands.Causal()):
            raise NotTried(f"mask={config.mask!r}: calls over latent caches have none")
        self.config, self.device = config, device
        self.listed = config.page_size == 1
        self.page = ROWS_OF_PAGE if self.listed else config.page_size
        self.in_pages = config.latent_blocks
        self.of_bytes = self.in_pages or config.scale_dtype is not None

    def filled(self, lengths: tuple, queries: int) -> tuple[list, dict]:
        """-> (the numbers of each sequence, float64; the cache, and where its keys are, as the call takes them)."""
        config = self.config
        self.listed = self.listed and queries == 1 and config.mask == bands.Full()
        if config.page_size == 1 and not (self.listed or self.in_pages):
            self.page = 1  # a page table that says every key
        table = page_table(lengths, self.page)
        generator = torch.Generator().manual_seed(0)
        drawn = [torch.randn(n, config.qk_depth, generator=generator) for n in lengths]
        slots = [table[b, torch.arange(n) // self.page] * self.page + torch.arange(n) % self.page
                 for b, n in enumerate(lengths)]  # fmt: skip
        pages = int(table.max()) + 1
        cache = self._written(pages, torch.cat(drawn), torch.cat(slots))
        numbers = self._numbers(cache).flatten(0, 1)
        self.pages, self.slots = pages, slots
        said: dict[str, Any] = {
            "k_cache": cache.to(self.device),
            "block_table": None,
            "cache_seqlens": None,
        }
        if self.listed:
            listed = torch.full((2, 1, max(lengths)), -1, dtype=torch.int32)
            for b, own in enumerate(slots):
                listed[b, 0, : len(own)] = own.int()
            said["indices"] = listed.to(self.device)
        else:
            said["block_table"] = table.to(self.device)
            said["cache_seqlens"] = torch.tensor(lengths, dtype=torch.int32, device=self.device)
            said["causal"] = config.mask == bands.Causal()
        return [numbers[own].double() for own in slots], said

    def _written(self, pages: int, rows: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        if not self.of_bytes:
            dtype = DTYPES[self.config.kv_dtype or self.config.qkv_dtype]
            of_row = rows.shape[1] * dtype.itemsize
            cache = torch.full((pages * self.page, of_row), NAN, dtype=torch.uint8)
            cache[slots] = rows.to(dtype).view(torch.uint8)
            return cache.view(dtype).view(pages, self.page, 1, -1)
        of_row = BYTES_IN_PAGE if self.in_pages else LATENT_ROW_BYTES
        apart = self.page * of_row
        if self.in_pages:  # pages are a multiple of the bytes of a row without its scales apart
            apart += -apart % (of_row - 8)
        pool = torch.full((pages, apart), NAN, dtype=torch.uint8)
        cache = pool[:, : self.page * of_row].view(pages, self.page, 1, of_row)
        at = rows.shape[1] - ROTARY_COLUMNS
        write_latent_rows(cache, rows[:, :at], rows[:, at:], slots)
        return cache

    def _numbers(self, cache: torch.Tensor) -> torch.Tensor:
        """(num_pages, page_size, columns)."""
        if self.in_pages:
            return numbers_in_pages(cache)[:, :, 0]
        return (numbers_of(cache) if self.of_bytes else cache.double())[:, :, 0]


def _scales(config: FA4Config, cache: _Cache, device: str) -> dict:
    """descale_q and descale_k: from 0.5 to 1.5, of each sequence or of each row of the cache."""
    generator, said = torch.Generator().manual_seed(2), {}
    for tensor, kind in Scales.of(config.descales).given:
        if tensor == "v" or (tensor, kind) == ("q", ROW):
            continue  # those of K; and those of queries that the call quantizes
        shape = (2,) if kind == HEAD else (cache.pages, cache.page)
        said[f"descale_{tensor}"] = (0.5 + torch.rand(shape, generator=generator)).to(device)
    return said


def _scored(config: FA4Config, q, rows, given: dict, b: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (scores (heads, queries, keys), values (keys, columns)) of a sequence, float64."""
    of_q = float(given["descale_q"][b]) if "descale_q" in given else 1.0
    if "descale_k" in given:
        rows = rows * _of_keys(given["descale_k"].cpu().double(), given, b, len(rows))
    scores = torch.einsum("mhd,nd->hmn", q.double() * of_q, rows) * config.qk_depth**-0.5
    if given.get("causal"):
        m, n = scores.shape[1:]
        scores = scores.masked_fill(torch.arange(n) > torch.arange(m)[:, None] + n - m, -math.inf)
    return scores, rows[:, :VALUES]


def _of_keys(scale: torch.Tensor, given: dict, b: int, keys: int) -> torch.Tensor:
    if scale.dim() == 1:
        return scale[b]
    page, order = scale.shape[1], torch.arange(keys)
    if given.get("indices") is not None:
        slots = given["indices"][b, 0, :keys].cpu().long()
    else:
        slots = given["block_table"][b].cpu().long()[order // page] * page + order % page
    return scale.flatten()[slots][:, None]


def _exact(scores: torch.Tensor, values: torch.Tensor, sink) -> tuple[torch.Tensor, torch.Tensor]:
    """-> (out (queries, heads, columns), log-sum-exp (heads, queries)); the sink counts in both."""
    if sink is not None:
        scores = torch.cat([scores, sink[:, None, None].expand(*scores.shape[:2], 1)], -1)
        values = torch.cat([values, torch.zeros_like(values[:1])])
    return torch.einsum("hmn,nd->mhd", scores.softmax(-1), values), scores.logsumexp(-1)


def _allowed(config: FA4Config) -> tuple[float, float]:
    """Bounds of out, and of the log-sum-exp and the largest score."""
    if config.is_quantized:
        return trial_scales.ALLOWED_ERROR, trial_scales.ALLOWED_LSE_ERROR
    of_rows = config.scale_dtype is not None
    of_lse = ALLOWED_LSE_ERROR_OF_ROWS if of_rows else ALLOWED_LSE_ERROR
    return ALLOWED_ERROR[config.qkv_dtype], of_lse
