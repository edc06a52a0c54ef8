"""Configurations as plain data, and back: the form used by manifests, catalogues and cache keys.

    FA4Config(qk_depth=64, mask=masks.Causal())
    {"kind": "FA4Config", "qk_depth": 64, "mask": {"kind": "Causal"}, ...}

Nothing is executed to read it: classes come from the tables below, score functions from the ones of this package, by
name and argument, or as the operations that were traced (sm100/traced/). Every field is written and every field is
required, so that data of another version is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import get_args

from cute_fa4.compiler.compiler import Config
from cute_fa4.scales import Scales
from cute_fa4.sm100.blueprint import bands, score_mods
from cute_fa4.sm100.blueprint.score_mods import PACKAGED, ScoreMod, packaged_call
from cute_fa4.sm100.choose.config import SCHEDULES
from cute_fa4.sm100.traced.trace import Traced

CONFIG_CLASSES = {cls.__name__: cls for cls in get_args(Config)}
_PARTS: dict[str, type] = {**bands.KINDS, **SCHEDULES}
_WARP_ROLES = {
    type(cls().warps) for cls in SCHEDULES.values() if "warps" in cls.__dataclass_fields__
}
_PARTS |= {cls.__name__: cls for cls in _WARP_ROLES}


class ConfigDataError(ValueError):
    """The value is not a configuration of this version, or cannot be written as data."""


def to_data(config: Config) -> dict:
    """JSON-ready. ConfigDataError for values that have no form as data."""
    return _encode(config, type(config).__name__)


def from_data(data) -> Config:
    """The configuration of `to_data`. ConfigDataError, with the field, for anything else."""
    return _decode(data, CONFIG_CLASSES, "configuration")


def _encode(value, where: str):
    if isinstance(value, ScoreMod):
        return {"kind": "score_mod", "functions": _score_mod_calls(value, where)}
    if isinstance(value, range):
        return {"kind": "range", "start": value.start, "stop": value.stop}
    if isinstance(value, tuple):
        return [_encode(item, where) for item in value]
    if type(value) in (*CONFIG_CLASSES.values(), *_PARTS.values()):
        named = {f.name: _encode(getattr(value, f.name), f.name) for f in fields(value)}
        return {"kind": type(value).__name__, **named}
    if isinstance(value, Scales):
        return value.letters
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ConfigDataError(
        f"{where}: {value!r} has no form as data; accepted: numbers, strings and the parts of a "
        "configuration that this package defines"
    )


def _decode(data, classes: dict, where: str):
    if isinstance(data, list):
        return tuple(_decode(item, classes, where) for item in data)
    if not isinstance(data, dict):
        if data is None or isinstance(data, (bool, int, float, str)):
            return data
        raise ConfigDataError(f"{where}: a {type(data).__name__}; accepted: data of to_data")
    kind = data.get("kind")
    values = {name: value for name, value in data.items() if name != "kind"}
    if kind == "range" and _are_ints(values, ("start", "stop")):
        return range(values["start"], values["stop"])
    if kind == "score_mod" and set(values) == {"functions"}:
        return _score_mod_of(values["functions"], where)
    cls = classes.get(kind) if isinstance(kind, str) else None
    if cls is None:
        raise ConfigDataError(
            f"{where}: kind {kind!r}; accepted: one of {', '.join(sorted(classes))}"
        )
    wanted = {f.name for f in fields(cls)}
    if set(values) != wanted:
        missing, unknown = sorted(wanted - set(values)), sorted(set(values) - wanted)
        raise ConfigDataError(
            f"{where}: {kind} without {missing} and with unknown {unknown}; it was written by another version: "
            "export again with this one"
        )
    found = {name: _decode(value, _PARTS, name) for name, value in values.items()}
    try:
        return cls(**found)
    except ValueError as error:
        raise ConfigDataError(f"{where}: {kind} with {error}") from None


def _are_ints(values: dict, names: tuple) -> bool:
    return set(values) == set(names) and all(type(v) is int for v in values.values())


TRACED = "traced"
"""In the place of a name: a function of the caller's, by what it computes."""


def _score_mod_calls(mod: ScoreMod, where: str) -> list:
    """[[name, argument], ...], applied in this order."""
    return [_score_mod_call(part, where) for part in mod.parts]


def _score_mod_call(part: ScoreMod, where: str) -> list:
    if isinstance(part.function, Traced):
        return [TRACED, part.function.data()]
    call = packaged_call(part.key)
    if call is None:
        raise ConfigDataError(
            f"{where}: {part.key} has no form as data; accepted: {', '.join(PACKAGED)} of cute_fa4.score_mods, "
            "functions that ScoreMod.of can trace, and compositions of them"
        )
    return list(call)


def _score_mod_of(calls, where: str) -> ScoreMod:
    mod = None
    for call in calls if isinstance(calls, list) else [None]:
        mod = score_mods.composed(mod, _one_score_mod(call, where))
    if mod is None:
        raise ConfigDataError(f"{where}: no score function in {calls!r}; accepted: one or more")
    return mod


def _one_score_mod(call, where: str) -> ScoreMod:
    is_pair = isinstance(call, list) and len(call) == 2
    if is_pair and call[0] == TRACED:
        try:
            return score_mods.of_traced(Traced.of_data(call[1]))
        except ValueError as error:
            raise ConfigDataError(f"{where}: {error}") from None
    if not is_pair or call[0] not in PACKAGED or not isinstance(call[1], (bool, int, float)):
        raise ConfigDataError(
            f"{where}: score function {call!r}; accepted: [name, number] with a name of "
            f"{', '.join(PACKAGED)}, or [{TRACED!r}, what it computes]"
        )
    make: Callable = PACKAGED[call[0]]
    return make(call[1])
