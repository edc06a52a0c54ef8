"""The operators on DTensors, on two ranks: the result of one process, computed where the table says.

Every operator that torch knows by our namespace has a rule. Tensors are those of tests/operators/problems.py: two
sequences, or three, which two ranks share unevenly.
"""

import pytest
import torch

from cute_fa4 import BlockSparseTensors
from cute_fa4.calls.block_lists import Lists, Side
from cute_fa4.calls.small_blocks import Conversion
from cute_fa4.operators import sharding
from cute_fa4.operators.tiles import arguments_of_tiles, block_tiles
from cute_fa4.score_mods import ScoreMod
from tests.attention.listed import Listed
from tests.distributed import dtensors
from tests.distributed.pool import Failed
from tests.operators import problems
from tests.sm100.indexer import problems as of_keys

RANKS = 2
Q, LENGTHS, LSE = {"batch": 0, "heads": 2, "rows": 1}, {"batch": 0}, "-> lse"
PACKED = {"heads": 1, "rows": 0}


def dense() -> dict:
    """Three sequences, of which two have fewer keys, and a sink for each head."""
    more = dict(learnable_sink=torch.randn(4), key_limit=problems.int32(24, 7, 13))
    return problems.dense(batch=3) | more


def packed() -> dict:
    call = problems.ragged()
    return {n: x for n, x in call.items() if n != "max_seqlen_q"}


def appended() -> dict:
    """A token for each of two sequences after 5 and 20 rows of dense caches of 32."""
    call = problems.decode()
    del call["page_table"]
    call["k_cache"], call["v_cache"] = torch.randn(2, 2, 32, 2, 64, dtype=problems.BF16)
    return call


def parts() -> dict:
    return dict(outs=torch.randn(3, 2, 5, 4, 64), lses=torch.randn(3, 2, 4, 5))


def small_lists() -> dict:
    """Lists of blocks of 64 of two heads. A rank has all of them, so that it finds those of its queries."""
    given = Listed.draw((1, 140, 200), (2, 1), (64, 64), (0.4, 0.8)).lists()
    lists = Lists.of_operator(given._asdict())
    conversion = Conversion(lists, Side(140), Side(200), batch=1, hides=True, tile_q=128)
    tensors, options = arguments_of_tiles(conversion)
    names = [argument.name for argument in block_tiles._schema.arguments][: len(tensors)]
    named = zip(names, tensors, strict=True)
    options["block_size"] = tuple(options["block_size"])  # lists are of tensors here
    return {name: x for name, x in named if x is not None} | options


def of_indexer() -> dict:
    """Five queries, of which a rank has three and the other two."""
    drawn = of_keys.draw(8, 5, [40])
    starts, ends = problems.int32(0, 1, 2, 3, 4), problems.int32(40, 30, 20, 10, 5)
    rows = dict(q=drawn.q[0], k=drawn.keys[0], k_scale=drawn.scales[0], weights=drawn.weights[0])
    return rows | dict(starts=starts, ends=ends, clean=True)


def of_pages_of_keys(lengths: tuple = (70, 3)) -> dict:
    """Two queries of each sequence."""
    drawn = of_keys.draw(8, 2, list(lengths))
    cache, table = of_keys.cache_of(drawn, 64)
    rows = dict(q=drawn.q, cache=cache, weights=drawn.weights.flatten(0, 1), table=table)
    return rows | dict(lengths=problems.int32(*lengths), width=70, clean=True)


def of_logits() -> dict:
    return dict(logits=torch.randn(5, 40), k=7) | dict.fromkeys(
        ("starts", "ends"), torch.arange(5).int() + 9
    )


def latent() -> dict:
    return problems.latent() | {"learnable_sink": torch.randn(16)}


def one_key_head() -> dict:
    return problems.dense(batch=2, heads_kv=1)


def small() -> dict:
    """Two sequences of two heads with sinks: four CTAs of each kernel."""
    return problems.dense(8, 8, batch=2, heads_q=2) | dict(learnable_sink=torch.randn(2))


