"""merge: parts over disjoint keys become the whole; the oracle is the formula in float64.

Sizes: 5 rows of 3 heads are four CTAs of the merging kernel, the last with three rows; 33 parts are one more than a
warp reads at a time. Parts without keys hold NaN, which must not reach the result.
"""

import math

import pytest
import torch

from cute_fa4.calls.split_keys.merge import merge_into
from cute_fa4.distributed import merge
from cute_fa4.distributed.backends import merged_by_torch
from cute_fa4.reference import max_error
from tests import pairwise

pytestmark = pytest.mark.filterwarnings("ignore::cute_fa4.EmulatorWarning")

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def parts_of(parts, packed=False, depth=64, dtype=torch.float32, rows=5):
    shape = (parts, rows, 3, depth) if packed else (parts, 2, rows, 3, depth)
    outs = torch.randn(shape).to(dtype)
    lses = torch.randn(*shape[:-3], 3, rows) * 3
    lses[0, ..., 0] = -math.inf  # the first part has no keys for the first row
    lses[..., 1, 1] = -math.inf  # no part has keys for this one
    outs[lses.movedim(-1, -2) == -math.inf] = math.nan
    return outs, lses


def by_definition(outs, lses):
    outs, lses = outs.double(), lses.double()
    lse = torch.logsumexp(lses, 0)
    shares = torch.exp(lses - torch.where(lse == -math.inf, 0.0, lse))
    shares = shares.movedim(-1, -2)[..., None]
    return torch.where(shares > 0, outs * shares, 0.0).sum(0), lse


@pairwise.cases(
    "merge",
    {
        "partial": tuple(DTYPES),
        "result": (None, *DTYPES),
        "depth": (64, 72, 128),
        "parts": (1, 2, 33),
        "packed": (False, True),
    },
    kernel=("partial", "result", "depth"),
    seconds=0.4,
)
def test_parts_become_the_whole(partial, result, depth, parts, packed):
    outs, lses = parts_of(parts, packed, depth, DTYPES[partial])
    dtype = DTYPES.get(result)
    out, lse = merge(outs, lses, dtype=dtype)
    exact, exact_lse = by_definition(outs, lses)
    assert out.dtype == (dtype or outs.dtype) and lse.dtype == torch.float32
    # The rounding of the result, and float32 sums with exponentials of 2^-22.
    eps = 0.0 if out.dtype == torch.float32 else torch.finfo(out.dtype).eps / 2
    assert max_error(out, exact) <= eps * float(exact.abs().max()) + 1e-5
    assert max_error(lse, exact_lse) <= 1e-5


def test_parts_without_keys_may_have_either_infinity():
    """vLLM, SGLang and FlashMLA write +inf; eagerly, of packed rows, and in a graph."""
    for packed in (False, True):
        outs, lses = parts_of(3, packed)
        expected = merge(outs, lses)
        other = lses.masked_fill(lses == -math.inf, math.inf)
        other[0, ..., 0] = -math.inf  # both in one call
        for one, of_other in zip(merge(outs, other, empty_lse=math.inf), expected, strict=True):
            assert torch.equal(one, of_other)
    in_graph = torch.compile(merge, fullgraph=True, backend="eager")
    assert torch.equal(in_graph(outs, other, empty_lse=math.inf)[0], expected[0])
    with pytest.raises(ValueError, match=r"empty_lse: 0\.0; accepted: -math.inf or math.inf"):
        merge(outs, lses, empty_lse=0.0)


def test_a_part_of_an_infinite_sink_has_all_the_weight():
    """Its out is 0, as attention returns it; by the kernel, and by torch's operations."""
    outs, lses = parts_of(3)
    outs[1, 0, 0], lses[1, 0, :, 0] = 0.0, math.inf
    for out, lse in (merge(outs, lses), merged_by_torch(outs, lses)):
        assert (out[0, 0] == 0).all() and (lse[0, :, 0] == math.inf).all()
        assert out[0, 1:].isfinite().all() and (lse[0, :, 1:] < math.inf).all()


def test_a_list_of_parts_is_their_stack():
    outs, lses = parts_of(3)
    for one, other in zip(merge(list(outs), tuple(lses)), merge(outs, lses), strict=True):
        assert torch.equal(one, other)


