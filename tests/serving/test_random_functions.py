"""Random score and mask functions over aux tensors of every dtype, by the public API, against float64."""

import random

import pytest
import torch

from tests import pairwise
from tests.serving import random_functions as functions
from tests.serving.batches import Batch, assert_agrees, packed_kv, packed_q, run

# One tile with a tail, and a sequence of one query: what a function sees does not depend on the number of tiles.
QUERIES, KEYS, HEADS = [20, 1], [40, 33], 2


def agrees(seed: int) -> None:
    chosen, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    placed = functions.draw_aux(chosen)
    number = functions.draw_number(chosen, placed)
    condition = functions.draw_condition(chosen, placed)
    sizes = dict(batch=len(KEYS), keys=max(KEYS), queries=max(QUERIES), heads=HEADS)
    tensors = [each.draw(generator, sizes) for each in placed]

    def score_mod(score, batch, head, q_idx, kv_idx, aux):
        return score + functions.kernel(number, (batch, head, q_idx, kv_idx), aux, placed)

    def mask_mod(batch, head, q_idx, kv_idx, aux):
        return functions.kernel(condition, (batch, head, q_idx, kv_idx), aux, placed)

    def where(b):
        return (
            torch.tensor(b),
            torch.arange(HEADS)[:, None, None],
            torch.arange(QUERIES[b])[:, None],
            torch.arange(KEYS[b]),
        )

    batch = Batch.draw(QUERIES, KEYS, heads=(HEADS, HEADS), seed=seed)
    sequences = iter(range(len(KEYS)))

    def visible(p, j):
        return functions.exact(condition, where(next(sequences)), tensors, placed)

    out, lse = run(
        packed_q(batch),
        packed_kv(batch),
        score_mod=score_mod,
        mask_mod=mask_mod,
        aux_tensors=tensors,
    )
    assert_agrees(
        batch, out, lse, visible=visible,
        score_mod=lambda s, b: s + functions.exact(number, where(b), tensors, placed),
    )  # fmt: skip


# A compile each. The first seeds that add two halves without and with a conversion, and use every dtype between them.
@pytest.mark.parametrize("seed", range(3))
def test_random_functions_agree_with_float64(seed):
    agrees(seed)


@pairwise.sweep_only("serving: random score and mask functions", seconds=2.5)  # a compile each
@pytest.mark.parametrize("seed", range(3, 120))
def test_many_random_functions_agree_with_float64(seed):
    agrees(seed)


# bf16 is what add.rn.f32.bf16 takes as it is; fp16, which has an instruction of the same kind, in the sweep.
@pytest.mark.parametrize(
    "dtype", [torch.bfloat16, pytest.param(torch.float16, marks=pytest.mark.sweep)]
)
def test_two_half_precision_tensors_added_to_a_score(dtype):
    """score + (a + b) with both converted: add.rn.f32.bf16 takes one of them directly from memory."""
    batch = Batch.draw(QUERIES, KEYS, heads=(HEADS, HEADS))
    a, b = torch.randn(2, len(KEYS), max(KEYS)).to(dtype)

    def score_mod(score, batch, head, q_idx, kv_idx, aux):
        from cutlass import Float32

        first, second = (aux[i][batch, kv_idx].to(Float32) for i in (0, 1))
        return score + (first + second)

    out, lse = run(packed_q(batch), packed_kv(batch), score_mod=score_mod, aux_tensors=[a, b])
    assert_agrees(
        batch, out, lse,
        score_mod=lambda s, i: s + (a[i].double() + b[i].double())[: s.shape[-1]],
    )  # fmt: skip
