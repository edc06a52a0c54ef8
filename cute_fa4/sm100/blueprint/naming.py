"""Names and texts of configurations: every choice that is not the default, in one order.

    kernel_name   mha2q_bf16_d128_g4_causal_qpacked_page16_usedk_packgqa_sm_100a, before its hash
    text          FA4Config(group=4, mask=Causal(), q_layout='packed', ...), which evaluates

Both compare with the configuration that the same class makes without these choices, so that defaults are left
out. A name has the same choices under every tuning table: those that differ from the package's.
"""

from __future__ import annotations

import re
from dataclasses import fields, replace

from cute_fa4.layouts import cache_scales

from . import bands, spelled, tuning
from .problem import Problem

LONGEST = (
    180  # of a name before its hash; files add a suffix, and 255 bytes is what file systems take
)


def kernel_name(config) -> str:
    """Problem and schedule in words that file systems, C and profilers accept; if two differ, so do their words."""
    words = [config.schedule.family, *_problem(config), *_schedule(config), config.arch]
    return in_one(words)


def in_one(words: list) -> str:
    return "_".join(words)[:LONGEST].strip("_")


def _problem(p: Problem) -> list[str]:
    """The words of a problem, without its arch.

    >>> _problem(Problem(qk_depth=64, group=4, mask=bands.Window(True, False), page_size=16, kv_layout="paged"))
    ['bf16', 'd64', 'g4', 'window_left', 'page16']
    """
    said = [
        (True, p.qkv_dtype),
        (p.kv_dtype, f"kv_{p.kv_dtype}"),
        (p.v_block_scale_layout != cache_scales.LINEAR, f"vscale_{p.v_block_scale_layout}"),
        (p.o_dtype != p.qkv_dtype, f"o_{p.o_dtype}"),
        (p.descales, f"scale_{p.descales.letters}"),
        (True, f"d{p.qk_depth}"),
        (p.ov_depth != p.qk_depth, f"dv{p.ov_depth}"),
        (True, f"g{p.group}"),
        (p.mask != bands.Full(), mask_words(p.mask)),
        (p.q_layout != "dense", f"q{p.q_layout}"),
        (p.kv_layout == "packed", "kpacked"),
        (p.kv_layout == "paged" or p.page_size, f"page{p.page_size}"),
        (p.kv_layout not in ("dense", "packed", "paged"), f"k{p.kv_layout}"),
        (p.kv_layout != "paged" and p.page_size, "unpaged"),
        (p.page_heads_first, "headsfirst"),
        (not p.fold_pages, "unfolded"),
        (p.seqused_q, "usedq"),
        (p.seqused_k, "usedk"),
        (p.cache_batch_idx, "batchidx"),
        (p.cache_leftpad, "leftpad"),
        (p.padded_keys, "keylimit"),
        (p.pack_gqa, "packgqa"),
        (p.latent, "latent"),
        (p.sink or p.sink_dtype != "f32", f"{'' if p.sink else 'no'}sink_{p.sink_dtype}"),
        *of_functions(p),
        (p.q_block or p.kv_block, f"blocks{p.q_block}x{p.kv_block}"),
        (p.full_blocks, "fullblocks"),
        (p.packed_lists, "packedlists"),
        (p.list_offsets, "listoffsets"),
        (p.longest_first, "longest"),
        (p.cut_lists, "cut"),
        (p.skip_softmax, "skip"),
        (p.count_skipped, "counted"),
        (p.write_lse, "lse"),
        (p.write_max, "max"),
        (p.split_keys, "split"),
        (p.share_keys, "share"),
        (p.rope_depth, f"rope{p.rope_depth}"),
        (p.rope_page_size, f"ropepage{p.rope_page_size}"),
        (p.rope_dtype, f"rope_{p.rope_dtype}"),
        (p.scale_dtype, f"scale_{p.scale_dtype}"),
    ]
    return wanted(said)


def wanted(said: list) -> list[str]:
    """The words whose condition holds; said: pairs (condition, words)."""
    return [_word(words) for holds, words in said if holds]


def of_functions(p) -> list:
    """Words for score_mod, mask_mod and the tensors that they read, of a Problem or of a BackwardConfig."""
    return [
        (p.score_mod, f"score_{_function(p.score_mod)}"),
        (p.mask_mod, f"mask_{_function(p.mask_mod)}"),
        (p.aux, "aux_" + "_".join(f"{dtype}x{rank}" for dtype, rank in p.aux)),
    ]


def mask_words(mask: bands.Mask) -> str:
    """
    >>> mask_words(bands.Either(bands.Window(True, True), bands.Both(bands.Causal(), bands.Chunked())))
    'either_window_or_both_causal_and_chunked'
    """
    if isinstance(mask, (bands.Both, bands.Either)):
        kind, between = ("both", "and") if isinstance(mask, bands.Both) else ("either", "or")
        return f"{kind}_{mask_words(mask.a)}_{between}_{mask_words(mask.b)}"
    if isinstance(mask, bands.Window) and not (mask.left and mask.right):
        return "window_" + ("left" if mask.left else "right" if mask.right else "open")
    return type(mask).__name__.lower()


def _function(mod) -> str:
    """soft_cap(30.0) then alibi(8): soft_cap_30_0_then_alibi_8; a user's: the hash of what it computes."""
    return getattr(mod, "key", repr(mod)).replace("score_mod:", "").replace("mask_mod:", "")


def _schedule(config) -> list[str]:
    """The choices of a schedule that differ from its own defaults for the problem."""
    schedule = asked(config, {tuning.shipped()})
    default, words = type(schedule)(), []
    for name in (f.name for f in fields(schedule)):
        value = getattr(schedule, name)
        if value == getattr(default, name):
            continue
        if isinstance(value, bool):
            words.append(name if value else f"no_{name}")
        elif isinstance(value, str):
            words.append(_word(value))
        else:
            words.append(_word(f"{name}{value}") if isinstance(value, (int, float)) else name)
    return words


def _word(text: str) -> str:
    return re.sub(r"\W+", "_", text).strip("_")


def text(config) -> str:
    """A call that makes an equal configuration (the imports it needs are those of FA4Config's docstring).

    Under the active tuning table and under that of the package.
    """
    return _text(config)


def text_for_name(config) -> str:
    """The same under the package's tuning table: the hash of a name depends on no other."""
    return _text(config, {tuning.shipped()})


def _text(config, tables: set | None = None) -> str:
    plain = type(config)(qkv_dtype=config.qkv_dtype, qk_depth=config.qk_depth)
    object.__setattr__(plain, "schedule", config.schedule)  # said below, if at all
    shown = spelled.call(config, plain, ("qkv_dtype", "qk_depth"))[:-1]
    schedule = asked(config, tables)
    if schedule == type(type(config)().schedule)():
        return f"{shown})"
    return f"{shown}, schedule={spelled.call(schedule, type(schedule)())})"


def asked(config, tables: set | None = None):
    """The schedule without the choices that it would also make as defaults for this problem: these are open (None).

    tables: of choices (tuning.py), under each of which it would; None: the active one and that of the package
    """
    tables = {tuning.shipped(), tuning.active()} if tables is None else tables
    schedule = config.schedule
    if config.contradictions() or schedule.contradictions(config):
        return schedule
    default = type(schedule)()
    for name in (f.name for f in fields(schedule) if getattr(default, f.name) is None):
        without = replace(schedule, **{name: None})
        if all(_resolved(without, config, table) == config.schedule for table in tables):
            schedule = without
    return schedule


def _resolved(schedule, config, table):
    with tuning.using(table):
        return schedule.resolved(config)
