"""Gradients of calls with lists of key blocks, against float64 with the same visible keys.

The smallest calls that have what lists change: 260 queries and 300 keys are three tiles of each side, the last of them
ragged, so that lists of 0 to 3 tiles occur and the ring of slots turns; two heads of a group have different lists. The
mask function hides keys of full blocks, too, where it would be evaluated.
"""

from dataclasses import replace
from functools import partial
from unittest import mock

import pytest
import torch

from cute_fa4 import BlockSparseTensors, emulator, flash_attn_func, flash_attn_varlen_func
from cute_fa4.block_sparsity import FULL
from cute_fa4.calls import backward
from cute_fa4.calls.aux_gradients import gradients_of_aux
from cute_fa4.calls.backward import Scores
from cute_fa4.calls.block_lists import Lists, Side, for_keys, for_queries, kinds_of_tiles
from cute_fa4.calls.operands import blocks
from cute_fa4.emulator.ptx.errors import RaceError
from cute_fa4.reference import allowed_gradient_errors, gradients_float64, max_error
from cute_fa4.sm100.backward.config import TILE_BITS
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.blueprint.score_mods import ScoreMod
from tests.attention.listed import WAYS, Listed, every_third_hidden, numbers, padded
from tests.sm100.backward.exact_sums import are_within, exact_and_allowed
from tests.sm100.backward.problems import attended, run
from tests.suite import turns

TILE = 128
# Forward kernels have both sizes of query blocks; a block of 256 is two tiles of one side.
SIZES = {f"{q} x {k}": (q, k) for q, k in ((128, 128), (256, 128), (128, 256))}
SMALL = {f"{n} x {m}": (n, m) for n, m in ((64, 64), (64, 128), (128, 64), (256, 64), (48, 80))}
LENGTHS = ((260, 300), (0, 200), (130, 129), (5, 0))


def drawn(block_size, densities=(0.4, 0.8), lengths=None, heads_kv=1, **more) -> Listed:
    batch = 1 if lengths is None else len(lengths)
    heads = len(densities), heads_kv
    return Listed.draw((batch, 260, 300), heads, block_size, densities, lengths=lengths, **more)


# --- the lists of tiles


def tiles_of(call: Listed, lists: BlockSparseTensors, limited: bool) -> torch.Tensor:
    """What kinds_of_tiles makes of a call. limited: lengths are given."""
    sides = (
        Side(x.shape[1], numbers(call.of(i)) if limited else None)
        for i, x in enumerate((call.q, call.k))
    )
    return kinds_of_tiles(Lists.of_operator(lists._asdict()), *sides, len(call.q))


