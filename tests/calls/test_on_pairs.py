"""Which calls run on pairs of CTAs: lengths as metadata tells them, and what overrides the rule. Nothing is executed.

16384 queries of 3 heads are 96 blocks of 512 rows, more than the 74 pairs of SMs.
"""

import pytest
import torch

from cute_fa4 import (
    FA4Config,
    capabilities,
    compile_cache,
    configs_for_model,
    flash_attn_func,
    flash_attn_varlen_func,
)
from cute_fa4.aot.entry import configs_of
from cute_fa4.calls import attention, repeat
from cute_fa4.system.devices import Target
from tests import tuned

PAIRS, ALONE = "mhapair", "mha2q"
ROWS, HEADS = 16384, 3


@pytest.fixture(autouse=True)
def two_percent(monkeypatch, tmp_path):
    """By default no lengths pay (tests/sm100/two_tiles/pair/test_pays.py)."""
    tuned.pairs_gain_two_percent(monkeypatch, tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """Families that calls ask for, in order."""
    found = []

    def record(config, executor):
        found.append(config.schedule.family)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    repeat.clear()
    yield found
    repeat.clear()


def qkv(*rows, keys=None, depth=128, depth_v=128, dtype=torch.bfloat16):
    """Memory that is not accessed."""
    keys = rows if keys is None else keys
    shapes = (*rows, HEADS, depth), (*keys, HEADS, depth), (*keys, HEADS, depth_v)
    return [torch.empty(shape, dtype=dtype) for shape in shapes]


def starts(*lengths):
    return torch.tensor([0, *lengths], dtype=torch.int32).cumsum(0, dtype=torch.int32)


def test_long_calls_run_on_pairs_and_short_ones_alone(asked):
    long, short = qkv(1, ROWS), qkv(8, 2048)
    for tensors, causal in ((long, True), (long, False), (short, True), (short, False)):
        flash_attn_func(*tensors, causal=causal)
    flash_attn_func(*qkv(1, ROWS, dtype=torch.float16), causal=True)
    flash_attn_func(*qkv(1, ROWS, depth=192), causal=True)
    flash_attn_func(*long, causal=True, softcap=30.0)
    flash_attn_func(*long, causal=True, window_size=(8191, 0))
    assert asked == [PAIRS, PAIRS, ALONE, PAIRS, ALONE, PAIRS, ALONE, ALONE]


def test_packed_calls_are_judged_by_the_mean_and_the_longest(asked):
    """One long sequence among many short ones does not choose the kernel of all of them, a few do."""
    for lengths in ((ROWS, ROWS), (ROWS, *[64] * 256), (ROWS, *[1536] * 8)):
        cu = starts(*lengths)
        tensors = qkv(int(cu[-1]))
        flash_attn_varlen_func(
            *tensors, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=ROWS, causal=True
        )
    assert asked == [PAIRS, ALONE, PAIRS]


def test_what_a_server_allows_says_nothing_of_short_sequences(asked):
    """A server may state the longest that it allows: sequences of 512 keys are not longer for it."""
    cu = starts(*[512] * 96)
    for most in (512, 1 << 20):
        flash_attn_varlen_func(
            *qkv(int(cu[-1])), cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=most
        )
    assert asked == [ALONE, ALONE]


def test_keys_that_only_the_device_knows_are_as_many_as_queries_unless_the_caller_says_more(asked):
    """The page table is as wide as the longest sequence of the server: it says nothing of this call."""
    q, k, v = qkv(4, 4096, keys=(1024, 128))
    table = (torch.arange(2048, dtype=torch.int32) % 1024).view(4, 512)
    cache = dict(page_table=table, seqused_k=torch.full((4,), 65536, dtype=torch.int32))
    for more in ({}, dict(max_seqlen_k=65536)):
        flash_attn_varlen_func(
            *(q.flatten(0, 1), k, v),
            cu_seqlens_q=starts(*[4096] * 4),
            max_seqlen_q=4096,
            num_splits=1,
            causal=True,
            **cache,
            **more,
        )
    assert asked == [ALONE, PAIRS]


@pytest.mark.parametrize("word, families", [("on", [PAIRS, PAIRS]), ("off", [ALONE, ALONE])])
def test_the_environment_decides_for_all(asked, monkeypatch, word, families):
    monkeypatch.setenv("CUTE_FA4_PAIR", word)
    flash_attn_func(*qkv(1, ROWS), causal=True)
    flash_attn_func(*qkv(8, 2048), causal=True)
    assert asked == families


def test_pairs_that_are_asked_for_run_16_bits_full_or_causal(asked, monkeypatch):
    """Any head dim and dtype of 16 bits; 8 bits, also quantised on the way, and other masks run on CTAs alone."""
    monkeypatch.setenv("CUTE_FA4_PAIR", "on")
    repeat.clear()
    flash_attn_func(*qkv(1, ROWS, depth=64))
    flash_attn_func(*qkv(1, ROWS, dtype=torch.float16), causal=True)
    flash_attn_func(*qkv(1, ROWS), window_size=(100, 0))
    q, k, v = qkv(1, ROWS, dtype=torch.float8_e4m3fn)
    flash_attn_func(q, k, v)
    flash_attn_func(q.bfloat16(), k, v)
    assert asked == [PAIRS, PAIRS, ALONE, ALONE, ALONE]


@pytest.mark.parametrize("arch, family", [("sm_100a", ALONE), ("sm_103a", PAIRS)])
def test_the_rule_is_that_of_the_architecture(asked, monkeypatch, arch, family):
    """Causal calls of 4096 rows: 192 blocks of 512 rows."""
    monkeypatch.setattr(attention, "target_of", lambda device: Target("emulator", arch))
    flash_attn_func(*qkv(8, 4096), causal=True)
    assert asked == [family]


def test_an_exact_maximum_leaves_ctas_alone(asked, monkeypatch):
    monkeypatch.setenv("CUTE_FA4_MAXIMUM", "exact")
    flash_attn_func(*qkv(1, ROWS), causal=True)
    flash_attn_func(*qkv(1, ROWS, depth=192), causal=True)
    assert asked == [ALONE, PAIRS]


MODEL = dict(heads_q=HEADS, heads_kv=HEADS, calls=("dense", "packed"))


@pytest.mark.parametrize(
    "depth, choices, expected",
    [
        (128, {}, True),
        (128, dict(softcap=30.0), False),
        (128, dict(dtype="fp16"), False),
        (64, {}, False),
        (256, {}, False),
    ],
    ids=str,
)
def test_catalogues_have_both_kernels_where_calls_may_choose_either(depth, choices, expected):
    listed = configs_for_model(head_dim=depth, **MODEL, **choices)
    families = {config.schedule.family for config in listed if isinstance(config, FA4Config)}
    assert (PAIRS in families) == expected
    dtype = choices.get("dtype", "bf16")
    rows = capabilities(dtype=dtype, head_dim=depth, causal=True, softcap=choices.get("softcap"))
    assert {row.pairs for row in rows} == {expected}


def test_catalogues_and_capabilities_have_pairs_where_they_are_asked_for(monkeypatch):
    """Of 16 bits; not of 8, also under queries of 16 bits, which are quantised."""
    asked = dict(dtype="fp16"), dict(dtype="e4m3"), dict(dtype="bf16", kv_dtype="e4m3")

    def found():
        listed = [configs_for_model(head_dim=128, **MODEL, **of) for of in asked]
        return [any(c.name.startswith(f"{PAIRS}_") for c in configs) for configs in listed]

    assert found() == [False, False, False]
    monkeypatch.setenv("CUTE_FA4_PAIR", "on")
    assert found() == [True, False, False]
    asked = dict(head_dim=128, causal=True, return_lse=True, arch="sm_100a")
    (row,) = capabilities(dtype="fp16", **asked)
    assert row.pairs and PAIRS in row.families
    (row,) = capabilities(dtype="e4m3", **asked)
    assert row.runs and not row.pairs and PAIRS not in row.families


def test_entries_of_catalogues_have_pairs_where_they_run():
    entry = dict(head_dim=128, qkv_dtype="bf16", causal=True)
    families = lambda **more: {
        c.schedule.family for c in configs_of("config", entry | more, "here")
    }
    assert PAIRS in families() and PAIRS not in families(qkv_dtype="fp16")
    assert PAIRS in families(order="p_over_s") and PAIRS not in families(maximum="exact")
    assert families(family=ALONE) == {ALONE}