def test_parts_in_any_strides_and_no_rows_at_all():
    """A slice of rows, columns that are not contiguous, a first address off by 4 bytes; 0 rows launch nothing."""
    outs, lses = parts_of(2, rows=9)
    exact, _ = by_definition(outs, lses)
    flat = torch.empty(outs.numel() + 1)
    shifted = flat[1:].view(outs.shape).copy_(outs)
    for same in (
        outs.transpose(1, 3).contiguous().transpose(1, 3),
        shifted,
        outs.mT.contiguous().mT,
    ):
        assert max_error(merge(same, lses)[0], exact) <= 1e-5
    out, lse = merge(outs[:, :, 2:7], lses[..., 2:7])
    assert max_error(out, exact[:, 2:7]) <= 1e-5
    out, lse = merge(outs[:, :, :0], lses[..., :0])
    assert out.shape == (2, 0, 3, 64) and lse.shape == (2, 3, 0)


def test_the_result_may_be_written_over_the_first_part():
    """As a ring does: a log-sum-exp written before all lanes have read those of the parts would move their weights."""
    outs, lses = parts_of(2)
    expected = merge(outs, lses)
    merge_into(outs, lses, outs[0], lses[0])
    assert torch.equal(outs[0], expected[0]) and torch.equal(lses[0], expected[1])


def test_merging_in_steps_is_merging_at_once():
    outs, lses = parts_of(4)
    first, second = merge(outs[:2], lses[:2]), merge(outs[2:], lses[2:])
    out, lse = merge(*map(list, zip(first, second, strict=True)))
    whole, whole_lse = merge(outs, lses)
    assert max_error(out, whole) <= 1e-5 and max_error(lse, whole_lse) <= 1e-5


@pytest.mark.parametrize(
    "change, error, text",
    [
        (lambda o, s: ([], s), TypeError, "outs: no parts; accepted"),
        (lambda o, s: ("parts", s), TypeError, "outs: a str"),
        (lambda o, s: ([o[0], o[1, 0]], s), ValueError, r"outs\[1\]: .*while outs\[0\] is"),
        (lambda o, s: (o[0], s), ValueError, "lses: shape .*accepted"),
        (lambda o, s: (o[0, 0], s), ValueError, r"outs: shape \(5, 3, 64\); accepted"),
        (lambda o, s: (o, s.mT), ValueError, "lses: shape"),
        (lambda o, s: (o.double(), s), TypeError, "outs: torch.float64; accepted"),
        (lambda o, s: (o, s.double()), TypeError, "lses: torch.float64; accepted"),
        (lambda o, s: (o[..., :62], s), ValueError, "outs: head_dim 62; accepted: a multiple of 4"),
        (
            lambda o, s: (o.repeat(513, 1, 1, 1, 1), s.repeat(513, 1, 1, 1)),
            ValueError,
            "1026 parts",
        ),
        (lambda o, s: (o.requires_grad_(), s), NotImplementedError, "outs: requires_grad"),
    ],
)
def test_what_is_no_stack_of_results_is_refused_by_name(change, error, text):
    outs, lses = torch.randn(2, 2, 5, 3, 64), torch.randn(2, 2, 3, 5)
    with pytest.raises(error, match=text):
        merge(*change(outs, lses))


# --- the operator


def test_the_operator_passes_the_checks_of_torch():
    outs, lses = parts_of(2)
    outs = outs.nan_to_num(0.0)
    torch.library.opcheck(torch.ops.cute_fa4.merge.default, (outs, lses), {"dtype": torch.bfloat16})


def test_a_compiled_function_has_one_node_and_the_same_bits():
    outs, lses = parts_of(2)
    graphs = []

    def backend(graph, _):
        graphs.append([node.target for node in graph.graph.nodes if node.op == "call_function"])
        return graph

    compiled = torch.compile(
        lambda o, s: merge(o, s, dtype=torch.bfloat16), backend=backend, fullgraph=True
    )
    for one, other in zip(
        compiled(outs, lses), merge(outs, lses, dtype=torch.bfloat16), strict=True
    ):
        assert torch.equal(one, other)
    assert torch.ops.cute_fa4.merge in graphs[0] or torch.ops.cute_fa4.merge.default in graphs[0]


@pytest.mark.parametrize("packed", [False, True])
def test_vmap_is_one_merge_of_more_rows(packed):
    outs, lses = zip(*(parts_of(2, packed) for _ in range(3)), strict=True)
    out, lse = torch.vmap(merge)(torch.stack(outs), torch.stack(lses))
    for i in range(3):
        expected, expected_lse = merge(outs[i], lses[i])
        assert torch.equal(out[i], expected) and torch.equal(lse[i], expected_lse)


def test_a_gradient_through_the_operator_is_refused():
    outs, lses = parts_of(2)
    with pytest.raises(NotImplementedError, match="outs: requires_grad"):
        torch.ops.cute_fa4.merge(outs.requires_grad_(), lses)