def gradients(call: dict) -> dict:
    """The tensors that the backward pass of a call reads. out and lse are random: only their placement counts."""
    q = call["q"]
    lse = q[..., 0].mT.shape
    dout, out = torch.randn(2, *q.shape, dtype=problems.BF16)
    return call | dict(dout=dout, out=out, lse=4 + torch.randn(lse), dlse=torch.randn(lse))


def of_dense() -> dict:
    return gradients(dense())


def of_one_key_head() -> dict:
    return gradients(one_key_head())


def of_packed() -> dict:
    return gradients(packed() | dict(learnable_sink=torch.randn(4)))


def with_rope() -> dict:
    """The last 64 columns of q meet those that all key heads share."""
    rope = torch.randn(2, 2, 24, 4, 64, dtype=problems.BF16)
    call = problems.dense(batch=2)
    return call | dict(q=torch.cat((call["q"], rope[0]), -1), k_rope=rope[1, :, :, :1].contiguous())


def in_place(call: dict | None = None) -> dict:
    """Sums to which gradients are added."""
    call = of_dense() if call is None else call
    return call | {f"d{n}": torch.ones(call[n].shape) for n in ("q", "k", "v")}


def with_table(*shape: int) -> dict:
    return of_dense() | {"aux_tensors": [torch.randn(*shape)]}


def by_row(score, batch, head, q_idx, kv_idx, aux):
    return score + aux[0][q_idx]


def by_row_of_call(score, batch, head, q_idx, kv_idx, aux):
    return score + aux[0][aux.q_row]


def by_head(score, batch, head, q_idx, kv_idx, aux):
    return score + aux[0][head]


def by_sequence(score, batch, head, q_idx, kv_idx, aux):
    return score + aux[0][batch]


WITH_OUT = {"q": Q, "out": Q}
OF_CACHES = {"q": Q, "k_cache": Q, "v_cache": Q}
ROWS = {"batch": 0}
OF_PARTS = {"outs": {"batch": 1, "heads": 3, "parts": 0}}
HERE = dict(batch="S(0)", heads="S(2)")
GROUP = dict(pack_gqa=None)
SLOPES = dict(score_mod="alibi(4)")
LONGEST = dict(max_seqlen_q=5)
BOTH_LONGEST = LONGEST | dict(max_seqlen_k=5)
IN_PLACE = dict.fromkeys(("q", "dq", "dk", "dv"), Q)
PART_OF_SUM = {"q": Q, "dq": Q, "dk": {"heads": "sum"}, "dv": {"heads": "sum"}}
OF_DENSE = dict(batch="S(0) S(0) S(0) P(sum)", heads="S(2) S(2) S(2) S(0)")
SUMS = dict(batch="S(0) S(0) S(0)", heads="S(2) S(2) S(2)")
OF_ONE_KEY_HEAD = dict(batch="S(0) S(0) S(0) R", heads="S(2) P(sum) P(sum) R")
BACKWARD = "flash_attn_backward"

