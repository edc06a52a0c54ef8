"""Lists of key blocks with 8-bit q, k and v: what float64 gives with the same visible keys, with every kind of scales.

The scales warp of keys follows the lists, too (roles/token_scales.py): scales differ from key to key by factors of e,
so that those of another tile show.
"""

from dataclasses import replace

import pytest
import torch

from cute_fa4 import capabilities
from tests.attention.agreement import Schedule, attention
from tests.attention.listed import SMALL, WAYS, Listed
from tests.attention.test_block_sparsity import SIZES
from tests.serving.batches import FP8, LSE_ERROR_OF_FP8
from tests.serving.batches import attention as in_float64
from tests.serving.test_mxfp8 import E8M0, NONE, ONE

E4M3, E5M2 = FP8
SEQUENCES = ((300, 700), (140, 260))


def assert_right(call: Listed, found: tuple, scales: list | None = None):
    """scales: of q, k and v, those of each sequence."""
    visible = call.visible()
    for b, (m, n) in enumerate(zip(call.of(0), call.of(1), strict=True)):
        rows = zip(scales or (), (m, n, n), strict=scales is not None)
        out, lse, allowed = in_float64(
            call.q[b, :m],
            call.k[b, :n],
            call.v[b, :n],
            visible=visible[b, :, :m, :n],
            scales=scales and [None if x is None else x[b, :number] for x, number in rows],
        )
        got, got_lse = found[0][b, :m], found[1][b, :, :m]
        none = torch.isneginf(lse)
        assert torch.equal(torch.isneginf(got_lse), none)
        assert ((got_lse.double() - lse)[~none].abs() <= LSE_ERROR_OF_FP8).all()
        assert ((got.double() - out).abs() <= allowed).all()


@pytest.mark.parametrize(
    "size, way, dtype, head_dim",
    [
        ("mha2q", "packed", E4M3, 128),
        ("mha1q", "lengths", E5M2, 64),
        ("mha1q", "pages of 256", E4M3, 160),
        ("64 x 64", "packed", E4M3, 64),
    ],
)
def test_any_pattern_is_that_of_float64(size, way, dtype, head_dim):
    sizes = len(SEQUENCES), *(max(each) for each in zip(*SEQUENCES, strict=True))
    block = (SIZES | SMALL)[size]
    heads = (4, 2), block, (0.0, 0.4, 0.8, 1.0)
    call = Listed.draw(sizes, *heads, head_dim=head_dim, dtype=dtype, lengths=SEQUENCES)
    assert_right(call, call.run_as(way))


@pytest.mark.parametrize("size", ["mha2q", "mha1q", "64 x 64"])
@pytest.mark.parametrize("of", ["head", "token"])
def test_scales_are_those_of_the_listed_keys(size, of):
    block = (SIZES | SMALL)[size]
    call = Listed.draw((1, 300, 700), (2, 1), block, (0.5, 0.8), head_dim=128, dtype=E4M3)
    generator = torch.Generator().manual_seed(1)

    def drawn(*sizes):
        return torch.exp(torch.randn(1, *sizes, generator=generator)) / 2

    if of == "head":
        scales = [drawn(1) for _ in range(3)]
    else:
        scales = [drawn(300, 2), drawn(700, 1), drawn(700, 1) * 2.0**-9]
    names = ("q_descale", "k_descale", "v_descale")
    found = call.run(**dict(zip(names, scales, strict=True)))
    assert_right(call, found, scales)


def blocks_of(call: Listed, way: str | None = None) -> tuple[dict, list]:
    """MXFP8: arguments with scales of blocks, 2^-6 to 2^1, and what they mean. way: of WAYS; None: dense tensors."""
    generator = torch.Generator().manual_seed(1)

    def drawn(x):
        sizes = (*x.shape[:3], x.shape[3] // 32)
        return torch.randint(ONE - 6, ONE + 2, sizes, generator=generator).float()

    rows = [drawn(x) for x in (call.q, call.k)]
    stored = rows
    if way is not None:
        (*stored, _), _, _ = WAYS[way](replace(call, q=rows[0], k=rows[1], v=rows[1]))
    stored, meant = (
        [x.nan_to_num(NONE).byte().view(E8M0) for x in each] for each in (stored, rows)
    )
    return dict(zip(("q_descale", "k_descale"), stored, strict=True)), [*meant, None]


@pytest.mark.parametrize(
    "size, way, dtype, head_dim",
    [
        ("mha2q", "packed", E4M3, 128),
        ("mha1q", "pages of 16", E5M2, 96),  # two blocks of queries in a tile
        ("16 x 16", "lengths", E4M3, 64),  # sixteen
    ],
)
def test_scales_of_blocks_are_those_of_the_listed_keys(size, way, dtype, head_dim):
    """One kernel, whose CTAs have 256 rows: other lists are converted into those of such tiles.

    Two work tiles of a head and one of another sequence, with more key tiles than the ring of scales has entries.
    """
    lengths = ((300, 420), (60, 130))
    sizes = len(lengths), *(max(each) for each in zip(*lengths, strict=True))
    block = (SIZES | SMALL)[size]
    call = Listed.draw(sizes, (2, 1), block, (0.4, 0.8), head_dim, dtype, lengths)
    given, meant = blocks_of(call, way)
    assert_right(call, call.run_as(way, schedule=Schedule("hostile", 1), **given), meant)


def test_queries_of_16_bits_are_quantized_as_without_lists():
    """With lists of all blocks: q is quantized by row and head, so the error is that of 8 bits in both calls."""
    call = Listed.draw((1, 300, 500), (2, 1), SIZES["mha2q"], (1.0, 1.0), dtype=E4M3)
    call = Listed(call.q.bfloat16(), call.k, call.v, call.kinds, call.block_size)
    out, lse = call.run(mask_mod=None)
    whole, whole_lse = attention(call.q, call.k, call.v, return_lse=True)
    assert ((out - whole).norm() / whole.norm()) < 2**-5
    torch.testing.assert_close(lse, whole_lse, rtol=0, atol=2 * LSE_ERROR_OF_FP8)


def test_capabilities_know_lists_of_8_bits():
    question = dict(block_sparse_tensors=True, seqlen_q=1000, causal=False)
    for dtype in ("e4m3", "e5m2"):
        rows = capabilities(dtype=dtype, head_dim=128, **question)
        assert {(row.runs, row.families) for row in rows} == {(True, ("mha2q",))}
    scales = dict.fromkeys(("q_descale", "k_descale"), torch.ones(1, 1000, 1, 4).to(E8M0))
    rows = capabilities(dtype="e4m3", head_dim=128, seqlen_k=1000, **question, **scales)
    assert {(row.runs, row.families) for row in rows} == {(True, ("mhamx",))}
