"""One entry of a catalogue, [[model]], [[config]], [[append]] or [[combine]]: from TOML, from flags, and back.

    [[config]]                                     python -m cute_fa4 export-kernel \\
    qkv_dtype = "bf16"                                 --qkv-dtype bf16 \\
    head_dim = 64                                      --head-dim 64 \\
    mask = "Window(left=True, right=False)"            --mask "Window(left=True, right=False)" \\
    aux = [["f32", 4]]                                 --aux f32:4

The tables below are what a file and a command line may say, so neither can lack what the other has.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields

from cute_fa4 import masks
from cute_fa4.aot.config_data import ConfigDataError, to_data
from cute_fa4.aot.manifest import ExportError
from cute_fa4.aot.models import CALLS, ON_REQUEST, configs_for_model
from cute_fa4.compiler import policy
from cute_fa4.dtypes import E4M3, OPERANDS, PLAIN, PLAIN_FLOATS, elements_in
from cute_fa4.scales import Scales
from cute_fa4.sm100.append.config import VECTOR_BYTES, AppendConfig
from cute_fa4.sm100.blueprint import score_mods, spelled
from cute_fa4.sm100.blueprint.chip import ARCHES
from cute_fa4.sm100.blueprint.score_mods import PACKAGED, packaged_call
from cute_fa4.sm100.blueprint.warp_roles import WarpRoles
from cute_fa4.sm100.choose.choose_config import FAMILIES, PAIRED, SCHEDULE_CHOICES, choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, kernels_of
from cute_fa4.sm100.combine.config import MOST_COLUMNS, CombineConfig
from cute_fa4.sm100.few_rows.schedule import SwappedTile


@dataclass(frozen=True)
class Field:
    """One thing that an entry may say.

    kind     "number", "real", "switch", "text", "texts", "numbers", "switches", or how a list or a call is written:
             "aux", "windows", "mask", "function", "warps"
    help     for a command line; ends with the default
    """

    kind: str
    help: str


# What several kinds of entries have.
_HEAD_DIM = Field("number", "of q and k; required")
_ARCH = Field("text", "sm_100a or sm_103a; default: sm_100a")

MODEL = {
    "head_dim": _HEAD_DIM,
    "heads_q": Field("number", "query heads; required"),
    "heads_kv": Field("number", "key/value heads; required"),
    "head_dim_v": Field("number", "of v; default: as head_dim"),
    "dtype": Field("text", "bf16, fp16, e4m3 or e5m2; default: bf16"),
    "kv_dtype": Field("text", "of caches under 16-bit queries: e4m3 or e5m2; default: as dtype"),
    "q_quantize": Field(
        "text", "of such queries: auto or never; default: as calls that do not say"
    ),
    "descales": Field("text", "of 8-bit tensors that have scales; default: qkv"),
    "o_dtype": Field(
        "text",
        "of out: e4m3, or as q, which of 8 bits may have bf16 or fp16; default: as q, or bf16",
    ),
    "calls": Field("texts", f"of {', '.join(CALLS)} (default: these), {', '.join(ON_REQUEST)}"),
    "page_sizes": Field("numbers", "keys of a page; default: 16 64"),
    "causal": Field("switch", "default: on"),
    "windows": Field("windows", "LEFT:RIGHT of the layers' windows, or full; default: full"),
    "chunk": Field("number", "keys of a block that sees only itself; default: none"),
    "sink": Field("text", "dtype of learnable_sink: f32, bf16 or fp16; default: none"),
    "softcap": Field("real", "default: 0, off"),
    "return_lse": Field("switches", "false, true, or both; default: false"),
    "rope_depth": Field("number", "columns of keys in k_rope (MLA prefill); default: 0"),
    "rope_dtype": Field(
        "text", "of k_rope: e4m3, e5m2 under 16 bits, bf16, fp16 beside 8; default: as dtype"
    ),
    "scale_dtype": Field("text", "f32: k_rope of 8 bits has k_rope_descale; default: none"),
    "rope_page_sizes": Field(
        "numbers", "keys of a page of k_rope, besides its rows; default: none"
    ),
    "splits": Field("switch", "calls may split keys: num_splits, tokens_per_split; default: on"),
    "arch": _ARCH,
}
CONFIG = {
    "qkv_dtype": Field("text", "bf16, fp16, e4m3 or e5m2; required"),
    "kv_dtype": Field("text", "of k and v under 16-bit q (decode): e4m3 or e5m2; default: as q"),
    "head_dim": _HEAD_DIM,
    "head_dim_v": Field("number", "of v; default: as head_dim"),
    "o_dtype": Field("text", "of the output; default: as qkv_dtype, or bf16"),
    "descales": Field("text", "8-bit tensors that have scales, of qQxkKyvVo; default: none"),
    "group": Field("number", "query heads a key/value head; default: 1"),
    "causal": Field("switch", "default: every key is seen"),
    "mask": Field("mask", "instead of causal: 'Window(left=True, right=False)'; default: Full()"),
    "q_layout": Field("text", "dense or packed; default: dense"),
    "kv_layout": Field("text", "dense, packed or paged; default: dense"),
    "seqused_q": Field("switch", "lengths of queries are a tensor; default: off"),
    "seqused_k": Field("switch", "lengths of keys are a tensor; default: off"),
    "cache_batch_idx": Field("switch", "sequences pick rows of the cache; default: off"),
    "cache_leftpad": Field("switch", "keys begin at a row of the cache; default: off"),
    "padded_keys": Field("switch", "key_limit; default: off"),
    "page_heads_first": Field("switch", "pages are (heads, page_size, depth); default: off"),
    "fold_pages": Field("switch", "small pages come in one copy; default: on"),
    "page_size": Field("number", "keys of a page, 16 for any multiple; default: 0, not paged"),
    "pack_gqa": Field("switch", "heads of a group share a tile (decode); default: off"),
    "latent": Field("switch", "v is the first columns of k (MLA decode); default: off"),
    "sink": Field("switch", "learnable_sink; default: off"),
    "sink_dtype": Field("text", "of the sink: f32, bf16 or fp16; default: f32"),
    "score_mod": Field("function", "of cute_fa4.score_mods: 'soft_cap(30.0)'; default: none"),
    "mask_mod": Field("function", "likewise; default: none"),
    "aux": Field("aux", "DTYPE:RANK of each aux tensor, f32:4; default: none"),
    "write_lse": Field("switch", "also write the log-sum-exp; default: off"),
    "split_keys": Field("switch", "partial results, of parts of the keys; default: off"),
    "share_keys": Field("switch", "with split_keys: as many keys for every CTA; default: off"),
    "rope_depth": Field(
        "number", "last columns of k in a tensor all heads share (MLA); default: 0"
    ),
    "rope_page_size": Field("number", "keys of a page of that tensor; default: 0, rows as k"),
    "rope_dtype": Field("text", "of these columns: e4m3, e5m2 under 16 bits, bf16, fp16 beside 8"),
    "scale_dtype": Field("text", "f32: these columns of 8 bits have scales; default: none"),
    "arch": _ARCH,
    "family": Field(
        "text",
        f"of the kernel, {' or '.join(FAMILIES)}; default: mha2q and mha1q, or as rows and head dims say",
    ),
    # of the schedule
    "rows": Field(
        "number", "of a tile with swapped operands (decode): 8, 16, 32, 64; default: none"
    ),
    "order": Field(
        "text",
        "of the products: p_over_s, p_beside_s; of 8 bits p_crossed, p_crossed_summed; default: what suits",
    ),
    "lone_tiles": Field("switch", "softmax shares lone query tiles; default: where lengths differ"),
    "maximum": Field(
        "text", "of a row: exact or lagged; default: as the problem allows (CUTE_FA4_MAXIMUM)"
    ),
    "exponential": Field(
        "text",
        "of P of eight bits: exact or half; default: as the arch asks (CUTE_FA4_EXPONENTIAL)",
    ),
    "rescale_log2": Field("real", "how far a row maximum may lag; default: 8, of 8 bits 0"),
    "exp2_emulated": Field("number", "exponentials of 64 on FMA units; default: by arch"),
    "claims": Field("switch", "CTAs take over further blocks; default: on (CUTE_FA4_CLAIMS)"),
    "dependent_launch": Field(
        "switch",
        "start before the last grid ends; default: few queries and split keys (CUTE_FA4_PDL)",
    ),
    "cluster_parts": Field(
        "number", "CTAs that share a block's keys (decode): 1, 2, 4, 8; default: 1"
    ),
    "warps": Field("warps", "'WarpRoles(softmax_registers=184)'; default: WarpRoles()"),
}
APPEND = {
    "dtype": Field("text", "bf16, fp16, e4m3 or e5m2; required"),
    "head_dim": Field("number", "of k; required"),
    "head_dim_v": Field("number", "of v; default: as head_dim"),
    "packed": Field("switch", "new rows with cu_seqlens_k_new; default: off"),
    "page_size": Field("number", "any but 0: paged; default: 0, not paged"),
    "cache_batch_idx": Field("switch", "sequences pick rows of the cache; default: off"),
    "new_dtype": Field("text", "of the new rows, bf16 or fp16 for 8 bits; default: as dtype"),
    "descales": Field("text", "new rows that are divided by scales, of kKvV; default: none"),
    "arch": _ARCH,
}
COMBINE = {
    "o_dtype": Field("text", "of the result: bf16, fp16, f32 or e4m3; required"),
    "head_dim": Field("number", "of the result; required"),
    "packed": Field("switch", "packed queries; default: off"),
    "seqused_q": Field("switch", "lengths of queries are a tensor; default: off"),
    "shared": Field("switch", "of kernels with share_keys; default: off"),
    "write_lse": Field("switch", "also write the log-sum-exp; default: off"),
    "partial_dtype": Field("text", "of partial results: bf16, fp16 or f32; default: f32"),
    "dependent_launch": Field(
        "switch", "start before the last grid ends; default: on (CUTE_FA4_PDL)"
    ),
    "arch": _ARCH,
}
KINDS = {"model": MODEL, "config": CONFIG, "append": APPEND, "combine": COMBINE}

assert set(SCHEDULE_CHOICES) <= set(CONFIG)  # another schedule's choices have to be written here

_FUNCTIONS = {**PACKAGED, "composed": score_mods.composed}
# Names of FA4Config and AppendConfig that an entry calls otherwise.
_RENAMED = {"qk_depth": "head_dim", "ov_depth": "head_dim_v", "depth": "head_dim", "depth_v": "head_dim_v"}  # fmt: skip


def configs_of(kind: str, given: dict, where: str) -> list:
    """The configurations of an entry; ExportError, beginning with `where`, for one that is wrong or cannot run."""
    table = KINDS[kind]
    unknown = sorted(set(given) - set(table))
    if unknown:
        raise ExportError(f"{where}: {unknown}; accepted: {', '.join(table)}")
    try:
        values = {name: _value(name, table[name].kind, value) for name, value in given.items()}
        return _CONFIGS_OF[kind](values)
    except (TypeError, ValueError) as error:
        raise ExportError(f"{where}: {error}") from None


def _of_model(values: dict) -> list:
    return configs_for_model(**values)


def _of_config(values: dict) -> list:
    if values.get("causal") and "mask" in values:
        raise ValueError("causal and mask: two masks; accepted: one of them")
    _require(values, "head_dim", "qkv_dtype")
    family = values.pop("family", None)
    asked = {**policy.of_schedules(), **values}
    families = [family] if family else _families_of(values, asked)
    configs = [choose_config(**{**asked, "family": name}) for name in families]
    if family is None:  # calls choose CTA pairs where they run, otherwise single CTAs
        configs = list(dict.fromkeys(_or_alone(config, asked) for config in configs))
    refusals = dict.fromkeys(reason for config in configs for reason in config.refusals())
    if refusals:
        raise ValueError("; ".join(refusals))
    return configs


def _or_alone(config: FA4Config, asked: dict) -> FA4Config:
    """The same on single CTAs, if pairs do not run it."""
    if isinstance(config.schedule, PAIRED) and config.refusals():
        return choose_config(**{**asked, "family": config.schedule.alone.family})
    return config


def _families_of(values: dict, asked: dict) -> list[str | None]:
    """The families that calls of such a problem choose, of those whose schedules have what is said of schedules.

    Tiles of few rows only where their rows are said. None: as choose_config chooses. asked: values, and what the
    environment says
    """
    if values.get("latent"):
        return [None]
    said = policy.of_kernels() | {"pack_gqa": values.get("pack_gqa", False), "swaps": False}
    call = Call.of_choices(asked, **said)
    found = dict.fromkeys(kernel.family for kernel in kernels_of(call))
    choices = set(values) & SCHEDULE_CHOICES
    return [f for f in found if choices <= {field.name for field in fields(FAMILIES[f])}] or [None]


def _of_append(values: dict) -> list:
    _require(values, "head_dim", "dtype")
    depth = values.pop("head_dim")
    depth_v = values.pop("head_dim_v", depth)
    _one_of(values, dtype=OPERANDS, arch=ARCHES)
    _depth("head_dim", depth, elements_in(values["dtype"], VECTOR_BYTES))
    _depth("head_dim_v", depth_v, elements_in(values["dtype"], VECTOR_BYTES))
    if values.get("page_size", 0) < 0:
        raise ValueError(f"page_size: {values['page_size']}; accepted: 0 (not paged) or more")
    config = AppendConfig(depth=depth, depth_v=depth_v, **values)
    why = config.contradictions()
    if why:
        raise ValueError("; ".join(why))
    return [config]


def _of_combine(values: dict) -> list:
    _require(values, "head_dim", "o_dtype")
    depth = values.pop("head_dim")
    _depth("head_dim", depth, 4, MOST_COLUMNS)
    _one_of(values, o_dtype=(*PLAIN_FLOATS, E4M3.name), arch=ARCHES)
    _one_of({"partial_dtype": "f32", **values}, partial_dtype=PLAIN_FLOATS)
    early = policy.dependent_launch() is None
    return [CombineConfig(depth=depth, **{"dependent_launch": early, **values})]


def _depth(name: str, depth: int, multiple: int, most: int | None = None) -> None:
    if depth <= 0 or depth % multiple or depth > (most or depth):
        limit = f" up to {most}" if most else ""
        raise ValueError(f"{name}: {depth}; accepted: a multiple of {multiple}{limit}")


def _one_of(values: dict, **accepted: tuple) -> None:
    for name, words in accepted.items():
        if values.get(name, words[0]) not in words:
            raise ValueError(f"{name}: {values[name]!r}; accepted: {', '.join(words)}")


_CONFIGS_OF = {
    "model": _of_model,
    "config": _of_config,
    "append": _of_append,
    "combine": _of_combine,
}


def _require(values: dict, *names: str) -> None:
    missing = [name for name in names if name not in values]
    if missing:
        raise ValueError(f"{', '.join(missing)}: not given, and there is no default")


# --- values


_PLAIN = {"number": (int,), "real": (int, float), "switch": (bool,), "text": (str,)}
_LISTS = {"numbers": "number", "texts": "text", "switches": "switch"}
_SAID = {"number": "a whole number", "real": "a number", "switch": "true or false", "text": "a string"}  # fmt: skip


def _value(name: str, kind: str, value):
    """What Python takes for a value of TOML. ValueError for another type."""
    if kind in _LISTS:
        if not isinstance(value, (list, tuple)):
            raise ValueError(f"{name}: {value!r}; accepted: a list, each {_SAID[_LISTS[kind]]}")
        return tuple(_value(name, _LISTS[kind], item) for item in value)
    if kind in _PLAIN:
        is_switch = isinstance(value, bool)
        if not isinstance(value, _PLAIN[kind]) or is_switch != (kind == "switch"):
            raise ValueError(f"{name}: {value!r}; accepted: {_SAID[kind]}")
        return float(value) if kind == "real" else value  # 8 and 8.0 are one kernel
    return {"windows": _windows, "aux": _aux}.get(kind, _called)(name, value)


def _windows(name: str, value) -> tuple:
    ok = isinstance(value, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) in (0, 2) for pair in value
    )
    if not ok:
        raise ValueError(f"{name}: {value!r}; accepted: pairs [left, right], [] for full attention")
    # TOML has no null: an empty list is full attention
    return tuple(tuple(pair) if pair else None for pair in value)


def _aux(name: str, value) -> tuple:
    ok = isinstance(value, (list, tuple)) and all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and type(pair[1]) is int
        for pair in value
    )
    if not ok:
        raise ValueError(
            f"{name}: {value!r}; accepted: pairs [dtype, rank], dtype one of {', '.join(PLAIN)}"
        )
    return tuple(tuple(pair) for pair in value)


_CALLS = {
    "mask": (masks.KINDS, masks.Mask),
    "score_mod": (_FUNCTIONS, score_mods.ScoreMod),
    "mask_mod": (_FUNCTIONS, score_mods.ScoreMod),
    "warps": ({"WarpRoles": WarpRoles, "range": range}, WarpRoles),
}


def _called(name: str, value):
    functions, wanted = _CALLS[name]
    if not isinstance(value, str):
        raise ValueError(f"{name}: {value!r}; accepted: a string, a call of {', '.join(functions)}")
    try:
        made = spelled.value_of(value, functions)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    if not isinstance(made, wanted):
        raise ValueError(f"{name}: {value!r}; accepted: calls of {', '.join(functions)}")
    return made


# --- back


def entry_of(config) -> tuple[str, dict]:
    """-> (kind, what an entry has to say for exactly this configuration).

    ConfigDataError for functions of the user's own, which an entry cannot spell.
    """
    to_data(config)
    for mod in (getattr(config, "score_mod", None), getattr(config, "mask_mod", None)):
        if mod is not None and any(packaged_call(part.key) is None for part in mod.parts):
            raise ConfigDataError(
                f"{mod.name}: a function of your own has no entry; pass it to aot.export"
            )
    if isinstance(config, AppendConfig):
        plain = AppendConfig(config.dtype, config.depth, config.depth)
        said = {"dtype": config.dtype, "head_dim": config.depth}
        return "append", said | _changes(config, plain)
    if isinstance(config, CombineConfig):
        said = {"o_dtype": config.o_dtype, "head_dim": config.depth}
        return "combine", said | _changes(config, CombineConfig(config.o_dtype, config.depth))
    said = {"qkv_dtype": config.qkv_dtype, "head_dim": config.qk_depth}
    plain = FA4Config(qkv_dtype=config.qkv_dtype, qk_depth=config.qk_depth)
    problem = _changes(config, plain)
    problem["family"] = config.schedule.family
    if problem.get("mask") == "Causal()":
        problem = {"causal": True} | {k: v for k, v in problem.items() if k != "mask"}
    said |= problem
    if isinstance(config.schedule, SwappedTile):
        said["rows"] = config.schedule.rows
    (chosen,) = _of_config(
        {"claims": True} | {k: _value(k, CONFIG[k].kind, v) for k, v in said.items()}
    )
    return "config", said | _changes(config.schedule, chosen.schedule)


def _changes(value, plain) -> dict:
    """Fields that differ, as an entry writes them."""
    found = {}
    for name in (f.name for f in fields(value)):
        new = getattr(value, name)
        called = _RENAMED.get(name, name)
        if name == "schedule" or new == getattr(plain, name):
            continue
        if isinstance(new, Scales):
            new = new.letters
        plain_value = isinstance(new, (bool, int, float, str))
        found[called] = (
            new if plain_value else [list(p) for p in new] if name == "aux" else repr(new)
        )
    return found


def toml(config) -> str:
    """The entry of a configuration, ready for a catalogue."""
    kind, said = entry_of(config)
    lines = (f"{name} = {_toml_value(value)}" for name, value in said.items())
    return "\n".join([f"[[{kind}]]", *lines]) + "\n"


def _toml_value(value) -> str:
    # Strings, numbers and lists of these are written alike in JSON and in TOML, and so are true and false.
    return json.dumps(value)
