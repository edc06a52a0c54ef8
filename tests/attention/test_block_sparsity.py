"""Lists of key blocks (block_sparse_tensors=): any lists give what float64 gives with the same visible keys.

Two kernels, with the smallest calls that have several work tiles, several turns, and a last key tile that is not whole:

    256 x 128    two query tiles of a CTA share a list      one block of 300 queries is whole, the other is not
    128 x 256    one query tile, two key tiles a block      the last block of 700 keys has 188: its second tile is cut
"""

import pytest
import torch

from cute_fa4 import (
    BlockSparseTensors,
    block_mask,
    capabilities,
    flash_attn_func,
    flash_attn_varlen_func,
    score_mods,
)
from cute_fa4.calls.operands import blocks
from cute_fa4.sm100.choose.which_kernel import Call, which_kernel
from tests.attention.agreement import attention
from tests.attention.listed import (
    ABSENT,
    FULL,
    PARTIAL,
    SMALL,
    Listed,
    as_packed,
    assert_right,
    every_third_hidden,
)
from tests.suite import turns

SIZES = {"mha2q": (256, 128), "mha1q": (128, 256)}
DENSITIES = (0.0, 0.3, 0.7, 1.0)  # of four heads


def drawn(family, densities=DENSITIES, heads_kv=2, **more) -> Listed:
    size = (SIZES | SMALL)[family]
    return Listed.draw((1, 300, 700), (len(densities), heads_kv), size, densities, **more)


@pytest.mark.parametrize("family", SIZES)
def test_any_pattern_is_that_of_float64(family, schedule):
    """Heads of no blocks, of some and of all; those of a group have different lists."""
    call = drawn(family)
    found = call.run(schedule=schedule)
    assert_right(found, call.expected())
    assert (
        which_kernel(Call("bf16", 64, 64, seqlen_q=300, q_block=SIZES[family][0])).family == family
    )


@pytest.mark.parametrize("family", SIZES)
def test_head_dim_128_of_two_sequences(family):
    """Lists of all heads, which have a dimension of one, and two sequences, which have their own."""
    call = Listed.draw((2, 140, 400), (1, 1), SIZES[family], (0.6,), head_dim=128)
    assert_right(call.run(), call.expected())


# Rows for both query tiles of a CTA, for one, and none; a sequence without keys, and one with fewer than a tile.
LENGTHS = ((300, 700), (0, 300), (140, 60), (5, 0), (200, 450))
STORED = {
    ("mha2q", "lengths"): LENGTHS,
    ("mha1q", "packed"): LENGTHS,
    ("mha2q", "packed"): LENGTHS,
    ("mha2q", "padded lists"): LENGTHS,
    ("mha1q", "packed queries"): [(n, 300) for n, _ in LENGTHS],
    ("mha2q", "pages of 16"): LENGTHS,
    ("mha1q", "pages of 256"): LENGTHS,  # larger than a tile
    (
        "mha2q",
        "pages of 5, packed queries",
    ): LENGTHS,  # gathered rows: a second warp reads the lists, too
}
SHORTER = ((140, 300), (0, 100), (60, 5), (5, 0), (130, 190))
OF_SMALL = {
    ("64 x 64", "packed"): SHORTER,
    ("48 x 80", "lengths"): SHORTER,
    ("128 x 64", "padded lists"): SHORTER,
    ("64 x 128", "packed queries"): [(n, 200) for n, _ in SHORTER],
    ("256 x 64", "pages of 16"): SHORTER,
    ("16 x 16", "pages of 5, packed queries"): SHORTER,
}


@pytest.mark.parametrize("size, way", [*STORED, *turns.by_turns(OF_SMALL)])
def test_any_pattern_of_sequences_of_different_lengths(size, way, schedule):
    lengths = (STORED | OF_SMALL)[size, way]
    sizes = len(lengths), *(max(each) for each in zip(*lengths, strict=True))
    call = Listed.draw(sizes, (2, 1), (SIZES | SMALL)[size], (0.4, 0.8), lengths=lengths)
    assert_right(call.run_as(way, schedule=schedule), call.expected())


def test_the_order_of_a_list_does_not_matter():
    """Within the error that float64 allows; the bits are those of the order of the list."""
    call = drawn("mha1q")
    assert_right(call.run(call.lists(backwards=True)), call.expected())


