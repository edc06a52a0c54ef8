"""docs/invariance.md, as tests: a row has the bits of the whole in every chunk, storage and company.

The whole is one dense call of all queries. A partition takes 1 to 200 of them at a time, in another storage each, with
neighbours whose rows jump by hundreds of nats and hold a NaN. 300 keys: three key tiles, in parts of 128 three parts.

Latent caches, whose rows have 576 columns, have queries 126 to 131: the first two see one key tile, the others two, and
so many parts. A tile of 64 rows has four queries of 16 heads, or half a query of 128.
"""

import dataclasses

import pytest
import torch
from cutlass import Int32, select_

from cute_fa4 import masks, score_mods
from cute_fa4.calls import repeat
from tests.invariance.stories import LATENT, OF_V, Kind, Piece, Story, pieces

E4M3, FP16 = torch.float8_e4m3fn, torch.float16
SEQLEN, PART = 300, 128
OF_LATENT = (126, 132)
SINKS = torch.tensor([0.5, -2.0, 4.0, float("-inf")])

# Bit j: a query sees the key j positions before it, of the last 32; it sees all keys before them. As trees of drafts.
BRANCHES = torch.randint(0, 2**31, (512,), generator=torch.Generator().manual_seed(0)).int() | 1


def on_the_branch(batch, head, q_idx, kv_idx, aux):
    position = q_idx + aux.num_keys - aux.seqlen_q
    before = position - kv_idx
    bit = select_((before >= 0) & (before < 32), before, Int32(0))
    here = select_(position > 0, position, Int32(0))  # neighbours may have more queries than keys
    return (before >= 32) | ((aux[0][here] >> bit) & 1 != 0)


# What plain pytest runs: a kernel of each of the three storages of K and V, every option that moves a row's maximum.
KINDS = {
    "sinks and a window": Kind(options=dict(window_size=(200, 0), learnable_sink=SINKS)),
    "16-bit queries over an 8-bit cache": Kind(heads=(2, 1), kv_dtype=E4M3),
}
MORE = {
    "head dim 64": Kind(),
    "fp16, one query head a key head": Kind(128, heads=(2, 2), dtype=FP16),
    "head dim 128, a group of eight": Kind(128, heads=(8, 1)),
    "a group that no tile holds": Kind(heads=(7, 1)),
    "head dims 192 and 128": Kind(192, 128, heads=(2, 2)),
    "head dim 256": Kind(256, heads=(2, 1)),
    "head dim 512": Kind(512, heads=(1, 1)),
    "8 bits": Kind(128, heads=(2, 1), dtype=E4M3),
    "wide heads over an 8-bit cache": Kind(192, 128, heads=(2, 1), kv_dtype=E4M3),
    "soft cap": Kind(options=dict(softcap=5.0)),
    "ALiBi": Kind(options=dict(score_mod=score_mods.alibi(4))),
    "a tree": Kind(options=dict(mask_mod=on_the_branch, aux_tensors=[BRANCHES])),
    "a group of sixteen": Kind(heads=(16, 1)),
    "latent, 16 heads": Kind(LATENT, OF_V, (16, 1), latent=True),
    "latent, 128 heads": Kind(LATENT, OF_V, (128, 1), latent=True),
    "latent, 8 bits": Kind(LATENT, OF_V, (16, 1), latent=True, dtype=E4M3),
    "latent, 128 heads, 8 bits": Kind(LATENT, OF_V, (128, 1), latent=True, dtype=E4M3),
    "latent, 48 heads over 8 bits": Kind(
        LATENT, OF_V, (48, 1), latent=True, kv_dtype=E4M3, options=dict(q_quantize="never")
    ),
    "latent, 16 heads, 656 bytes": Kind(LATENT, OF_V, (16, 1), latent=True, of_bytes=True),
    "latent, 128 heads, 656 bytes": Kind(LATENT, OF_V, (128, 1), latent=True, of_bytes=True),
}


@pytest.fixture(autouse=True)
def invariant(monkeypatch):
    """The variable is read when a call is planned, so plans of earlier calls go."""
    monkeypatch.setenv("CUTE_FA4_BATCH_INVARIANT", "on")
    repeat.clear()
    yield
    repeat.clear()


def differing(story: Story, whole: tuple, piece: Piece, first: int = 0, **options) -> list[str]:
    """Results of a piece that differ from the whole, which begins at query `first`."""
    out, lse = story.results(piece, **options)
    rows = slice(piece.first - first, piece.last - first)
    found = []
    if not out.equal(whole[0][rows]):
        rows_off = (out != whole[0][rows]).flatten(1).any(1).sum()
        found.append(f"{rows_off} rows of out differ in {piece}")
    if lse is not None and not lse.equal(whole[1][:, rows]):
        found.append(f"lse differs in {piece}")
    return found


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(n, marks=pytest.mark.sweep) for n in range(1, 6))]
)
@pytest.mark.parametrize(
    "name", [*KINDS, *(pytest.param(name, marks=pytest.mark.sweep) for name in MORE)]
)
def test_a_row_has_the_same_bits_in_every_piece(name, seed):
    kind = (KINDS | MORE)[name]
    first, seqlen = OF_LATENT if kind.latent else (0, SEQLEN)
    story = Story.draw(kind, seqlen, seed, jumps=bool(seed % 2))
    options = dict(tokens_per_split=PART)
    whole = story.whole(first, **options)
    found = [
        text
        for piece in pieces(seqlen, seed, first)
        for text in differing(story, whole, piece, first, **options)
    ]
    assert not found, "\n".join(found)


def test_one_part_needs_no_merge():
    """Calls of up to INVARIANT_TOKENS keys launch one kernel, with the bits of a call that merges one part."""
    story = Story.draw(KINDS["sinks and a window"], SEQLEN)
    whole = story.whole()
    # 600 keys could be in memory: two parts of 384, of which one holds all
    piece = Piece(299, 300, "pages", company=((), ((1, 500),)))
    assert not differing(story, whole, piece, tokens_per_split=384)


@pytest.mark.parametrize(
    "options",
    [dict(num_splits=4), dict(num_splits=0), dict(pack_gqa=False), dict(pack_gqa=True)],
    ids=str,
)
def test_what_schedules_a_call_changes_no_bit(options):
    story = Story.draw(KINDS["sinks and a window"], SEQLEN)
    piece = Piece(290, 300, "cache")
    whole = story.results(piece)
    found = story.results(dataclasses.replace(piece, options=tuple(options.items())))
    assert all(a.equal(b) for a, b in zip(whole, found, strict=True))


def test_masks_that_differ_by_nothing_have_the_same_bits():
    """Chunks of SEQLEN or more are causal: other kernels, the same row."""
    story = Story.draw(Kind(), SEQLEN)
    chunked = dataclasses.replace(story, kind=Kind(options=dict(mask=masks.chunked_causal(1024))))
    out, lse = chunked.results(Piece(100, 140, "packed"))
    whole = story.whole()
    assert out.equal(whole[0][100:140]) and lse.equal(whole[1][:, 100:140])