# name -> operator, its tensors, other arguments, {tensor: how each kind cuts it}, {kind: placements of first results}
CASES = {
    "dense, uneven batch": ("flash_attn", dense, {}, {"q": Q}, HERE | {"rows": "R"}),
    "one key head": ("flash_attn", one_key_head, {}, {"q": Q}, HERE | {"rows": "R"}),
    "slopes by head": ("flash_attn", dense, SLOPES, {"q": Q}, {"batch": "S(0)", "heads": "R"}),
    "dense, out": ("flash_attn_out", dense, {}, WITH_OUT, HERE),
    "packed": ("flash_attn_varlen", packed, LONGEST, {"q": PACKED}, {"heads": "S(1)", "rows": "R"}),
    "pages": ("flash_attn_varlen", problems.paged, {}, {"q": PACKED}, {"heads": "S(1)", "rows": "R"}),
    "packed, out": ("flash_attn_varlen_out", packed, LONGEST, {"q": PACKED, "out": PACKED}, {"heads": "S(1)"}),
    "append": ("flash_attn_append", appended, {}, OF_CACHES, HERE),
    "append to pages": ("flash_attn_append", problems.decode, {}, {"q": Q}, {"batch": "R"}),
    "append, out": ("flash_attn_append_out", appended, {}, OF_CACHES | WITH_OUT, HERE),
    "append with scales": ("flash_attn_append_scales", appended, {}, OF_CACHES, HERE),
    "append with scales, out": ("flash_attn_append_scales_out", appended, {}, OF_CACHES | WITH_OUT, HERE),
    "latent": ("flash_mla", latent, GROUP, {"q": Q}, HERE),
    "latent, out": ("flash_mla_out", latent, GROUP, WITH_OUT, HERE),
    "latent, largest scores": ("flash_mla", latent, GROUP | dict(return_max=True), {"q": Q}, HERE),
    "function of rows": (
        "flash_attn",
        lambda: dense() | {"aux_tensors": [torch.randn(24)]},
        dict(score_mod=by_row),
        {"q": Q},
        HERE | {"rows": "R"},
    ),
    "function of rows of the call": (
        "flash_attn",
        lambda: dense() | {"aux_tensors": [torch.randn(72)]},
        dict(score_mod=by_row_of_call),
        {"q": Q},
        {"batch": "R", "heads": "S(2)"},
    ),
    "gradients": (BACKWARD, of_dense, {}, {"q": Q}, OF_DENSE | {"rows": "R R R R"}),
    "gradients, one key head": (BACKWARD, of_one_key_head, {}, {"q": Q}, OF_ONE_KEY_HEAD),
    "gradients in float32": (BACKWARD, of_one_key_head, dict(in_float32=True), {"q": Q}, OF_ONE_KEY_HEAD),
    "gradients, packed": (BACKWARD, of_packed, BOTH_LONGEST, {"q": PACKED}, {"heads": "S(1) S(1) S(1) S(0)"}),
    "gradients, out": (f"{BACKWARD}_out", in_place, dict(accumulate=True), IN_PLACE, SUMS),
    "gradients, out, one key head": (
        f"{BACKWARD}_out",
        lambda: in_place(of_one_key_head()),
        dict(accumulate=True),
        PART_OF_SUM,
        {"heads": "S(2) P(sum) P(sum)"},
    ),
    "gradients of rows": (
        f"{BACKWARD}_aux",
        lambda: with_table(24),
        dict(score_mod=by_row, wanted=[0]),
        {"q": Q},
        {"batch": "P(sum)", "heads": "P(sum)", "rows": "R"},
    ),
    "gradients of heads": (
        f"{BACKWARD}_aux",
        lambda: with_table(4),
        dict(score_mod=by_head, wanted=[0]),
        {"q": Q},
        {"batch": "P(sum)", "heads": "R"},
    ),
    "gradients of sequences": (
        f"{BACKWARD}_aux",
        lambda: with_table(3),
        dict(score_mod=by_sequence, wanted=[0]),
        {"q": Q},
        {"batch": "R", "heads": "P(sum)"},
    ),
    "merge": ("merge", parts, {}, OF_PARTS, HERE | {"parts": "R"}),
    "small blocks": (
        "block_tiles",
        small_lists,
        {},
        dict.fromkeys(BlockSparseTensors._fields[:4], {"heads": 1}),
        {"heads": "R R R R R"},
    ),
    "indexer": ("mqa_logits", of_indexer, {}, {"weights": ROWS}, {"batch": "S(0)"}),
    "indexer over pages": ("paged_mqa_logits", of_pages_of_keys, {}, {"weights": ROWS}, {"batch": "S(0)"}),
    "top k": ("topk_indices", of_logits, {}, {"logits": ROWS}, {"batch": "S(0)"}),
}  # fmt: skip


