"""Attention problems with the reason for each: what the tests run, and what must compile.

Case describes one call completely: Case(...).tensors() makes q, k, v. The lists below cover; they
are no full product, because every configuration compiles for two seconds and a key tile of one CTA
takes the emulator some hundredths. What they cover is a test (test_cases.py), and so is the cost.

    list         varies                                     covers
    HEAD_DIMS    head dim, dtype, mask                      every combination
    LENGTHS      Sq = Sk                                    every length with every mask
    CROSS        Sq != Sk                                   every length on both sides, both orders
    GROUPS       query heads per key/value head, batch      1, 2, 7, 8; batch 3
    STRIDES      where q, k, v lie in memory                every layout of make_strided
    VALUES       what the scores look like                  every rescale and rounding path
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch

from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from tests import strided, values

TORCH_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
ARCHS = ("sm_100a", "sm_103a")

# Lengths, and what each is the edge of. A query tile has 128 rows, a CTA two of them, a key tile 128.
EDGES = {
    1: "one row: everything else of the tile is clipped",
    127: "one row less than a tile",
    128: "one tile, filled",
    129: "one row in the second tile",
    255: "two tiles, the last row missing",
    256: "one CTA, filled",
    257: "a second CTA with one row",
    640: "five key tiles: the ring of slots goes round",
    1000: "four CTAs, the last one and the last key tile partly filled",
}


@dataclass(frozen=True)
class Case:
    """One call of flash_attn_func.

    strides names a layout of tests/strided.py, values a distribution of tests/values.py;
    softmax_scale None is the default head_dim ** -0.5.
    """

    reason: str = ""
    batch: int = 1
    heads_q: int = 1
    heads_kv: int = 1
    seqlen_q: int = 128
    seqlen_k: int = 128
    head_dim: int = 128
    dtype: str = "bf16"
    causal: bool = False
    softmax_scale: float | None = None
    strides: str = "contiguous"
    values: str = "normal"

    def tensors(self, seed: int = 0, device: str = "cpu") -> strided.Tensors:
        """q (B, Sq, Hq, D), k and v (B, Sk, Hkv, D), as the case says; the same seed, the same bits."""
        generator = torch.Generator().manual_seed(seed)
        shape_q = (self.batch, self.seqlen_q, self.heads_q, self.head_dim)
        shape_kv = (self.batch, self.seqlen_k, self.heads_kv, self.head_dim)
        q, k, v = values.MAKERS[self.values](shape_q, shape_kv, generator)
        on_device = [x.to(device, TORCH_DTYPES[self.dtype]) for x in (q, k, v)]
        return strided.LAYOUTS[self.strides](*on_device)

    @property
    def options(self) -> dict:
        """Keyword arguments for flash_attn_func and for the references."""
        return {"causal": self.causal, "softmax_scale": self.softmax_scale}

    def config(self, *, write_lse: bool = True, arch: str = "sm_100a") -> FA4Config:
        """The configuration that flash_attn_func compiles for this case, of tiles of 128 rows."""
        group, depths = self.heads_q // self.heads_kv, (self.head_dim, self.head_dim)
        call = Call(self.dtype, *depths, group=group, seqlen_q=self.seqlen_q, swaps=False)
        return choose_config(
            **which_kernel(call).choices,
            qkv_dtype=self.dtype,
            head_dim=self.head_dim,
            head_dim_v=self.head_dim,
            group=group,
            causal=self.causal,
            write_lse=write_lse,
            arch=arch,
        )

    @property
    def work(self) -> int:
        """Key tiles that all CTAs walk: what the emulator's time is proportional to."""
        tiles = 0
        for first in range(0, self.seqlen_q, 256):
            last_row = min(first + 256, self.seqlen_q) - 1
            visible = self.seqlen_k
            if self.causal:
                visible = min(visible, max(0, last_row + 1 + self.seqlen_k - self.seqlen_q))
            tiles += math.ceil(visible / 128)
        return self.batch * self.heads_q * tiles

    @property
    def code(self) -> str:
        """This case as an expression: what a failing test prints to be run again."""
        default = Case()
        changed = [
            f"{f.name}={getattr(self, f.name)!r}"
            for f in fields(self)
            if f.name != "reason" and getattr(self, f.name) != getattr(default, f.name)
        ]
        return f"Case({', '.join(changed)})"

    def __str__(self) -> str:
        """The test id: what distinguishes cases, not the reason."""
        parts = [f"d{self.head_dim}", self.dtype, "causal" if self.causal else "full"]
        parts += [f"b{self.batch}h{self.heads_q}x{self.heads_kv}"]
        parts += [f"s{self.seqlen_q}x{self.seqlen_k}"]
        parts += [p for p in (self.strides, self.values) if p not in ("contiguous", "normal")]
        parts += [] if self.softmax_scale is None else [f"scale{self.softmax_scale:g}"]
        return "-".join(parts)


def _both_masks(**kwargs) -> list[Case]:
    return [Case(causal=causal, **kwargs) for causal in (False, True)]


