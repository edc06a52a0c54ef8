"""Shared keys: every tile belongs to one piece, no CTA has more than a tile above the mean, every piece has a slot.

The kernel is asked what it did by its workspace, which held NaN before: the log-sum-exp of a slot says which keys its
piece saw.
"""

import math
import random

import pytest
import torch

from cute_fa4 import flash_attn_varlen_func
from cute_fa4.calls.split_keys import split, workspace
from cute_fa4.sm100.work import stream_k
from cute_fa4.sm100.work.stream_k import pieces_of
from tests.calls.simulated_device import full_of_nan
from tests.tuned import changed

SMS = 148  # of a B200
BN = 128

# One sequence of 100,000 keys beside 63 of 500, eight key/value heads.
LONG_AMONG_SHORT = [-(-keys // BN) for keys in [100_000] + [500] * 63 for _ in range(8)]


def ragged(seed: int) -> list[int]:
    """Tiles of blocks: up to 64 sequences of lengths over four orders of magnitude, some empty, 1 to 8 heads."""
    draw = random.Random(seed)
    heads = draw.randint(1, 8)
    lengths = [int(10 ** draw.uniform(0, 4)) - 1 for _ in range(draw.randint(1, 64))]
    return [tiles for tiles in lengths for _ in range(heads)]


BATCHES = [LONG_AMONG_SHORT, *map(ragged, range(200))]


def by_cta(pieces) -> dict:
    work = {}
    for cta, _, begin, end in pieces:
        work[cta] = work.get(cta, 0) + end - begin
    return work


def test_no_cta_has_more_than_a_tile_above_the_mean():
    for tiles in BATCHES:
        work = by_cta(pieces_of(tiles, SMS, 1))
        assert max(work.values()) < sum(work.values()) / SMS + 1
    work = by_cta(pieces_of(LONG_AMONG_SHORT, SMS, 4))
    assert max(work.values()) <= 1.1 * sum(work.values()) / SMS, "the batch that even parts spoil"
    even = max(-(-tiles // 2) for tiles in LONG_AMONG_SHORT)  # 512 blocks, two parts each
    assert even > 6 * max(work.values())


def test_no_cta_has_less_than_the_least_but_the_last():
    for tiles in BATCHES:
        *work, _ = by_cta(pieces_of(tiles, SMS, 4)).values()
        assert min(work, default=4) >= 4


def test_every_tile_is_in_one_piece_and_every_piece_has_a_slot_of_its_own():
    for tiles in BATCHES:
        pieces = pieces_of(tiles, SMS, 4)
        seen, slots = [0] * len(tiles), set()
        for cta, block, begin, end in pieces:
            assert begin == seen[block] and end > begin
            seen[block] = end
            slots.add(cta + block)
        assert seen == [max(count, 1) for count in tiles]
        assert len(slots) == len(pieces) and max(slots) < SMS + len(tiles)
        assert max(cta for cta, *_ in pieces) < SMS


def test_the_picture_is_the_order():
    pieces = pieces_of([5, 0, 2], 4, 1)
    rows = {"tile of the line": range(8), "block": [], "CTA": [], "slot = CTA + block": []}
    for cta, block, begin, end in pieces:
        for name, value in (("block", block), ("CTA", cta), ("slot = CTA + block", cta + block)):
            rows[name] += [value] * (end - begin)
    for name, values in rows.items():
        line = f"    {name:<20}" + "".join(f"{value:>3} " for value in values).rstrip()
        assert line in stream_k.__doc__, line


# 40 sequences: more than the 32 that a warp holds. A window of 300 keys has 3 or 4 tiles of long sequences. 300
# rows are two blocks of 256. A sequence without keys is a separate tile, one without queries is none.
# A group of three is padded to four rows.
CASES = {
    "lengths": dict(lengths=[20] * 33 + [700, 1, 0, 0, 130, 129, 128], ctas=7, group=3),
    "packed": dict(lengths=[1100, 40, 1000, 90], ctas=3, queries=[2, 0, 1, 3], window=(300, 0)),
    "blocks": dict(lengths=[900, 1100], ctas=6, queries=[300, 300], group=1),
}


@pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_kernel_takes_the_pieces_of_the_formula(monkeypatch, name):
    case = dict(queries=None, group=2, window=(None, None)) | CASES[name]
    lengths, ctas, (left, _) = case["lengths"], case["ctas"], case["window"]
    packed, queries = case["queries"] is not None, case["queries"] or [1] * len(lengths)
    offsets = [sum(queries[:b]) for b in range(len(queries) + 1)]
    kept = []  # (Shared, partial O, log-sum-exp, parts)

    def remembered(self, *tensors, made=split.Shared.workspace):
        found = made(self, *tensors)
        kept.append((self, *found[1:3]))
        return found

    monkeypatch.setattr(workspace, "_allocated", full_of_nan)
    monkeypatch.setattr(split, "num_sms", lambda device: ctas)
    changed(monkeypatch, split_least_keys=2 * BN)
    monkeypatch.setattr(split.Shared, "workspace", remembered)
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(sum(queries), case["group"], 64, generator=generator).bfloat16()
    k, v = torch.randn(2, len(lengths), max(lengths), 1, 64, generator=generator).bfloat16()
    used = torch.tensor(lengths, dtype=torch.int32)
    given = dict(causal=left is None, window_size=case["window"], seqused_k=used, num_splits=0)
    if packed:
        given["cu_seqlens_q"] = torch.tensor(offsets, dtype=torch.int32)
        given["max_seqlen_q"] = max(queries)
    flash_attn_varlen_func(q if packed else q[:, None], k, v, **given)
    ((shared, lse, parts),) = kept
    check_pieces(shared, lse, parts, (q, k), (queries, lengths, offsets), left)


def check_pieces(shared, lse, parts, qk, batch, left):
    """The slots that were written, and the keys that their log-sum-exps are of."""
    q, k = qk
    queries, lengths, offsets = batch
    per_sequence = shared.blocks // len(lengths)
    rows_of_block = 256 // shared.heads
    blocks, tiles, firsts = [], [], []
    for b, (number, keys) in enumerate(zip(queries, lengths, strict=True)):
        first = 0 if left is None else max(keys - number - left, 0) // BN
        for i in range(per_sequence):
            if i * rows_of_block < number:
                blocks.append((b, i))
                tiles.append(-(-keys // BN) - first)
                firsts.append(first)
    pieces = pieces_of(tiles, shared.ctas, shared.least)
    written = set()
    for cta, block, begin, end in pieces:
        (b, i), first = blocks[block], firsts[block]
        number = b * per_sequence + i
        slot = cta + number
        written.add(slot)
        if begin == 0:
            of_block = [cta for cta, other, *_ in pieces if other == block]
            assert parts[number].tolist() == [slot, len(of_block)]
        rows = range(i * rows_of_block, min((i + 1) * rows_of_block, queries[b]))
        seen = lse[slot, :, : len(rows)]
        keys = range((first + begin) * BN, min((first + end) * BN, lengths[b]))
        exact = exact_lse(q[offsets[b] :][: queries[b]], k[b], lengths[b], rows, keys, left)
        torch.testing.assert_close(seen, exact, atol=2e-3, rtol=0)
    empty = set(range(shared.slots)) - written
    assert lse[list(empty)].isnan().all()


def exact_lse(q, k, length, rows, keys, left):
    """Of some rows of a sequence over some of its keys, causal: (heads, rows)."""
    scores = torch.einsum("qhd,kd->hqk", q.double(), k[:length, 0].double()) / 8
    position = torch.arange(q.shape[0])[:, None] + length - q.shape[0]
    key = torch.arange(length)[None]
    hidden = key > position
    if left is not None:
        hidden |= key < position - left
    scores[:, hidden] = -math.inf
    part = scores[:, rows.start : rows.stop, keys.start : max(keys.stop, keys.start)]
    return part.logsumexp(-1).float()