def test_lists_of_all_heads_and_sequences_are_those_of_each():
    call = drawn("mha1q", (0.5, 0.5))
    shared = Listed(call.q, call.k, call.v, call.kinds[:, :1], call.block_size)
    repeated = BlockSparseTensors(
        *(x.repeat(1, 2, *(1,) * (x.dim() - 2)) for x in shared.lists()[:4]),
        block_size=call.block_size,
    )
    for one, each in zip(shared.run(), shared.run(repeated), strict=True):
        assert torch.equal(one, each)


def test_blocks_from_a_mask_give_what_the_mask_alone_gives():
    """An upper bound of keys, by a mask function: full blocks skip it, absent ones are not visited."""
    call = drawn("mha1q", (1.0,), heads_kv=1)

    def early(batch, head, q_idx, kv_idx):
        return kv_idx <= q_idx + 100

    lists = block_mask(early, 1, 1, 300, 700, block_size=call.block_size)
    # Rows 0 to 127 see up to key 227, rows 128 to 255 up to 355, of blocks of 256; all of 256 to 299 see block 0.
    assert lists.full_block_cnt.tolist() == [[[0, 0, 1]]]
    assert lists.mask_block_cnt.tolist() == [[[1, 2, 1]]]
    call = Listed(call.q, call.k, call.v, torch.ones_like(call.kinds), call.block_size)
    expected = call.expected(call.visible(early))
    assert_right(call.run(lists, mask_mod=early), expected)
    assert_right(
        attention(call.q, call.k, call.v, window_size=(None, -300), return_lse=True), expected
    )


@pytest.mark.parametrize("family", SIZES)
def test_without_a_mask_function_all_of_a_listed_block_is_visible(family):
    """There is one list then; a second one changes nothing."""
    call = drawn(family, (0.0, 0.8))
    partial = BlockSparseTensors(*_one_list(call), block_size=call.block_size)
    found = call.run(partial, mask_mod=None)
    assert_right(found, call.expected(call.visible(lambda *places: torch.tensor(True))))


def _one_list(call: Listed) -> tuple:
    kinds = torch.where(call.kinds != ABSENT, PARTIAL, ABSENT)
    return Listed(call.q, call.k, call.v, kinds, call.block_size).lists()[:2]


def test_other_options_go_with_lists():
    """A soft cap, a sink and hidden padding. Full blocks of padding are cut: 700 keys, of which 450 count."""
    call = drawn("mha2q", (0.6, 0.9))
    sink = torch.tensor([0.5, -1.0])
    found = call.run(
        softcap=5.0, learnable_sink=sink, key_limit=torch.tensor([450], dtype=torch.int32)
    )
    visible = call.visible() & (torch.arange(700) < 450)
    expected = call.expected(visible, lambda s: 5 * torch.tanh(s / 5), sink)
    assert_right(found, expected)


# --- lists of other packages


def rows_of(kinds) -> tuple:
    """A matrix of blocks, (..., rows, columns), in compressed rows, one after another: offsets and columns."""
    counts = kinds.bool().flatten(0, -2).sum(-1)
    offsets = torch.cat((counts.new_zeros(1), counts.cumsum(0)))
    per_row = offsets.unfold(0, 1, 1)[:, 0]
    rows = kinds.shape[-2]
    starts = torch.arange(0, counts.numel(), rows)[:, None] + torch.arange(rows + 1)
    return per_row[starts].view(*kinds.shape[:-2], rows + 1).int(), kinds.nonzero()[:, -1].int()


@pytest.mark.parametrize("of_heads, size", [(False, "mha1q"), (True, "mha1q"), (True, "64 x 64")])
def test_compressed_rows_are_lists(of_heads, size):
    """FlashInfer's offsets of all heads, and those of each key-value head; one row has no blocks."""
    call = drawn(size, (0.4, 0.4, 0.8, 0.8))
    kinds = call.kinds[:, ::2] if of_heads else call.kinds[:, :1]
    kinds[0, 0, 1] = ABSENT
    indptr, indices = rows_of(kinds if of_heads else kinds[0, 0])
    group = 2 if of_heads else 1
    lists = BlockSparseTensors.from_bsr(indptr, indices, call.block_size, 700, group)
    call = Listed(call.q, call.k, call.v, kinds.repeat_interleave(group, 1), call.block_size)
    found = call.run(lists, mask_mod=None)
    assert_right(found, call.expected(call.visible(lambda *places: torch.tensor(True))))


