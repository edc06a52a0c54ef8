"""One rule: the kernel that a call compiles, that capabilities() names and that a model's list has are the same one.

Calls use memory that is not accessed; their configurations are recorded; nothing is compiled. Lengths on
either side of every bound of the rule, in heads alone and packed: 1 and 4 queries (tiles of few rows), 100 (one tile),
300 (two), 16384 (pairs of CTAs).
"""

import pytest
import torch

import cute_fa4
from cute_fa4 import capabilities, compile_cache, configs_for_model, flash_mla_with_kvcache
from cute_fa4.aot.entry import configs_of
from cute_fa4.calls import repeat
from cute_fa4.sm100.choose.choose_config import FAMILIES
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import RULES, Call, kernels_of
from tests import pairwise

TORCH = {"bf16": torch.bfloat16, "fp16": torch.float16, "e4m3": torch.float8_e4m3fn}
PAGE = 16
OPTIONS = {
    "dtypes": (("bf16", "bf16"), ("fp16", "fp16"), ("e4m3", "e4m3"), ("bf16", "e4m3")),  # q, k
    "depths": ((128, 128), (64, 64), (192, 128), (256, 256)),
    "group": (1, 7, 8, 16),
    "queries": (1, 4, 100, 300, 16384),
    "layout": ("dense", "packed", "kvcache"),
    "has": (
        *("nothing", "scales", "token scales", "block scales", "rope", "rope of 8", "rope of 16", "fixed", "softcap"),
        "never",
    ),
}  # fmt: skip
LETTERS = {"scales": "qkv", "token scales": "qKV", "block scales": "xyv", "rope of 16": ""}


def runs(dtypes, depths, group, queries, layout, has) -> bool:
    """Whether some kernel runs it (a call that is refused has none), and the list of a model has a word for it."""
    eight = dtypes[0] == "e4m3"
    if has in LETTERS and not eight:
        return False
    if has in ("rope", "rope of 8", "rope of 16"):
        if depths != (192, 128) or layout == "kvcache" or dtypes[0] != dtypes[1]:
            return False
        return group in (1, 8) and (has == "rope" or eight == (has == "rope of 16"))
    if has == "block scales" and depths != (128, 128):
        return False
    if "e4m3" in dtypes and max(depths) > 128 and has == "token scales":
        return False
    if dtypes == ("bf16", "e4m3") and depths[0] > 128 and group == queries == 1:
        return False  # the scale of a single quantised row is one number, which lists have not
    if has == "never" and (dtypes[0] == dtypes[1] or depths[0] > 128):
        return False
    return layout != "kvcache" or queries <= 300


def recorded(monkeypatch, call) -> list[FA4Config]:
    """The attention kernels that a call asks for."""
    found = []

    def record(config, executor):
        found.append(config)
        return lambda *arguments: None

    monkeypatch.setattr(compile_cache, "function_for", record)
    repeat.clear()
    call()
    repeat.clear()
    return [config for config in found if isinstance(config, FA4Config)]


