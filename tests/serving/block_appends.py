"""New rows for caches whose blocks have scales (NVFP4, MXFP8): rows of every kind of block, caches, calls that append.

Names of formats are rows of cute_fa4/dtypes.py.
"""

from __future__ import annotations

import math

import torch

from cute_fa4 import mxfp8, nvfp4
from cute_fa4.calls.append import prepare_append
from cute_fa4.calls.operands.scales import checked_scales
from cute_fa4.calls.prepare import pages_rows_first
from cute_fa4.dtypes import DTYPES
from cute_fa4.operands import CallTensors
from tests.serving.batches import int32, offsets
from tests.serving.test_append import BEFORE, CAPACITY, quiet

HEADS = 3
UNUSED = 0x55  # of numbers of every format, and a number as a scale


def write_mx(x, values, scales, slots, factor, kv_layout="NHD", *_) -> None:
    """mxfp8.write with the arguments of nvfp4.write: scales of MXFP8 have one layout."""
    mxfp8.write(x, values, scales, slots, factor, kv_layout)


WRITE = {"e2m1": nvfp4.write, "mxe4m3": write_mx}


def four_bits(dtype) -> tuple:
    """Blocks of 16 numbers: midpoints of codes, and rows that scales decide."""
    middles = torch.tensor([*(m for m, _ in nvfp4.MIDPOINTS), 6.0]).repeat(2)
    return (
        middles * torch.tensor([1.0, -1.0]).repeat(8) / 4,
        torch.tensor([6 * 2.0**-10, -(2.0**-12)] + [2.0**-24] * 14),  # its scale is a tie, to 0
        torch.tensor([-100.0] + [1.0] * 15),
    )


def eight_bits(dtype) -> tuple:
    """Blocks of 32 numbers: midpoints of e4m3 numbers, and rows that scales decide."""
    codes = torch.arange(0, 126, dtype=torch.uint8).view(DTYPES["e4m3"].torch).float()
    middles = (codes[1:] + codes[:-1]) / 2  # exact in 5 bits, those of subnormal numbers in 4
    signs = torch.tensor([1.0, -1.0]).repeat(16)
    largest = torch.tensor([256.0])
    return (
        *(torch.cat([largest, middles[i : i + 31]]) * signs / 16 for i in (0, 31, 62, 93)),
        torch.tensor([480.0, -496.0, 464.0, -448.0] * 8),  # 464 to 496: as 448
        torch.tensor([2.0**-5] + [-(2.0**-5) * (1 - 2.0**-7)] * 31),  # one power of two, below it
        torch.tensor([-100.0] + [1.0] * 31),
    )


