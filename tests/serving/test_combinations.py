"""Options of a call together: each is tested alone elsewhere, here every two of them meet, and in the sweep all."""

from __future__ import annotations

import random

import torch

from tests import pairwise
from tests.serving.batches import Batch, assert_agrees, packed_kv, packed_q, paged_kv, run
from tests.serving.test_masks import MASKS
from tests.suite import turns

OPTIONS = {
    "mask": ("full", "causal", "window causal", "window", "chunked causal", "window or chunked"),
    # 0: no pages. 8: the smallest, sixteen copies a tile; 128: one. Sizes between: test_paged.py.
    "page_size": (0, 8, 128),
    # 1; 3 does not fold into a tile; 8 query heads share one.
    "group": (1, 3, 8),
    # Half the tensor memory, padded, nothing padded.
    "head_dim": (64, 80, 128),
    "dtype": (torch.bfloat16, torch.float16),
    "pages": ("NHD", "HND"),
    "sink": (False, True),
    "softcap": (0.0, 3.0),
}
# What plain pytest pairs. A diagonal alone and a window of the past meet the other options as parts of these masks, and
# everywhere else; so do heads of their own and the depth of 64 columns, which most tests of this folder have.
QUICK = {
    "mask": ("full", "window", "chunked causal", "window or chunked"),
    "group": (3, 8),
    "head_dim": (80, 128),
}
# A sequence is empty, ends just before or after one tile, or just after two: options in the last tile.
LENGTHS = [*range(0, 21), *range(120, 141), *range(250, 301)]


def lengths(case: str) -> list[tuple[int, int]]:
    """Up to three pairs of a query and a key length, others for every case and the same every time."""
    draw = random.Random(case)
    return [(draw.choice(LENGTHS), draw.choice(LENGTHS)) for _ in range(draw.randint(1, 3))]


@pairwise.cases(
    "serving: options of a call",
    OPTIONS,
    kernel=tuple(OPTIONS),
    commits=turns.OF_CASES,
    valid=lambda page_size, pages, **case: page_size or pages == "NHD",
    quick=QUICK,
    seconds=1.0,
    ids=lambda value: str(value).removeprefix("torch.").replace(" ", "_"),
)
def test_options_together_agree_with_float64(
    mask, page_size, group, head_dim, dtype, pages, sink, softcap
):
    options, visible = MASKS[mask]
    case = f"{mask} {page_size} {group} {head_dim} {dtype} {pages} {sink} {softcap}"
    queries, keys = zip(*lengths(case), strict=True)
    batch = Batch.draw(queries, keys, heads=(group, 1), depth=head_dim, dtype=dtype)
    sinks = torch.randn(group, generator=torch.Generator().manual_seed(1)) if sink else None
    storage = paged_kv(batch, page_size, pages) if page_size else packed_kv(batch)
    out, lse = run(packed_q(batch), storage, learnable_sink=sinks, softcap=softcap, **options)
    assert_agrees(batch, out, lse, visible=visible, sink=sinks, softcap=softcap)