def expected_tiles(call: Listed) -> torch.Tensor:
    out = torch.zeros(*call.kinds.shape[:2], *(-(-x.shape[1] // TILE) for x in (call.q, call.k)))
    for b, queries, keys in zip(range(len(call.q)), call.of(0), call.of(1), strict=True):
        for i in range(-(-queries // TILE)):
            for j in range(-(-keys // TILE)):
                block = i * TILE // call.block_size[0], j * TILE // call.block_size[1]
                out[b, :, i, j] = call.kinds[(b, slice(None), *block)]
    return out


@pytest.mark.parametrize("block_size", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("way", [None, "lengths", "packed", "packed queries"])
def test_tiles_of_lists_are_those_of_their_blocks(block_size, way):
    lengths = [(n, 300) for n, _ in LENGTHS] if way == "packed queries" else LENGTHS
    call = drawn(block_size, lengths=None if way is None else lengths)
    lists = call.lists() if way is None else WAYS[way](call)[2]
    assert tiles_of(call, lists, way is not None).equal(expected_tiles(call).to(torch.int8))


def entries_of(counts, entries) -> dict:
    """{(batch, head, own tile): [(tile, turn, whether it is full), ...]}."""
    out = {}
    for place in torch.cartesian_prod(*map(torch.arange, counts.shape)).tolist():
        listed = entries[tuple(place)][: counts[tuple(place)]].tolist()
        masked = [(e >> 1 & (1 << TILE_BITS) - 1, e >> TILE_BITS + 1, e & 1) for e in listed]
        out[tuple(place)] = masked
    return out


def test_each_owner_has_the_tiles_that_it_meets_full_ones_first():
    """Two groups of two heads: a list of keys has the tiles of both heads, numbered within their group."""
    call = drawn((128, 128), (0.4, 0.8, 0.0, 1.0), heads_kv=2)
    kinds = expected_tiles(call)[0].tolist()
    tiles_q, tiles_k = range(len(kinds[0])), range(len(kinds[0][0]))
    for (_, head, tile), found in entries_of(*for_queries(expected_tiles(call))).items():
        wanted = [(j, 0, kinds[head][tile][j] == FULL) for j in tiles_k if kinds[head][tile][j]]
        assert found == sorted(wanted, key=lambda entry: not entry[2])
    for (_, head, tile), found in entries_of(*for_keys(expected_tiles(call), 2)).items():
        heads = kinds[2 * head : 2 * head + 2]
        wanted = [
            (i, turn, of[i][tile] == FULL)
            for turn, of in enumerate(heads)
            for i in tiles_q
            if of[i][tile]
        ]
        assert found == sorted(wanted, key=lambda entry: not entry[2])


def test_lists_that_all_heads_share_are_those_of_each():
    kinds = expected_tiles(drawn((128, 128), (0.5,)))
    shared, repeated = (for_keys(x, 3) for x in (kinds, kinds.expand(-1, 3, -1, -1)))
    assert all(a.equal(b) for a, b in zip(shared, repeated, strict=True))


def test_more_tiles_than_an_entry_has_bits_for_are_refused():
    """Without memory for so many: all lists are one."""
    kinds = torch.zeros((), dtype=torch.int8).expand(1, 1, 1, (1 << TILE_BITS - 1) + 1)
    with pytest.raises(ValueError, match="block_sparse_tensors: 524289 tiles of keys"):
        for_queries(kinds)
    with pytest.raises(ValueError, match="block_sparse_tensors: 1025 query heads of a group"):
        for_keys(kinds[..., :1], 1025)


# --- gradients


def gradients_of(call: Listed, tensors, function=flash_attn_func, lists=None, **options) -> tuple:
    """(dq, dk, dv) of random gradients of out and lse, and those: ((dq, dk, dv), (dout, dlse)). tensors: q, k, v."""
    tensors = [x.detach().requires_grad_() for x in tensors]
    options = dict(mask_mod=every_third_hidden) | options
    lists = call.lists() if lists is None else lists
    results = function(*tensors, block_sparse_tensors=lists, return_lse=True, **options)
    random = torch.Generator().manual_seed(1)
    of_results = [torch.randn(x.shape, generator=random).to(x.dtype) for x in results]
    return torch.autograd.grad(results, tensors, of_results), of_results


def assert_right(found, call: Listed, dout, dlse, visible=None, rows=(slice(None), slice(None))):
    """Gradients of a dense call, or of the first rows of one, against float64."""
    tensors = call.q[:, rows[0]], call.k[:, rows[1]], call.v[:, rows[1]], dout
    visible = (call.visible() if visible is None else visible)[:, :, rows[0], rows[1]]
    exact = gradients_float64(*tensors, dlse, visible=visible)
    allowed = allowed_gradient_errors(*tensors, dlse, visible=visible)
    for name, got, wanted, most in zip(("dq", "dk", "dv"), found, exact, allowed, strict=True):
        assert max_error(got, wanted) <= most, name


@pytest.mark.parametrize("size", turns.by_turns(SIZES | SMALL))
def test_gradients_are_those_of_float64_within_their_roundings(size):
    """A head has no blocks, one has some, one has all. Another schedule gives the same bits."""
    call = drawn((SIZES | SMALL)[size], (0.0, 0.5, 1.0))
    found, of_results = gradients_of(call, (call.q, call.k, call.v))
    assert_right(found, call, *of_results)
    with emulator.use(mode="hostile", seed=3):
        again, _ = gradients_of(call, (call.q, call.k, call.v))
    assert all(a.equal(b) for a, b in zip(found, again, strict=True))


@pytest.mark.parametrize("size", (128, 64))
def test_without_a_mask_function_all_of_a_listed_block_counts(size):
    call = drawn((size, size))
    found, of_results = gradients_of(call, (call.q, call.k, call.v), mask_mod=None)
    everything = call.visible(lambda *places: torch.tensor(True))
    assert_right(found, call, *of_results, everything)


STORED = ("packed", "padded lists", "lengths", "packed queries")


@pytest.mark.parametrize("size", (128, 64))
@pytest.mark.parametrize("way", turns.by_turns(STORED))
def test_a_sequence_has_the_gradients_of_its_own_lists(way, size):
    """With NaN beyond padded sequences; one without queries, one without keys, one key in a second tile."""
    lengths = [(n, 300) for n, _ in LENGTHS] if way == "packed queries" else LENGTHS
    call = drawn((size, size), lengths=lengths)
    tensors, given, lists = WAYS[way](call)
    found, (dout, dlse) = gradients_of(call, tensors, flash_attn_varlen_func, lists, **given)
    in_rows = [*found, dout, dlse.transpose(-1, -2)]
    for at, axis in enumerate((0, 1, 1, 0, 0)):
        if in_rows[at].dim() == (2 if at == 4 else 3):
            in_rows[at] = padded(in_rows[at], call.of(axis))
    for b, (queries, keys) in enumerate(lengths):
        alone = Listed(
            call.q[b : b + 1], call.k[b : b + 1], call.v[b : b + 1], call.kinds[b : b + 1],
            call.block_size, ((queries, keys),),
        )  # fmt: skip
        rows = slice(queries), slice(keys)
        of_b = [x[b : b + 1, rows[i]] for x, i in zip(in_rows, (0, 1, 1, 0, 0), strict=True)]
        visible = alone.visible(lambda _, *places, b=b: every_third_hidden(b, *places))
        assert_right(of_b[:3], alone, of_b[3], of_b[4].transpose(-1, -2), visible, rows)


BIAS = torch.randn(2, 300, generator=torch.Generator().manual_seed(5))


def of_rows(score, batch, head, q_idx, kv_idx, aux):
    return score * aux[0][head, q_idx]


def of_distances(score, batch, head, q_idx, kv_idx, aux):
    return score + aux[0][head, (q_idx - kv_idx).clamp(0, 299)]


def of_keys(score, batch, head, q_idx, kv_idx, aux):
    return score * aux[0][head, kv_idx]


def of_all(function):
    """The function of all scores."""
    places = torch.arange(2)[:, None, None], torch.arange(260)[:, None], torch.arange(300)
    return lambda s, aux: function(s, 0, *places, aux)


def test_tensors_of_score_functions_have_gradients():
    """test_the_calls_for_planted_defects_are_right has the three ways in which a kernel sums them."""
    call, bias = drawn((128, 128), (0.6, 0.9)), BIAS.clone().requires_grad_()
    out = flash_attn_func(
        call.q, call.k, call.v, score_mod=of_distances, aux_tensors=[bias],
        mask_mod=every_third_hidden, block_sparse_tensors=call.lists(),
    )  # fmt: skip
    dout = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.dtype)
    (found,) = torch.autograd.grad(out, bias, dout)
    exact, allowed = exact_and_allowed(
        (call.q, call.k, call.v, dout), of_all(of_distances), (BIAS,), call.visible()
    )
    assert are_within([found], exact, allowed) and exact[0].abs().max() > 0.1


def test_entries_that_are_no_blocks_have_no_gradients_where_they_are_not_checked(monkeypatch):
    """As on CUDA, where the host reads no contents: counts and entries beyond what there is reach no tensor."""
    monkeypatch.setattr(blocks, "check_contents", lambda *given: None)
    largest, smallest = 2**31 - 1, -(2**31)
    call = drawn((128, 128), (1.0,))
    call = replace(call, kinds=torch.tensor([[[[0, 1, 0], [0, 0, 0], [2, 0, 2]]]]))
    lists = BlockSparseTensors(
        numbers([[[largest, smallest, 0]]]), numbers([[[[1, -1, largest], [0, 1, 2], [0, 1, 2]]]]),
        numbers([[[0, -3, 3]]]), numbers([[[[0, 1, 2], [0, 1, 2], [2, 7, 0]]]]), block_size=(128, 128),
    )  # fmt: skip
    found, of_results = gradients_of(call, (call.q, call.k, call.v), lists=lists)
    assert_right(found, call, *of_results)


@pytest.mark.parametrize("size", (128, 64))
def test_one_graph_of_forward_and_backward(size):
    """torch.compile(fullgraph=True), with the same bits."""
    call = drawn((size, size))
    expected, _ = gradients_of(
        call, (call.q, call.k, call.v), mask_mod=ScoreMod.of(every_third_hidden)
    )
    function = torch.compile(flash_attn_func, backend="aot_eager", fullgraph=True)
    found, _ = gradients_of(
        call, (call.q, call.k, call.v), function, mask_mod=ScoreMod.of(every_third_hidden)
    )
    torch._dynamo.reset()
    assert all(a.equal(b) for a, b in zip(found, expected, strict=True))


def test_a_mask_does_not_go_with_lists():
    """As in the forward pass, whose message names what to do; the kernels have no such variant."""
    from cute_fa4.masks import Causal
    from cute_fa4.sm100.backward.config import BackwardConfig

    (why,) = BackwardConfig("bf16", 64, 64, mask=Causal(), listed=True).refusals()
    assert "listed=True with mask=Causal()" in why


# --- for planted defects: a call whose lists are of every kind


PLANTED = drawn((128, 128), (0.5, 1.0))
WIDEST = drawn((128, 128), (0.5, 1.0), head_dim=256)  # each entry is two tiles of 64


def tensors_of(call: Listed) -> tuple:
    """q, k, v and the gradient of out."""
    dout = torch.randn(call.q.shape, generator=torch.Generator().manual_seed(1)).to(call.q.dtype)
    return call.q, call.k, call.v, dout


def scores_of(call: Listed = PLANTED, **more) -> dict:
    """Fields of Scores."""
    lists = Lists.of_operator(call.lists()._asdict())
    return dict(mask_mod=ScoreMod.of(every_third_hidden), lists=lists) | more


def right_gradients(call: Listed = PLANTED) -> bool:
    tensors, options = tensors_of(call), dict(visible=call.visible())
    found = run(*tensors, scores=scores_of(call), **options)
    exact, allowed = (f(*tensors, **options) for f in (gradients_float64, allowed_gradient_errors))
    return are_within(found, exact, allowed)


def right_sums(function, call: Listed = PLANTED) -> bool:
    """Gradients of BIAS, which the function reads."""
    tensors, visible, scored = tensors_of(call), call.visible(), of_all(function)
    of = attended(*tensors[:3], score_mod=lambda s: scored(s, [BIAS.double()]), visible=visible)
    more = scores_of(call, score_mod=ScoreMod.of(function), aux=(BIAS,))
    scores = Scores(call.q.shape[-1] ** -0.5, **more)
    found = gradients_of_aux(of, tensors[-1], None, scores, (0,))
    exact, allowed = exact_and_allowed(tensors, scored, (BIAS,), visible)
    return are_within(found, exact, allowed) and bool(exact[0].abs().max() > 0.1)


def sorted_always():
    """Calls whose lists begin with the longest, however few they are."""
    return tuning.using(tuning.shipped().changed(longest_first=0))


def right_in_order() -> bool:
    with sorted_always():
        return right_gradients()


def both_owners_read_their_order() -> bool:
    """CTAs whose order names a list twice write the same rows, which the emulator reports as a race."""
    return all(map(races_where_all_are_the_first, range(2)))


def races_where_all_are_the_first(owner: int) -> bool:
    """owner: of queries, or of keys; the other one has the order of the grid."""
    orders = iter([1, 0] if owner == 0 else [0, 1])

    def first_alone(counts, batch, heads):
        return counts.new_zeros(next(orders) * batch * heads * counts.shape[2])

    with mock.patch.object(backward, "longest_first", first_alone):
        try:
            right_gradients()
        except RaceError:
            return True
    return False


CASES = {
    "lists": right_gradients,
    "lists, longest first": right_in_order,
    "lists, one list alone": both_owners_read_their_order,
    "lists, sums of rows": partial(right_sums, of_rows),
    "lists, sums of distances": partial(right_sums, of_distances),
    "lists, scores": partial(right_sums, of_keys),
}
CASES |= {
    f"{name}, widest": partial(CASES[name], WIDEST)
    for name in ("lists", *(name for name in CASES if "sums" in name or "scores" in name))
}


@pytest.mark.parametrize("name", CASES)
def test_the_calls_for_planted_defects_are_right(name):
    """They have full blocks whose tiles the end of queries, of keys, and of both cuts; empty lists; partial blocks."""
    kinds = PLANTED.kinds[0]
    assert (kinds[:, -1, :-1] == FULL).any() and (kinds[:, :-1, -1] == FULL).any()
    assert kinds.unique().numel() == 3
    assert CASES[name]()
