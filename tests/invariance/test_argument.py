"""batch_invariant= of a call chooses what CUTE_FA4_BATCH_INVARIANT chooses, through every entry point.

Calls of CPU tensors are planned as for a device that launches nothing (system/devices.py: asked_for), which notes each
kernel and each split. Nothing is compiled, so that each entry point meets each layout, dtype and number of queries.

    8,320 keys   more than two parts of split.INVARIANT_TOKENS, so that parts count
    1 query      fewer than any tile; 40: with two heads more than 32 rows; 300: more than a CTA of two tiles has
"""

import inspect
import itertools

import pytest
import torch

import cute_fa4
from cute_fa4 import capabilities, configs_for_model, distributed
from cute_fa4.aot import entry
from cute_fa4.calls import append, attention, repeat
from cute_fa4.calls.recognition import recognition_of
from cute_fa4.compiler import policy
from cute_fa4.operators import OPERATORS
from cute_fa4.system.devices import Target, asked_for
from tests.invariance.stories import Kind, Piece, Story, int32, offsets

VARIABLE = "CUTE_FA4_BATCH_INVARIANT"
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
KEYS, PAGE, HEADS = 8320, 16, (4, 2)
QUERIES = (1, 40, 300)
# head dim, dtypes of q and of keys
KINDS = {
    "bf16": (64, BF16, BF16),
    "wide heads": (256, BF16, BF16),
    "8 bits": (128, E4M3, E4M3),
    "an 8-bit cache": (128, BF16, E4M3),
    "wide heads, an 8-bit cache": (256, BF16, E4M3),
}


def rows(n: int, heads: int, depth: int, dtype) -> torch.Tensor:
    return torch.zeros(n, heads, depth, dtype=dtype)


def tensors(kind: str, queries: int) -> tuple:
    depth, dtype, of_keys = KINDS[kind]
    return rows(queries, HEADS[0], depth, dtype), *(
        rows(KEYS, HEADS[1], depth, of_keys) for _ in "kv"
    )


def pages(x: torch.Tensor) -> torch.Tensor:
    return x.view(-1, PAGE, *x.shape[1:])