def test_a_matrix_without_blocks_has_empty_lists():
    indptr, none = torch.zeros(4, dtype=torch.int32), torch.zeros(0, dtype=torch.int32)
    lists = BlockSparseTensors.from_bsr(indptr, none, (128, 128), 200)
    assert not lists.mask_block_cnt.any() and lists.mask_block_idx.shape == (1, 1, 3, 2)
    with pytest.raises(ValueError, match="indptr, indices: shapes .4, 1., .0,.; accepted"):
        BlockSparseTensors.from_bsr(indptr[:, None], none, (128, 128), 200)


@pytest.mark.parametrize("counts", [2, torch.tensor([[[2, 0], [1, 2]]], dtype=torch.int32)])
def test_indices_with_their_numbers_are_lists(counts):
    """cuDNN's lists of two key-value heads, of two query heads each."""
    index = torch.tensor([[[[1, 0], [2, 1]], [[0, 9], [2, 0]]]], dtype=torch.int32)
    if isinstance(counts, int):
        index[0, 1, 0, 1] = 2
    lists = BlockSparseTensors.from_indices(index, counts, (128, 128), group=2)
    call = Listed.draw((1, 200, 300), (4, 2), (128, 128), (0.0,) * 4)
    number = torch.as_tensor(counts).expand(1, 2, 2)
    for head in range(4):
        for block in range(2):
            listed = index[0, head // 2, block, : number[0, head // 2, block]]
            call.kinds[0, head, block, listed.long()] = FULL
    assert_right(call.run(lists, mask_mod=None), call.expected())


# --- contents that are wrong


@pytest.mark.parametrize("size", [128, 64])
def test_entries_that_are_no_blocks_are_absent_where_they_are_not_checked(size, monkeypatch):
    """As on CUDA, where contents are not read. Counts beyond the list take all of it, those below 0 nothing."""
    monkeypatch.setattr(blocks, "check_contents", lambda *given: None)
    largest, smallest = 2**31 - 1, -(2**31)
    call = Listed.draw((1, 2 * size, 2 * size + 44), (1, 1), (size, size), (0.0,))
    lists = BlockSparseTensors(
        *_numbers([5, smallest], [[2, -1, largest], [0, 1, 2]]),
        *_numbers([largest, 1], [[3, 0, smallest], [1, 7, 7]]),
        block_size=(size, size),
    )
    call.kinds[0, 0] = torch.tensor([[FULL, ABSENT, PARTIAL], [ABSENT, FULL, ABSENT]])
    assert_right(call.run(lists), call.expected())


@pytest.mark.parametrize("size", [128, 64])
def test_places_of_packed_lists_are_clipped_where_they_are_not_checked(size, monkeypatch):
    """Sequence 0 is right; the lists of the others begin beyond the tensors, and their results may be anything."""
    monkeypatch.setattr(blocks, "check_contents", lambda *given: None)
    call = Listed.draw((3, 140, 300), (2, 1), (size, size), (0.7, 0.7), lengths=[(140, 300)] * 3)
    tensors, lengths, lists = as_packed(call)
    far = {name: getattr(lists, name).clone() for name in PLACES}
    for places in far.values():
        places[1:] = torch.tensor([2**31 - 1, -(2**31), 0])
    options = dict(mask_mod=every_third_hidden, block_sparse_tensors=lists._replace(**far))
    out = attention(*tensors, function=flash_attn_varlen_func, **lengths, **options)
    right, _ = call.run_as("packed")
    assert torch.equal(out[:140], right[0])


def _numbers(counts, entries) -> tuple:
    return tuple(torch.tensor(x, dtype=torch.int32)[None, None] for x in (counts, entries))


GOOD = _numbers([1, 0], [[0, 1], [0, 1]])
X = torch.zeros(1, 200, 2, 64, dtype=torch.bfloat16)
# counts and entries, the block size, and what the message says
WRONG = {
    "a count beyond the list": (_numbers([3, 0], [[0, 1], [0, 1]]), (128, 128), "mask_block_cnt: 3"),
    "a negative count": (_numbers([1, -1], [[0, 1], [0, 1]]), (128, 128), "mask_block_cnt: -1"),
    "no key block": (_numbers([1, 0], [[2, 1], [0, 1]]), (128, 128), "mask_block_idx: 2; accepted: 0 to 1"),
    "twice": (_numbers([2, 0], [[1, 1], [0, 1]]), (128, 128), "mask_block_idx: 1 stands twice"),
    "too few query blocks": (GOOD, (256, 128), "200 queries in blocks of 256; accepted: 1 query"),
    "half units": (GOOD, (72, 128), "block_size: .72, 128.; accepted: multiples of 16"),
    "small blocks, no key": (_numbers([1, 0, 0, 0], [[4, 0]] * 4), (64, 64), "mask_block_idx: 4; accepted: 0 to 3"),
    "small blocks, twice": (_numbers([2, 0, 0, 0], [[3, 3]] * 4), (64, 64), "mask_block_idx: 3 stands twice"),
    "too few small query blocks": (GOOD, (64, 64), "200 queries in blocks of 64; accepted: 4 query"),
    "heads": ([x.repeat(1, 3, *(1,) * (x.dim() - 2)) for x in GOOD], (128, 128), "accepted: heads 2"),
    "no room": ([GOOD[0], GOOD[1][..., :0]], (128, 128), "room for one entry"),
    "rank": ([GOOD[0][0], GOOD[1]], (128, 128), "batch, heads, query blocks"),
    "no size": (GOOD, 128, "two ints"),
    "int64": ([x.long() for x in GOOD], (128, 128), "int32"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_lists_are_refused_with_their_field(name):
    lists, size, text = WRONG[name]
    with pytest.raises((TypeError, ValueError), match=rf"block_sparse_tensors\..*{text}"):
        flash_attn_func(X, X, X, block_sparse_tensors=BlockSparseTensors(*lists, block_size=size))


PLACES = {"cu_total_m_blocks": [0, 3, 3], "cu_block_idx_offsets": [0, 6, 6]}
COUNTS_TO_PLACES = "mask_block_cnt", "mask_block_idx", *PLACES
# Sequences of 300 and 0 queries, and 250 and 130 keys: three lists of two blocks each.
PACKED = dict(
    q=torch.zeros(300, 2, 64, dtype=torch.bfloat16),
    **{x: torch.zeros(380, 2, 64, dtype=torch.bfloat16) for x in "kv"},
    cu_seqlens_q=torch.tensor([0, 300, 300], dtype=torch.int32),
    cu_seqlens_k=torch.tensor([0, 250, 380], dtype=torch.int32),
)
IN_LINE = BlockSparseTensors(
    *(torch.zeros(2, n, dtype=torch.int32) for n in (3, 6)),
    **{name: torch.tensor(x, dtype=torch.int32) for name, x in PLACES.items()},
    block_size=(128, 128),
)
ONE = torch.ones(2, 3, dtype=torch.int32)
# what is replaced, and what the message says
WRONG_IN_LINE = {
    "no places": (dict(cu_block_idx_offsets=None), "cu_block_idx_offsets: None with cu_seqlens_k"),
    "places alone": (dict(cu_total_m_blocks=None), "mask_block_cnt: .* 3, .batch, heads, query blocks"),
    "padded": (dict(mask_block_cnt=ONE[None]), "mask_block_cnt: .* 2, .heads, query blocks of all"),
    "heads": (dict(mask_block_cnt=ONE.repeat(2, 1)), "mask_block_cnt: .*accepted: heads 2"),
    "few places": (dict(cu_total_m_blocks=ONE[0, :2]), "cu_total_m_blocks: .*accepted: .3,., batch . 1"),
    "too many lists": (dict(cu_total_m_blocks=ONE[0]), "cu_total_m_blocks: 1 for sequence 0, whose lists take 3"),
    "too many entries": (dict(cu_block_idx_offsets=-ONE[0]), "cu_block_idx_offsets: -1 for sequence 0"),
    "a count": (dict(mask_block_cnt=3 * ONE), "mask_block_cnt: 3; accepted: 0 to 2"),
    "no key block": (dict(mask_block_cnt=ONE, mask_block_idx=IN_LINE.mask_block_idx + 2), "mask_block_idx: 2"),
    "twice": (dict(mask_block_cnt=2 * ONE), "mask_block_idx: 0 stands twice"),
    "few query blocks": (
        dict(zip(COUNTS_TO_PLACES, (*GOOD, None, None), strict=True)), "mask_block_cnt: .* the longest sequence may"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG_IN_LINE)
def test_wrong_packed_lists_are_refused_with_their_field(name):
    replaced, text = WRONG_IN_LINE[name]
    with pytest.raises((TypeError, ValueError), match=rf"block_sparse_tensors\.{text}"):
        flash_attn_varlen_func(**PACKED, block_sparse_tensors=IN_LINE._replace(**replaced))


LISTS = BlockSparseTensors(*GOOD, block_size=(128, 128))
SMALL_LISTS = LISTS._replace(block_size=(128, 64))


def of_the_compiler(batch, head, q_idx, kv_idx):
    import cutlass

    return cutlass.select_(q_idx < 5, kv_idx, q_idx) < 9


UNSUPPORTED = {
    "causal": dict(causal=True),
    "num_splits": dict(num_splits=2),
    "tokens_per_split": dict(tokens_per_split=128),
    "q of torch.bfloat16 and k of torch.float8": {x: X.to(torch.float8_e4m3fn) for x in "kv"}
    | {"q_quantize": "never"},
    "mask_mod: .*of_the_compiler handles": dict(
        mask_mod=of_the_compiler, block_sparse_tensors=SMALL_LISTS
    ),
}


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_what_is_not_built_with_lists_is_refused_by_name(name):
    given = dict(q=X, k=X, v=X, block_sparse_tensors=LISTS) | UNSUPPORTED[name]
    with pytest.raises(NotImplementedError, match=name):
        flash_attn_func(**given)


def test_a_half_given_pair_and_another_object_are_refused():
    with pytest.raises(ValueError, match="full_block_cnt, full_block_idx: one of them is None"):
        flash_attn_func(X, X, X, block_sparse_tensors=LISTS._replace(full_block_cnt=GOOD[0]))
    with pytest.raises(TypeError, match="block_sparse_tensors: a dict; accepted"):
        flash_attn_func(X, X, X, block_sparse_tensors={})


@pytest.mark.parametrize("size", ("mha1q", "64 x 64"))
@pytest.mark.parametrize("way", ("dense", "packed"))
def test_a_graph_has_the_call_as_one_operator(way, size):
    """With the same bits."""
    call = Listed.draw((1, 140, 300), (2, 1), (SIZES | SMALL)[size], (0.5, 0.7))
    function, tensors, lengths, lists = flash_attn_func, (call.q, call.k, call.v), {}, call.lists()
    if way == "packed":
        function, (tensors, lengths, lists) = flash_attn_varlen_func, as_packed(call)
    options = dict(mask_mod=score_mods.ScoreMod.of(every_third_hidden), **lengths)
    expected = attention(*tensors, function=function, **options, block_sparse_tensors=lists)
    compiled = torch.compile(function, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(*tensors, **options, block_sparse_tensors=lists), expected)
    torch._dynamo.reset()


def test_capabilities_know_lists():
    rows = capabilities(
        dtype="bf16", head_dim=128, block_sparse_tensors=True, seqlen_q=1000, causal=False
    )
    assert {(row.runs, row.families) for row in rows} == {(True, ("mha2q",))}
    rows = capabilities(
        dtype="bf16",
        head_dim=64,
        block_sparse_tensors=LISTS,
        seqlen_q=200,
        seqlen_k=200,
        backward=True,
    )
    small = LISTS._replace(block_size=(128, 64))
    question = dict(dtype="bf16", head_dim=64, seqlen_q=200, seqlen_k=200, backward=True)
    assert rows == capabilities(**question, block_sparse_tensors=small)
    assert {(row.causal, row.runs) for row in rows} == {(False, True), (True, False)}
    rows = capabilities(
        dtype="bf16", head_dim=64, block_sparse_tensors=True, batch=3, seqlen_q=1000, seqlen_k=500,
        causal=False, cu_seqlens_q=True, cu_seqlens_k=True,
    )  # fmt: skip
    assert {(row.runs, row.families) for row in rows} == {(True, ("mha2q",))}
    rows = capabilities(
        dtype="bf16", head_dim=64, block_sparse_tensors=True, batch=3, seqlen_q=1000, seqlen_k=500,
        causal=False, page_table=True, seqused_k=True, page_size=16,
    )  # fmt: skip
    assert {(row.runs, row.families) for row in rows} == {(True, ("mha2q",))}