def tensors_of(dtypes, depths, group, queries, layout, has) -> tuple:
    """-> (q, k, v, lengths), of one sequence; with rope k lacks its last 64 columns, and q where it has 8 bits."""
    q_dtype, k_dtype = (TORCH[name] for name in dtypes)
    beside = 64 if has.startswith("rope") else 0
    keys = max(queries, 512)
    q = torch.empty(1, queries, group, depths[0] - beside * (has == "rope of 16"), dtype=q_dtype)
    k = torch.empty(1, keys, 1, depths[0] - beside, dtype=k_dtype)
    v = torch.empty(1, keys, 1, depths[1], dtype=k_dtype)
    if layout == "dense":
        return q, k, v, {}
    if layout == "packed":
        ends = (torch.tensor([0, n], dtype=torch.int32) for n in (queries, keys))
        lengths = dict(zip(("cu_seqlens_q", "cu_seqlens_k"), ends, strict=True))
        return *(x.flatten(0, 1) for x in (q, k, v)), lengths | {"max_seqlen_q": queries}
    pages = (x.view(-1, PAGE, 1, x.shape[-1]) for x in (k, v))
    table = torch.arange(keys // PAGE, dtype=torch.int32)[None]
    used = torch.tensor([keys], dtype=torch.int32)
    return q, *pages, {"cache_seqlens": used, "page_table": table}


def options_of(q, k, has: str) -> dict:
    """Further options of the call."""
    one = torch.ones(1)
    if has == "scales":
        return dict(q_descale=one, k_descale=one, v_descale=one)
    if has == "token scales":
        of_keys = torch.empty(k.shape[:-1])
        return dict(q_descale=one, k_descale=of_keys, v_descale=of_keys)
    if has == "block scales":
        scales = (torch.empty(*x.shape[:-1], 4, dtype=torch.float8_e8m0fnu) for x in (q, k))
        return dict(zip(("q_descale", "k_descale"), scales, strict=True)) | {"v_descale": one}
    if has.startswith("rope"):
        dtype = {"rope of 8": TORCH["e4m3"], "rope of 16": TORCH["bf16"]}.get(has, q.dtype)
        found = {"k_rope": torch.empty(*k.shape[:-2], 64, dtype=dtype)}
        of_q = torch.empty(*q.shape[:-1], 64, dtype=dtype)
        return found | ({"q_rope": of_q} if has == "rope of 16" else {})
    plain = {"fixed": dict(tokens_per_split=512), "softcap": dict(softcap=30.0)}
    return (plain | {"never": dict(q_quantize="never")}).get(has, {})


def listed(dtypes, depths, group, queries, layout, has) -> list:
    """What configs_for_model has of such a model."""
    of_rope = {"rope of 8": "e4m3", "rope of 16": "bf16"}
    return configs_for_model(
        dtype=dtypes[0],
        kv_dtype=None if dtypes[0] == dtypes[1] else dtypes[1],
        head_dim=depths[0],
        head_dim_v=depths[1],
        heads_q=group,
        heads_kv=1,
        calls=(layout,),
        page_sizes=(PAGE,),
        descales=LETTERS.get(has, ""),
        softcap=30.0 if has == "softcap" else 0.0,
        rope_depth=64 if has.startswith("rope") else 0,
        rope_dtype=of_rope.get(has),
    )


EVERY = pairwise.product(OPTIONS, runs)
CASES = [EVERY[number] for number in pairwise.covering(EVERY)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(map(str, case.values())))
def test_a_call_what_is_said_of_it_and_the_list_of_its_model_name_one_kernel(monkeypatch, case):
    q, k, v, lengths = tensors_of(**case)
    more = options_of(q, k, case["has"]) | {"causal": True}
    cache = case["layout"] == "kvcache"
    function = cute_fa4.flash_attn_with_kvcache if cache else cute_fa4.flash_attn_varlen_func
    asked = recorded(monkeypatch, lambda: function(q, k, v, **lengths, **more))
    assert len(asked) == 1
    known = listed(**case)
    if case["has"] != "fixed" or cache:  # parts of keys are listed of calls over a cache alone
        assert asked[0] in known
    family = asked[0].schedule.family
    assert family in {config.schedule.family for config in known if isinstance(config, FA4Config)}
    dtypes, depths = case["dtypes"], case["depths"]
    question = dict(dtype=dtypes[0], head_dim=depths[0], head_dim_v=depths[1], group=case["group"])
    question |= dict(return_lse=False, arch="sm_100a")
    sizes = dict(seqlen_q=case["queries"], seqlen_k=max(case["queries"], 512), page_size=PAGE)
    sizes |= {} if dtypes[0] == dtypes[1] else {"kv_dtype": dtypes[1]}
    [row] = capabilities(**question, **sizes, **lengths, **more)
    assert row.runs and row.families == (family,), row
    if case["layout"] == "dense" and case["has"] == "nothing" and dtypes[0] == dtypes[1]:
        [any_length] = capabilities(**question, causal=True)
        assert family in any_length.families


@pytest.mark.parametrize("columns, dtype", [(576, "bf16"), (576, "e4m3"), (656, "e4m3")])
@pytest.mark.parametrize("heads, queries", [(16, 1), (16, 8), (48, 1), (128, 1)])
def test_the_same_of_latent_caches(monkeypatch, heads, queries, columns, dtype):
    """Rows of 1152, 576 and 656 bytes; tiles of 16, 32 and 64 rows, and pairs. capabilities() speaks of one query."""
    q = torch.empty(1, queries, heads, 576, dtype=torch.bfloat16)
    of_rows, of_8_bits = columns == 656, (columns, dtype) == (576, "e4m3")
    cache = torch.empty(4, 64, 1, columns, dtype=TORCH[dtype])
    table, used = torch.arange(4, dtype=torch.int32)[None], torch.tensor([256], dtype=torch.int32)
    said = {"is_fp8_kvcache": True} if of_rows else {"q_quantize": "never"} if of_8_bits else {}
    [asked] = recorded(
        monkeypatch, lambda: flash_mla_with_kvcache(q, cache, table, used, causal=True, num_splits=1, **said)
    )  # fmt: skip
    calls = ("latent_rows" if of_rows else "latent",)
    model = dict(head_dim=576, heads_q=heads, heads_kv=1, calls=calls, page_sizes=(64,))
    if of_8_bits:
        model |= said | dict(kv_dtype="e4m3", descales="")
        said["kv_dtype"] = "e4m3"
    assert asked in configs_for_model(**model)
    if queries == 1:
        question = dict(latent=True, dtype="bf16", group=heads, causal=True, return_lse=True)
        [row] = capabilities(**question, arch="sm_100a", **said)
        assert row.families == (asked.schedule.family,)


@pytest.mark.parametrize("depth", [128, 256])
@pytest.mark.parametrize("policies", [{}, dict(pairs=True, swaps=False)], ids=str)
def test_no_length_asks_for_a_kernel_that_lists_lack(depth, policies):
    """Up to more rows than two CTAs have, of groups that share tiles and that do not."""
    for group in (1, 2, 7, 16, 128):
        stays = {"kv_dtype": "e4m3", "stays": True}
        for more in ({}, {"kv_dtype": "e4m3"}, stays, stays | {"descales": "KV"}, {"rope": True}):
            call = Call("bf16", depth, depth, group=group, **more, **policies)
            every = kernels_of(call, range(1, 300), lengths_differ=True)
            assert set(kernels_of(call, lengths_differ=True)) == set(every)


def test_every_family_has_a_rule():
    assert {rule.schedule.family for rule in RULES} == set(FAMILIES)


def test_an_entry_whose_rows_are_said_is_the_kernel_of_calls_of_few_rows():
    """Once refused, because every family that has rows was tried."""
    entry = dict(head_dim=128, qkv_dtype="bf16", group=8, pack_gqa=True, rows=8)
    for more, family in (({}, "mhaswap"), ({"kv_dtype": "e4m3"}, "mhawiden")):
        [config] = configs_of("config", entry | more, "here")
        assert config.schedule.family == family and config.schedule.rows == 8