def test_a_backward_of_its_own_forbids_cuts_of_what_it_reads():
    """A rank counts heads and sequences from 0, in the factor of a gradient as in the score."""

    def plain(score, batch, head, q_idx, kv_idx):
        return score + q_idx

    by_position, by_head, by_sequence = (
        ScoreMod.of(plain, backward=lambda grad, score, *at, axis=axis: grad * at[axis])
        for axis in (2, 1, 0)
    )
    found = [sharding._counted_by(mod) for mod in (by_position, by_head, by_sequence)]
    assert found == [set(), {"heads"}, {"batch"}]


def registered() -> set[str]:
    import cute_fa4.operators  # noqa: F401

    names = torch._C._dispatch_get_all_op_names()
    return {name.partition("::")[2] for name in names if name.startswith("cute_fa4::")}


def test_every_operator_has_a_rule_and_a_case():
    from torch._library.simple_registry import singleton
    from torch.distributed.tensor import DTensor

    from cute_fa4.operators.sharding import register_rules

    register_rules()
    assert registered() == {operator for operator, *_ in CASES.values()}
    for name in registered():
        rules = singleton.find(f"cute_fa4::{name}").torch_dispatch_rules
        assert rules.find(DTensor) is not None, name


@pytest.mark.parametrize("case", CASES)
def test_ranks_compute_what_one_process_does(pool, case):
    name, problem, options, moved, expected = CASES[case]
    torch.manual_seed(0)
    call = problem()
    tensors = {n: x for n, x in call.items() if isinstance(x, (torch.Tensor, list))}
    options = {n: x for n, x in call.items() if n not in tensors} | options
    if BACKWARD in name:
        options |= dict(mask="Causal()", softmax_scale=0.125)
    elif name.startswith("flash_"):
        options |= dict(mask="Causal()", return_lse=True)
    with_out = name.endswith("_out")
    if with_out and BACKWARD not in name:
        depth = 512 if "mla" in name else 64
        tensors["out"] = torch.zeros(*tensors["q"].shape[:-1], depth, dtype=problems.BF16)
    for found in pool.run(dtensors.sharded, (name, tensors, options, expected, moved), RANKS):
        assert not isinstance(found, Failed), found.trace
        for kind, (equal, placements) in found.items():
            assert equal, kind
            first = (
                placements[1:] if with_out else placements
            )  # out follows lse, and gradients dsink
            assert " ".join(first).startswith(expected[kind]), (kind, placements)


@pytest.mark.parametrize("cut", [None, "rows"])
def test_what_is_written_is_not_moved(pool, cut):
    """Whole, it makes the ranks compute all of it; cut along the sequence, no call can write to it."""
    tensors = problems.dense(batch=2) | {"out": torch.zeros(2, 24, 4, 64, dtype=problems.BF16)}
    moved = {"q": {"cut": 2}, "out": {"cut": Q.get(cut)}}
    for found in pool.run(dtensors.sharded, ("flash_attn_out", tensors, {}, ["cut"], moved), RANKS):
        if cut is None:
            assert found["cut"] == (True, ["R", "R"])  # lse, out
        else:
            assert found.kind == "ValueError", found
            assert "out: written, with placements (Shard(dim=1),); accepted here" in found.text


def test_sums_that_are_whole_on_each_rank_are_not_added_to(pool):
    """Each rank has the part of its own heads, which whole sums cannot hold."""
    tensors, options = in_place(of_one_key_head()), dict(accumulate=True, softmax_scale=0.125)
    cut = {"heads": 2}
    moved = {"q": cut, "dq": cut}
    for found in pool.run(
        dtensors.sharded, (f"{BACKWARD}_out", tensors, options, ["heads"], moved), RANKS
    ):
        assert found.kind == "ValueError", found
        assert "dk: written, with placements (Replicate(),); accepted here: (Partial(sum),)" in (
            found.text
        )


