"""FlashMLA's tests of sparse attention, ported: its inputs, reference and tolerances, at sizes that an emulator runs.

deepseek-ai/FlashMLA at 9241ae3 (2026-04-29): tests/test_flash_mla_sparse_prefill.py, test_flash_mla_sparse_decoding.py,
lib.py, ref.py and quant.py:

    every tensor is a slice of a larger one        rows that no list has are NaN
    576 columns: rows of 656 bytes, a row of room after each page
    512 columns: rows of 584 bytes, pages padded to a multiple of 576; a second cache with lists of its own
    indices: as many valid ones as there are, then numbers that are no row; lengths of lists; sinks of either infinity

A row without keys has lse -inf here, there +inf.
"""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from cute_fa4 import emulator, flash_mla_sparse_fwd, flash_mla_with_kvcache

pytestmark = pytest.mark.filterwarnings("ignore")
NO_ROW = (-(2**31), -123456, -1, None, 114514, 2147480000, 2**31 - 1)  # None: the number of rows
VALUES = 512


def slice_of_more(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a slice of a tensor with one more of everything, and 128 more columns."""
    room = torch.zeros(
        [n + 1 for n in tensor.shape[:-1]] + [tensor.shape[-1] + 128], dtype=tensor.dtype
    )
    part = room[tuple(slice(n) for n in tensor.shape)]
    part.copy_(tensor)
    return part


def lists_of(count: int, width: int, rows: int, fillers: tuple, generator) -> torch.Tensor:
    """(count, width) int32: rows in random order, and fillers where there are fewer."""
    out = torch.empty(count, width, dtype=torch.int32)
    for line in out:
        picked = torch.randperm(rows, generator=generator)[:width]
        line[: len(picked)] = picked
        which = torch.randint(len(fillers), (width - len(picked),), generator=generator)
        line[len(picked) :] = torch.tensor([fillers[i] for i in which], dtype=torch.int32)
    return out


def sinks_of(heads: int, generator) -> torch.Tensor:
    sink = torch.randn(heads, generator=generator)
    infinite = torch.randn(heads, generator=generator)
    sink[infinite < -0.5], sink[infinite > 0.5] = -math.inf, math.inf
    return sink


def reference(q, rows, valid, scale: float, sink):
    """float32, as ref.py: q (n, heads, d), rows (n, keys, d), valid (n, keys) -> out, max_logits, lse."""
    scores = q.float() @ rows.float().nan_to_num(0.0).transpose(1, 2) * scale
    scores = scores.masked_fill(~valid[:, None], -math.inf)
    lse = scores.logsumexp(-1)
    total = lse if sink is None else torch.logaddexp(lse, sink.expand_as(lse))
    weights = (scores - total.nan_to_num(neginf=math.inf)[..., None]).exp()
    return weights @ rows.float().nan_to_num(0.0)[..., :VALUES], scores.amax(-1), lse


def agrees(name: str, found, expected, absolute: float, relative: float, cosine: float) -> None:
    """As kernelkit's check: infinities at the same places, and each number within one of two bounds."""
    assert torch.equal(found.isinf(), expected.isinf()) and not found.isnan().any(), name
    a, b = (x.double().nan_to_num(posinf=0.0, neginf=0.0) for x in (found, expected))
    error = (a - b).abs()
    assert ((error < absolute) | (error < relative * (b.abs() + 1e-6))).all(), (name, error.max())
    assert (
        1 - 2 * (a * b).sum() / ((a * a).sum() + (b * b).sum()).clamp(min=1e-12) < cosine
        or not b.any()
    )


@pytest.mark.parametrize(
    "columns, heads, queries, rows, width, sinks, lengths",
    [
        (576, 128, 2, 128, 128, False, False),
        (576, 128, 3, 95, 128, True, True),
        (512, 128, 3, 114, 256, True, False),
        (576, 64, 3, 153, 256, False, True),
        (512, 64, 2, 592, 128, True, True),
        (512, 64, 1, 32, 512, True, True),
    ],
)  # fmt: skip
def test_sparse_prefill(columns, heads, queries, rows, width, sinks, lengths):
    generator = torch.Generator().manual_seed(columns + heads + width)
    q, kv = (
        slice_of_more((torch.randn(*shape, columns, generator=generator) / 10 + 0.02).bfloat16())
        for shape in ((queries, heads), (rows, 1))
    )
    fillers = tuple(rows if x is None else x for x in NO_ROW)
    listed = slice_of_more(lists_of(queries, width, rows, fillers, generator)[:, None])
    listed[-1] = fillers[-1]  # every entry of a list is no row
    sink = sinks_of(heads, generator) if sinks else None
    length = None
    if lengths:
        length = torch.randint(0, width + 1, (queries,), generator=generator).int()
    with emulator.use(mode="random", seed=1):
        found = flash_mla_sparse_fwd(
            q, kv, listed, 0.5, attn_sink=sink, topk_length=length, return_max_logits=True
        )
    valid = (listed[:, 0] >= 0) & (listed[:, 0] < rows)
    if length is not None:
        valid &= torch.arange(width) < length[:, None]
    gathered = kv[listed[:, 0].clamp(0, rows - 1).long(), 0]
    out, largest, lse = reference(q, gathered, valid, 0.5, sink)
    agrees("out", found[0].float(), out, 8e-4, 3.01 / 128, 7e-6)
    agrees("max_logits", found[1], largest, 1e-6, 2.01 / 65536, 1e-6)
    agrees("lse", found[2], lse, 1e-6, 2.01 / 65536, 1e-6)


def powers_of_two(blocks: torch.Tensor) -> torch.Tensor:
    return torch.exp2((blocks.abs().amax(-1).nan_to_num() / 448).clamp(min=1e-4).log2().ceil())


def quantized(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(pages, page, columns) -> the cache in bytes, as quant.py lays it out, and the bf16 rows that it stands for."""
    pages, page, columns = rows.shape
    numbers, size = (512, 128) if columns == 576 else (448, 64)
    values, rope = rows[..., :numbers], rows[..., numbers:]
    blocks = values.float().unflatten(-1, (-1, size))
    scales = powers_of_two(blocks)
    codes = (blocks / scales[..., None]).to(torch.float8_e4m3fn)
    stands_for = torch.cat([(codes.float() * scales[..., None]).flatten(-2).bfloat16(), rope], -1)
    code_bytes, rope_bytes = (
        codes.flatten(-2).view(torch.uint8),
        rope.contiguous().view(torch.uint8),
    )
    if columns == 576:
        cache = torch.zeros(pages, page + 1, 656, dtype=torch.uint8)[:, :page]
        cache.copy_(torch.cat([code_bytes, scales.contiguous().view(torch.uint8), rope_bytes], -1))
        return cache.view(torch.float8_e4m3fn).view(pages, page, 1, 656), stands_for
    cache = torch.zeros(pages, -(-page * 584 // 576) * 576, dtype=torch.uint8)[:, : page * 584]
    exponents = torch.nn.functional.pad(scales.to(torch.float8_e8m0fnu).view(torch.uint8), (0, 1))
    parts = torch.cat([code_bytes, rope_bytes], -1).flatten(1), exponents.flatten(1)
    cache.copy_(torch.cat(parts, -1))
    return cache.view(torch.float8_e4m3fn).view(pages, page, 1, 584), stands_for


class Scope:
    """A cache of random pages with lists of keys, of which the rows that no list has are NaN."""

    def __init__(
        self, batch, queries, columns, keys, page, width, generator, cut: bool, empty: bool
    ):
        lengths = torch.randint(keys // 2, keys + 1, (batch,), generator=generator)
        lengths[0] = 0 if empty else lengths[0]
        pages = -(-keys // page)
        table = torch.randperm(batch * pages, generator=generator).view(batch, pages)
        listed = torch.stack([lists_of(queries, width, int(n), (-1,), generator) for n in lengths])
        at = table.gather(1, listed.clamp(min=0).long().flatten(1) // page).view_as(listed) * page
        listed = torch.where(listed < 0, -1, at + listed % page).int()
        self.length = (
            torch.randint(0, width + 1, (batch,), generator=generator).int() if cut else None
        )
        self.valid = listed >= 0
        if cut:
            self.valid &= torch.arange(width) < self.length[:, None, None]
        rows = (torch.randn(batch * pages * page, columns, generator=generator) / 10).clamp(-1, 1)
        used = torch.zeros(len(rows), dtype=torch.bool)
        used[listed[self.valid].long()] = True
        rows[~used] = math.nan
        self.cache, stands_for = quantized(rows.bfloat16().view(-1, page, columns))
        self.listed, self.rows = slice_of_more(listed), stands_for.view(-1, columns)

    def gathered(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows of each query, and which of them count."""
        rows = self.rows[self.listed.clamp(min=0).long()]
        return rows.flatten(0, 1), self.valid.flatten(0, 1)


@pytest.mark.parametrize(
    "columns, heads, queries, first, second, sinks, empty",
    [  # first, second: keys, page, width, whether lists are cut
        (576, 64, 1, (200, 2, 64, False), None, True, False),
        (576, 128, 3, (200, 61, 64, False), None, True, True),
        (512, 64, 3, (200, 69, 64, True), None, True, False),
        (512, 64, 1, (100, 53, 130, False), (100, 2, 40, True), False, True),
        (512, 128, 3, (100, 64, 40, True), (60, 61, 70, True), True, False),
    ],
)
def test_sparse_decode(columns, heads, queries, first, second, sinks, empty):
    generator = torch.Generator().manual_seed(columns + heads + queries)
    batch, scale = 2, columns**-0.55
    q = torch.randn(batch, queries, heads, columns, generator=generator).clamp(-1, 1)
    q = slice_of_more(q.bfloat16())
    scopes = [
        Scope(batch, queries, columns, keys, page, width, generator, cut, empty)
        for keys, page, width, cut in filter(None, (first, second))
    ]
    sink = sinks_of(heads, generator) if sinks else None
    one, two = scopes[0], scopes[1] if second else None
    with emulator.use(mode="random", seed=1):
        found, found_lse = flash_mla_with_kvcache(
            q, one.cache, None, None, VALUES, None, None, scale, False, True, one.listed, sink,
            two and two.cache, two and two.listed, one.length, two and two.length,
        )  # fmt: skip
    rows, valid = (torch.cat(x, 1) for x in zip(*(s.gathered() for s in scopes), strict=True))
    out, _, lse = reference(q.flatten(0, 1), rows, valid, scale, sink)
    out = out.view(batch, queries, heads, VALUES)
    agrees("out", found.float(), out, 1e-3, 2.01 / 128, 5e-6)
    lse = lse.view(batch, queries, heads).transpose(1, 2)
    agrees("lse", found_lse, lse, 1e-6, 8.01 / 65536, 1e-6)


def test_the_cases_have_every_layout_of_flash_mla():
    """Both rows, both numbers of heads, one cache and two, lists that are cut and that are not."""
    marks = {
        f.__name__: f.pytestmark[-1].args[1] for f in (test_sparse_prefill, test_sparse_decode)
    }
    for name, cases in marks.items():
        assert {case[:2] for case in cases} == set(itertools.product((512, 576), (64, 128))), name
