"""Every layout, order and mask on 2, 3 and 4 processes: what one process with all rows returns.

Around the kernel: torch's attention in float32 in its place, so that a row that is lost, doubled or merged wrongly
shows in the sixth digit. Sizes: 24 rows a rank are 12 a chunk; windows of 9 end inside a chunk, of 30 after the
next one.
The kernel itself: a few of the same cases on the emulator, within the error that the kernel may have anywhere.
"""

import pytest
import torch

from tests import pairwise
from tests.distributed import cases, oracle

ROWS = 24
MASKS = {
    "full": {},
    "causal": {"causal": True},
    "short": {"causal": True, "window_size": (9, None)},
    "long": {"causal": True, "window_size": (30, None)},
    "ahead": {"window_size": (None, 9)},
    "both sides": {"window_size": (5, 30)},
}
FORMS = ("dense", "more keys", "more queries", "documents")
GRID = {
    "ranks": (2, 3, 4),
    "layout": ("ring", "all_gather", "all_to_all"),
    "order": ("zigzag", "contiguous"),
    "mask": tuple(MASKS),
    "form": FORMS,
    "heads": ("equal", "grouped"),
    "sink": (False, True),
    "head_dim_v": (None, 24),
}


def problem(ranks, layout, order, mask, form, heads, sink, head_dim_v=None) -> tuple:
    """(q_shape, k_shape, options) of a case."""
    heads_q = 2 * ranks
    heads_kv = heads_q if heads == "equal" else ranks if layout == "all_to_all" else 2
    rows = ROWS * ranks
    q_rows = rows * 2 if form == "more queries" else rows
    k_rows = rows * 2 if form == "more keys" else rows
    q_shape, k_shape = (2, q_rows, heads_q, 64), (2, k_rows, heads_kv, 64)
    options = {"layout": layout, "order": order, **MASKS[mask]}
    if form == "documents":
        q_shape, k_shape = q_shape[1:], k_shape[1:]
        # A short one, an empty one, one over the first borders, one to the end except for three rows of padding.
        options["cu_seqlens"] = [0, 5, 5, 31, rows - 3]
    if head_dim_v:
        options["head_dim_v"] = head_dim_v
    if sink:
        options["learnable_sink"] = torch.linspace(-1, 1, heads_q)
    return q_shape, k_shape, options


ONE_HEAD = {
    "a log-sum-exp of one head a stage has a last dimension of any stride": dict(
        ranks=4, layout="all_to_all", order="contiguous", mask="ahead", form="documents", heads="equal", sink=False,
        head_dim_v=None,
    )
}  # fmt: skip


@pairwise.cases("context parallel", GRID, seconds=0.15, also=ONE_HEAD)
def test_ranks_return_what_one_process_with_all_rows_would(
    pool, ranks, layout, order, mask, form, heads, sink, head_dim_v
):
    q_shape, k_shape, options = problem(ranks, layout, order, mask, form, heads, sink, head_dim_v)
    arguments = q_shape, k_shape, torch.float32, {**options, "backend": "sdpa"}
    oracle.check(pool.run(cases.attend, arguments, ranks), *arguments)


@pairwise.sweep_only("context parallel", seconds=60)
def test_eight_ranks(pool_of_eight):
    """Every pair of the other options, on eight processes."""
    every = pairwise.product({**GRID, "ranks": (8,)})
    for number in pairwise.covering(every):
        q_shape, k_shape, options = problem(**every[number])
        arguments = q_shape, k_shape, torch.float32, {**options, "backend": "sdpa"}
        oracle.check(pool_of_eight.run(cases.attend, arguments), *arguments)


@pytest.mark.parametrize(
    "case",
    [
        dict(ranks=2, layout="ring", order="zigzag", mask="causal", form="dense", heads="grouped", sink=True),
        dict(ranks=3, layout="ring", order="contiguous", mask="short", form="dense", heads="equal", sink=False),
        dict(ranks=2, layout="all_gather", order="zigzag", mask="causal", form="documents", heads="equal", sink=False,
             head_dim_v=40),
        dict(ranks=2, layout="all_to_all", order="zigzag", mask="full", form="dense", heads="equal", sink=False),
    ],
    ids=lambda case: f"{case['layout']}-{case['mask']}",
)  # fmt: skip
def test_the_kernel_on_the_emulator_within_its_own_error(pool, case):
    q_shape, k_shape, options = problem(**case)
    arguments = q_shape, k_shape, torch.bfloat16, options
    oracle.check(pool.run(cases.attend, arguments, case["ranks"]), *arguments)