# name -> its tensors, other arguments, [{tensor: dimension on the mesh} of each way to cut], placements of gradients
SEQUENCES, HEADS = dict.fromkeys("qkv", (0,)), dict.fromkeys("qkv", (2,))
CAUSAL = dict(causal=True)
AUTOGRAD = {
    "dense": (
        dense,
        CAUSAL,
        [SEQUENCES, HEADS, HEADS | {"learnable_sink": (0,)}, {}],
        [*OF_DENSE.values(), OF_DENSE["heads"], "R R R R"],
    ),
    "one key head": (
        one_key_head,
        CAUSAL,
        [SEQUENCES, HEADS | {"k": (1,), "v": (1,)}],
        ["S(0) S(0) S(0)", "S(2) P(sum) P(sum)"],
    ),
    "table": (
        lambda: dense() | dict(aux=torch.randn(24)),
        CAUSAL | dict(score_mod=by_row),
        [SEQUENCES, HEADS],
        [f"{placements} P(sum)" for placements in OF_DENSE.values()],
    ),
    "small": (small, CAUSAL, [SEQUENCES, HEADS], [*OF_DENSE.values()]),
    "packed": (
        packed,
        CAUSAL | BOTH_LONGEST,
        [dict.fromkeys("qkv", (1,))],
        ["S(1) S(1) S(1)"],
    ),
    "k_rope": (
        with_rope,
        {},
        [SEQUENCES, HEADS],
        ["S(0) S(0) S(0) S(0)", "S(2) S(2) S(2) P(sum)"],
    ),
}


def small_blocks() -> dict:
    """Two heads with their own lists of blocks of 64 queries and 48 keys."""
    call = Listed.draw((1, 70, 100), (2, 1), (64, 48), (0.4, 0.8))
    lists = {n: x for n, x in call.lists()._asdict().items() if isinstance(x, torch.Tensor)}
    return dict(q=call.q, k=call.k, v=call.v) | lists


# Those that have no definition here. With lists, every rank computes all.
ON_EMULATOR = {
    "small": AUTOGRAD["small"],
    "small blocks": (small_blocks, dict(block_size=(64, 48)), [HEADS], ["R R R"]),
}


@pytest.mark.parametrize(
    "name, way",
    [
        *((name, "definition") for name in AUTOGRAD),
        ("dense", "compiled"),
        *((name, "emulator") for name in ON_EMULATOR),
    ],
)
def test_autograd_gives_the_gradients_of_one_process(pool, name, way):
    """The same bits, except in sums over the ranks. The kernel computes heads and sequences separately."""
    problem, options, cuts, placements = (AUTOGRAD | ON_EMULATOR)[name]
    torch.manual_seed(0)
    arguments = problem(), options, cuts, way
    for result in pool.run(dtensors.differentiated_on_two, arguments, RANKS):
        assert not isinstance(result, Failed), result.trace
        for found, expected in zip(result, placements, strict=True):
            assert all(same for same, _ in found.values()), found
            of_gradients = [at[0] for of, (_, at) in found.items() if of not in ("out", "lse")]
            assert of_gradients == expected.split(), found


def test_a_layer_with_its_heads_on_two_ranks_trains_like_that_of_one_process(pool):
    for found in pool.run(dtensors.tensor_parallel, (), RANKS):
        assert not isinstance(found, Failed), found.trace
        assert set(found) == {"q.weight", "k.weight", "v.weight", "out.weight", "sink"}
        for name, (step, error) in found.items():
            assert 100 * error < step, (name, step, error)


def test_each_dimension_of_a_mesh_has_a_part_of_its_own(pool):
    shards = ["S(0)", "S(2)"]
    for found in pool.run(dtensors.on_a_grid, (dense(),), 4):
        assert not isinstance(found, Failed), found.trace
        assert all(same for same, _ in found.values()), found
        assert all(found[name][1] == shards for name in ("out", "dq", "dk", "dv")), found
        assert found["dlearnable_sink"][1] == ["P(sum)", "S(0)"], found
