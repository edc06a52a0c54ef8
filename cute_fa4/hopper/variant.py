"""A problem of `hopper check`: a variant of the call, and the sizes of its sequences.

Variant   one call of the public functions: depth, dtype, layout of keys, mask, ...      selects the kernel
Problem   queries and keys of each sequence, heads                                      determines the launch
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cute_fa4 import dtypes

DTYPES = dtypes.torch_of(dtypes.OPERANDS)
OUT_DTYPES = {name: DTYPES[dtypes.DTYPES[name].out] for name in DTYPES}


@dataclass(frozen=True)
class Variant:
    """keys: "dense", "packed" (queries too), "lengths" (dense, seqused_k), "pages" (queries packed) or "latent" (pages
    whose first 512 columns are the values, too).

    head_dim_v   0: as head_dim
    pair         CTA pairs (CUTE_FA4_PAIR=on)
    group   query heads of a key head; pack_gqa: they share tiles of rows
    window  (left, right) positions; chunk  positions of a block, of which a query sees its own
    num_splits, tokens_per_split   as in the public functions
    decode  its problems have a few queries per sequence
    cache   dtype of K and V if it is not Q's, for calls of few rows, which dequantize it; with scales between 0.5 and 2
            per sequence and key head. "rows": a latent cache of 656 bytes per row; "row pages": of 584, with the scales
            after the rows of a page. "nvfp4": pages of 4-bit numbers with a scale per 16 columns
    blocks  (queries, keys) of the blocks that lists of key blocks name, None for none; each head has its own lists
    of_tokens   8-bit K and V, dense or in pages, have a scale per token and head
    of_blocks   8-bit Q and K have an e8m0 scale per 32 columns (MXFP8)
    rope    last columns of K that all heads share, passed as k_rope, 0 for none; rope_dtype if it is not K's: 16-bit
            columns with 8-bit K are passed as q_rope
    out     dtype of the output if it is not that of OUT_DTYPES; with o_scale
    listed  keys that each query of a latent cache lists as `indices`, 0 for none
    lse     the call also returns the log-sum-exp, which is another kernel if the product with V computes row sums
    """

    head_dim: int = 128
    dtype: str = "bf16"
    causal: bool = True
    keys: str = "dense"
    page_size: int = 0
    heads_first: bool = False
    window: tuple[int, int] | None = None
    chunk: int = 0
    softcap: float = 0.0
    sink: bool = False
    group: int = 2
    pack_gqa: bool = False
    num_splits: int = 1
    tokens_per_split: int | None = None
    decode: bool = False
    head_dim_v: int = 0
    pair: bool = False
    cache: str = ""
    out: str = ""
    listed: int = 0
    rope: int = 0
    rope_dtype: str = ""
    of_tokens: bool = False
    of_blocks: bool = False
    lse: bool = True
    blocks: tuple[int, int] | None = None

    def dtype_of(self, of: str) -> torch.dtype:
        """dtype of "q", "k", "v" or "out"."""
        if of == "out":
            return DTYPES[self.out] if self.out else OUT_DTYPES[self.dtype]
        return DTYPES[self.cache if self.cache in DTYPES and of in "kv" else self.dtype]

    def depth(self, of: str) -> int:
        """Columns of "q", "k", "v" or "out"."""
        return self.head_dim_v or self.head_dim if of in ("v", "out") else self.head_dim

    @property
    def title(self) -> str:
        """
        >>> Variant(causal=False, keys="pages", page_size=16, window=(127, 0)).title
        'window (127, 0), pages of 16'
        """
        masks = [f"{'causal ' * self.causal}chunks of {self.chunk}"] if self.chunk else []
        masks += [f"window {self.window}"] if self.window else []
        masks += [] if masks else ["causal" if self.causal else "full"]
        parts = masks + ["packed Q and K"] * (self.keys == "packed")
        parts += ["lengths"] * (self.keys == "lengths")
        parts += [f"V of {self.head_dim_v}"] * bool(self.head_dim_v and self.keys != "latent")
        parts += [f"latent pages of {self.page_size}"] * (self.keys == "latent")
        parts += [f"pages of {self.page_size}"] * (self.keys == "pages")
        parts += ["heads first"] * self.heads_first + ["sinks"] * self.sink
        parts += [f"soft cap {self.softcap:g}"] * bool(self.softcap)
        parts += [f"groups of {self.group}"] * (self.group != 2)
        parts += ["sharing tiles"] * self.pack_gqa
        parts += ["shared keys"] * (self.num_splits == 0)
        parts += [f"{self.num_splits} parts of the keys"] * (self.num_splits > 1)
        parts += [f"parts of {self.tokens_per_split} keys"] * bool(self.tokens_per_split)
        parts += [" ".join(("K rope of", str(self.rope), self.rope_dtype)).strip()] * bool(
            self.rope
        )
        parts += ["scales of tokens"] * self.of_tokens + ["scales of blocks"] * self.of_blocks
        parts += [f"{self.cache} cache"] * bool(self.cache) + [f"{self.out} out"] * bool(self.out)
        parts += [f"{self.listed} listed keys"] * bool(self.listed) + ["no LSE"] * (not self.lse)
        parts += ["lists of blocks of {} x {}".format(*self.blocks)] if self.blocks else []
        return ", ".join(["pairs"] * self.pair + ["decode"] * self.decode + parts)

    @property
    def name(self) -> str:
        """
        >>> Variant(64, "fp16").name
        'd=64 fp16 causal'
        """
        return f"d={self.head_dim} {self.dtype} {self.title}"


@dataclass(frozen=True)
class Problem:
    """Sequences of a call. Dense variants use the first sequence's length for all."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    heads: int = 2

    @property
    def title(self) -> str:
        """
        >>> Problem((300,) * 2, (5, 700)).title
        '2 x 300, 5 to 700 keys'
        """
        batch, q, k = len(self.queries), self.queries, self.keys
        rows = f"{min(q)} to {max(q)}" if min(q) < max(q) else f"{q[0]}"
        keys = f"{min(k)} to {max(k)}" if min(k) < max(k) else f"{k[0]}"
        return f"{batch} x {rows}, {keys} keys"


def dense(batch: int, queries: int, keys: int, heads: int = 2) -> Problem:
    return Problem((queries,) * batch, (keys,) * batch, heads)


def decode(**options) -> Variant:
    """A paged variant; by default eight heads share a tile."""
    usual: dict = dict(keys="pages", page_size=16, group=8, pack_gqa=True, decode=True)
    return Variant(**usual | options)


def latent(**options) -> Variant:
    """A variant over a latent cache of DeepSeek's sizes; by default 16 heads and a stream-K split."""
    sizes: dict = dict(head_dim=576, head_dim_v=512, keys="latent", page_size=64)
    return Variant(**sizes | dict(group=16, num_splits=0, decode=True) | options)


def pair(head_dim: int = 128, **options) -> Variant:
    return Variant(head_dim, pair=True, **options)
