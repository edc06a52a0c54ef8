"""Lists of blocks that no kernel has: tiles of the kernels whose rest a mask function of the package hides.

test_block_sparsity.py has the laws that they share with other lists.
"""

import pytest
import torch

from cute_fa4 import BlockSparseTensors, flash_attn_func, score_mods
from cute_fa4.calls.operands import blocks
from cute_fa4.calls.small_blocks import in_tiles
from cute_fa4.operands import CallTensors
from tests.attention.listed import (
    ABSENT,
    FULL,
    PARTIAL,
    SMALL,
    Listed,
    assert_right,
    every_third_hidden,
    numbers,
)
from tests.suite import turns


@pytest.mark.parametrize("size", turns.by_turns(SMALL))
@pytest.mark.parametrize("hides", [every_third_hidden, None])
def test_any_pattern_of_small_blocks_is_that_of_float64(size, hides):
    """Lists of heads of a group, with no blocks, some and all. Two work tiles, a ragged last tile on both sides."""
    call = Listed.draw((1, 200, 300), (3, 1), SMALL[size], (0.0, 0.5, 1.0))
    visible = call.visible() if hides else call.visible(lambda *places: torch.tensor(True))
    assert_right(call.run(mask_mod=hides), call.expected(visible))


def test_tiles_of_full_blocks_are_full():
    """A tile of 128 x 128 that small blocks fill is a full one; the ragged last tile, too, whose blocks exist."""
    call = Listed.draw((1, 200, 300), (1, 1), (64, 64), (1.0,))
    call.kinds[:] = FULL
    call.kinds[..., 0, 2] = PARTIAL
    call.kinds[..., 2:, 4] = ABSENT
    options = dict(score_mod=None, mask_mod=None, aux_tensors=None)
    tensors = CallTensors(q=call.q, k=call.k, v=call.v)
    for mask_mod, full in (
        (score_mods.ScoreMod.of(every_third_hidden), [[0, 2], [0, 1]]),
        (None, [[0, 1, 2], [0, 1]]),
    ):
        given = options | {"mask_mod": mask_mod, "block_sparse_tensors": call.lists()}
        lists = in_tiles(tensors, given, contents=True)["block_sparse_tensors"]
        rows = zip(
            lists.full_block_idx[0, 0].tolist(), lists.full_block_cnt[0, 0].tolist(), strict=True
        )
        assert [entries[:n] for entries, n in rows] == full and lists.block_size == (128, 128)


def test_a_small_block_that_is_listed_twice_counts_once_where_it_is_not_checked(monkeypatch):
    """In one list, and in both, where it is full. The order of a list does not change a bit."""
    call = Listed.draw((1, 128, 150), (1, 1), (64, 64), (0.0,))
    call.kinds[0, 0] = torch.tensor([[FULL, ABSENT, PARTIAL], [ABSENT, FULL, ABSENT]])
    expected = call.run()
    monkeypatch.setattr(blocks, "check_contents", lambda *given: None)
    lists = BlockSparseTensors(
        numbers([[[4, 2]]]),
        numbers([[[[2, 0, 2, 2], [1, 1, 0, 0]]]]),
        numbers([[[2, 3]]]),
        numbers([[[[0, 0, 9, 9], [1, 1, 1, 9]]]]),
        block_size=(64, 64),
    )
    assert all(map(torch.equal, call.run(lists), expected))
    assert_right(expected, call.expected())


def of_examples(call: Listed, lists: BlockSparseTensors):
    """A function of the tensors of one example, and those of all."""

    options = dict(mask_mod=score_mods.ScoreMod.of(every_third_hidden))

    def run(*tensors):
        q, k, v, *given = (x[None] for x in tensors)
        lists_of_one = BlockSparseTensors(*given, block_size=lists.block_size)
        return flash_attn_func(q, k, v, block_sparse_tensors=lists_of_one, **options)[0]

    return run, (call.q, call.k, call.v, *lists[:4])


def test_small_blocks_under_transforms_have_the_same_bits():
    """torch.vmap of lists, torch.export, symbolic sizes, and the dtype of an autocast region."""
    call = Listed.draw((2, 140, 200), (2, 1), (64, 64), (0.5, 0.7))
    run, tensors = of_examples(call, call.lists())
    first = [x[0] for x in tensors]
    each = torch.stack([run(*(x[i] for x in tensors)) for i in range(2)])
    assert torch.equal(torch.vmap(run)(*tensors), each)

    class Model(torch.nn.Module):
        def forward(self, *tensors):
            return run(*tensors)

    exported = torch.export.export(Model(), tuple(first)).module()
    assert torch.equal(exported(*first), each[0])
    dynamic = torch.compile(run, backend="aot_eager", fullgraph=True, dynamic=True)
    assert torch.equal(dynamic(*first), each[0])
    torch._dynamo.reset()
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(run(*(x.float() for x in first[:3]), *first[3:]), each[0])


def test_small_blocks_leave_numbers_of_aux_tensors_as_they_are():
    """aux[-1] is the last tensor of the caller, beside which the call has one of its own."""
    shown = torch.randn(200, generator=torch.Generator().manual_seed(0)).bfloat16()
    call = Listed.draw((1, 140, 200), (2, 1), (64, 64), (0.5, 0.7))
    found = call.run(
        mask_mod=lambda b, h, i, j, aux: aux[-1][j] > 0,
        score_mod=lambda s, b, h, i, j, aux: s + aux[-1][j],
        aux_tensors=[torch.zeros(2, 2), shown],
    )
    visible = call.visible(lambda b, h, i, j: shown[j] > 0)
    assert_right(found, call.expected(visible, lambda s: s + shown.double()))
    with pytest.raises(ValueError, match="aux_tensors: given without score_mod or mask_mod"):
        call.run(mask_mod=None, aux_tensors=[shown])
