"""Lists whose work tiles are sorted by length: the order changes no bit, whatever the lists, layouts and rows are."""

from itertools import product

import pytest
import torch

from cute_fa4 import BlockSparseTensors, flash_attn_func, flash_attn_varlen_func
from cute_fa4.calls.split_keys.split import EMULATED_SMS
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.work.lists.config import WINDOW
from cute_fa4.system.devices import asked_for
from tests.attention.listed import Listed, assert_right
from tests.attention.test_block_sparsity import LENGTHS, SIZES, drawn


def sorted_always():
    return tuning.using(tuning.shipped().changed(longest_first=0))


LAYOUTS = {
    "dense": None,
    "lengths": LENGTHS,
    "packed lists": LENGTHS,
    "packed": LENGTHS,
    "padded lists": LENGTHS,
    "pages of 5, packed queries": LENGTHS,
    "64 x 64": None,
}


def run(call: Listed, layout: str, **options):
    if layout == "packed lists":
        return packed_lists_over_padded_rows(call, **options)
    return call.run(**options) if call.lengths is None else call.run_as(layout, **options)


def packed_lists_over_padded_rows(call: Listed, **options):
    """Lists one after another, of dense queries and keys: those of the longest sequence for each."""
    whole = Listed(call.q, call.k, call.v, call.kinds, call.block_size)
    return whole.run(whole.packed_lists(), **options)


# One family has padded lists of packed queries, the other one pages.
LEFT_OUT = {("mha2q", "padded lists"), ("mha1q", "pages of 5, packed queries")}


@pytest.mark.parametrize("family, layout", sorted({*product(SIZES, LAYOUTS)} - LEFT_OUT))
def test_the_order_of_work_tiles_changes_no_bit(family, layout):
    lengths = LAYOUTS[layout]
    if layout == "64 x 64":
        size = (64, 64) if family == "mha1q" else (512, 64)
        call = Listed.draw((1, 300, 300), (2, 1), size, (0.3, 0.8))
    elif lengths is None:
        call = drawn(family)
    else:
        sizes = len(lengths), *(max(each) for each in zip(*lengths, strict=True))
        call = Listed.draw(sizes, (2, 1), SIZES[family], (0.4, 0.8), lengths=lengths)
    in_order = run(call, layout)
    with sorted_always():
        found = run(call, layout)
    assert all(one.equal(other) for one, other in zip(found, in_order, strict=True))
    if layout != "packed lists":
        assert_right(found, call.expected())


def asked_of(call: Listed, way=None, **more) -> list:
    """The kernels of a call without data."""
    tensors, lengths, lists = (call.q, call.k, call.v), {}, call.lists()
    if way is not None:
        tensors, lengths, lists = way(call)
    q, k, v, *of_call = (x.to("meta") for x in (*tensors, *lengths.values()))
    lists = lists._make(x.to("meta") if torch.is_tensor(x) else x for x in lists)
    options = dict(zip(lengths, of_call, strict=True)) | {"block_sparse_tensors": lists} | more
    with asked_for("sm_100a") as asked:
        (flash_attn_varlen_func if lengths else flash_attn_func)(q, k, v, **options)
    return list(asked)


def kernels_of(call: Listed, way=None, **more) -> set[str]:
    """Which of them sorts, whether the attention kernel reads an order, and whether one merges parts."""
    found = asked_of(call, way, **more)
    return {getattr(x, "makes", None) or getattr(x, "longest_first", "merge") for x in found}


def rows(tiles: int) -> Listed:
    """A call of so many work tiles, in two heads."""
    return Listed.draw((1, tiles // 2 * 128, 128), (2, 1), (128, 128), (1.0, 1.0))


def test_work_tiles_are_sorted_where_sms_have_more_than_three_each():
    assert kernels_of(rows(3 * EMULATED_SMS)) == {False}
    assert kernels_of(rows(3 * EMULATED_SMS + 2)) == {"longest", True}


def packed_queries(tiles: int) -> tuple:
    """q, k, v, the offsets and lists of two sequences, of which the first one has work tiles; without data."""
    q, k = (
        torch.empty(*n, 1, 128, dtype=torch.bfloat16, device="meta")
        for n in ((128 * tiles,), (2, 128))
    )
    count = torch.empty(1, 1, tiles, dtype=torch.int32, device="meta")
    lists = BlockSparseTensors(count, count[..., None], block_size=(128, 128))
    return (q, k, k), {"cu_seqlens_q": torch.empty(3, dtype=torch.int32, device="meta")}, lists


def test_packed_queries_are_sorted_if_a_cta_can_number_their_work_tiles():
    """They have at most those of their rows, and one more for each sequence. Numbers are those of equal sequences."""
    call = rows(2)

    def kernels(tiles: int) -> set:
        return kernels_of(call, lambda call: packed_queries(tiles), max_seqlen_q=128 * tiles)

    assert kernels(3 * EMULATED_SMS - 2) == {False}
    assert kernels(3 * EMULATED_SMS - 1) == {"longest", True}
    assert kernels(WINDOW // 2) == {"longest", True}
    assert kernels(WINDOW // 2 + 1) == {False}


@pytest.mark.parametrize("setting", ("auto", "off"))
def test_the_attention_kernel_is_a_dependent_launch_of_what_sorts(monkeypatch, setting):
    monkeypatch.setenv("CUTE_FA4_PDL", setting)
    [config] = [x for x in asked_of(rows(3 * EMULATED_SMS + 2)) if isinstance(x, FA4Config)]
    assert config.longest_first and config.schedule.dependent_launch == (setting == "auto")


KEYS = 8192


def long_lists(tiles: int, keys: int = KEYS, rows: int = 128, dtype=torch.bfloat16) -> Listed:
    """A call of so many work tiles, in one head, whose lists have every key."""
    call = Listed.draw((1, rows, 128), (1, 1), (rows, 128), (1.0,), dtype=dtype)
    kinds = call.kinds.expand(1, 1, tiles, keys // 128)
    q, k, v = (
        x.new_empty(1, n, 1, 128) for x, n in ((call.q, rows * tiles), *[(call.k, keys)] * 2)
    )
    return Listed(q, k, v, kinds, call.block_size)


def test_long_lists_are_cut_where_sms_have_few_work_tiles_each():
    """Of few keys the launches cost as much; of many work tiles none is waited for."""
    assert kernels_of(long_lists(1)) == {"cut", True, "merge"}
    assert kernels_of(long_lists(1, KEYS - 128)) == {False}
    assert kernels_of(long_lists(6 * EMULATED_SMS)) == {"cut", True, "merge"}
    assert kernels_of(long_lists(6 * EMULATED_SMS + 1)) == {"longest", True}


def test_lists_of_batch_invariant_calls_are_not_cut():
    """Parts follow from all lists of a call."""
    assert kernels_of(long_lists(1), batch_invariant=True) == {False}
    assert kernels_of(long_lists(4 * EMULATED_SMS), batch_invariant=True) == {"longest", True}


def test_lists_are_not_cut_where_the_product_sums_the_weights():
    """Of 8 bits without a log-sum-exp: parts would need another kernel, whose softmax sums them."""
    call = long_lists(1, rows=256, dtype=torch.float8_e4m3fn)
    [config] = [x for x in asked_of(call) if isinstance(x, FA4Config)]
    assert not config.cut_lists
