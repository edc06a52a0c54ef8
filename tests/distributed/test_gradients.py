"""Gradients of every layout, order and mask on 2, 3 and 4 processes: those of one process with all rows.

Around the kernel: gradients by their definition in float32 in its place, so that a part that is lost, doubled or sent
to another rank shows in the fifth digit. Sizes: those of test_context_parallel.
The kernel itself: a few of the same cases on the emulator.
"""

import re

import pytest
import torch

from tests import pairwise
from tests.distributed import cases, oracle
from tests.distributed.test_context_parallel import GRID, problem


@pairwise.cases("gradients on ranks", {**GRID, "with_lse": (False, True)}, seconds=0.3)
def test_ranks_have_the_gradients_that_one_process_with_all_rows_has(
    pool, ranks, layout, order, mask, form, heads, sink, head_dim_v, with_lse
):
    q_shape, k_shape, options = problem(ranks, layout, order, mask, form, heads, sink, head_dim_v)
    arguments = q_shape, k_shape, torch.float32, {**options, "backend": "sdpa"}, with_lse
    oracle.check_gradients(pool.run(cases.differentiate, arguments, ranks), *arguments)


LAYOUTS = GRID["layout"]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_runs_have_the_same_bits(pool, layout):
    """Four ranks, each with parts from three others, whose messages arrive in any order; two key/value heads."""
    options = {"layout": layout, "backend": "sdpa", "learnable_sink": torch.zeros(4)}
    arguments = (1, 96, 4, 64), (1, 96, 2, 64), torch.float32, options, True
    assert pool.run(cases.twice, arguments, 4) == [True] * 4


def test_the_gradient_of_a_sink_is_that_of_the_ranks_own_rows(pool):
    """The same on each rank in every layout: as for other replicated parameters, the ranks add them up."""
    shape = (1, 48, 4, 64)
    options = {"backend": "sdpa", "causal": True, "learnable_sink": torch.linspace(-1, 1, 4)}
    found = []
    for layout in LAYOUTS:
        arguments = shape, shape, torch.float32, {**options, "layout": layout}
        found.append([result[3] for result in pool.run(cases.differentiate, arguments, 2)])
    for other in found[1:]:
        torch.testing.assert_close(found[0], other)
    assert not torch.allclose(*found[0])


# --- the kernel


@pytest.mark.parametrize(
    "layout, order, options",
    [
        (
            "ring",
            "zigzag",
            {"causal": True, "learnable_sink": torch.linspace(-1, 1, 4), "head_dim_v": 40},
        ),
        ("all_gather", "contiguous", {"causal": True, "cu_seqlens": [0, 5, 31, 45]}),
        ("all_to_all", "zigzag", {"window_size": (5, 30)}),
        ("ring", "zigzag", {"causal": True, "head_dim": 256}),
    ],
)
def test_the_kernel_on_the_emulator_within_the_error_of_one_gpu(pool, layout, order, options):
    """Two heads of a group; 24 rows a rank, as above. Parts are added unrounded, so the bound is that of one call."""
    q_shape, k_shape = (1, 48, 4, 64), (1, 48, 2, 64)
    if "head_dim_v" in options:  # DeepSeek's head dims of q and k; those of v are padded
        q_shape, k_shape = (1, 48, 4, 192), (1, 48, 2, 192)
    if (
        "head_dim" in options
    ):  # kernels of their own for dK and dV, to which the ranks' parts are added
        depth, options = options["head_dim"], {n: x for n, x in options.items() if n != "head_dim"}
        q_shape, k_shape = (*q_shape[:-1], depth), (*k_shape[:-1], depth)
    if "cu_seqlens" in options:
        q_shape, k_shape = q_shape[1:], k_shape[1:]
    options = {"layout": layout, "order": order, **options}
    arguments = q_shape, k_shape, torch.bfloat16, options, "learnable_sink" in options
    oracle.check_gradients(pool.run(cases.differentiate, arguments, 2), *arguments)


# --- what is refused

SHAPE, BF16, SDPA = (1, 8, 2, 64), torch.bfloat16, {"backend": "sdpa"}
REFUSED = {
    "a head dim": (((1, 8, 2, 272), BF16, ["k"], {}), "k: requires_grad is True .* head_dim 272 of q"),
    "8 bits": ((SHAPE, torch.float8_e4m3fn, ["q"], {}), "q: requires_grad is True .* of torch.float8_e4m3fn"),
    "a backend": (
        (SHAPE, BF16, ["v"], {"backend": cases.WithoutGradients()}),
        "v: requires_grad is True .* backend=WithoutGradients, which has no check_gradients",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_has_no_gradient_is_refused_by_name(pool, what):
    arguments, text = REFUSED[what]
    for result in pool.run(cases.refused, ([arguments] * 2,), 2):
        assert result.kind == "NotImplementedError", result
        assert re.search(text, result.text), result.text


def test_ranks_that_want_different_gradients_all_raise(pool):
    of_ranks = [(SHAPE, BF16, ["q", "k"], SDPA), (SHAPE, BF16, ["q"], SDPA)]
    for result in pool.run(cases.refused, (of_ranks,), 2):
        assert result.kind == "RankError", result
        assert "gradients differs" in result.text, result.text


def test_ranks_that_go_backward_through_different_calls_all_raise(pool):
    """Otherwise each would add the gradients of the other's call."""
    for result in pool.run(cases.crossed, (SHAPE,), 2):
        assert result.kind == "RankError", result
        assert "number of the call differs" in result.text, result.text


def test_second_derivatives_are_refused(pool):
    for result in pool.run(cases.twice_differentiated, (SHAPE,), 2):
        assert result.kind == "NotImplementedError", result
        assert "create_graph: True" in result.text, result.text


@pytest.mark.parametrize("transform", [name for name in cases.TRANSFORMS if name != "none"])
@pytest.mark.parametrize("name", ["context_parallel_attention", "decode_attention"])
def test_transforms_are_refused_on_every_rank(pool, name, transform):
    """Also on the rank that is outside of it, which would otherwise wait for the other."""
    outside, inside = pool.run(cases.transformed, (name, transform), 2)
    assert inside.kind == "NotImplementedError" and outside.kind == "RankError", (outside, inside)
    assert re.search(r"inside of|has a tangent", inside.text), inside.text
    assert "rank 1 of 2 refused the call: NotImplementedError" in outside.text, outside.text


def test_a_cache_on_several_ranks_has_no_gradient(pool):
    for result in pool.run(cases.cache_with_gradient, (), 2):
        assert result.kind == "NotImplementedError", result
        assert "q: requires_grad is True" in result.text, result.text
