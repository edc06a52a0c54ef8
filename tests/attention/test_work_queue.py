"""A CTA claims further blocks of the grid: which CTA runs a block changes nothing, and every block is run.

`claims` bounds how many blocks a CTA may take over: 0 is one block a CTA, None lets the first CTA take the whole grid
in order, and under the other schedules a part of it. A block that does not run leaves its rows NaN.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from cute_fa4 import emulator, flash_attn_func, flash_attn_varlen_func
from cute_fa4.calls import repeat
from cute_fa4.interface import EmulatorWarning
from cute_fa4.sm100.choose.choose_config import config_for
from tests.attention.agreement import assert_agrees
from tests.cases import Case

# (claims, mode, seed): none; one each; all by one CTA; as many as a schedule happens to grant.
WHO_RUNS_WHAT = [
    (0, "in_order", 0),
    (1, "in_order", 0),
    (None, "in_order", 0),
    (None, "random", 1),
    (None, "hostile", 2),
    (2, "hostile", 3),
]


def run(function, out, claims, mode, seed):
    return run_counted(function, out, claims=claims, mode=mode, seed=seed)[:2]


def run_counted(function, out, **schedule):
    """(out, lse, emulator.Run); unwritten rows are NaN."""
    out.fill_(torch.nan)
    on_emulator = emulator.use(checks=("ptx", "phase_passed_twice"), **schedule)
    with warnings.catch_warnings(), on_emulator as counted:
        warnings.simplefilter("ignore", EmulatorWarning)
        _, lse = function(out)
    return out.clone(), lse, counted


def assert_the_same_whoever_runs_it(function, out):
    """Bit for bit, and no row left out."""
    results = [run(function, out, *who) for who in WHO_RUNS_WHAT]
    first_out, first_lse = results[0]
    assert not first_out.isnan().any() and not first_lse.isnan().any()
    for who, (other_out, other_lse) in zip(WHO_RUNS_WHAT, results, strict=True):
        assert torch.equal(other_out, first_out) and torch.equal(other_lse, first_lse), who


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_dense(head_dim, causal):
    """Two sequences, two heads, two blocks: eight work tiles of up to 3 key tiles, half of them with few rows."""
    q = torch.randn(2, 300, 2, head_dim).bfloat16()
    k, v = torch.randn(2, 2, 330, 1, head_dim).bfloat16()
    assert_the_same_whoever_runs_it(
        lambda out: flash_attn_func(q, k, v, causal=causal, return_lse=True, out=out),
        torch.empty_like(q),
    )


@pytest.mark.parametrize("head_dim", [64, 128])
def test_work_tiles_without_keys_between_others(head_dim):
    """700 queries on 130 keys, causal: the first 570 rows see nothing, so of three blocks two have no key tile at all.

    The MMA warp puts the last product of a work tile off until the next one has begun; a CTA that walks 3 heads meets
    two such blocks after every real one, and then no work to start.
    """
    q = torch.randn(1, 700, 3, head_dim).bfloat16()
    k, v = torch.randn(2, 1, 130, 3, head_dim).bfloat16()
    out = torch.empty_like(q)

    def call(out):
        return flash_attn_func(q, k, v, causal=True, return_lse=True, out=out)

    assert_the_same_whoever_runs_it(call, out)
    assert (out[:, :570] == 0).all()


def test_blocks_beyond_their_sequence_are_skipped():
    """The grid is made for 600 queries, three blocks a sequence; of fifteen only five have rows."""
    lengths_q, lengths_k = [600, 1, 0, 40, 0], [600, 200, 7, 0, 0]
    cu_q = torch.tensor([0, *lengths_q], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    cu_k = torch.tensor([0, *lengths_k], dtype=torch.int32).cumsum(0, dtype=torch.int32)
    q = torch.randn(int(cu_q[-1]), 1, 128).bfloat16()
    k, v = torch.randn(2, int(cu_k[-1]), 1, 128).bfloat16()
    assert_the_same_whoever_runs_it(
        lambda out: flash_attn_varlen_func(
            q,
            k,
            v,
            cu_seqlens_q=cu_q,
            cu_seqlens_k=cu_k,
            max_seqlen_q=600,
            max_seqlen_k=600,
            causal=True,
            return_lse=True,
            out=out,
        ),
        torch.empty_like(q),
    )


@pytest.fixture
def without_claims(monkeypatch):
    """Calls from now on choose kernels whose CTAs end after one block."""

    def forget():  # the choice is made once for calls that are alike
        repeat.clear()
        config_for.cache_clear()

    forget()
    monkeypatch.setenv("CUTE_FA4_CLAIMS", "off")
    yield
    forget()


@pytest.mark.parametrize("head_dim", [64, 128])
def test_a_kernel_without_claims_gives_the_same_bits(head_dim, request):
    """300 and 20 queries in a grid for 300 each: of four blocks one is full, two have a few rows, one has none."""
    cu = torch.tensor([0, 300, 320], dtype=torch.int32)
    q, k, v = torch.randn(3, 320, 1, head_dim).bfloat16()

    def call(out):
        return flash_attn_varlen_func(
            *(q, k, v),
            cu_seqlens_q=cu,
            cu_seqlens_k=cu,
            max_seqlen_q=300,
            max_seqlen_k=300,
            causal=True,
            return_lse=True,
            out=out,
        )

    def claims(run):
        return sum(n for name, n in run.opcodes.items() if name.startswith("clusterlaunchcontrol"))

    expected_out, expected_lse, claiming = run_counted(call, torch.empty_like(q))
    request.getfixturevalue("without_claims")
    for mode, seed in (("in_order", 0), ("random", 0), ("hostile", 1)):
        out, lse, ending = run_counted(call, torch.empty_like(q), mode=mode, seed=seed)
        assert torch.equal(out, expected_out) and torch.equal(lse, expected_lse), (mode, seed)
        assert claims(ending) == 0 < claims(claiming)


def test_another_word_for_no_claims_is_refused(without_claims, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_CLAIMS", "no")
    q = torch.randn(1, 8, 1, 64).bfloat16()
    with pytest.raises(ValueError, match="CUTE_FA4_CLAIMS='no'; accepted: auto, on, off"):
        flash_attn_func(q, q, q)


@pytest.mark.parametrize("keys", [1, 128, 129, 640])
def test_every_number_of_key_tiles_follows_every_other(keys):
    """Parities run on over work tiles: after 1, 2 and 5 key tiles they start even and odd. 5 heads, one CTA."""
    assert_agrees(Case(seqlen_q=130, seqlen_k=keys, heads_q=5, heads_kv=5))


def test_growing_and_shrinking_work_tiles_under_a_causal_mask():
    """Blocks of 6, 4 and 2 key tiles for two heads, the longest first, and back to 6 in the next section."""
    assert_agrees(Case(seqlen_q=700, seqlen_k=700, heads_q=2, heads_kv=2, causal=True))
