"""The operators on DTensors, on two ranks: the result of one process, computed where the table says.

Every operator that torch knows by our namespace has a rule. Tensors are those of tests/operators/problems.py: two
sequences, or three, which two ranks share unevenly.
"""

import pytest
import torch

from tests.distributed import cases
from tests.distributed.pool import Failed
from tests.operators import problems

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
    """A token for each of two sequences behind 5 and 20 rows of dense caches of 32."""
    call = problems.decode()
    del call["page_table"]
    call["k_cache"], call["v_cache"] = torch.randn(2, 2, 32, 2, 64, dtype=problems.BF16)
    return call


def parts() -> dict:
    return dict(outs=torch.randn(3, 2, 5, 4, 64), lses=torch.randn(3, 2, 4, 5))


def latent() -> dict:
    return problems.latent() | {"learnable_sink": torch.randn(16)}


def one_key_head() -> dict:
    return problems.dense(batch=2, heads_kv=1)


WITH_OUT = {"q": Q, "out": Q}
OF_CACHES = {"q": Q, "k_cache": Q, "v_cache": Q}
OF_PARTS = {"outs": {"batch": 1, "heads": 3, "parts": 0}}
HERE = dict(batch="S(0)", heads="S(2)")
GROUP = dict(pack_gqa=None)
SLOPES = dict(score_mod="alibi(4)")
LONGEST = dict(max_seqlen_q=5)

# name -> operator, its tensors, other arguments, {tensor: how each kind cuts it}, {kind: placement of out}
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
    "merge": ("merge", parts, {}, OF_PARTS, HERE | {"parts": "R"}),
}  # fmt: skip


def registered() -> set[str]:
    import cute_fa4.operators  # noqa: F401

    names = torch._C._dispatch_get_all_op_names()
    return {name.partition("::")[2] for name in names if name.startswith("cute_fa4::")}


# An operator refuses DTensors that want a gradient, so none reaches its backward pass.
WITHOUT_RULE = {f"flash_attn_backward{of}" for of in ("", "_out", "_aux")}


def test_every_operator_has_a_rule_and_a_case():
    from torch._library.simple_registry import singleton
    from torch.distributed.tensor import DTensor

    from cute_fa4.operators.sharding import register_rules

    register_rules()
    assert registered() - WITHOUT_RULE == {operator for operator, *_ in CASES.values()}
    for name in registered() - WITHOUT_RULE:
        rules = singleton.find(f"cute_fa4::{name}").torch_dispatch_rules
        assert rules.find(DTensor) is not None, name


@pytest.mark.parametrize("case", CASES)
def test_ranks_compute_what_one_process_does(pool, case):
    name, problem, options, moved, expected = CASES[case]
    torch.manual_seed(0)
    call = problem()
    tensors = {n: x for n, x in call.items() if isinstance(x, torch.Tensor)}
    options = {n: x for n, x in call.items() if n not in tensors} | options
    if name != "merge":
        options |= dict(mask="Causal()", return_lse=True)
    if name.endswith("_out"):
        depth = 512 if "mla" in name else 64
        tensors["out"] = torch.zeros(*tensors["q"].shape[:-1], depth, dtype=problems.BF16)
    for found in pool.run(cases.sharded, (name, tensors, options, expected, moved), RANKS):
        assert not isinstance(found, Failed), found.trace
        for kind, (equal, placements) in found.items():
            assert equal, kind
            if not name.endswith("_out"):
                assert placements[0] == expected[kind], (kind, placements)


@pytest.mark.parametrize("cut", [None, "rows"])
def test_what_is_written_is_not_moved(pool, cut):
    """Whole, it makes the ranks compute all of it; cut along the sequence, no call can write to it."""
    tensors = problems.dense(batch=2) | {"out": torch.zeros(2, 24, 4, 64, dtype=problems.BF16)}
    moved = {"q": {"cut": 2}, "out": {"cut": Q.get(cut)}}
    for found in pool.run(cases.sharded, ("flash_attn_out", tensors, {}, ["cut"], moved), RANKS):
        if cut is None:
            assert found["cut"] == (True, ["R", "R"])  # lse, out
        else:
            assert found.kind == "ValueError", found
            assert "out: written, with placements (Shard(dim=1),); accepted here" in found.text


def test_each_dimension_of_a_mesh_has_a_part_of_its_own(pool):
    found = pool.run(cases.on_a_grid, (problems.dense(batch=3),), 4)
    assert found == [(True, ["S(0)", "S(2)"])] * 4
