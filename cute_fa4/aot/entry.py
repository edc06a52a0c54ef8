"""One entry of a catalogue, [[model]], [[config]] or another kind: from TOML, from flags, and back.

    [[config]]                                     python -m cute_fa4 export-kernel \\
    qkv_dtype = "bf16"                                 --qkv-dtype bf16 \\
    head_dim = 64                                      --head-dim 64 \\
    mask = "Window(left=True, right=False)"            --mask "Window(left=True, right=False)" \\
    aux = [["f32", 4]]                                 --aux f32:4

entry_fields.py lists the fields for files and command lines, so both have the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

from cute_fa4 import masks
from cute_fa4.aot.config_data import ConfigDataError, to_data
from cute_fa4.aot.entry_fields import CONFIG, KINDS
from cute_fa4.aot.manifest import ExportError
from cute_fa4.aot.models import configs_for_model
from cute_fa4.compiler import policy
from cute_fa4.dtypes import CACHED, E4M3, PLAIN, PLAIN_FLOATS, UNQUANTIZED, elements_in
from cute_fa4.scales import Scales
from cute_fa4.sm100.append.config import VECTOR_BYTES, AppendConfig
from cute_fa4.sm100.backward.config import BackwardConfig
from cute_fa4.sm100.blueprint import score_mods, spelled
from cute_fa4.sm100.blueprint.chip import ARCHES
from cute_fa4.sm100.blueprint.choices import CHOICES
from cute_fa4.sm100.blueprint.score_mods import PACKAGED, packaged_call
from cute_fa4.sm100.blueprint.small_blocks import of_small_blocks
from cute_fa4.sm100.blueprint.warp_roles import WarpRoles
from cute_fa4.sm100.choose.choose_config import FAMILIES, PAIRED, SCHEDULE_CHOICES, choose_config
from cute_fa4.sm100.choose.config import FA4Config
from cute_fa4.sm100.choose.which_kernel import Call, kernels_of
from cute_fa4.sm100.combine.config import MOST_COLUMNS, CombineConfig
from cute_fa4.sm100.few_rows.schedule import SwappedTile
from cute_fa4.sm100.indexer.config import (
    MOST_HEADS,
    OF_HEADS,
    IndexerConfig,
    TopKConfig,
    queries_of_tile,
)
from cute_fa4.sm100.work.lists.config import MAKES, BlockListsConfig

assert set(SCHEDULE_CHOICES) <= set(CONFIG)  # another schedule's choices have to be written here

_FUNCTIONS = {**PACKAGED, "composed": score_mods.composed}
# Fields of FA4Config and AppendConfig with another name in an entry.
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


def _check_masks(values: dict) -> None:
    if values.get("causal") and "mask" in values:
        raise ValueError("causal and mask: two masks; accepted: one of them")


def _of_config(values: dict) -> list:
    _check_masks(values)
    _require(values, "head_dim", "qkv_dtype")
    values |= of_small_blocks(values, policy.batch_invariant(values.get("batch_invariant")))
    family, invariant = values.pop("family", None), values.pop("batch_invariant", None)
    asked = {**policy.of_schedules(invariant), **values}
    found = [{"family": family}] if family else _kernels_of(values, asked, invariant)
    configs = [choose_config(**{**asked, **choices}) for choices in found]
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


def _kernels_of(values: dict, asked: dict, invariant: bool | None) -> list[dict]:
    """The family, and whether a CTA has one query tile, of the kernels that calls of such a problem choose.

    Of those whose schedules have the given schedule fields. Small tiles are included only if their rows are given.
    Family None: as choose_config chooses. asked: values, and the settings of the environment; invariant: the calls'
    batch_invariant
    """
    if values.get("latent"):
        return [{"family": None}]
    said = policy.of_kernels(invariant=invariant) | {
        "pack_gqa": values.get("pack_gqa", False),
        "swaps": False,
    }
    call = Call.of_choices(asked, **said)
    found = dict.fromkeys((kernel.family, kernel.one_query_tile) for kernel in kernels_of(call))
    given = set(values) & SCHEDULE_CHOICES
    kernels = [
        {"family": family, **({"one_query_tile": True} if one else {})}
        for family, one in found
        if given <= {field.name for field in fields(FAMILIES[family])}
        and not (one and "one_query_tile" in given)
    ]
    return kernels or [{"family": None}]


def _of_append(values: dict) -> list:
    _require(values, "head_dim", "dtype")
    depth = values.pop("head_dim")
    depth_v = values.pop("head_dim_v", depth)
    _one_of(values, dtype=(*UNQUANTIZED, *CACHED), arch=ARCHES)
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
    of_floats = {"partial_dtype": "f32", "sink_dtype": "f32", **values}
    _one_of(of_floats, partial_dtype=PLAIN_FLOATS, sink_dtype=PLAIN_FLOATS)
    early = policy.dependent_launch() is None
    return [CombineConfig(depth=depth, **{"dependent_launch": early, **values})]


def _of_backward(values: dict) -> list:
    _check_masks(values)
    _require(values, "head_dim", "dtype")
    _one_of(values, dtype=UNQUANTIZED, arch=ARCHES)
    if "exp2_emulated" in values:
        wrong = CHOICES["exp2_emulated"].accepts(values["exp2_emulated"])
        if wrong:
            raise ValueError(f"exp2_emulated={values['exp2_emulated']!r}; {wrong}")
    if values.pop("causal", False):
        values["mask"] = masks.Causal()
    values.setdefault("pairs", policy.pairs())
    depth = values.pop("head_dim")
    config = BackwardConfig(depth=depth, depth_v=values.pop("head_dim_v", depth), **values)
    why = config.refusals()
    if why:
        raise ValueError("; ".join(why))
    return [config]


def _of_indexer(values: dict) -> list:
    _require(values, "heads")
    heads = values["heads"]
    _depth("heads", heads, OF_HEADS, MOST_HEADS)
    config = IndexerConfig(**{"queries": queries_of_tile(heads), **values})
    why = config.refusals()
    if why:
        raise ValueError("; ".join(why))
    return [config]


def _of_topk(values: dict) -> list:
    config = TopKConfig(**values)
    why = config.refusals()
    if why:
        raise ValueError("; ".join(why))
    return [config]


def _of_block_lists(values: dict) -> list:
    _require(values, "makes")
    _one_of(values, makes=tuple(MAKES), arch=ARCHES)
    return [BlockListsConfig(**values)]


def _depth(name: str, depth: int, multiple: int, most: int | None = None) -> None:
    if depth <= 0 or depth % multiple or depth > (most or depth):
        limit = f" up to {most}" if most else ""
        raise ValueError(f"{name}: {depth}; accepted: a multiple of {multiple}{limit}")


def _one_of(values: dict, **accepted: tuple) -> None:
    for name, words in accepted.items():
        if values.get(name, words[0]) not in words:
            raise ValueError(f"{name}: {values[name]!r}; accepted: {', '.join(words)}")


class _Kind(NamedTuple):
    """A kind of entry for one kernel without a schedule.

    config    class of its configurations
    make      the configurations of an entry's values
    always    fields of the configuration that each entry has
    plain     the configuration with the same `always`, and otherwise with what an entry leaves out
    """

    config: type
    make: Callable[[dict], list]
    always: tuple[str, ...]
    plain: Callable


_OF_ONE = {
    "append": _Kind(
        AppendConfig,
        _of_append,
        ("dtype", "depth"),
        lambda config: AppendConfig(config.dtype, config.depth, config.depth),
    ),
    "combine": _Kind(
        CombineConfig,
        _of_combine,
        ("o_dtype", "depth"),
        lambda config: CombineConfig(config.o_dtype, config.depth),
    ),
    "backward": _Kind(
        BackwardConfig,
        _of_backward,
        ("dtype", "depth"),
        lambda config: BackwardConfig(config.dtype, config.depth, config.depth),
    ),
    "indexer": _Kind(
        IndexerConfig,
        _of_indexer,
        ("heads",),
        lambda config: IndexerConfig(config.heads, queries_of_tile(config.heads)),
    ),
    "topk": _Kind(TopKConfig, _of_topk, (), lambda config: TopKConfig()),
    "block_lists": _Kind(
        BlockListsConfig, _of_block_lists, (), lambda config: BlockListsConfig("")
    ),
}
_CONFIGS_OF = {
    "model": _of_model,
    "config": _of_config,
    **{name: kind.make for name, kind in _OF_ONE.items()},
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
    """The Python value for a value of TOML. ValueError for another type."""
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


_CALLS: dict[str, tuple[dict, type]] = {
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
    """-> (kind, the fields of an entry for exactly this configuration).

    ConfigDataError for the user's own functions, which an entry cannot spell.
    """
    to_data(config)
    for mod in (getattr(config, "score_mod", None), getattr(config, "mask_mod", None)):
        if mod is not None and any(packaged_call(part.key) is None for part in mod.parts):
            raise ConfigDataError(
                f"{mod.name}: a function of your own has no entry; pass it to aot.export"
            )
    for name, kind in _OF_ONE.items():
        if isinstance(config, kind.config):
            always = {_RENAMED.get(field, field): getattr(config, field) for field in kind.always}
            return name, always | _changes(config, kind.plain(config))
    said = {"qkv_dtype": config.qkv_dtype, "head_dim": config.qk_depth}
    problem = _changes(config, FA4Config(qkv_dtype=config.qkv_dtype, qk_depth=config.qk_depth))
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
        if name == "aux":
            new = [list(pair) for pair in new]
        elif name == "wanted":
            new = list(new)
        found[called] = new if isinstance(new, (bool, int, float, str, list)) else repr(new)
    return found


def toml(config) -> str:
    """The entry of a configuration, ready for a catalogue."""
    kind, said = entry_of(config)
    lines = (f"{name} = {_toml_value(value)}" for name, value in said.items())
    return "\n".join([f"[[{kind}]]", *lines]) + "\n"


def _toml_value(value) -> str:
    # Strings, numbers and lists of these are written alike in JSON and in TOML, and so are true and false.
    return json.dumps(value)
