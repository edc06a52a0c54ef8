"""Masked tiles, warp by warp (steps/seen.py): what is left out changes no bit, and what is seen is not left out.

Rows of a warp see all, some or none of 32 columns in every combination: masks whose ends are on, before and after the
ends of words, and rows of sequences that end anywhere.
"""

from functools import partial
from itertools import accumulate
from types import SimpleNamespace

import cutlass.cute as cute
import pytest
import torch

from cute_fa4 import compile_cache, emulator, flash_attn_func, flash_attn_varlen_func, masks
from cute_fa4.score_mods import soft_cap
from cute_fa4.sm100.choose.choose_config import choose_config
from cute_fa4.sm100.steps import seen
from cute_fa4.sm100.steps.visibility import WORD
from cute_fa4.sm100.two_tiles.schedule import TwoTiles

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")
VOTES = "vote_all_sync", "vote_any_sync"
FAR = 4096
# Name: queries, keys, mask. A block has 256 rows: 300 are two, of which the second has 44.
DENSE = {
    "aligned": (256, 256, masks.causal()),  # words are whole, cut by the diagonal, or none
    "one key after": (160, 161, masks.causal()),  # a warp sees one column of a word
    "31 keys after": (160, 191, masks.causal()),  # all but one
    "rows of no key": (300, 200, masks.causal()),  # the first hundred
    "a window": (300, 300, masks.window(40, 0)),  # both ends in neighbouring words
    "half a chunk": (300, 300, masks.chunked(48)),  # words of two chunks
    "the end of the keys": (160, 200, masks.window(None, None)),
}
LENGTHS = (1, 33, 129, 200)  # packed; work tiles of few rows, whose other rows see other sequences


def tensors(queries, keys, depth):
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(queries, 1, depth, generator=generator).bfloat16()
    return q, *torch.randn(2, keys, 1, depth, generator=generator).bfloat16()


def dense(queries, keys, mask, depth):
    q, k, v = (x[None] for x in tensors(queries, keys, depth))
    return flash_attn_func(q, k, v, mask=mask, return_lse=True)


def packed(depth):
    q, k, v = tensors(sum(LENGTHS), sum(LENGTHS), depth)
    ends = torch.tensor([0, *accumulate(LENGTHS)], dtype=torch.int32)
    of = dict(cu_seqlens_q=ends, cu_seqlens_k=ends, max_seqlen_q=FAR, max_seqlen_k=FAR)
    return flash_attn_varlen_func(q, k, v, **of, causal=True, return_lse=True)


CALLS = {**{name: partial(dense, *shape) for name, shape in DENSE.items()}, "packed": packed}


def test_the_bits_are_those_of_rows_that_look_for_themselves(own_kernels, monkeypatch):
    """All shapes in one test: each kernel is compiled once."""
    depth = 64
    found = {name: call(depth) for name, call in CALLS.items()}
    monkeypatch.setattr(TwoTiles, "sees_by_warp", lambda schedule, problem: False)
    compile_cache.clear()
    wanted = {name: call(depth) for name, call in CALLS.items()}
    for name in CALLS:
        for each, of_rows in zip(found[name], wanted[name], strict=True):
            assert torch.equal(each.nan_to_num(7.0), of_rows.nan_to_num(7.0)), name


def test_a_nan_reaches_the_rows_that_see_its_key_and_no_others():
    """Keys of NaN in the first and in the last column of words: of rows 160 to 287, causal, key tiles 1 and 2."""
    q, k, v = (x[None] for x in tensors(288, 288, 64))
    for key in (160, 191, 192, 255, 287):
        bad = k.clone()
        bad[0, key] = torch.nan
        out, lse = flash_attn_func(q, bad, v, causal=True, return_lse=True)
        assert not out[0, :key].isnan().any() and not lse[0, :, :key].isnan().any()
        assert out[0, key:].isnan().all() and lse[0, :, key:].isnan().all()


def test_whole_tiles_ask_no_warp():
    """Four key tiles more that all rows see whole: not a vote more. In a masked one each warp asks whether all see all
    of a word, for each of the four; both query tiles have one on the diagonal, and no other mask needs that."""
    votes = []
    for keys in (512, 1024):
        dense(256, keys, masks.causal(), 64)
        votes.append(emulator.last_run().opcodes["vote.sync.all.pred"])
    assert votes == [2 * 4 * 4] * 2


def of_the_next_word(keep):
    return lambda scores, words: keep(scores, [*words[1:], words[0]])


def without_sums(add_powers):
    def add(words, first, columns, powers, scores, sums):
        found, sums_with_it = add_powers(words, first, columns, powers, scores, sums)
        return found, sums if first == WORD * 2 else sums_with_it

    return add


# Name: (what is replaced, by what of it)
DEFECTS = {
    "whole where one row sees all": ("cute.arch.vote_all_sync", lambda _: cute.arch.vote_any_sync),
    "nothing where one row sees nothing": (
        "cute.arch.vote_any_sync", lambda any_of: cute.arch.vote_all_sync),
    "the word after": ("keep_visible", of_the_next_word),
    "powers of the next word": (
        "add_powers", lambda add: lambda words, *rest: add([*words[1:], words[0]], *rest)),
    "a sum is lost": ("add_powers", without_sums),
}  # fmt: skip


@pytest.fixture(scope="module")
def windowed():
    """Of the unchanged kernel: rows of a warp see all, some and nothing of a word, alike and not."""
    return dense(*DENSE["a window"], 64)


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_planted_defect_changes_bits(windowed, own_kernels, defect, monkeypatch):
    """In what steps/seen.py asks of a warp, or makes of the answer."""
    what, make = DEFECTS[defect]
    if what.startswith("cute.arch."):
        name = what.rpartition(".")[2]
        arch = SimpleNamespace(**{n: getattr(cute.arch, n) for n in VOTES})
        setattr(arch, name, make(getattr(cute.arch, name)))
        monkeypatch.setattr(seen, "cute", SimpleNamespace(arch=arch))
    else:
        monkeypatch.setattr(seen, what, make(getattr(seen, what)))
    found = dense(*DENSE["a window"], 64)
    assert not all(torch.equal(a, b) for a, b in zip(found, windowed, strict=True))


def test_who_looks_by_warp():
    """Kernels of two query tiles with P beside S whose references lag, with key tiles of four words."""
    asked = {
        "causal": dict(),
        "depth 128": dict(head_dim=128),
        "window": dict(mask=masks.window(127, 0).mask),
        "fp16": dict(qkv_dtype="fp16"),
        "exact": dict(maximum="exact"),
        "B300": dict(arch="sm_103a"),
        "soft cap": dict(score_mod=soft_cap(30.0)),
        "pairs": dict(head_dim=128, family="mhapair"),
        "one query tile": dict(family="mha1q"),
    }
    common = dict(qkv_dtype="bf16", head_dim=64, mask=masks.causal().mask)
    configs = {name: choose_config(**(common | more)) for name, more in asked.items()}
    by_warp = {name for name, config in configs.items() if config.sees_by_warp}
    assert by_warp == {"causal", "window"}
