"""capabilities() of a call with lengths, pages or a cache: its reasons are what that call raises."""

import inspect

import pytest
import torch

import cute_fa4
from cute_fa4 import capabilities, compile_cache
from cute_fa4.calls import append, attention
from cute_fa4.calls.ask import questions

ROW = dict(dtype="bf16", head_dim=128, arch="sm_100a")
BATCH, HEADS_KV, KEYS = 3, 2, 40


class _Accepted(Exception):
    """A call came to its compile."""


def tensor(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype)


def numbers(*values):
    return torch.tensor(values, dtype=torch.int32)


def offsets(each):
    return torch.arange(BATCH + 1, dtype=torch.int32) * each


def table(page_size, more=0):
    pages = -(-KEYS // page_size)
    return torch.arange(BATCH * pages, dtype=torch.int32).view(BATCH, pages)[:, : pages - more]


LENGTHS, HELD = numbers(5, 30, 20), numbers(0, 1, 2)
# (parameters of the call, sizes of its q and caches). Of each kind what runs beside what does not.
QUESTIONS = {
    "dense cache": (dict(cache_seqlens=LENGTHS), {}),
    "a number for all": (dict(cache_seqlens=7), {}),
    "skip-softmax": (dict(cache_seqlens=7, skip_softmax_threshold_scale_factor=0.5), {}),
    "skip-softmax of 0": (dict(cache_seqlens=7, skip_softmax_threshold_scale_factor=0.0), {}),
    "no number": (dict(cache_seqlens=7.5), {}),
    "whole cache, padded": (dict(cache_leftpad=HELD), {}),
    "lengths of 64 bits": (dict(cache_seqlens=LENGTHS.long()), {}),
    "lengths of another batch": (dict(cache_seqlens=numbers(1, 2)), {}),
    "pages": (dict(cache_seqlens=LENGTHS, page_table=table(16)), dict(page_size=16)),
    "pages of 1, padded": (
        dict(cache_seqlens=LENGTHS, block_table=table(1), cache_leftpad=HELD),
        dict(page_size=1),
    ),
    "pages of 5, HND": (
        dict(cache_seqlens=LENGTHS, page_table=table(5), kv_layout="HND"),
        dict(page_size=5),
    ),
    "pages of no keys": (dict(cache_seqlens=LENGTHS, page_table=table(16)), dict(page_size=0)),
    "pages without lengths": (dict(page_table=table(16), cache_leftpad=HELD), {}),
    "pages, varlen, without lengths": (dict(page_table=table(16)), {}),
    "two tables": (dict(cache_seqlens=LENGTHS, page_table=table(16), block_table=table(16)), {}),
    "a table of one row": (dict(cache_seqlens=LENGTHS, page_table=table(16)[0]), {}),
    "rows picked": (dict(cache_seqlens=LENGTHS, cache_batch_idx=numbers(2, 0, 1)), {}),
    "rows picked of float": (dict(cache_seqlens=LENGTHS, cache_batch_idx=torch.zeros(3)), {}),
    "new rows": (
        dict(cache_seqlens=LENGTHS, k=tensor(BATCH, 2, HEADS_KV, 128), v=tensor(BATCH, 2, HEADS_KV, 128)),
        dict(seqlen_q=2),
    ),
    "new rows, packed": (
        dict(
            cache_seqlens=LENGTHS, page_table=table(16), cu_seqlens_k_new=offsets(3),
            k=tensor(9, HEADS_KV, 128), v=tensor(9, HEADS_KV, 128),
        ),
        dict(page_size=16),
    ),
    "new rows of other heads": (
        dict(cache_seqlens=LENGTHS, k=tensor(BATCH, 1, 1, 128), v=tensor(BATCH, 1, 1, 128)),
        {},
    ),
    "new keys alone": (dict(cache_seqlens=LENGTHS, k=tensor(BATCH, 1, HEADS_KV, 128)), {}),
    "new rows without lengths": (
        dict(k=tensor(BATCH, 1, HEADS_KV, 128), v=tensor(BATCH, 1, HEADS_KV, 128)),
        {},
    ),
    "offsets without new rows": (dict(cache_seqlens=LENGTHS, cu_seqlens_k_new=offsets(1)), {}),
    "chosen splits": (dict(cache_seqlens=LENGTHS, num_splits=0), {}),
    "a negative split": (dict(cache_seqlens=LENGTHS, num_splits=-2), {}),
    "a fixed cut": (dict(cache_seqlens=LENGTHS, tokens_per_split=128), {}),
    "an odd cut": (dict(cache_seqlens=LENGTHS, tokens_per_split=100), {}),
    "both cuts": (dict(cache_seqlens=LENGTHS, tokens_per_split=128, num_splits=3), {}),
    "a mask of nothing": (dict(cache_seqlens=LENGTHS, window_size=(4, -5)), {}),
    "rotary": (dict(cache_seqlens=LENGTHS, rotary_cos=torch.zeros(3, 8)), {}),
    "a choice of scales of a cache without any": (dict(cache_seqlens=LENGTHS, four_over_six=True), {}),
    "packed": (dict(cu_seqlens_q=offsets(4), cu_seqlens_k=offsets(KEYS), max_seqlen_q=4), dict(seqlen_q=4)),
    "packed, pages, new in seqused": (
        dict(
            cu_seqlens_q=offsets(4), seqused_k=LENGTHS, page_table=table(8), seqused_k_excludes_new=True,
            max_seqlen_q=4, max_seqlen_k=40,
        ),
        dict(page_size=8, seqlen_q=4),
    ),
    "a longest beyond the table": (
        dict(seqused_k=LENGTHS, page_table=table(8), max_seqlen_k=64),
        dict(page_size=8),
    ),
    "offsets of keys with pages": (
        dict(cu_seqlens_k=offsets(KEYS), seqused_k=LENGTHS, page_table=table(8)),
        dict(page_size=8),
    ),
    "packed drafts, few rows of a query tile": (
        dict(cu_seqlens_q=offsets(20), seqused_k=LENGTHS, cu_seqlens_k=offsets(KEYS), max_seqlen_q=20),
        dict(seqlen_q=20),
    ),
    "padded keys": (dict(cache_seqlens=LENGTHS, key_limit=LENGTHS), {}),
    "columns of k apart": (dict(k_rope=tensor(BATCH, KEYS, 64)), {}),
    "columns of q apart, of 16 bits": (
        dict(k_rope=tensor(BATCH, KEYS, 64), q_rope=tensor(BATCH, 1, 4 * HEADS_KV, 64)), {},
    ),
    "a scale of columns of 16 bits": (
        dict(k_rope=tensor(BATCH, KEYS, 64), k_rope_descale=torch.ones(BATCH, KEYS)), {},
    ),
    "scales of blocks of k that is not of 4 bits": (
        dict(k_block_scale=tensor(BATCH, KEYS, 4), v_block_scale=tensor(BATCH, KEYS, 4)), {},
    ),
    "interleaved scales of v that is not of 4 bits": (dict(v_block_scale_layout="interleaved4"), {}),
    "columns of k apart, in pages": (
        dict(
            cu_seqlens_q=offsets(4), cu_seqlens_k=offsets(KEYS), k_rope=tensor(3 * BATCH, 16, 64),
            k_rope_page_table=table(16),
        ),
        dict(seqlen_q=4),
    ),
    "few pages of columns": (
        dict(k_rope=tensor(3 * BATCH, 16, 64), k_rope_page_table=table(16, more=1)),
        {},
    ),
    "some queries": (dict(seqused_q=LENGTHS), dict(seqlen_q=300)),
    "a layout nobody has": (
        dict(cache_seqlens=LENGTHS, page_table=table(8), kv_layout="HDN"),
        dict(page_size=8),
    ),
    "a sink of 16 bits": (
        dict(cache_seqlens=LENGTHS, learnable_sink=tensor(8), softcap=30.0),
        {},
    ),
}  # fmt: skip


def outcome_of_the_call(parameters: dict, sizes: dict, monkeypatch) -> tuple:
    """(what a real call of CPU tensors raises before it compiles, the family that it would compile)."""
    found = []

    def stop(config, target):
        found.append(config)
        if hasattr(config, "schedule"):
            raise _Accepted

    monkeypatch.setattr(attention, "function_for", stop)
    monkeypatch.setattr(append, "function_for", stop)
    name = questions.function_of(parameters)
    function = getattr(cute_fa4, name)
    names = list(inspect.signature(function).parameters)[:3]
    queries, page = sizes.get("seqlen_q", 1), sizes.get("page_size", 16)
    q = tensor(BATCH, queries, 4 * HEADS_KV, 128)
    cache = tensor(BATCH, KEYS, HEADS_KV, 128)
    if "cu_seqlens_q" in parameters:
        q = q.flatten(0, 1)
    if "cu_seqlens_k" in parameters:
        cache = cache.flatten(0, 1)
    if "page_table" in parameters or "block_table" in parameters:
        pages = -(-KEYS // page) if page else 1
        shape = (page, HEADS_KV) if parameters.get("kv_layout") != "HND" else (HEADS_KV, page)
        cache = tensor(BATCH * pages, *shape, 128)
    k = cache[..., :64].clone() if "k_rope" in parameters else cache.clone()
    try:
        function(**dict(zip(names, (q, k, cache), strict=True)), **parameters)
    except _Accepted:
        return None, (found[-1].schedule.family,)
    except (TypeError, ValueError, NotImplementedError) as error:
        return str(error), ()
    raise AssertionError("a call that neither compiles nor refuses")


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_is_what_the_call_does(name, monkeypatch):
    parameters, sizes = QUESTIONS[name]
    rows = capabilities(
        **ROW, causal=False, return_lse=False, group=4, heads_kv=HEADS_KV, batch=BATCH, seqlen_k=KEYS, **sizes,
        **parameters,
    )  # fmt: skip
    refusal, families = outcome_of_the_call(parameters, sizes, monkeypatch)
    assert [(row.reasons, row.families) for row in rows] == [
        (() if refusal is None else (refusal,), families)
    ]
    assert all(row.runs == (refusal is None) == bool(row.devices) for row in rows)


def test_there_are_questions_of_both_kinds_and_every_parameter():
    """No parameter that says where sequences lie, and no outcome, is left out above."""
    asked = {name for parameters, _ in QUESTIONS.values() for name in parameters}
    assert questions.OF_LENGTHS - asked == {"rotary_sin", "qv"}  # as rotary_cos
    public = [cute_fa4.flash_attn_varlen_func, cute_fa4.flash_attn_with_kvcache]
    known = {name for function in public for name in inspect.signature(function).parameters}
    tensors = {"q", "k_cache", "v_cache", "out", "positional", "others"}
    spellings = {"deterministic", "return_softmax_lse"}  # say nothing that another does not
    assert questions.OF_LENGTHS | questions.OPTIONS == known - tensors - spellings


def test_true_stands_for_a_tensor_that_fits():
    every = dict(
        cache_seqlens=True, cache_batch_idx=True, cache_leftpad=True, page_table=True, k=True, v=True,
        cu_seqlens_q=True, cu_seqlens_k_new=True, key_limit=True, learnable_sink=True, seqlen_q=3, batch=5, group=8,
    )  # fmt: skip
    for page_size in (1, 16, 784):
        assert all(row.runs for row in capabilities(**ROW, **every, page_size=page_size))
    varlen = dict(cu_seqlens_q=True, cu_seqlens_k=True, seqused_q=True, seqused_k=True)
    assert all(row.runs for row in capabilities(**ROW, **varlen, seqlen_q=300))


def test_a_row_has_the_reason_of_its_dtype_and_head_dim():
    """The same call for 8 bits and for a head dim beyond every kernel."""
    call = dict(arch="sm_100a", causal=True, return_lse=False, cache_seqlens=True)
    [eight] = capabilities(dtype="e4m3", head_dim=128, **call)
    assert eight.families == ("mhaswap",)
    [wide] = capabilities(dtype="bf16", head_dim=520, **call)
    assert not wide.runs and "520" in wide.reasons[0]
    [old] = capabilities(
        dtype="bf16", head_dim=128, cache_seqlens=True, causal=True, return_lse=False,
        compute_capability=(9, 0),
    )  # fmt: skip
    assert not old.runs and "compute capability 9.0" in old.reasons[0]


def test_queries_of_16_bits_over_a_cache_of_8():
    """Few of them as they are, more of them quantised; k of 8 bits under q of others is refused as the call does it."""
    call = dict(head_dim=128, group=8, causal=True, return_lse=False, arch="sm_100a")
    call |= dict(cache_seqlens=True, page_table=True, kv_dtype="e4m3")
    families = {
        n: capabilities(dtype="bf16", seqlen_q=n, **call)[0].families for n in (1, 4, 5, 300)
    }
    assert families == {1: ("mhawiden",), 4: ("mhawiden",), 5: ("mha1q",), 300: ("mha2q",)}
    [other] = capabilities(dtype="e5m2", **call)
    assert not other.runs and "while q is torch.float8_e5m2" in other.reasons[0]


def test_few_queries_have_their_family():
    families = {
        n: capabilities(**ROW, causal=True, return_lse=False, group=8, seqlen_q=n)[0].families
        for n in (1, 4, 16, 17)
    }
    assert families == {1: ("mhaswap",), 4: ("mhaswap",), 16: ("mha1q",), 17: ("mha2q",)}


@pytest.mark.parametrize(
    "question, wrong",
    [
        (dict(cache_seqlens=True, seqused_q=True), "seqused_q: given with cache_seqlens"),
        (dict(cache_seqlens=True, dropout_p=0.1), "dropout_p: not a parameter of flash_attn_with_kvcache"),
        (dict(latent=True, page_size=64), "page_size: with latent=True"),
    ],
)  # fmt: skip
def test_what_no_function_has_is_an_error(question, wrong):
    with pytest.raises(TypeError, match=wrong):
        capabilities(**question)


def test_asking_about_a_call_compiles_nothing_and_calls_refuse_tensors_without_data():
    compiles = compile_cache.statistics().compiles
    capabilities(**ROW, cache_seqlens=True, page_table=True, num_splits=0)
    assert compile_cache.statistics().compiles == compiles
    q = torch.empty(1, 8, 2, 128, dtype=torch.bfloat16, device="meta")
    with pytest.raises(ValueError, match="device 'meta' is not accepted"):
        cute_fa4.flash_attn_func(q, q, q)
