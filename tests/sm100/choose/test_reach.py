"""What can be built is reached: every schedule, and every value of its options that some problem accepts.

Reached means by the kernels that calls get (sm100/choose/which_kernel.py) and by their launches (launches.py), under
what the environment variables say (compiler/policy.py) and what the tuning table tries: pairs of CTAs, clusters, split
keys, claims. Code that is not reached runs in no call: it is deleted, or listed in STAYS with its reason
(docs/decisions/0034).
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from itertools import product

from cute_fa4 import masks
from cute_fa4.compiler import policy
from cute_fa4.sm100.blueprint import tuning
from cute_fa4.sm100.choose.choose_config import CLUSTER_PARTS, choose_config
from cute_fa4.sm100.choose.config import SCHEDULES, FA4Config
from cute_fa4.sm100.choose.launches import every_launch
from cute_fa4.sm100.choose.which_kernel import Call, kernels_of
from cute_fa4.sm100.few_rows.tiles import ROWS
from cute_fa4.sm100.two_tiles.orders import ORDERS
from cute_fa4.sm100.two_tiles.schedule import EXPONENTIALS, MAXIMA, REFERENCES, ROW_SUMS

VALUES = {
    "order": tuple(ORDERS),
    "maximum": MAXIMA,
    "first_reference": REFERENCES,
    "exponential": EXPONENTIALS,
    "row_sum": ROW_SUMS,
    "lone_tiles": (False, True),
    "own_parts": (False, True),
    "one_query_tile": (False, True),
    "claims": (False, True),
    "dependent_launch": (False, True),
    "rows": ROWS,
    "cluster_parts": CLUSTER_PARTS,
}
NUMBERS = {
    "rescale_log2": "a call never sets it; the numerics tests vary it, in the same code",
    "exp2_emulated": "chosen for each arch; the cost model varies it, in the same code",
    "warps": "registers of roles; the compile grid varies them, in the same code",
}
# (schedule, bits of q, option, value) -> why it stays.
HEIGHTS = "the code of a tile does not know its height: other tiles over other caches have it"
STAYS = {
    ("SwappedTile", 16, "rows", 64): HEIGHTS,
    ("SwappedTile", 8, "rows", 64): HEIGHTS,
    ("LatentTile", 16, "rows", 8): HEIGHTS,
    ("LatentTile", 8, "rows", 8): HEIGHTS,
    ("LatentRows", 16, "rows", 8): HEIGHTS,
}

PAGES = dict(kv_layout="paged", page_size=16, seqused_k=True)
LAYOUTS = {}, dict(q_layout="packed", kv_layout="packed"), PAGES
MASKS = masks.full().mask, masks.causal().mask, masks.window(5, 5).mask
DEPTHS = {64: 64, 128: 128, 192: 128, 256: 256}
LATENT = dict(latent=True, head_dim=576, head_dim_v=512, **PAGES)
ROPE = dict(head_dim=192, head_dim_v=128, rope_depth=64)
DEQUANTIZING = (
    "mhawiden",
    "mhawidewiden",
    "mla",
)  # families that take 16-bit q over 8-bit k, by their first letters
# What variables of the environment say of schedules; of kernels: pairs, and q that stays as it is.
POLICIES = (
    {},
    dict(maximum="exact"),
    dict(exponential="exact"),
    dict(claims=True),
    dict(claims=False),
    dict(dependent_launch=False),
)
# What rows of another tuning table say that neither a default nor a variable does.
OTHER_TABLE = tuning.shipped().changed(first_reference="quarter")


def problems():
    """What calls ask, without lengths."""
    for dtype, (depth, depth_v), layout, mask in product(
        ("bf16", "fp16", "e4m3"), DEPTHS.items(), LAYOUTS, MASKS
    ):
        yield dict(qkv_dtype=dtype, head_dim=depth, head_dim_v=depth_v, mask=mask, **layout)
    for arch, dtype, depth in product(("sm_100a", "sm_103a"), ("bf16", "e4m3"), (64, 128)):
        yield dict(qkv_dtype=dtype, head_dim=depth, arch=arch)
    for depth, layout in product((64, 128), LAYOUTS):
        over_8_bits = dict(qkv_dtype="bf16", kv_dtype="e4m3", head_dim=depth, **layout)
        yield over_8_bits
        yield dict(qkv_dtype="e4m3", head_dim=depth, descales="K", **layout)
        yield over_8_bits | dict(descales="K")
        yield dict(qkv_dtype="bf16", kv_dtype="e4m3", head_dim=2 * depth + 64, **layout)
    for arch in ("sm_100a", "sm_103a"):
        yield dict(qkv_dtype="e4m3", head_dim=128, descales="xyv", arch=arch)
    for group in (8, 16):
        yield dict(qkv_dtype="bf16", head_dim=128, group=group)
        yield dict(qkv_dtype="bf16", head_dim=256, group=group)
        yield dict(qkv_dtype="e4m3", head_dim=128, group=group)
        yield dict(qkv_dtype="bf16", kv_dtype="e4m3", head_dim=128, group=group)
    for rope_dtype in (None, "e4m3"):
        yield dict(qkv_dtype="bf16", rope_dtype=rope_dtype, **ROPE)
        yield dict(qkv_dtype="bf16", kv_dtype="e4m3", rope_dtype=rope_dtype and "bf16", **ROPE)
    yield dict(qkv_dtype="e4m3", rope_dtype="bf16", **ROPE)
    for group in (8, 16, 32, 64, 128):
        yield dict(qkv_dtype="bf16", group=group, **LATENT)
        yield dict(qkv_dtype="e4m3", o_dtype="bf16", group=group, **LATENT)
        yield dict(qkv_dtype="bf16", kv_dtype="e4m3", group=group, **LATENT)
        rows = dict(kv_dtype="e4m3", rope_dtype="bf16", scale_dtype="f32")
        yield dict(qkv_dtype="bf16", group=group, **rows, **LATENT)


def configs_of(problem: dict, invariant: bool = False, **of_call):
    """The kernels of calls that ask this, with and without an LSE. of_call: further fields of Call."""
    call = Call.of_choices(problem, invariant=invariant, **of_call)
    policies = (policy.of_schedules(True),) if invariant else POLICIES
    for kernel in kernels_of(call, lengths_differ=True):
        of = problem | kernel.choices
        if of.get("kv_dtype") and not kernel.family.startswith(DEQUANTIZING):
            of |= dict(qkv_dtype=of["kv_dtype"], kv_dtype=None, o_dtype="bf16")
        for asked, write_lse in product(policies, (False, True)):
            for table in (tuning.shipped(),) if asked else (tuning.shipped(), OTHER_TABLE):
                with tuning.using(table):
                    config = choose_config(**of, **asked, write_lse=write_lse)
                if not config.refusals():
                    yield config


def configs():
    """All kernels that calls of every problem get."""
    for problem in problems():
        for invariant, pairs, stays in product((False, True), (None, True), (False, True)):
            yield from configs_of(problem, invariant, pairs=pairs, stays=stays)


@cache
def launched() -> frozenset:
    found = dict.fromkeys(configs())
    return frozenset(
        kernel
        for config in found
        for kernel in every_launch(config)
        if isinstance(kernel, FA4Config)
    )


def names_of(config: FA4Config, option: str) -> tuple:
    """-> (schedule, bits of q, option)."""
    return type(config.schedule).__name__, 8 if config.is_quantized else 16, option


@cache
def reached() -> frozenset:
    return frozenset(
        (*names_of(config, field.name), getattr(config.schedule, field.name))
        for config in launched()
        for field in fields(config.schedule)
        if field.name in VALUES
    )


def test_every_schedule_is_reached():
    assert {type(config.schedule).__name__ for config in launched()} == set(SCHEDULES)


def test_every_option_is_listed():
    options = {field.name for schedule in SCHEDULES.values() for field in fields(schedule)}
    assert options == set(VALUES) | set(NUMBERS)


def test_every_value_that_can_be_built_is_reached_or_has_a_reason():
    """A value can be built where some problem that calls have runs with it."""
    unreached = set()
    for config in launched():
        for field in fields(config.schedule):
            for value in VALUES.get(field.name, ()):
                name = (*names_of(config, field.name), value)
                if name in reached() or name in unreached:
                    continue
                changed = config.with_(schedule=replace(config.schedule, **{field.name: value}))
                takes_it = getattr(changed.schedule, field.name) == value
                if takes_it and not changed.refusals():
                    unreached.add(name)
    assert unreached == set(STAYS)