TABLE = torch.arange(KEYS // PAGE, dtype=torch.int32)[None]


def dense(queries: int, kind: str) -> dict:
    return dict(zip("qkv", (x[None] for x in tensors(kind, queries)), strict=True))


def packed(queries: int, kind: str) -> dict:
    found = dict(zip("qkv", tensors(kind, queries), strict=True))
    return found | dict(
        cu_seqlens_q=offsets([queries]), cu_seqlens_k=offsets([KEYS]), max_seqlen_q=queries
    )


def paged(queries: int, kind: str) -> dict:
    q, k, v = tensors(kind, queries)
    found = dict(q=q, k=pages(k), v=pages(v), cu_seqlens_q=offsets([queries]), max_seqlen_q=queries)
    return found | dict(page_table=TABLE, seqused_k=int32([KEYS]))


def padded(queries: int, kind: str) -> dict:
    return dense(queries, kind) | dict(seqused_q=int32([queries]), seqused_k=int32([KEYS]))


def cache(queries: int, kind: str) -> dict:
    q, k, v = dense(queries, kind).values()
    return dict(q=q, k_cache=k, v_cache=v, cache_seqlens=int32([KEYS]))


def cache_of_pages(queries: int, kind: str) -> dict:
    found = cache(queries, kind)
    return found | {x: pages(found[x][0]) for x in ("k_cache", "v_cache")} | {"page_table": TABLE}


def with_new_rows(queries: int, kind: str) -> dict:
    found = cache_of_pages(queries, kind)
    new = {
        x: found[f"{x}_cache"].new_zeros(1, queries, *found[f"{x}_cache"].shape[2:]) for x in "kv"
    }
    return found | new | {"cache_seqlens": int32([KEYS - queries])}


def latent(queries: int, kind: str, heads: int = 16) -> dict:
    _, dtype, of_keys = KINDS[kind]
    q = rows(queries, heads, 576, dtype)[None]
    return dict(
        q=q,
        k_cache=pages(rows(KEYS, 1, 576, of_keys)),
        block_table=TABLE,
        cache_seqlens=int32([KEYS]),
    )


def latent_of_bytes(queries: int, kind: str) -> dict:
    found = latent(queries, kind, 48)
    return found | {"k_cache": pages(rows(KEYS, 1, 656, torch.uint8))}


def listed(queries: int, kind: str) -> dict:
    found = latent(queries, kind, 128)
    indices = torch.arange(KEYS, dtype=torch.int32).expand(1, queries, KEYS).contiguous()
    return found | dict(block_table=None, cache_seqlens=None, indices=indices)


def heads_first(queries: int, kind: str) -> dict:
    q, k, v = (x.transpose(1, 2) for x in dense(queries, kind).values())
    return dict(query=q, key=k, value=v, enable_gqa=True)


def operator_of_latent(queries: int, kind: str) -> dict:
    found = latent(queries, kind)
    names = {"k_cache": "latent_cache", "block_table": "page_table", "cache_seqlens": "seqused_k"}
    return {names.get(name, name): x for name, x in found.items()}


def with_out(make):
    def found(queries: int, kind: str) -> dict:
        given = make(queries, kind)
        depth = 512 if "latent_cache" in given else given["q"].shape[-1]
        return given | {"out": torch.zeros(*given["q"].shape[:-1], depth, dtype=BF16)}

    return found


# name of an entry point -> layouts of its tensors. test_every_entry_point_has_the_argument asks for new ones.
LAYOUTS = {
    "flash_attn_func": (dense,),
    "flash_attn_varlen_func": (packed, paged, padded),
    "flash_attn_with_kvcache": (cache, cache_of_pages, with_new_rows),
    "flash_mla_with_kvcache": (latent, latent_of_bytes, listed),
    "scaled_dot_product_attention": (heads_first,),
    "flex_attention": (heads_first,),
    "flash_attn": (dense,),
    "flash_attn_varlen": (packed, paged, padded),
    "flash_attn_append": (with_new_rows,),
    "flash_attn_append_scales": (),  # below: its scales are written
    "flash_mla": (operator_of_latent,),
}
OUT = "_out"
REFUSED = {"context_parallel_attention", "decode_attention"}
# These ask about calls, or list the kernels of them.
ASKING = {"configs_for_model"}


def entry_points() -> dict:
    """Public functions that split keys, or are named attention."""
    found = {}
    for module, name in itertools.product(
        (cute_fa4, distributed), dir(cute_fa4) + dir(distributed)
    ):
        each = getattr(module, name, None) if name in module.__all__ else None
        if inspect.isfunction(each):
            taken = {*inspect.signature(each).parameters}
            if {"num_splits", "splits", "batch_invariant"} & taken or "attention" in name:
                found[name] = taken
    return found


def test_every_entry_point_has_the_argument():
    """And a layout above, with which the tests below call it."""
    found = entry_points()
    assert [name for name, taken in found.items() if "batch_invariant" not in taken] == []
    assert {*found} <= {*LAYOUTS, *REFUSED, *ASKING}
    for name, operator in OPERATORS.items():
        assert "batch_invariant" in [x.name for x in operator._schema.arguments]
        assert name.removesuffix(OUT) in LAYOUTS


@pytest.fixture
def planned(monkeypatch):
    """planned(variable, call) -> kernels and splits of call(), which launches nothing."""

    def on_nothing(device):
        return Target("nothing", "sm_100a")

    def of(variable: str, call) -> tuple[list, list]:
        splits = []

        def split_of(*arguments):
            splits.append(split(*arguments))
            return splits[-1]

        repeat.clear()
        with monkeypatch.context() as patch, asked_for("sm_100a") as configs:
            patch.setenv(VARIABLE, variable)
            patch.setattr(attention, "target_of", on_nothing)
            patch.setattr(append, "target_of", on_nothing)
            patch.setattr(attention, "split_of", split_of)
            call()
        return configs, splits

    split = attention.split_of
    return of


def check_law(planned, call) -> None:
    """call(**options): the argument against the variable, in every combination of the two."""
    invariant, default = planned("on", call), planned("auto", call)
    assert invariant[0] and invariant != default
    for variable in ("auto", "on"):
        assert planned(variable, lambda: call(batch_invariant=True)) == invariant
        assert planned(variable, lambda: call(batch_invariant=False)) == default


def entries():
    for name, layouts in LAYOUTS.items():
        for layout in layouts:
            ways = [name] if hasattr(cute_fa4, name) else [name, name + OUT]
            for way in ways:
                yield pytest.param(way, layout, id=f"{way}, {layout.__name__}")


def runs(name: str, layout, kind: str) -> bool:
    """Operators take q as it will be: an 8-bit cache under 16 bits is one of the functions' calls, or is latent."""
    if layout is latent_of_bytes:
        return kind == "bf16"
    if layout in (latent, listed, operator_of_latent):
        return kind in ("bf16", "8 bits", "an 8-bit cache")
    return not (kind == "an 8-bit cache" and name in OPERATORS)


@pytest.mark.parametrize("name, layout", [*entries()])
def test_the_argument_chooses_what_the_variable_chooses(name, layout, planned):
    function = getattr(cute_fa4, name, None) or getattr(torch.ops.cute_fa4, name)
    make = with_out(layout) if name.endswith(OUT) else layout
    few = QUERIES if layout not in (latent, latent_of_bytes, listed, operator_of_latent) else (1, 8)
    differ = []
    for kind, queries in itertools.product(KINDS, few):
        if not runs(name, layout, kind):
            continue
        given = make(queries, kind)

        def call(given=given, **options):
            function(**given, **options, num_splits=0) if takes_splits(name) else function(
                **given, **options
            )

        check_law(planned, call)
        differ.append((kind, queries))
    assert differ


@pytest.mark.parametrize("name, layout", [*entries()])
def test_a_call_of_an_entry_point_is_kept_for_the_next(name, layout, planned, monkeypatch):
    """On a CPU contents of lengths decide, and few calls are kept; on a GPU all are, in the form of their options."""
    seen, long_way = [], repeat._long_way

    def recorded(prepare, tensors, asked, *more):
        seen.append((tensors, asked))
        return long_way(prepare, tensors, asked, *more)

    monkeypatch.setattr(repeat, "_long_way", recorded)
    function = getattr(cute_fa4, name, None) or getattr(torch.ops.cute_fa4, name)
    given = (with_out(layout) if name.endswith(OUT) else layout)(1, "bf16")
    planned("auto", lambda: function(**given))
    assert seen and all(recognition_of(*each) is not None for each in seen)


def takes_splits(name: str) -> bool:
    return heads_first not in LAYOUTS.get(name, ())


@pytest.mark.parametrize("rule", ["of_kernels", "of_schedules", "batch_invariant"])
def test_a_rule_that_ignores_the_argument_is_seen(rule, planned, monkeypatch):
    """Planted: a rule of policy.py that reads the variable alone. Kernels of few queries refuse another schedule."""
    said, given = getattr(policy, rule), dense(300 if rule == "of_schedules" else 1, "bf16")
    monkeypatch.setattr(policy, rule, lambda *ignored, **also: said())
    with pytest.raises(AssertionError):
        check_law(planned, lambda **options: cute_fa4.flash_attn_func(**given, **options))


def test_under_torch_compile(planned):
    given = paged(1, "bf16")

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(given, **options):
        return cute_fa4.flash_attn_varlen_func(**given, **options, num_splits=0)

    check_law(planned, lambda **options: compiled(given, **options))


QUESTIONS = (
    dict(dtype="bf16", head_dim=128, group=8),
    dict(latent=True, group=128),
    dict(dtype="bf16", head_dim=128, group=8, cache_seqlens=True, page_table=True, num_splits=0),
    dict(dtype="bf16", head_dim=128, kv_dtype="e4m3", seqlen_q=100, seqused_k=True),
)
MODEL = dict(head_dim=128, heads_q=8, heads_kv=1, calls=("packed", "kvcache"))


@pytest.mark.parametrize(
    "ask",
    [
        *(lambda given=given, **options: capabilities(**given, **options) for given in QUESTIONS),
        lambda **options: configs_for_model(**MODEL, kv_dtype="e4m3", **options),
        lambda **options: configs_for_model(
            head_dim=576, heads_q=128, heads_kv=1, calls=("latent", "latent_rows"), **options
        ),
        lambda **options: entry.configs_of("model", MODEL | options, ""),
        lambda **options: entry.configs_of(
            "config", dict(qkv_dtype="bf16", head_dim=64) | options, ""
        ),
    ],
    ids=[f"question {n}" for n in range(4)] + ["model", "latent model", "[[model]]", "[[config]]"],
)
def test_questions_and_lists_know_the_argument(ask, monkeypatch):
    found = {}
    for variable, options in itertools.product(("auto", "on"), ({}, True, False)):
        monkeypatch.setenv(VARIABLE, variable)
        options = options if options == {} else {"batch_invariant": options}
        found[variable, options.get("batch_invariant")] = ask(**options)
    invariant, default = found["on", None], found["auto", None]
    assert invariant != default
    assert found["auto", True] == found["on", True] == invariant
    assert found["auto", False] == found["on", False] == default


def test_a_list_of_ranks_follows_the_variable_alone():
    """As calls of cute_fa4.distributed do, which refuse the argument."""
    model = MODEL | {"calls": ("ranks",)}
    assert configs_for_model(**model, batch_invariant=True) == configs_for_model(**model)


STORY = Story.draw(Kind(heads=(1, 1)), 300)
ROW = Piece(299, 300)  # alone: a kernel of few rows, unless the call is invariant


def test_calls_with_and_without_it_share_no_plan():
    """In any order, each computes what it computes alone, and a number that equals True is refused each time."""

    def row(said):
        return STORY.results(ROW, batch_invariant=said)[0]

    alone = {}
    for said in (None, True):
        repeat.clear()
        alone[said] = row(said)
    assert not alone[None].equal(alone[True])
    for said in (None, True, True, False, None, True, False, False):
        assert row(said).equal(alone[said or None])
        for wrong in (1, 0, "on"):
            with pytest.raises(TypeError, match=r"^batch_invariant: .*accepted: True"):
                row(wrong)


def test_a_row_has_the_same_bits_alone_and_in_the_whole():
    options = dict(batch_invariant=True)
    whole = STORY.whole(**options)[0]
    assert STORY.results(ROW, **options)[0].equal(whole[-1:])
    assert not STORY.results(ROW)[0].equal(whole[-1:])
