"""FlashInfer's decode over pages that each key-value head selects."""

import pytest
import torch

from cute_fa4 import compile_cache
from tests.docs import definition
from tests.integrations.test_flashinfer import DRAFTS, PAGE, STEP, by_decode, pages_of
from tests.serving.batches import int32


@pytest.mark.parametrize("way", ["definition", "emulator"])
def test_each_head_selects_its_own_pages(way, monkeypatch):
    """The bits of one call for each key-value head over its own pages. A head may select none, or part of a page."""
    if way == "definition":
        monkeypatch.setattr(compile_cache, "function_for", definition.compiled)
    stored = pages_of(STEP, "HND")
    table, used = stored["page_table"], stored["seqused_k"]
    of_heads = torch.stack([table, table.clone()])
    of_heads[1, :2, :2] = table[:2, :2].flip(1)
    lengths = torch.stack([used - 3, int32([PAGE, 2 * PAGE - 3, 0])])
    found = by_decode(
        STEP, block_tables=of_heads, seq_lens=lengths, enable_block_sparse_attention=True
    )
    for head in range(2):
        alone = by_decode(STEP, block_tables=of_heads[head], seq_lens=lengths[head])
        heads = slice(2 * head, 2 * head + 2)
        assert all(torch.equal(a[:, heads], b[:, heads]) for a, b in zip(found, alone, strict=True))
        assert found[0].isfinite().all()


def test_what_does_not_go_with_them_is_refused_by_name():
    for batch, given, text in (
        (STEP, dict(kv_layout="NHD"), "kv_layout: 'NHD' with"),
        (DRAFTS, {}, "q_len_per_req: 3 with"),
        (STEP, dict(window_left=5), "window_left: 5 with"),
    ):
        with pytest.raises(NotImplementedError, match=f"{text} enable_block_sparse_attention"):
            by_decode(batch, enable_block_sparse_attention=True, **given)


def test_out_is_written_or_refused(monkeypatch):
    """A tensor that is no view of rows of heads would be copied, and the copy written."""
    monkeypatch.setattr(compile_cache, "function_for", definition.compiled)
    table, lengths = pages_of(STEP, "HND")["page_table"], pages_of(STEP, "HND")["seqused_k"]
    given = dict(block_tables=torch.stack([table] * 2), seq_lens=torch.stack([lengths] * 2))
    given["enable_block_sparse_attention"] = True
    expected, _ = by_decode(STEP, **given)
    wide = torch.zeros(*expected.shape[:-1], 2 * expected.shape[-1], dtype=expected.dtype)
    out = torch.zeros_like(expected)
    by_decode(STEP, out=out, **given)
    assert torch.equal(out, expected)
    with pytest.raises(ValueError, match="out: shape .* with strides .*; accepted: contiguous"):
        by_decode(STEP, out=wide[..., : expected.shape[-1]], **given)
