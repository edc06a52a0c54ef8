"""The attention kernel as a subject of planted defects: eight configurations, half a second a run.

Every CTA runs several work tiles (in order it claims the whole grid), because much of what can go wrong is that the
second one meets what the first one left behind.

d128_full      3 heads, 256 queries x 300 keys: 3 work tiles of 3 K and V tiles, the last of them masked. 3 is odd, so
               that barrier parities differ from work tile to work tile; 18 tiles go through a ring of four slots;
               scores wide enough that rows are rescaled in every tile
d64_causal     2 heads, 300 queries x 300 keys: 4 work tiles, clipped rows, masked tiles; P beside S (p_beside_s.py)
d64_few_keys   2 heads, 600 queries x 100 keys, causal: 6 work tiles of one key tile or none, so that only the work
               queue keeps the load warp from running ahead, and rows without keys
d64_window     2 heads, 500 queries and keys, a window of 128 keys: 4 work tiles of two and three key tiles, of which
               each query tile sees two at most; query tile 0 goes first where the window has left the beginning
d64_lagged     3 heads, 200 queries x 300 keys, with a lagged maximum: 3 work tiles of two whole
               key tiles and a masked one; of the first and the last head the second tile jumps by 100 nats, so that one
               is run again while a head is left, and one when none is
single         packed sequences, 1 head of depth 64: two query tiles, two single, two query tiles, one single; of
               three and five key tiles, so that the barriers of the two warpgroups are in different parities
d128_crossed   2 heads of the lengths of d128_full, of 8 bits: P in the columns of the other S (p_crossed.py)
one_tile       2 heads, 128 queries x 600 keys, the kernel of one query tile: 2 work tiles of three even and two odd key
               tiles, the last of them masked; 20 tiles go through a ring of five slots
"""

import contextlib
import os
from itertools import accumulate

import torch

from cute_fa4 import flash_attn_func, flash_attn_varlen_func, masks
from cute_fa4.calls import repeat
from cute_fa4.compiler import policy
from cute_fa4.sm100.blueprint import tuning
from tests.emulator.mutations.attention_call import executes
from tests.emulator.mutations.attention_places import TABLE
from tests.emulator.mutations.mutant import Subject

# Scores of normal q and k have the standard deviation 1; in units of log2, SPREAD times 1.44. A row's
# maximum then moves by more than the 8 that the kernel tolerates without a rescale in most rows.
SPREAD = 6.0
FULL, CAUSAL = masks.full(), masks.causal()


@contextlib.contextmanager
def environment(name, value):
    """An environment variable, inside."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def tensors(heads, seqlen_q, seqlen_k, head_dim):
    """q, k, v of one batch; the same bits every time."""
    generator = torch.Generator().manual_seed(1)
    draw = lambda n: torch.randn(1, n, heads, head_dim, generator=generator)
    return (
        (draw(seqlen_q) * SPREAD).bfloat16(),
        draw(seqlen_k).bfloat16(),
        draw(seqlen_k).bfloat16(),
    )


def jumping(heads, seqlen_q, seqlen_k, head_dim):
    """The same with a key in the second tile, 100 nats above all others for all rows of the first and last head."""
    q, k, v = tensors(heads, seqlen_q, seqlen_k, head_dim)
    q[..., 0], k[..., 0] = 4.0, 0.0
    k[:, 200, :: heads - 1, 0] = 100.0 * head_dim**0.5 / 4.0
    return q, k, v


def run(heads, seqlen_q, seqlen_k, head_dim, mask, level, maximum="exact", make=tensors):
    """The run function of a Subject: results are the bits of the output and of the LSE."""
    q, k, v = make(heads, seqlen_q, seqlen_k, head_dim)

    def call(out):
        return flash_attn_func(q, k, v, mask=mask, return_lse=True, out=out)

    return executed(call, torch.empty(q.shape, dtype=torch.bfloat16), level, maximum)


def of_8_bits(heads, seqlen_q, seqlen_k, head_dim):
    """The same in float8_e4m3fn."""
    return [x.to(torch.float8_e4m3fn) for x in tensors(heads, seqlen_q, seqlen_k, head_dim)]


def run_packed(queries, keys, head_dim, level):
    """The same of packed sequences, of one head."""
    q, k, v = tensors(1, max(sum(queries), sum(keys)), max(sum(queries), sum(keys)), head_dim)
    q, k, v = q[0, : sum(queries)], k[0, : sum(keys)], v[0, : sum(keys)]
    offsets = [
        torch.tensor([0, *accumulate(lengths)], dtype=torch.int32) for lengths in (queries, keys)
    ]

    def call(out):
        return flash_attn_varlen_func(
            q, k, v, *offsets, max(queries), max(keys), return_lse=True, out=out
        )

    return executed(call, q, level)


def executed(call, q, level, maximum="exact"):
    """The run function of a call with an `out`, by the given maximum."""

    def by_maximum(out):
        # Both are chosen once for calls that are alike.
        own = repeat.apart(repeat.Plans())
        with environment(policy.MAXIMUM_VARIABLE, maximum), tuning.using(TABLE), own:
            return call(out)

    return executes(by_maximum, q, level)


def subjects(level):
    """Subject by name."""
    return {
        "d128_full": Subject("d128_full", run(3, 256, 300, 128, FULL, level)),
        "d64_causal": Subject("d64_causal", run(2, 300, 300, 64, CAUSAL, level)),
        "d64_lagged": Subject("d64_lagged", run(3, 200, 300, 64, FULL, level, "auto", jumping)),
        "d128_crossed": Subject("d128_crossed", run(2, 256, 300, 128, FULL, level, make=of_8_bits)),
        "one_tile": Subject("one_tile", run(2, 128, 600, 128, FULL, level)),
        "single": Subject("single", run_packed([300, 100, 300], [300, 600, 260], 64, level)),
        "d64_few_keys": Subject("d64_few_keys", run(2, 600, 100, 64, CAUSAL, level)),
        "d64_window": Subject("d64_window", run(2, 500, 500, 64, masks.window(127, 0), level)),
    }