def _head_dims() -> Iterator[Case]:
    reasons = {
        64: "one swizzle span: half the tensor memory of 128",
        72: "TMA pads 72 to 128; four and a half MMA steps",
        80: "TMA pads 80 to 128; five MMA steps, odd",
        96: "TMA pads 96 to 128; six MMA steps",
        128: "two swizzle spans, nothing padded",
    }
    for head_dim, reason in reasons.items():
        for dtype in TORCH_DTYPES:
            # Two key tiles, the second one partly filled; rows beyond Sq in both query tiles.
            for causal, seqlen_q, seqlen_k in ((False, 200, 150), (True, 150, 200)):
                yield Case(
                    reason,
                    seqlen_q=seqlen_q,
                    seqlen_k=seqlen_k,
                    head_dim=head_dim,
                    dtype=dtype,
                    causal=causal,
                )


HEAD_DIMS = list(_head_dims())

LENGTHS = [
    case
    for n, reason in EDGES.items()
    for case in _both_masks(reason=reason, seqlen_q=n, seqlen_k=n)
]

# Every length once on either side, paired so that the product stays small. The first group has more
# keys than queries (decoding with a cache), the second more queries than keys, where causal rows
# see no key at all.
_MORE_KEYS = ((1, 129), (127, 256), (128, 1000), (129, 257), (255, 640), (256, 257))
_MORE_QUERIES = ((257, 1), (640, 127), (1000, 255), (129, 128))
CROSS = [
    case
    for seqlen_q, seqlen_k in _MORE_KEYS + _MORE_QUERIES
    for case in _both_masks(
        reason=f"Sq: {EDGES[seqlen_q]}; Sk: {EDGES[seqlen_k]}",
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
    )
]
CROSS += [
    Case(
        "row 0 sees 1 + 384 - 257 = 128 keys: the diagonal starts between two key tiles",
        seqlen_q=257,
        seqlen_k=384,
        causal=True,
    ),
    Case("a whole CTA (rows 0..255) sees no key", seqlen_q=300, seqlen_k=40, causal=True),
    Case("one query tile of a CTA sees no key", seqlen_q=256, seqlen_k=128, causal=True),
]

GROUPS = [
    Case("one head each", heads_q=2, heads_kv=2, seqlen_q=129, seqlen_k=130, causal=True),
    Case("two to one, two kv heads", heads_q=4, heads_kv=2, seqlen_q=129, seqlen_k=130),
    Case("seven to one: no power of two", heads_q=7, heads_kv=1, seqlen_q=70, seqlen_k=130),
    Case("eight to one: multi-query", heads_q=8, heads_kv=1, seqlen_q=60, seqlen_k=70, causal=True),
    Case(
        "batch 3, two to one: batch and head strides are told apart",
        batch=3,
        heads_q=4,
        heads_kv=2,
        seqlen_q=40,
        seqlen_k=129,
        causal=True,
    ),
    Case("batch 3, one head: the CTA index is batch", batch=3, seqlen_q=129, seqlen_k=50),
    Case(
        "batch 3, several CTAs a head: the order of work is undone rightly",
        batch=3,
        heads_q=2,
        heads_kv=1,
        seqlen_q=300,
        seqlen_k=70,
    ),
]

STRIDES = [
    Case(
        f"q, k, v {strided.describe(name)}",
        batch=2,
        heads_q=4 if name != "fused_qkv" else 2,
        heads_kv=2,
        seqlen_q=70,
        seqlen_k=70,
        head_dim=head_dim,
        causal=causal,
        strides=name,
    )
    for name, head_dim, causal in (
        ("heads_first", 128, True),
        ("fused_qkv", 64, False),
        ("fused_kv", 128, False),
        ("depth_slice", 72, True),
        ("inside_nan", 80, False),
        ("expanded", 64, True),
    )
]

VALUES = [
    Case(
        values.describe(name),
        seqlen_q=140,
        seqlen_k=300,
        dtype=dtype,
        causal=causal,
        values=name,
    )
    for name, dtype, causal in (
        ("equal_keys", "bf16", False),
        ("zero_queries", "fp16", True),
        ("one_hot", "bf16", False),
        ("large_scores", "bf16", True),
        ("large_scores", "fp16", False),
        ("rising_maximum", "bf16", False),
        ("rising_maximum", "fp16", True),
        ("creeping_maximum", "fp16", False),
        ("falling_maximum", "bf16", True),
        ("very_negative_scores", "bf16", False),
        ("largest_fp16", "fp16", False),
    )
]

SCALES = [
    Case("scores nearly equal", softmax_scale=1e-3, seqlen_q=130, seqlen_k=140, head_dim=64),
    Case("scale 1", softmax_scale=1.0, seqlen_q=130, seqlen_k=140, head_dim=64, causal=True),
    Case("one key takes all", softmax_scale=8.0, seqlen_q=130, seqlen_k=140, head_dim=64),
]

ALL = [*HEAD_DIMS, *LENGTHS, *CROSS, *GROUPS, *STRIDES, *VALUES, *SCALES]


def configurations(arch: str) -> list[FA4Config]:
    """The configurations that must compile for an arch.

    sm_100a: every head dim, dtype, mask and LSE choice, and the configurations of all cases.
    sm_103a: only the split of exp2 differs, so every head dim, dtype and mask with one LSE choice.
    """
    configs = {}
    for index, case in enumerate(HEAD_DIMS):
        # HEAD_DIMS goes through masks first, then dtypes: each pair of values meets both LSE choices.
        choices = (False, True) if arch == "sm_100a" else ((index + index // 2) % 2 == 0,)
        for write_lse in choices:
            configs[case.config(write_lse=write_lse, arch=arch)] = None
    if arch == "sm_100a":
        configs.update({case.config(arch=arch): None for case in ALL})
    return list(configs)