def kinds_of(name: str, dtype) -> tuple:
    """Blocks of every format, and those of this one."""
    of_row = DTYPES[name].block
    tiny = torch.finfo(dtype).smallest_normal
    return (
        torch.tensor([0.0, -0.0] * (of_row // 2)),
        torch.arange(of_row) * tiny / 64,
        torch.tensor([math.inf] + [1.0] * (of_row - 1)),
        torch.tensor([1.0] * (of_row - 1) + [-math.inf]),
        torch.tensor([math.nan] + [1.0] * 7 + [-2.0] * (of_row - 8)),
        torch.full((of_row,), torch.finfo(dtype).max),
        torch.full((of_row,), -tiny),
        *{"e2m1": four_bits, "mxe4m3": eight_bits}[name](dtype),
    )


def rows(name: str, number: int, depth: int, dtype, seed: int) -> torch.Tensor:
    """(number, HEADS, depth): every block is of another kind; others are normal numbers in sizes of 2^-24 to 2^13."""
    generator, of_block = torch.Generator().manual_seed(seed), DTYPES[name].block
    x = torch.randn(number, HEADS, depth // of_block, of_block, generator=generator)
    sizes = torch.randint(-24, 14, x.shape[:-1], generator=generator)
    x = (x * 2.0 ** sizes[..., None]).to(dtype)
    blocks, kinds = x.view(-1, of_block), kinds_of(name, dtype)
    for i, kind in enumerate(kinds):
        for n in range(2 * i + seed % 2, len(blocks), 2 * len(kinds)):
            blocks[n] = kind.roll(n // (2 * len(kinds))).to(dtype)
    return x.flatten(-2)


class Cache:
    """Numbers and scales of unused bytes, in pages or dense, and the slots of sequences."""

    def __init__(self, name: str, storage, batch: int, depths: tuple):
        size, layout = storage
        row, generator = DTYPES[name], torch.Generator().manual_seed(size)
        self.name, self.layout, self.rows = name, layout, size or CAPACITY
        columns = -(-CAPACITY // size) if size else 1
        order = torch.randperm(batch * columns + 2 * (size > 0), generator=generator)
        self.table = order[: batch * columns].view(batch, columns).int() if size else None
        pages = self.table if size else torch.arange(batch)[:, None]
        within = torch.arange(self.rows)
        self.slots = (pages.long()[:, :, None] * self.rows + within).flatten(1)
        inner = (self.rows, HEADS) if layout == "NHD" else (HEADS, self.rows)
        of = lambda n: torch.full((len(order), *inner, n), UNUSED, dtype=torch.uint8)
        self.v_layout, self.four_over_six = "linear", False
        self.codes = [of(x // row.in_byte).view(DTYPES[row.element].torch) for x in depths]
        self.scales = [of(x // row.block).view(row.cache_scales.torch) for x in depths]

    def bytes(self) -> list:
        return [x.view(torch.uint8).clone() for x in (*self.codes, *self.scales)]

    @property
    def saturates(self) -> bool:
        """Whether a scale of 4 bits has its largest number, or a number of 8."""
        found = self.scales if self.name == "e2m1" else self.codes
        return any((x.view(torch.uint8) == 0x7E).any() for x in found)

    def write(self, new: list, numbers: list) -> None:
        """By plain torch. new: for k and v the rows of each sequence; numbers: their global scales (batch, heads)."""
        layouts = "linear", self.v_layout
        for codes, scales, sequences, factors, of_scales in zip(
            self.codes, self.scales, new, numbers, layouts, strict=True
        ):
            for b, x in enumerate(sequences):
                slots = self.slots[b, BEFORE[b] : BEFORE[b] + len(x)]
                for head in range(HEADS):
                    at = slice(head, head + 1)
                    where = [
                        t[:, :, at] if self.layout == "NHD" else t[:, at] for t in (codes, scales)
                    ]
                    given = factors[b, head], self.layout, of_scales, self.four_over_six
                    WRITE[self.name](x[:, at], *where, slots, *given)


def appended(cache: Cache, new: list, packed: bool, given: dict, picked=None) -> None:
    """By the kernel. new: for k and v the rows of each sequence."""
    lengths = [len(x) for x in new[0]]
    k, v = (torch.cat(x) if packed else torch.stack(x) for x in new)
    tensors = CallTensors(
        q=torch.zeros(len(lengths), 1, HEADS, k.shape[-1], dtype=k.dtype),
        k=cache.codes[0], v=cache.codes[1], seqused_k=int32(BEFORE), page_table=cache.table,
        new_k=k, new_v=v, cu_seqlens_k_new=offsets(lengths) if packed else None,
        k_block_scale=cache.scales[0], v_block_scale=cache.scales[1], cache_batch_idx=picked, **given,
    )  # fmt: skip
    views = pages_rows_first(*cache.codes, cache.layout, ("k_cache", "v_cache"))
    seen = tensors._replace(k=views[0], v=views[1])
    scales = checked_scales(seen, len(lengths), cache.layout == "HND", cache.v_layout)
    append = prepare_append(seen, len(lengths), tensors, scales, cache.four_over_six)
    quiet(append, tensors)


def call_of(name="e2m1", depth=64, layout="NHD", dtype=torch.bfloat16) -> dict:
    """A call that appends two rows to each of two sequences of 20 and 7 keys, in pages of 16."""
    row, generator = DTYPES[name], torch.Generator().manual_seed(0)
    factor, caches, scales = torch.tensor(0.5), {}, {}
    inner = (16, 1) if layout == "NHD" else (1, 16)
    of = lambda n: torch.zeros(4, *inner, n, dtype=torch.uint8)
    for x in "kv":
        caches[f"{x}_cache"] = of(depth // row.in_byte).view(DTYPES[row.element].torch)
        scales[f"{x}_block_scale"] = of(depth // row.block).view(row.cache_scales.torch)
        held = torch.randn(64, 1, depth, generator=generator).to(dtype)
        into = caches[f"{x}_cache"], scales[f"{x}_block_scale"]
        WRITE[name](held, *into, torch.arange(64), factor, layout)
    new = torch.randn(3, 2, 2, 1, depth, generator=generator).to(dtype)
    return dict(
        q=new[0].expand(-1, -1, 8, -1).contiguous(), **caches, k=new[1], v=new[2], **scales,
        k_descale=factor, v_descale=factor.clone(), page_table=int32([[2, 0], [1, 3]]),
        cache_seqlens=int32([20, 7]), kv_layout=layout, causal=True,
    )  # fmt: skip


WRITTEN = ("k_cache", "v_cache", "k_block_scale", "v_block_scale")


def written(call: dict, name="e2m1") -> dict:
    """The arguments of call_of after plain torch has written its rows, without new rows."""
    call = {key: x.clone() if key in WRITTEN else x for key, x in call.items()}
    slots = torch.tensor([0 * 16 + 4, 0 * 16 + 5, 1 * 16 + 7, 1 * 16 + 8])
    better = call.get("four_over_six", False)
    for x in "kv":
        into = call[f"{x}_cache"], call[f"{x}_block_scale"]
        given = call[f"{x}_descale"], call["kv_layout"], "linear", better
        WRITE[name](call.pop(x).flatten(0, 1), *into, slots, *given)
    return call | {"cache_seqlens": call["cache_seqlens"] + 2}


def mixed(call: dict) -> torch.Tensor:
    """v_block_scale of a call with pages, interleaved."""
    scales = call["v_block_scale"]
    if call["kv_layout"] == "HND":
        return nvfp4.interleaved(scales)
    return nvfp4.interleaved(scales.transpose(1, 2)).transpose(1, 2)


def in_one_tensor(call: dict) -> dict:
    """The same caches, whose pages have numbers and scales of k, then those of v: slices of one tensor of bytes."""
    names = ("k_cache", "k_block_scale", "v_cache", "v_block_scale")
    parts = [call[name].view(torch.uint8) for name in names]
    whole = torch.cat([x.flatten(1) for x in parts], 1)
    slices = whole.split([x[0].numel() for x in parts], 1)
    return call | {
        name: x.view(part.shape).view(call[name].dtype)
        for name, x, part in zip(names, slices, parts, strict=True)
    }


def same_bytes(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.equal(a.view(torch.uint8), b.view(torch.uint8))
