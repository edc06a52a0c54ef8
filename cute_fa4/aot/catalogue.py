"""Catalogue files: sets of kernels to export, as TOML.

    [defaults]                    # optional; what the sets below do not say themselves
    dtype = "bf16"
    page_sizes = [16, 64]

    [[model]]                     # the arguments of configs_for_model
    name = "Llama 3 8B"
    head_dim = 128
    heads_q = 32
    heads_kv = 8

    [[config]]                    # one FA4Config: the arguments of choose_config
    name = "encoder"
    qkv_dtype = "bf16"
    head_dim = 64

catalogues/serving.toml ships with the package; its name is "serving".
"""

from __future__ import annotations

import inspect
from pathlib import Path

from cute_fa4.aot.manifest import ExportError
from cute_fa4.aot.models import configs_for_model

SHIPPED = Path(__file__).parent / "catalogues"
_MODEL_FIELDS = tuple(inspect.signature(configs_for_model).parameters)
_CONFIG_FIELDS = (
    "qkv_dtype", "head_dim", "group", "causal", "write_lse", "arch", "q_layout", "kv_layout", "seqused_q",
    "seqused_k", "cache_excludes_new", "padded_keys", "page_size", "fold_pages", "pack_gqa",
    "sink", "sink_dtype", "claims",
)  # fmt: skip


def shipped() -> list[str]:
    """Names of the catalogues that come with the package."""
    return sorted(path.stem for path in SHIPPED.glob("*.toml"))


def read_catalogue(path, *, models: tuple[str, ...] | None = None) -> list:
    """Configurations of a catalogue, without doubles. path is a file, or a name of shipped().

    models  only the sets of these names. Raises ExportError with the place for what is not understood.
    """
    path = _path(path)
    content = _parse(path)
    unknown = sorted(set(content) - {"defaults", "model", "config"})
    if unknown:
        raise ExportError(f"{path}: {unknown}; accepted: [defaults], [[model]] and [[config]]")
    defaults = content.get("defaults", {})
    found, names = [], []
    for kind, fields in (("model", _MODEL_FIELDS), ("config", _CONFIG_FIELDS)):
        for i, entry in enumerate(content.get(kind, [])):
            name = entry.get("name", f"[[{kind}]] number {i + 1}")
            names.append(name)
            if models is not None and name not in models:
                continue
            given = {k: v for k, v in defaults.items() if kind == "model"} | entry
            given.pop("name", None)
            found += _configs(f"{path}: {name}", kind, fields, given)
    missing = [name for name in models or () if name not in names]
    if missing:
        raise ExportError(f"{path}: no set named {missing}; accepted: {', '.join(names)}")
    if not found:
        raise ExportError(f"{path}: no [[model]] and no [[config]]")
    return list(dict.fromkeys(found))


def _configs(where: str, kind: str, fields: tuple, given: dict) -> list:
    unknown = sorted(set(given) - set(fields))
    if unknown:
        raise ExportError(f"{where}: {unknown}; accepted: {', '.join(fields)}")
    try:
        if kind == "model":
            lists = {k: tuple(v) if isinstance(v, list) else v for k, v in given.items()}
            if "windows" in lists:
                # TOML has no null: an empty list is full attention
                lists["windows"] = tuple(tuple(w) if w else None for w in lists["windows"])
            return configs_for_model(**lists)
        from cute_fa4.compiler import policy
        from cute_fa4.sm100.choose_config import choose_config

        config = choose_config(**{"claims": policy.claims(), **given})
        refusals = config.refusals()
        if refusals:
            raise ValueError("; ".join(refusals))
        return [config]
    except (TypeError, ValueError) as error:
        raise ExportError(f"{where}: {error}") from None


def _path(path) -> Path:
    if str(path) in shipped():
        return SHIPPED / f"{path}.toml"
    path = Path(path)
    if not path.is_file():
        raise ExportError(
            f"{path}: no such file; accepted: a TOML file, or one of {', '.join(shipped())}"
        )
    return path


def _parse(path: Path) -> dict:
    try:
        import tomllib
    except ModuleNotFoundError:  # Python 3.10
        try:
            import tomli as tomllib
        except ModuleNotFoundError:
            raise ExportError(
                "reading TOML on Python 3.10 needs a package: pip install tomli"
            ) from None
    try:
        return tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ExportError(f"{path}: {error}") from None
