"""The case lists cover what they say, and stay small enough for the emulator."""

import itertools

import pytest
import torch

from tests import cases, strided, values
from tests.cases import Case


def test_every_head_dim_dtype_and_mask_occurs():
    seen = {(c.head_dim, c.dtype, c.causal) for c in cases.HEAD_DIMS}
    assert seen == set(itertools.product((64, 72, 80, 96, 128), cases.TORCH_DTYPES, (False, True)))


def test_every_length_occurs_with_every_mask_and_on_both_sides():
    assert {(c.seqlen_q, c.causal) for c in cases.LENGTHS} == set(
        itertools.product(cases.EDGES, (False, True))
    )
    for causal in (False, True):
        cross = [c for c in cases.CROSS if c.causal == causal]
        assert {c.seqlen_q for c in cross} >= set(cases.EDGES)
        assert {c.seqlen_k for c in cross} >= set(cases.EDGES)
        assert {c.seqlen_q < c.seqlen_k for c in cross} == {True, False}


def test_groups_batches_layouts_and_values_occur():
    assert {c.heads_q // c.heads_kv for c in cases.GROUPS} == {1, 2, 7, 8}
    assert 3 in {c.batch for c in cases.GROUPS}
    assert {c.strides for c in cases.STRIDES} == set(strided.LAYOUTS) - {"contiguous"}
    assert {c.values for c in cases.VALUES} == set(values.MAKERS) - {"normal"}


def test_every_case_has_a_reason_and_runs():
    for case in cases.ALL:
        assert case.reason, case
        assert case.config().refusals() == [], case


def test_no_case_occurs_twice():
    ids = [str(case) for case in cases.ALL]
    assert len(set(ids)) == len(ids)


def test_the_lists_stay_affordable():
    """2 s a compile, 0.03 s a key tile: a minute and a half on one core, with --seeds 4 three."""
    assert sum(case.work for case in cases.ALL) <= 600
    assert len({case.config() for case in cases.ALL}) <= 40


def test_work_counts_the_tiles_that_a_causal_kernel_walks():
    # CTA 0 (rows 0..255) sees 512 keys, CTA 1 (rows 256..511) 768, CTA 2 (one row) 769.
    assert Case(seqlen_q=513, seqlen_k=769, causal=True).work == 4 + 6 + 7
    assert Case(seqlen_q=513, seqlen_k=769, batch=2, heads_q=3).work == 6 * 3 * 7
    assert Case(seqlen_q=600, seqlen_k=10, causal=True).work == 0 + 0 + 1


def test_a_case_prints_as_code_that_makes_it_again():
    case = Case(seqlen_q=7, dtype="fp16", causal=True, softmax_scale=0.5)
    assert eval(case.code) == case


@pytest.mark.parametrize("name", strided.LAYOUTS)
def test_layouts_keep_values_and_a_contiguous_last_dimension(name):
    tensors = [torch.randn(2, 5, 2, 64) for _ in range(3)]
    if name == "expanded":  # the one layout that repeats a batch entry
        tensors = [t[:1].repeat(2, 1, 1, 1) for t in tensors]
    for before, after in zip(tensors, strided.LAYOUTS[name](*tensors), strict=True):
        assert torch.equal(before, after)
        assert after.stride(-1) == 1


@pytest.mark.parametrize("case", cases.ALL, ids=str)
def test_tensors_are_finite_of_the_right_shape_and_repeatable(case):
    q, k, v = case.tensors(seed=3)
    assert q.shape == (case.batch, case.seqlen_q, case.heads_q, case.head_dim)
    assert k.shape == v.shape == (case.batch, case.seqlen_k, case.heads_kv, case.head_dim)
    for tensor, again in zip((q, k, v), case.tensors(seed=3), strict=True):
        assert tensor.isfinite().all() and torch.equal(tensor, again)
